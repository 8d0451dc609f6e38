"Metrics survive kills, several writers and clients that misbehave."
import json
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grail.core.basics import FormatError
from grail.monitor.metrics import JsonLines, MetricsFile, Timeline, WandbSink, check_line, flat, plain, read_metrics, stripped, wandb_run

WINDOW = dict(kind='window', window=30, train={'pass@1': .25}, val=None, checkpoint='00'*32)
WRITER = '''
import sys
from grail.monitor.metrics import JsonLines
f, who = JsonLines(sys.argv[1]), sys.argv[2]
for i in range(int(sys.argv[3])): f.write({'window': i, 'who': who, 'filler': 'x'*2000})
'''


def test_a_killed_writer_leaves_whole_lines_and_the_next_goes_on(tmp_path):
    path = tmp_path/'m.jsonl'
    p = subprocess.Popen([sys.executable, '-c', WRITER, str(path), 'a', '100000000'])
    while not path.exists() or path.stat().st_size < 200_000: time.sleep(.01)
    p.send_signal(signal.SIGKILL)
    p.wait()
    n = len(read_metrics(path))
    f = JsonLines(path)
    f.write(WINDOW)
    f.close()
    lines = read_metrics(path)
    assert len(lines) == n+1 and lines[-1] == WINDOW and [l['window'] for l in lines[:-1]] == list(range(n))

@pytest.mark.parametrize('cut', [1, 10, 50])
def test_a_stump_is_passed_over_and_removed(tmp_path, cut):
    path = tmp_path/'m.jsonl'
    f = MetricsFile(path)
    f.write(WINDOW); f.write({**WINDOW, 'window': 60}); f.close()
    path.write_bytes(path.read_bytes()[:-cut])
    assert [l['window'] for l in read_metrics(path)] == [30]
    MetricsFile(path).close()
    assert path.read_bytes().count(b'\n') == 1 and path.read_bytes().endswith(b'\n')

def test_a_resumed_run_writes_the_bytes_of_one_that_was_not_interrupted(tmp_path):
    line = lambda w: {**WINDOW, 'window': w, 'val': {'pass@1': w/1000}}
    whole, resumed = MetricsFile(tmp_path/'a.jsonl'), MetricsFile(tmp_path/'b.jsonl')
    for w in range(0, 300, 30): whole.write(line(w))
    for w in range(0, 210, 30): resumed.write(line(w))
    resumed.close()
    resumed = MetricsFile(tmp_path/'b.jsonl')
    resumed.truncate_after(120)
    for w in range(150, 300, 30): resumed.write(line(w))
    assert (tmp_path/'a.jsonl').read_bytes() == (tmp_path/'b.jsonl').read_bytes()
    assert [p.name for p in tmp_path.iterdir() if p.suffix == '.tmp'] == []

def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    (tmp_path/'m.jsonl').write_text('{"window":0}\n{"window":\n{"window":2}\n')
    with pytest.raises(FormatError, match='line 2'): read_metrics(tmp_path/'m.jsonl')

@pytest.mark.parametrize('line', [{}, {'window': None}, {'window': True}, {'window': 30.},
                                  {'kind': 'window', 'window': 30}, {'kind': 'miner', 'window': 30, 'name': 'x'}])
def test_lines_without_their_fields_are_refused_and_not_written(tmp_path, line):
    f = MetricsFile(tmp_path/'m.jsonl')
    with pytest.raises(FormatError): f.write(line)
    assert read_metrics(tmp_path/'m.jsonl') == []

values = st.recursive(st.none() | st.booleans() | st.integers(-2**53, 2**53) | st.floats() | st.text(st.characters(codec='utf-8')),
                      lambda s: (st.lists(s, max_size=3)
                                 | st.dictionaries(st.text(st.characters(codec='utf-8'), max_size=8), s, max_size=3)),
                      max_leaves=8)

@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(st.characters(codec='utf-8'), max_size=8), values, max_size=4))
def test_what_is_written_is_what_is_read(tmp_path_factory, line):
    path = tmp_path_factory.mktemp('m')/'m.jsonl'
    f = JsonLines(path)
    f.write({**line, 'window': 0})
    f.close()
    assert read_metrics(path) == [{**plain(line), 'window': 0}]

@settings(max_examples=50, deadline=None)
@given(values)
def test_stripped_lines_hold_no_clock_and_lose_nothing_else(value):
    def fields(v):
        return ([k for k, w in v.items() for k in [k, *fields(w)]] if isinstance(v, dict) else
                [k for w in v for k in fields(w)] if isinstance(v, list) else [])
    timed = {'a': value, 'took_seconds': 1., 'b': [{'x_seconds': 2, 'y': value}]}
    assert fields(stripped(plain(timed))) == [k for k in fields({'a': plain(value), 'b': [{'y': plain(value)}]})
                                              if not k.endswith('_seconds')]

def test_tensors_and_arrays_become_numbers():
    import numpy as np
    import torch
    assert plain({'a': torch.tensor(2), 'b': torch.tensor([1., float('inf')]), 'c': np.arange(2)}) == {'a': 2, 'b': [1., None], 'c': [0, 1]}


def test_the_timeline_notes_a_task_that_failed(tmp_path):
    t = Timeline(tmp_path/'t.jsonl')
    with pytest.raises(KeyError):
        with t.task(30, 'trainer', 'theo', 'train'): raise KeyError
    line, = read_metrics(tmp_path/'t.jsonl')
    assert line['task'] == 'train' and line['end'] >= line['start'] > 1e9


class Slow:
    def log(self, line): time.sleep(60)
    def finish(self): pass

def test_a_slow_client_costs_no_time_and_an_angry_one_no_run(tmp_path):
    def angry(): raise RuntimeError('unauthorised')
    sinks = [WandbSink(Slow, size=10), WandbSink(angry)]
    f = MetricsFile(tmp_path/'m.jsonl', sinks)
    start = time.perf_counter()
    for w in range(200): f.write({**WINDOW, 'window': w})
    assert time.perf_counter() - start < 5
    assert len(read_metrics(tmp_path/'m.jsonl')) == 200 and sinks[0].dropped >= 188 and 'unauthorised' in sinks[1].error
    start = time.perf_counter()
    for s in sinks: s.close(timeout=.1)
    assert time.perf_counter() - start < 10

def test_lines_become_names_and_numbers():
    assert flat({**WINDOW, 'ok': True, 'loss': None}) == {'window': 30, 'train/pass@1': .25, 'checkpoint': '00'*32, 'ok': 1}

def test_a_real_offline_run_of_wandb_is_written(tmp_path):
    pytest.importorskip('wandb', reason='the wandb package is not installed')
    sink = WandbSink(folder=tmp_path, name='test', config={'seed': 0})
    for w in range(3): sink.write({**WINDOW, 'window': 30*w})
    sink.close(timeout=60)
    assert sink.error is None and not sink.thread.is_alive()
    written, = tmp_path.rglob('*.wandb')
    until = time.time() + 30                # the package's own process writes the file, and may do so a little later
    while b'train/pass@1' not in written.read_bytes() and time.time() < until: time.sleep(.1)
    assert b'train/pass@1' in written.read_bytes()

def test_without_the_package_the_run_goes_on(monkeypatch):
    monkeypatch.setitem(sys.modules, 'wandb', None)
    sink = WandbSink(wandb_run)
    sink.write(WINDOW)
    sink.close()
    assert 'wandb' in sink.error

def test_metrics_are_readable_with_nothing_but_json(tmp_path):
    f = MetricsFile(tmp_path/'m.jsonl')
    f.write(WINDOW)
    assert [json.loads(l) for l in (tmp_path/'m.jsonl').read_text().splitlines()] == [check_line(WINDOW)]
