"The report holds for any run: empty, long, unfinished, full of hostile names."
import json
from html.parser import HTMLParser

import pytest

from grail.core.basics import FormatError
from grail.monitor.metrics import JsonLines, MetricsFile
from grail.monitor.report import CAPTIONS, load_run, per_miner, report, spread, summary, verdict_matrix

HOSTILE = ['<script>alert(1)</script>', '"><img src=https://evil.example/x>', '$\\frac{', '_hidden',
           '\x1b[2J', 'ключ', 'x'*3000, "'onload='x", '&amp;', '\u202eabc', '']


def line(w, name, behaviour='honest', audited=True, failed=(), rollouts=100, weight=.5):
    return dict(kind='miner', window=w, name=name, behaviour=behaviour, audited=audited, passed=not failed if audited else None,
                failed_checks=list(failed), rollouts=rollouts, weight=weight, trusted=weight > 0)

def window(w, p=.1, val=True):
    return dict(kind='window', window=w, train={'pass@1': p, 'pass@5': 2*p},
                val={'pass@1': p, 'pass@5': 2*p} if val else None, checkpoint='ab'*32)

def write(folder, lines, tasks=(), settings=None):
    f = MetricsFile(folder/'metrics.jsonl')
    for l in lines: f.write(l)
    f.close()
    if tasks:
        t = JsonLines(folder/'timeline.jsonl')
        for l in tasks: t.write(l)
        t.close()
    if settings: (folder/'settings.json').write_text(json.dumps(settings))

class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.urls, self.text = [], [], []
        self.feed(text)
    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.urls += [v for k, v in attrs if k in ('src', 'href', 'srcset', 'action', 'data')]
        assert not [k for k, _ in attrs if k.startswith('on')]
    def handle_data(self, data): self.text.append(data)

def page(folder): return Page(report(folder).read_text(encoding='utf-8'))


def test_hostile_names_stay_text(tmp_path):
    tasks = [dict(window=30, role='miner', name=n, task=n[:20], start=1., end=2.) for n in HOSTILE]
    write(tmp_path, [window(30), window(60)] + [line(w, n, n, failed=[n[:20]], weight=.1) for w in (30, 60) for n in HOSTILE], tasks,
          {'<b>': '</table><script>', 'nested': {'a': HOSTILE}})
    p = page(tmp_path)
    assert 'script' not in p.tags and all(u.startswith('data:image/png;base64,') for u in p.urls)
    assert all(n in p.text for n in HOSTILE if n and n.isprintable())
    assert sorted(f.name for f in tmp_path.glob('*.png')) == sorted(f'{n}.png' for n in [*CAPTIONS, 'overview'])

def test_nothing_is_loaded_and_nothing_may_be(tmp_path):
    write(tmp_path, [window(30), line(30, 'a')])
    text = report(tmp_path).read_text()
    assert "default-src 'none'" in text and '://' not in text and '@import' not in text and 'url(' not in text

@pytest.mark.parametrize('lines', [[], [window(30)], [line(30, 'a')], [window(30, val=False), line(30, 'a', audited=False, weight=0.)],
                                   [dict(kind='window', window=0, train=None, val=None, checkpoint=None)]],
                         ids=['none', 'window', 'miner', 'unmeasured', 'nulls'])
def test_unfinished_runs_have_a_report(tmp_path, lines):
    write(tmp_path, lines)
    p = page(tmp_path)
    assert p.tags.count('h1') == 1 and 'None' not in ''.join(p.text)

def test_a_missing_or_broken_run_is_an_error_that_says_so(tmp_path):
    with pytest.raises(FileNotFoundError): report(tmp_path)
    (tmp_path/'metrics.jsonl').write_text('no json\n')
    with pytest.raises(FormatError, match='line 1'): report(tmp_path)

def test_a_large_network_fits_on_the_page(tmp_path):
    lines = [window(30)] + [line(30, f'm{i}', 'honest' if i % 10 else 'stale',
                                 failed=[] if i % 10 else ['proof'], weight=1/256 if i % 10 else 0.) for i in range(256)]
    write(tmp_path, lines)
    report(tmp_path)
    rows, checks, failed = verdict_matrix(load_run(tmp_path))
    assert len(rows) == 40 and sum(r.behaviour == 'stale' for r in rows) == 26 and failed[:, checks.index('proof')].sum() == 26

def test_the_same_run_gives_the_same_bytes(tmp_path):
    write(tmp_path, [window(30), window(60, .3), line(30, 'a'), line(60, 'b', 'stale', failed=['proof'], weight=0.)],
          [dict(window=30, role='miner', name='a', task='prove', start=1., end=2.)])
    once = {f.name: f.read_bytes() for f in [report(tmp_path), *tmp_path.glob('*.png')]}
    assert once == {f.name: f.read_bytes() for f in [report(tmp_path), *tmp_path.glob('*.png')]} and len(once) == 7

def test_counts_are_those_of_the_lines(tmp_path):
    write(tmp_path, [window(30, .03), window(60, .2, val=False), window(90, .4),
                     line(30, 'a'), line(60, 'a', audited=False), line(90, 'a'),
                     line(30, 'c', 'stale'), line(60, 'c', 'stale', failed=['proof', 'logprob'], rollouts=0, weight=0.),
                     line(90, 'c', 'stale', audited=False, rollouts=0, weight=0.)])
    run = load_run(tmp_path)
    s = summary(run)
    assert (s['pass@1 first'], s['pass@1 last'], s['windows'], s['rollouts']) == (.03, .4, 3, 400)
    assert (s['honest audits'], s['honest failures'],
            s['cheater audits'], s['cheater failures'], s['cheaters paid at the end']) == (2, 0, 2, 1, 0)
    honest, cheat = per_miner(run)
    assert dict(cheat.checks) == {'proof': 1, 'logprob': 1} and honest.windows == [1, 2, 3]

def test_an_honest_miner_that_fails_is_not_hidden(tmp_path):
    write(tmp_path, [window(30), line(30, 'a', failed=['proof'])])
    assert summary(load_run(tmp_path))['honest failures'] == 1 and 'failed 1 times' in ''.join(page(tmp_path).text)

def test_the_chosen_window_is_the_one_that_is_shown(tmp_path):
    write(tmp_path, [window(30), line(30, 'a')],
          [dict(window=w, role='miner', name='a', task='prove', start=w, end=w+.1*w) for w in (30, 60)])
    shown = lambda w: (report(tmp_path, window=w), (tmp_path/'timeline.png').read_bytes())[1]
    assert shown(30) != shown(60)

def test_labels_keep_their_distance_and_order():
    assert spread([0, 1, 50, 50], 5) == [0, 5, 50, 55] and spread([50, 0, 1], 5) == [50, 0, 5] and spread([], 5) == []
