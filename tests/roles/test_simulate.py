"""A whole small network: the same seed gives the same bytes, a killed run ends as if nothing had happened, \
cheats fail, honest miners do not."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from grail.core.basics import ConfigError
from grail.monitor.metrics import read_metrics, stripped
from grail.network.exchange import list_verdicts, read_verdict
from grail.roles.simulate import FIRST, begin, proceed, settings, simulate
from grail.verify.pipeline import read_verdict as open_verdict

CHEATS = ('noised', 'stale', 'inflated', 'tampered', 'constant', 'copied', 'replayed')
SMALL = dict(windows=7, groups=8, eval_every=0, eval_tasks=20, eval_samples=2)


@pytest.fixture(scope='module')
def everybody_audited(tmp_path_factory):
    "A run in which every miner is audited in every window (unless it is banned)"
    sim = begin(settings(**SMALL, seed=5, rules=dict(audit_fraction=1.0, ban_windows=0)), tmp_path_factory.mktemp('strict'))
    return sim, simulate(sim)


def miner_lines(lines): return [l for l in lines if l['kind'] == 'miner']


@pytest.mark.parametrize('cheat', CHEATS)
def test_every_audit_of_a_cheat_fails(everybody_audited, cheat):
    audited = [l for l in miner_lines(everybody_audited[1]) if l['behaviour'] == cheat and l['audited']]
    assert len(audited) >= 2
    assert all(l['passed'] is False and l['failed_checks'] for l in audited), audited


def test_every_audit_of_an_honest_miner_passes(everybody_audited):
    audited = [l for l in miner_lines(everybody_audited[1]) if l['behaviour'] == 'honest' and l['audited']]
    assert len(audited) >= 3*(SMALL['windows'] - 1)
    assert all(l['passed'] for l in audited)


def test_each_cheat_fails_the_check_that_is_meant_for_it(everybody_audited):
    meant = dict(noised={'logprob', 'proof'}, stale={'logprob'}, inflated={'environment'}, tampered={'environment'}, constant={'proof'},
                 copied={'environment'}, replayed={'structural', 'environment'})
    for cheat, checks in meant.items():
        seen = {c for l in miner_lines(everybody_audited[1]) if l['behaviour'] == cheat for c in l['failed_checks']}
        assert seen & checks, (cheat, seen)


def test_only_honest_miners_earn_and_the_fastest_earns_most(everybody_audited):
    last = [l for l in miner_lines(everybody_audited[1]) if l['window'] == max(m['window'] for m in miner_lines(everybody_audited[1]))]
    weights = {l['name']: l['weight'] for l in last}
    assert all(w == 0 for n, w in weights.items() if not n.startswith('honest'))
    assert weights['honest-0'] > weights['honest-1'] > weights['honest-2'] > 0
    share = {n: w for n, w in weights.items() if w}
    groups = {m.name: m.groups for m in everybody_audited[0].miners}
    assert share['honest-0']/share['honest-2'] == pytest.approx((groups['honest-0']/groups['honest-2'])**4, rel=0.2)


def test_two_validators_publish_identical_verdicts(everybody_audited):
    sim = everybody_audited[0]
    a, b = sim.validators
    compared = 0
    for i in range(SMALL['windows'] - 1):
        window = FIRST + i
        for m in sim.miners:
            if m.hotkey not in list_verdicts(a.network.bucket(a.hotkey), a.hotkey, window): continue
            one, two = (open_verdict(read_verdict(v.network.bucket(v.hotkey), v.hotkey, window, m.hotkey), v.hotkey).verdict
                        for v in (a, b))
            assert one == two
            compared += 1
    assert compared > 20
    assert all(l['verdicts_agree'] for l in everybody_audited[1] if l['kind'] == 'window')


def test_a_rollout_is_judged_and_trained_on_one_window_after_it_was_made(everybody_audited):
    sim, lines = everybody_audited
    windows = [l for l in lines if l['kind'] == 'window']
    assert windows[0]['updates'] == 0 and windows[0]['train']['pass@1'] is None     # nothing was made before the first window
    assert windows[1]['updates'] > 0
    a = sim.validators[0]
    assert not list_verdicts(a.network.bucket(a.hotkey), a.hotkey, FIRST + (SMALL['windows'] - 1))  # the last window is still to be judged


FEW = dict(windows=5, groups=4, miners='honest:2,copied,replayed', eval_every=0, eval_tasks=10, eval_samples=2, seed=3)
ARGS = ['--windows', '5', '--groups', '4', '--miners', 'honest:2,copied,replayed', '--seed', '3']


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp('undisturbed')
    sim = begin(settings(**FEW), out)
    lines = simulate(sim)
    sim.lock.close()
    return out, lines


def test_the_same_seed_gives_the_same_bytes(undisturbed, tmp_path):
    again = simulate(begin(settings(**FEW), tmp_path/'again'))
    assert [json.dumps(stripped(l)) for l in again] == [json.dumps(stripped(l)) for l in undisturbed[1]]


def test_another_seed_gives_another_run(undisturbed, tmp_path):
    other = simulate(begin(settings(**FEW | dict(seed=4, windows=2)), tmp_path/'other'))
    assert other[-1] != undisturbed[1][1]


CHILD = ('import sys; from grail.roles.simulate import *; import torch; torch.set_num_threads(1); '
         'simulate(begin(settings(**eval(sys.argv[1])), sys.argv[2]))')


@pytest.mark.parametrize('after', [1, 3])
def test_a_killed_run_ends_as_if_nothing_had_happened(undisturbed, tmp_path, after):
    out = tmp_path/'killed'
    child = subprocess.Popen([sys.executable, '-c', CHILD, repr(FEW), str(out)], env=os.environ | {'PYTHONPATH': os.getcwd()})
    def windows():
        try: return sum(b'"kind":"window"' in l for l in (out/'metrics.jsonl').read_bytes().splitlines())
        except FileNotFoundError: return 0
    end = time.time() + 120
    while windows() < after and child.poll() is None and time.time() < end: time.sleep(0.01)
    time.sleep(0.15)                              # into the next window
    assert child.poll() is None, 'the run ended before it could be killed'
    child.send_signal(signal.SIGKILL)
    child.wait()
    lines = simulate(proceed(out))
    assert [stripped(l) for l in lines] == [stripped(l) for l in undisturbed[1]]


def test_a_folder_with_something_else_is_not_touched(tmp_path):
    (tmp_path/'thesis.txt').write_text('mine')
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match='another folder'): begin(settings(**FEW), tmp_path, overwrite)
    assert (tmp_path/'thesis.txt').read_text() == 'mine'


def test_a_run_is_not_replaced_unless_asked_for(undisturbed):
    with pytest.raises(ConfigError, match='--overwrite'): begin(settings(**FEW), undisturbed[0])
    assert (undisturbed[0]/'metrics.jsonl').stat().st_size > 0


def test_there_is_nothing_to_resume_in_an_empty_folder(tmp_path):
    with pytest.raises(ConfigError, match='no run'): proceed(tmp_path)


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    sim = begin(settings(**FEW | dict(windows=1)), tmp_path/'run')
    simulate(sim)
    with pytest.raises(ConfigError, match='another process'): proceed(tmp_path/'run')


@pytest.mark.parametrize('bad', [dict(rules={'temperature': 'hot'}), dict(rules={'nothing': 1}), dict(env='gsm8k', data='/nonexistent')])
def test_a_typing_error_does_not_cost_the_old_run(undisturbed, tmp_path, bad):
    from grail.core.basics import GrailError
    old = shutil.copytree(undisturbed[0], tmp_path/'old')
    before = {p: p.read_bytes() for p in sorted(old.rglob('*')) if p.is_file()}
    with pytest.raises(GrailError): begin(settings(**FEW | bad), old, overwrite=True)
    assert {p: p.read_bytes() for p in sorted(old.rglob('*')) if p.is_file()} == before


DAMAGE = dict(state_json=lambda out: next((out/'state').glob('*/state.json')).write_bytes(b'{'),
              learner=lambda out: next((out/'state').glob('*/trainer/state.safetensors')).write_bytes(b'xx'),
              chain=lambda out: next((out/'state').glob('*/chain.db')).write_bytes(b'no database at all'),
              settings=lambda out: (out/'settings.json').write_bytes(b''),
              metrics=lambda out: (out/'metrics.jsonl').write_bytes((out/'metrics.jsonl').read_bytes()[:200]),
              no_state=lambda out: shutil.rmtree(out/'state'))


@pytest.mark.parametrize('what', DAMAGE)
def test_a_damaged_run_is_not_resumed_but_said_to_be_damaged(undisturbed, tmp_path, what):
    out = shutil.copytree(undisturbed[0], tmp_path/'damaged')
    DAMAGE[what](out)
    with pytest.raises(ConfigError): proceed(out)
    assert (out/'metrics.jsonl').stat().st_size > 0


def test_a_foreign_settings_file_does_not_make_a_run(tmp_path):
    (tmp_path/'settings.json').write_text('{"editor": 1}')
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match='not of a run'): begin(settings(**FEW), tmp_path, overwrite)
    assert (tmp_path/'settings.json').read_text() == '{"editor": 1}'
