"A published verdict is made again by anybody, and one that was edited in any field is refused"
import json
import shutil
from dataclasses import fields, replace

import pytest
from typer.testing import CliRunner

from grail.cli.main import app
from grail.core.basics import FormatError, NotFound
from grail.roles.replay import replay
from grail.roles.simulate import begin, settings, simulate
from grail.verify.pipeline import Verdict, read_verdict, sign_verdict


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp('replay')/'run'
    sim = begin(settings(windows=3, groups=2, miners='honest,inflated,constant', eval_every=0, eval_tasks=5, eval_samples=1,
                         rules=dict(audit_fraction=1.0)), out)
    simulate(sim)
    return sim, sorted((out/'buckets').glob('*/verdicts/**/*.json'))

def verify(path, *more): return CliRunner().invoke(app, ['verify', '--verdict', str(path), *more])

def passed(run): return next(p for p in run[1] if json.loads(p.read_bytes())['verdict']['passed'])


def test_every_verdict_of_a_run_is_confirmed(run):
    assert len(run[1]) >= 6 and {json.loads(p.read_bytes())['verdict']['passed'] for p in run[1]} == {True, False}
    for p in run[1]:
        done = verify(p)
        assert done.exit_code == 0 and 'confirmed' in done.output, done.output

def other(value):
    "Something else of the same form"
    if isinstance(value, bool): return not value
    if isinstance(value, (int, float)): return value + 30
    if isinstance(value, str): return value[::-1] if len(value) > 8 else value + 'x'
    if isinstance(value, tuple) and value and isinstance(value[0], dict): return ({**value[0], 'run': value[0]['run'] + 1}, *value[1:])
    if isinstance(value, tuple): return (value[0] + 1, *value[1:])
    return {**value, 'beacon': value['beacon'][::-1]}

@pytest.mark.parametrize('name', [f.name for f in fields(Verdict) if f.name not in ('window', 'hotkey')])
def test_a_field_that_its_own_validator_edited_is_refused_and_named(run, name):
    sim, v = run[0], read_verdict(passed(run).read_bytes()).verdict
    found = replay(sign_verdict(sim.validators[0].keypair, replace(v, **{name: other(getattr(v, name))})), sim.network)
    assert not found.confirmed
    assert [r for r in found.reasons if r.startswith(name) or f'the {name} randomness' in r], found.reasons

@pytest.mark.parametrize('case', ['another window of the run', 'the window before', 'another miner', 'no miner', 'no hotkey', 'a path'])
def test_a_verdict_that_its_own_validator_moved_to_another_window_or_miner_is_refused(run, case):
    sim, v = run[0], read_verdict(passed(run).read_bytes()).verdict
    others = [int(read_verdict(p.read_bytes()).verdict.window) for p in run[1]]
    edit = {'another window of the run': lambda: dict(window=next(w for w in others if w != v.window)),
            'the window before': lambda: dict(window=v.window - 30),
            'another miner': lambda: dict(hotkey=next(m.hotkey for m in sim.miners if m.hotkey != v.hotkey)),
            'no miner': lambda: dict(hotkey=sim.validators[0].hotkey), 'no hotkey': lambda: dict(hotkey=v.hotkey[::-1]),
            'a path': lambda: dict(hotkey='../x')}[case]()
    try: found = replay(sign_verdict(sim.validators[0].keypair, replace(v, **edit)), sim.network)
    except (FormatError, NotFound) as e:
        assert str(e) and case in ('the window before', 'a path')  # there was no such window, it is no name
    else: assert not found.confirmed and found.reasons and case != 'the window before'

@pytest.mark.parametrize('window', [0, 30, 31, 10**12])
def test_a_verdict_on_a_window_that_the_run_does_not_have_is_never_confirmed(run, window, tmp_path):
    sim, v = run[0], read_verdict(passed(run).read_bytes()).verdict
    (tmp_path/'v.json').write_bytes(sign_verdict(sim.validators[0].keypair, replace(v, window=window)))
    done = verify(tmp_path/'v.json', '--run', str(sim.out))
    assert (done.exit_code != 0 and 'confirmed' not in done.output and 'Traceback' not in done.output
            and not isinstance(done.exception, AssertionError))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception

@pytest.mark.parametrize('line', ['name', 'run', 'failed', 'worst', 'threshold', 'reason'])
def test_an_edited_value_of_any_check_is_refused(run, line):
    sim, v = run[0], read_verdict(passed(run).read_bytes()).verdict
    new = {'name': 'proof', 'reason': 'no', 'worst': .5, 'threshold': .5, 'run': 7, 'failed': 1}[line]
    for i, c in enumerate(v.checks):
        if c[line] == new or line == 'name' and c['severity'] == 'soft': continue
        made = replace(v, checks=(*v.checks[:i], {**c, line: new}, *v.checks[i+1:]))
        assert not replay(sign_verdict(sim.validators[0].keypair, made), sim.network).confirmed
        break
    else: pytest.fail('nothing to edit')

def test_an_edit_without_the_key_is_refused(run, tmp_path):
    sim, _ = run
    shutil.copy(passed(run), tmp_path/'v.json')
    d = json.loads((tmp_path/'v.json').read_bytes())
    d['verdict']['rollouts'] += 16
    (tmp_path/'v.json').write_text(json.dumps(d))
    done = verify(tmp_path/'v.json', '--run', str(sim.out))
    assert done.exit_code == 1 and 'REFUSED' in done.output

def test_who_is_no_validator_cannot_publish_verdicts(run):
    sim, v = run[0], read_verdict(passed(run).read_bytes()).verdict
    assert not replay(sign_verdict(sim.miners[0].keypair, v), sim.network).confirmed

def test_a_replay_changes_nothing_in_the_run(run):
    sim, _ = run
    state = lambda: {p: p.stat().st_mtime_ns for p in sim.out.rglob('*') if p.is_file() and not p.name.endswith(('-shm', '-wal'))}
    before = state()
    assert verify(passed(run)).exit_code == 0
    assert state() == before
