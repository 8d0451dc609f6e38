"What programs do when the world fails, without a network of them: asking again, stopping, full disks, settings."
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from grail.core.basics import ConfigError, NotFound
from grail.core.window import Window
from grail.monitor.metrics import read_metrics
from grail.network.chain import LocalChain, RealClock, Unavailable
from grail.roles.process import Diary, Program, Stopped, Worker, read_state, write_state
from grail.roles.settings import env_example, load_key, node_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def program(tmp_path):
    (tmp_path/'key').write_text('07'*32)
    s = node_settings(env={}, key_file=str(tmp_path/'key'), chain=f'local:{tmp_path}/chain.db', endpoint=f'folder:{tmp_path}/buckets',
                      beacon='http://127.0.0.1:9', trainer='nobody', state=str(tmp_path/'state'))
    LocalChain(tmp_path/'chain.db', RealClock(), block_time=.1).register(load_key(s))
    p = Program(s)
    yield p
    p.stop.set()

@pytest.fixture
def small_disk(tmp_path):
    path = tmp_path/'small'
    path.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=40k', 'tmpfs', str(path)], capture_output=True).returncode: pytest.skip('this user may not mount')
    yield path
    subprocess.run(['umount', '-l', str(path)], check=True)

def fill(folder):
    try:
        with open(folder/'filler', 'wb') as f:
            while True: f.write(b'x'*1024); f.flush()
    except OSError: pass


def test_the_example_of_settings_is_the_present_one():
    assert (ROOT/'.env.example').read_text() == env_example()

def test_a_question_is_asked_again_until_it_is_answered(program):
    tries = []
    def flaky():
        tries.append(time.time())
        if len(tries) < 3: raise Unavailable('not now')
        return 'answer'
    assert program.ask('example', flaky) == 'answer'
    pauses = [b - a for a, b in zip(tries, tries[1:])]
    assert .15 < pauses[0] < pauses[1] < 2 and program.counts['failures'] == 2

def test_a_question_is_not_asked_for_longer_than_it_matters(program):
    def absent(): raise NotFound('nothing')
    start = time.time()
    with pytest.raises(NotFound): program.ask('example', absent, until=program.now() + 1)
    assert time.time() - start < 1.5 and program.counts['failures'] == 0        # what is not there yet is no failure

def test_some_errors_are_final(program):
    def wrong(): raise ConfigError('never')
    start = time.time()
    with pytest.raises(ConfigError): program.ask('example', wrong, final=(ConfigError,))
    assert time.time() - start < .2

def test_a_signal_ends_every_kind_of_waiting_at_once(program):
    def absent(): raise NotFound('nothing')
    ended = []
    def wait(f):
        try: f()
        except Stopped: ended.append(time.time())
    jobs = [lambda: program.ask('example', absent), lambda: program.wait_until(program.now() + 100), lambda: program.pause(100),
            lambda: program.due(Window(0), program.now() + 100)]
    threads = [threading.Thread(target=wait, args=(j,)) for j in jobs]
    for t in threads: t.start()
    time.sleep(1)
    stopped = time.time()
    program.stop.set()
    for t in threads: t.join(5)
    assert len(ended) == len(jobs) and max(ended) - stopped < 1

def test_a_worker_keeps_no_more_than_its_queue_holds(program):
    gate, made = threading.Event(), []
    worker = Worker('example', program.stop, size=2)
    def produce():
        for i in range(10): made.append(worker.submit(gate.wait, 20))
    t = threading.Thread(target=produce, daemon=True)
    t.start()
    time.sleep(1)
    assert len(made) == 3                                                       # one in work, two in the queue
    gate.set()
    t.join(10)
    assert len(made) == 10

def test_a_full_disk_keeps_the_old_state_and_whole_lines(small_disk):
    write_state(small_disk/'state.json', dict(window=30))
    diary = Diary(small_disk/'timeline.jsonl')
    line  = dict(window=30, role='r', name='n', task='upload', start=1., end=2.)
    diary.write(line)
    fill(small_disk)
    with pytest.raises(OSError): write_state(small_disk/'state.json', dict(window=60, more='x'*5000))
    assert read_state(small_disk/'state.json') == dict(window=30)
    for _ in range(500): diary.write(line)
    assert diary.lost > 0 and diary.take()['upload'] == 501
    (small_disk/'filler').unlink()
    diary.write(dict(line, window=60))
    lines = read_metrics(small_disk/'timeline.jsonl')
    assert lines[0] == line and lines[-1]['window'] == 60 and len(lines) == 502 - diary.lost
    assert [p.name for p in small_disk.iterdir() if p.name.startswith('.')] == []

def test_a_program_whose_state_cannot_be_written_goes_on(program, monkeypatch):
    os.rename(program.folder, program.folder.with_name('gone'))
    program.keep(submitted=90)
    assert program.state['submitted'] == 90 and program.counts['failures'] == 1
    os.rename(program.folder.with_name('gone'), program.folder)
    program.keep(submitted=120)
    assert read_state(program.folder/'state.json') == dict(submitted=120)

def test_two_programs_do_not_share_a_state_folder(program):
    with pytest.raises(ConfigError, match='another program'): Program(program.s)
