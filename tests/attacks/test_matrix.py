"The gallery on the tiny model: every attack is caught by at least one check, no honest miner fails, both validators agree"
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from grail.attacks.gallery import ATTACKS, HONEST, NEAR, Sent, half_honest
from grail.attacks.lab import CHECKPOINT, MALLORY, OPEN, WINDOW, Found, Lab, load_lab
from grail.attacks.matrix import accused, audits, cells, faults, groups_of, honest_bound, losses, matrix, table, together, write
from grail.core.params import profile
from grail.protocol.rollout import seal
from grail.verify.audit import detection, group_count
from grail.verify.checks import sampling_limit
from grail.verify.detectors import rollouts_to

NBS = Path(__file__).parents[2]/'nbs'


@pytest.fixture(scope='module')
def lab(): return load_lab()

@pytest.fixture(scope='module')
def m(lab): return matrix(lab)

def verdicts(m, honest): return [v for v in m['verdicts'] if v['honest'] is honest]


def test_nothing_is_wrong(m): assert faults(m) == []

@pytest.mark.parametrize('name', [a for a in ATTACKS if a not in NEAR['tiny']])
def test_the_attack_is_caught_by_a_check(m, name):
    any_, = (l for l in m['attacks'] if l['attack'] == name and l['check'] == 'any')
    assert any_['detected'] > 0 and any_['rollouts_to_999'] >= 1 and any_['unit'] != 'miner', any_
    checks = [l for l in m['attacks'] if l['attack'] == name and l['check'] != 'any']
    assert checks and all(0 < l['detected'] <= l['rollouts'] for l in checks)
    assert 0 < any_['per_audit'] <= 1

def allowed(m, v): return m['rules']['sampling_margin']*m['rules']['sampling_misses']*sum(v['lengths'])

@pytest.mark.parametrize('name', NEAR['tiny'])
def test_what_no_audit_sees_is_accused_by_its_history_or_within_honest_noise(m, name):
    mine, = (v for v in verdicts(m, False) if v['who'] == name)
    lines = {l['check']: l for l in m['attacks'] if l['attack'] == name}
    assert mine['distance'] <= max(v['distance'] for v in verdicts(m, True))
    if 'history' not in lines: assert sum(mine['lost']) <= allowed(m, mine) and lines['any']['rollouts_to_999'] is None
    else: assert lines['any']['unit'] == 'miner' and lines['any']['rollouts_to_999'] == lines['history']['rollouts_to_999'] > lines['history']['rollouts']

def test_forks_pass_every_audit_and_the_history_accuses_them(m):
    mine, = (v for v in verdicts(m, False) if v['who'] == 'fork')
    assert mine['float32'] and mine['bfloat16'] and sum(mine['lost']) > 1.5*allowed(m, mine)
    assert [l['unit'] for l in m['attacks'] if l['attack'] == 'fork'] == ['miner', 'miner']

def test_an_attack_that_loses_more_than_honest_nodes_is_never_excused(m):
    assert any(v['who'] == 'truncated, split' for v in m['verdicts'])
    excused = {**m, 'near': [*m['near'], 'truncated, split'], 'attacks': [l for l in m['attacks'] if l['attack'] != 'truncated, split'],
               'verdicts': [{**v, 'float32': True, 'bfloat16': True} if v['who'] == 'truncated, split' else v for v in m['verdicts']]}
    assert faults(excused) == ['truncated, split: its tokens are not near honest noise']

def test_without_honest_miners_there_is_nobody_to_compare_with(lab):
    alone = matrix(lab, ['fork', 'one step'], variants=())
    assert faults(alone) == [] and 'agree on 2 of 2' in table(alone)

def test_no_honest_kind_of_miner_is_accused_by_its_history(m):
    assert not [l for l in m['honest'] if l['check'] == 'history']
    assert sum(sum(v['lost']) > 0 for v in verdicts(m, True)) >= 2            # there was something to add up

def test_who_cheats_in_whole_groups_is_found_when_one_of_them_is_audited(lab):
    rows = half_honest(lab)
    found = audits(lab, rows)['float32']
    bad, groups = len({g for _, g, _ in found.failed if g >= 0}), found.rollouts//lab.size
    line = next(l for l in cells('half', found, lab) if l['check'] == 'sampling')
    assert 0 < bad < groups and np.isclose(line['per_audit'], detection(bad/groups, groups, group_count(groups, profile('tiny'))), atol=1e-6)
    assert line['rollouts_to_999'] > rollouts_to(line['rate'])                # rollouts of a group fall together

def test_one_submission_is_no_sample_so_no_bound_is_given(m):
    assert all((l['rate_low95'] is None) == (l['unit'] != 'rollout') for l in m['attacks'] + m['honest'])

@pytest.mark.parametrize('mean, found', [(.1, True), (.02, False)])
def test_the_simulated_history_accuses_who_loses_more_than_the_rules_allow(mean, found):
    rules = replace(profile('smollm2'), sampling_margin=.1, sampling_misses=.02)                      # 0.032 nats in 16 tokens
    at = accused(np.full((10, 4), mean), np.full((10, 4), 16.), rules)
    assert np.isfinite(at).all() if found else not np.isfinite(at).any()
    assert not found or at.min() == at.max() > 16                                                    # all miners are alike
    share = together(np.full((10, 4), mean*100), np.full((10, 4), 16.), rules)
    assert share[-1] == (1 if mean*4000 > sampling_limit(640, rules) else 0) and len(share) == 40

def test_no_honest_rollout_fails_a_hard_check(m):
    failures, rollouts, bound = honest_bound(m)
    assert failures == 0 and rollouts >= 300 and bound < .01
    assert len(verdicts(m, True)) == len(HONEST)

@pytest.mark.parametrize('limits', [dict(top_p=.9), dict(top_k=8, top_p=.8)], ids=str)
def test_where_top_k_and_top_p_end_honest_nodes_of_either_precision_pass_and_who_ignores_them_does_not(lab, limits):
    there = Lab(lab.name, lab.models, lab.tokenizer, lab.env, replace(lab.asked, **limits), lab.many, lab.size).fit()
    for node in ('float32', 'bfloat16'):
        found = audits(there, there.proved(there.texts(there.engine(node), groups=30), by=node))
        assert all(f.passed for f in found.values()), node
        for f in found.values():
            grid = [np.reshape(x, (-1, there.size)) for x in (losses(f), [n for _, _, n in f.audited])]
            assert not np.isfinite(accused(*grid, there.params)).any()
    there.asked = lab.asked                                                            # a miner without the limits
    free = audits(there, there.proved(there.texts(there.engine('bfloat16'), groups=30)))
    assert all('sampling' in {check for check, _, _ in f.failed} for f in free.values())

def test_an_audit_reads_different_groups():
    drawn = groups_of(np.arange(20).reshape(5, 4), 500, 3, np.random.default_rng(0))
    assert drawn.shape == (500, 12) and all(len({x//4 for x in row}) == 3 and len(set(row)) == 12 for row in drawn)
    assert groups_of(np.arange(8).reshape(2, 4), 5, 4, np.random.default_rng(0)).shape == (5, 8)          # no more than there are
    assert np.all(abs(np.bincount(drawn[:, ::4].ravel()//4)/1500 - .2) < .05)

EIGHT = tuple((0, i, 8) for i in range(8))

@pytest.mark.parametrize('failed, values, unit, checks', [
    ((), (), 'submission', ['deadline']), ((('structural', -1, -1),), (), 'submission', ['structural']),
    ((('distribution', 0, 0),), tuple(('sampling', 0, i, 0.) for i in range(8)), 'submission', ['distribution']),
    ((('sampling', 0, 0), ('sampling', -1, -1)), (('sampling', 0, 0, None), *(('sampling', 0, i, 0.) for i in range(1, 8))), 'rollout',
     ['sampling', 'sampling (pooled)', 'history'])], ids=['late', 'form', 'soft', 'endless'])
def test_whatever_was_found_has_cells_that_can_be_written_and_a_fault_if_it_is_one(lab, m, tmp_path, failed, values, unit, checks):
    found  = Found(False, 'odd', 16, failed, EIGHT if values else (), values)
    lines  = cells('odd', found, replace(lab, asked=replace(lab.asked, rollouts_per_group=8)))
    *_, last = lines
    assert [l['check'] for l in lines] == [*checks, 'any'] and last['unit'] == unit and last['detected'] > 0
    losing = dict(who='odd', honest=False, reason='', distance=None, lost=[None], lengths=[8], float32=True, bfloat16=True)
    other  = {**m, 'attacks': m['attacks'] + [l for l in lines if l['check'] != 'history'], 'verdicts': [*m['verdicts'], losing], 'near': [*m['near'], 'odd']}
    assert faults(other) == ['odd: its tokens are not near honest noise']
    write(other, tmp_path, report=True)
    assert json.loads((tmp_path/'matrix.json').read_text(), parse_constant=lambda x: pytest.fail(x)) == other

def test_what_only_soft_checks_refuse_is_no_hard_failure(lab, m):
    found = Found(False, 'distribution: odd', 16, tuple(('distribution', 0, i) for i in range(16)), (), ())
    other = {**m, 'honest': [*m['honest'], *cells('soft', found, lab)],
             'verdicts': [*m['verdicts'], dict(who='soft', honest=True, reason='odd', distance=None, lost=[], lengths=[], float32=False, bfloat16=False)]}
    assert honest_bound(other)[0] == 0 and faults(other) == ['soft: refused: odd']

def test_the_smollm2_profile_has_the_rules_that_were_fitted_to_the_real_model():
    rules, p = json.loads((NBS/'attacks'/'matrix_smollm2.json').read_text())['rules'], profile('smollm2')
    names = 'logprob_abs', 'logprob_rel', 'logprob_misses', 'logprob_mean', 'sampling_margin', 'sampling_misses'
    assert {n: rules[n] for n in names} == {n: getattr(p, n) for n in names}

def test_both_validators_agree_about_every_submission(m):
    assert len(m['verdicts']) == len(ATTACKS) + len(HONEST)
    assert [v for v in m['verdicts'] if v['float32'] != v['bfloat16']] == []

@pytest.mark.parametrize('name', [f'{n}, split' for n in ('truncated', 'stale', 'neighbour')] + ['greedy', 'chosen noise', 'best of n', 'prefix edit'])
def test_the_proof_does_not_see_who_chose_the_tokens_and_the_dice_do(m, name):
    checks = {l['check'] for l in m['attacks'] if l['attack'] == name}
    assert 'proof' not in checks and 'environment' not in checks and 'sampling' in checks

@pytest.mark.parametrize('name, check', {
    'constant sketches': 'proof', 'random sketches': 'proof', 'repeated dimension': 'proof', 'false log-probs': 'logprob', 'leaning log-probs': 'logprob',
    'chosen randomness': 'structural', 'replay': 'environment', 'copy': 'environment', 'copied files': 'structural', 'late copy': 'deadline',
    'inflated rewards': 'environment', 'success lies': 'environment', 'tampered prompt': 'environment', 'cherry-picked tasks': 'environment',
    'skipped groups': 'structural', 'duplicate group': 'environment', 'giant junk group': 'structural', 'reordered rollouts': 'sampling',
    'EOS early': 'termination', 'forged EOS': 'termination', 'truncated lengths': 'termination', 'edit after signing': 'structural',
    'stale header': 'structural', 'hostile strings': 'structural', 'bomb': 'structural'}.items())
def test_the_check_that_is_meant_for_it_fires(m, name, check):
    assert check in {l['check'] for l in m['attacks'] if l['attack'] == name}

def test_a_reason_can_be_printed_whatever_was_sent(m):
    assert all(v['reason'].isprintable() for v in m['verdicts'])

def test_the_matrix_is_written_and_drawn(m, tmp_path):
    paths = write(m, tmp_path, report=True)
    assert json.loads((tmp_path/'matrix.json').read_text()) == m
    grey = imread(tmp_path/'matrix.png')[..., :3]
    assert grey.std() > .05 and abs(grey - grey.mean(-1, keepdims=True)).max() < .01      # there is something, in grey
    assert 'one-sided 95 % bound' in (tmp_path/'matrix.md').read_text() and len(paths) == 3

def test_a_laboratory_that_was_interrupted_goes_on_with_what_it_has(tmp_path):
    said = []
    first = load_lab(cache=tmp_path, say=said.append)
    made  = audits(first, ATTACKS['greedy'].make(first))
    assert said
    said.clear()
    again = load_lab(cache=tmp_path, say=said.append)
    assert audits(again, ATTACKS['greedy'].make(again)) == made and said == []


VALIDATOR = '''
import json, sys
from pathlib import Path
from grail.attacks.lab import load_lab

lab, folder, by = load_lab(), Path(sys.argv[1]), sys.argv[2]
for sent in sorted(folder.glob('*.header')):
    late = dict(modified=1.0, deadline=0.0) if sent.with_suffix('.late').exists() else {}
    found = lab.examined(sent.read_bytes(), sent.with_suffix('.body').read_bytes(), by=by, **late)
    print(json.dumps([sent.stem, found.passed]))
'''

def test_a_laboratory_takes_as_many_groups_as_it_is_asked_for():
    assert load_lab(many=300).params.max_groups >= 300 and load_lab().params.max_groups == profile('tiny').max_groups

def test_validators_in_two_processes_with_other_weights_agree_about_every_attack(tmp_path):
    lab = load_lab()
    for name, attack in ATTACKS.items():
        made = attack.make(lab)
        sent = made if isinstance(made, Sent) else Sent(*seal(made, MALLORY, WINDOW, CHECKPOINT, lab.params, OPEN))
        (tmp_path/f'{name}.header').write_bytes(sent.header)
        (tmp_path/f'{name}.body').write_bytes(sent.body)
        if sent.late: (tmp_path/f'{name}.late').touch()
    said = [[json.loads(l) for l in subprocess.run([sys.executable, '-c', VALIDATOR, str(tmp_path), by], capture_output=True, text=True, check=True).stdout.splitlines()]
            for by in ('float32', 'bfloat16')]
    assert said[0] == said[1] and len(said[0]) == len(ATTACKS)
    assert {name for name, passed in said[0] if passed} == set(NEAR['tiny'])
