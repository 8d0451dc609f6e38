"The audit as strangers meet it: honest work passes, every lie fails, and nothing that they send is more than a verdict"
import json
import random
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from bittensor_core import Keypair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grail.core.basics import FormatError, canonical_json, sha256
from grail.core.params import TINY
from grail.envs.base import make_env
from grail.model.tiny import EOS_ID, genesis
from grail.protocol.randomness import Randomness, noise_key, task_seed
from grail.protocol.rollout import SCHEMA, Rollout, seal
from grail.protocol.signature import sign
from grail.verify.calibrate import honest_rollouts, prove
from grail.verify.checks import CHECKS, MISS, SPARE, CheckResult, check_logprob, unique_count
from grail.verify import pipeline
from grail.verify.audit import Ledger, ledger_from_dict, ledger_to_dict
from grail.verify.pipeline import MOST, audit_submission, decide, differences, read_verdict, sign_verdict, summary, verdict_bytes
from grail.verify.pipeline import verdict_from_dict

torch.set_num_threads(1)
TINY = replace(TINY, proof='grail-v1')      # needs no calibration; test_precision.py has the projection proof
W, CHECK = 600, 'c0'*32
ALICE, BOB = Keypair.create_from_uri('//Alice'), Keypair.create_from_uri('//Bob')
OPEN, AUDIT = Randomness('open', W, 'ab'*32, 41, 'cd'*32), Randomness('audit', W, '', 77, 'ef'*32)
FREE = replace(TINY, sampling='free')
MODEL, TOK = genesis()
ENV = make_env('sort6', TOK)


def honest(key=ALICE, groups=2, model=MODEL, params=TINY, open=OPEN):
    return honest_rollouts(model, ENV, params, key.ss58_address, open.value, groups)

def ask(header, body, key=ALICE, params=TINY, **kw):
    rules = dict(hotkey=key.ss58_address, window=W, checkpoint=CHECK, model=MODEL, env=ENV, params=params, open=OPEN, audit=AUDIT)
    return audit_submission(header, body, **{**rules, **kw})

def audit(rows, key=ALICE, params=TINY, **kw): return ask(*seal(rows, key, W, CHECK, params, OPEN), key=key, params=params, **kw)

def again(rows, params=TINY, key=ALICE, model=MODEL):
    "New log-probs, proofs and rewards for rows whose tokens were changed: what an attacker with the right model can always have"
    n, out = params.rollouts_per_group, []
    for g in range(0, len(rows), n):
        group = []
        for r in rows[g:g+n]:
            found = ENV.evaluate(ENV.task(task_seed(OPEN.value, key.ss58_address, r.group)), r.completion.tolist())
            group.append(replace(r, reward=found.reward, success=found.success))
        out += prove(model, group, key.ss58_address, OPEN.value, params)
    return out

def with_completion(r, c):
    return Rollout(r.group, r.index, [*r.prompt, *c], r.prompt_length, np.zeros(len(c)), np.zeros(len(c)), r.reward, r.success)


@pytest.fixture(scope='module')
def rows(): return honest()

@pytest.fixture(scope='module')
def sealed(rows): return seal(rows, ALICE, W, CHECK, TINY, OPEN)


# honest

def test_honest_miners_pass_every_check(rows):
    v = audit(rows)
    assert v.passed and not v.failed_checks and v.rollouts == unique_count(rows) > 20
    assert [c['name'] for c in v.checks] == list(CHECKS)

def test_an_honest_miner_with_free_sampling_passes_too(rows):
    r = honest(params=FREE, groups=4)
    v = audit(r, params=FREE)
    assert v.passed and 'sampling' not in [c['name'] for c in v.checks]

def test_honest_miners_do_not_fail_in_many_windows():
    for i in range(12):
        open, au = Randomness('open', W, 'ab'*32, 41, f'{i:064x}'), Randomness('audit', W, '', 77, f'{i:064x}')
        v = ask(*seal(honest(open=open), ALICE, W, CHECK, TINY, open), open=open, audit=au)
        assert v.passed, v.reason

def test_honest_groups_side_by_side_share_no_number_and_no_noise():
    "All groups are audited: neighbours must not look like duplicates of each other"
    rules = replace(TINY, audit_group_fraction=1.0, audit_groups_max=12)
    many  = honest(groups=12, params=rules)
    v     = audit(many, params=rules)
    assert v.sampled_groups == tuple(range(12)) and v.passed, v.reason
    assert len({(r.group, r.index) for r in many}) == len({noise_key(OPEN.value, ALICE.ss58_address, r.group, r.index) for r in many}) == 12*16

def test_two_validators_reach_the_same_bytes_whatever_they_did_before(sealed):
    a = ask(*sealed)
    ask(*seal(honest(BOB, 1), BOB, W, CHECK, TINY, OPEN), key=BOB)
    assert verdict_bytes(a) == verdict_bytes(ask(*sealed))

def test_a_third_party_replays_a_published_verdict_and_notices_any_edit(sealed):
    v = ask(*sealed)
    published = read_verdict(sign_verdict(BOB, v)).verdict
    assert differences(published, ask(*sealed)) == []
    for edit in (dict(audit={**v.audit, 'round': 78}), dict(sampled_groups=(0,)), dict(rollouts=v.rollouts + 1),
                 dict(passed=False), dict(checks=v.checks[:-1]), dict(checks=({**v.checks[0], 'worst': .5},) + v.checks[1:]), dict(places=(0,)*10)):
        assert differences(replace(published, **edit), ask(*sealed)) == list(edit)

def test_the_order_of_rows_in_the_file_does_not_matter(rows):
    assert audit(rows[::-1]).passed


# lies about the form: structural

@pytest.mark.parametrize('name, change', {
    'a group is not complete':             lambda r: r[:-1],
    'a group is skipped':                  lambda r: r[:16] + [replace(x, group=3) for x in r[16:]],
    'a group stands twice':                lambda r: r + r[16:],
    'one giant group':                     lambda r: [replace(x, group=0, index=i) for i, x in enumerate(r)],
    'a token that does not exist':         lambda r: [with_completion(r[0], [3, 4, 90])] + r[1:],
    'a negative token':                    lambda r: [with_completion(r[0], [3, -4, 1])] + r[1:],
    'too many tokens':                     lambda r: [with_completion(r[0], [3]*9)] + r[1:],
    'a log-prob that is no number':        lambda r: [replace(r[0], logprobs=np.full(r[0].length, np.nan))] + r[1:],
    'a reward that is not finite':         lambda r: [replace(r[0], reward=float('inf'))] + r[1:],
    'nothing':                             lambda r: [],
}.items(), ids=lambda x: x if isinstance(x, str) else '')
def test_what_is_not_a_list_of_whole_groups_fails_in_structure(rows, name, change):
    v = audit(change(list(rows)))
    assert v.failed_checks == ('structural',) and v.hard and v.reason and v.rollouts == 0

def test_junk_outside_of_the_sample_is_found(rows):
    "Counting rows that nobody looked at would pay for junk"
    many = honest(groups=12)
    sampled = audit(many).sampled_groups
    assert len(sampled) < 12
    spare = next(g for g in range(12) if g not in sampled)
    junk = [with_completion(r, [3]*9) if r.group == spare else r for r in many]
    assert audit(junk).failed_checks == ('structural',)

def test_duplicates_are_not_paid(rows):
    same = [replace(rows[0], index=i) for i in range(16)] + rows[16:]
    assert unique_count(same) == 1 + unique_count(rows[16:])

@pytest.mark.parametrize('field, value', [('window', W - 30), ('checkpoint', 'c1'*32), ('open', replace(OPEN, round=42))])
def test_a_submission_is_for_one_window_one_checkpoint_one_randomness(rows, field, value):
    kw = {**dict(window=W, checkpoint=CHECK, open=OPEN), field: value}
    if field == 'window': kw['open'] = replace(OPEN, window=value)
    assert ask(*seal(rows, ALICE, kw['window'], kw['checkpoint'], TINY, kw['open'])).failed_checks == ('structural',)

def test_rules_of_ones_own_are_refused(rows):
    assert audit(rows).passed
    assert ask(*seal(rows, ALICE, W, CHECK, replace(TINY, sampling_misses=1.0), OPEN)).failed_checks == ('structural',)

def test_an_edit_after_signing_is_noticed(sealed):
    header, body = sealed
    d = json.loads(header)
    for k, v in (('rollouts', 10**6), ('hotkey', BOB.ss58_address), ('window', W + 30), ('tokens', 1),
                 ('hotkey', '../../../etc/passwd'), ('env', '<script>')):
        assert ask(canonical_json({**d, 'header': {**d['header'], k: v}}), body).failed_checks == ('structural',)
    flipped = bytearray(body); flipped[len(body)//2] ^= 1
    assert ask(header, bytes(flipped)).failed_checks == ('structural',)


# lies about the task: environment

def test_one_false_reward_in_any_row_fails_the_miner():
    many = honest(groups=10)
    sampled = audit(many).sampled_groups
    i = next(i for i, r in enumerate(many) if r.group not in sampled and not r.success)
    for lie in (dict(reward=1.0), dict(success=True), dict(reward=-0.5), dict(reward=many[i].reward + 1e-6)):
        assert audit(many[:i] + [replace(many[i], **lie)] + many[i+1:]).failed_checks == ('environment',)

def test_a_prompt_that_was_not_assigned_fails(rows):
    easy = [replace(r, tokens=np.array([*r.prompt[1:2], *r.prompt[1:], *r.completion])) for r in rows]
    assert 'environment' in audit(again(easy)).failed_checks

def test_tasks_cannot_be_picked_by_leaving_groups_out():
    "Group numbers are the tasks: renumbering good groups puts them under prompts that they do not have"
    many = honest(groups=4)
    picked = [replace(r, group=r.group - 2) for r in many if r.group >= 2]
    v = audit(picked)
    assert 'environment' in v.failed_checks and 'sampling' in v.failed_checks

@pytest.mark.parametrize('part', [1, 8, 32])
def test_a_copy_of_any_size_fails_and_the_copied_miner_is_not_touched(part):
    victim, thief = honest(ALICE), honest(BOB)
    before = verdict_bytes(audit(victim))
    stolen = victim[:part] + thief[part:]
    assert 'environment' in audit(stolen, key=BOB).failed_checks
    assert verdict_bytes(audit(victim)) == before and audit(victim).passed

def test_a_whole_submission_of_another_is_refused(sealed):
    assert ask(*sealed, key=BOB).failed_checks == ('structural',)


# lies about the model: proof, log-probs

def noised(size):
    m, _ = genesis()
    g = torch.Generator().manual_seed(0)
    for w in m.parameters(): w.data += size*w.data.std()*torch.randn(w.shape, generator=g)
    return m

def test_another_model_fails():
    v = audit(honest(model=noised(.02)))
    assert {'proof', 'logprob'} <= set(v.failed_checks)

@pytest.mark.parametrize('proof', [lambda n: np.zeros(n, np.uint32), lambda n: np.full(n, 7, np.uint32),
                                   lambda n: np.random.default_rng(n).integers(0, 2**31 - 1, n).astype(np.uint32)],
                         ids=['zeros', 'constant', 'random'])
def test_sketches_without_the_model_fail(rows, proof):
    assert 'proof' in audit([replace(r, proof=proof(r.length)) for r in rows]).failed_checks

def test_false_log_probs_fail(rows):
    v = audit([replace(r, logprobs=r.logprobs - np.float32(.2)) for r in rows])
    assert v.failed_checks == ('logprob',)

def test_one_false_log_prob_in_an_audited_rollout_is_found(rows):
    wrong = rows[0].logprobs.copy(); wrong[3] -= .3
    assert audit([replace(rows[0], logprobs=wrong)] + rows[1:16]).failed_checks == ('logprob',)

@pytest.mark.parametrize('misses', [0, 1, 2])
@pytest.mark.parametrize('by', [.5, 2, MISS*.9, MISS*1.1, 1e3, 1e30])
@pytest.mark.parametrize('sign', [1, -1])
def test_a_missed_log_prob_is_near_the_truth_wherever_it_is(rows, misses, by, sign):
    r = next(r for r in rows if r.length == 7)
    own, rules = r.logprobs - np.float32(1), replace(TINY, logprob_misses=misses, logprob_mean=1.)
    for n in (1, 2, 3):                                                     # so many are wrong
        for at in range(r.length - n + 1):
            claimed = own.astype(np.float64)
            claimed[at:at+n] += sign*by*np.maximum(rules.logprob_abs, rules.logprob_rel*np.abs(claimed[at:at+n]))
            found = check_logprob(replace(r, logprobs=claimed), own, b'audit', 'd'*64, rules)
            assert found.passed == (by <= 1 or n <= misses and by <= MISS and n*by <= r.length + SPARE), found

@pytest.mark.parametrize('by', [2, MISS*.9, MISS*1.1, 1e30, float('nan'), float('inf')])
def test_a_log_prob_counts_wherever_it_is_and_not_only_where_it_is_asked(rows, by):
    r = max(rows, key=lambda r: r.length)
    own, rules = r.logprobs.astype(np.float64) - 1, replace(TINY, challenge_positions=1, logprob_misses=1, logprob_mean=1.)
    for at in range(r.length):
        claimed = own.copy()
        claimed[at] -= by*np.maximum(rules.logprob_abs, rules.logprob_rel*np.abs(own[at]))
        assert check_logprob(replace(r, logprobs=claimed), own, b'audit', 'd'*64, rules).passed == (by <= MISS)

@pytest.mark.parametrize('sign', [1, -1])
def test_who_leans_on_the_tolerance_in_every_token_fails(rows, sign):
    r = max(rows, key=lambda r: r.length)
    for n in range(4, r.length + 1):
        own   = r.logprobs[:n].astype(np.float64) - 1
        allow = np.maximum(TINY.logprob_abs, TINY.logprob_rel*np.abs(own))
        short = replace(r, tokens=r.tokens[:r.prompt_length + n], proof=r.proof[:n], logprobs=own)
        judge = lambda by: check_logprob(replace(short, logprobs=own + sign*by*allow), own, b'audit', 'd'*64, TINY)
        assert not judge(.95).passed and 'on average' in judge(.95).reason
        assert judge(TINY.logprob_mean).passed                             # as far off as honest nodes may be

@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf, -3.4e38])
def test_no_number_passes_as_a_miss_only_because_it_is_one(rows, value):
    for at in range(rows[0].length):
        claimed = rows[0].logprobs.copy(); claimed[at] = value
        r, rules = replace(rows[0], logprobs=claimed), replace(TINY, logprob_misses=1)
        assert not check_logprob(r, rows[0].logprobs, b'a', 'd'*64, rules).passed


# lies about the choice: sampling; the proof is perfect in all of these

def decoded(params=TINY, groups=2, **how):
    "Rows decoded in another way, then proved with the right model"
    texts = other_completions(params, groups, **how)
    return again([with_completion(r, c) for r, c in zip(honest(params=params, groups=groups), texts)], params)

def other_completions(params, groups, temperature=1.0, model=MODEL, own_keys=False):
    from grail.model.engine import TransformersEngine
    at = [(g, i) for g in range(groups) for i in range(16)]
    prompts = [list(ENV.task(task_seed(OPEN.value, ALICE.ss58_address, g)).prompt_ids) for g, _ in at]
    keys = [noise_key(b'own' if own_keys else OPEN.value, ALICE.ss58_address, g, i) for g, i in at]
    return TransformersEngine(model).generate(prompts, keys, params.max_new_tokens, temperature, 0, 1.0, EOS_ID)

@pytest.mark.parametrize('how', [dict(temperature=0.0), dict(temperature=.7), dict(own_keys=True), dict(model=noised(.1))],
                         ids=['greedy', 'low temperature', 'dice of its own', 'decode with another model'])
def test_other_decoding_passes_the_proof_and_fails_the_sampling(how):
    v = audit(decoded(**how))
    assert 'sampling' in v.failed_checks and not {'proof', 'logprob', 'environment'} & set(v.failed_checks)

@pytest.mark.parametrize('how', [dict(temperature=0.0), dict(temperature=.5)], ids=['greedy', 'low temperature'])
def test_with_free_sampling_the_statistics_find_other_decoding(how):
    v = audit(decoded(params=FREE, groups=8, **how), params=FREE)
    assert v.failed_checks == ('statistics',)

def test_an_edited_prefix_passes_the_proof_and_fails_the_sampling(rows):
    def leak(r):
        answer = ENV.encode(ENV.task(task_seed(OPEN.value, ALICE.ss58_address, r.group)).answer)
        return with_completion(r, [*answer[:3], *r.completion[3:].tolist()]) if r.length > 3 else r
    v = audit(again([leak(r) for r in rows]))
    assert 'sampling' in v.failed_checks and 'proof' not in v.failed_checks

def test_best_of_n_fails(rows):
    "Of 16 and 16 more samples of its own choice of noise the better ones are kept"
    other = other_completions(TINY, 2, own_keys=True)
    best = again([with_completion(r, c) for r, c in zip(rows, other)])
    kept = [b if b.reward > r.reward else r for r, b in zip(rows, best)]
    if kept != rows: assert 'sampling' in audit(kept).failed_checks
    assert 'sampling' in audit([b if i % 4 == 0 else r for i, (r, b) in enumerate(zip(rows, best))]).failed_checks

def test_reordered_rollouts_of_a_group_fail(rows):
    turned = [replace(rows[g + (i + 1) % 16], index=i) for g in (0, 16) for i in range(16)]
    assert 'sampling' in audit(again(turned)).failed_checks

@pytest.mark.parametrize('change', [lambda c: c[:-2] + [EOS_ID], lambda c: [EOS_ID], lambda c: c[:-1] + [3, EOS_ID]],
                         ids=['early', 'at once', 'late'])
def test_an_end_of_text_that_the_model_did_not_choose_fails(rows, change):
    v = audit(again([with_completion(r, change(r.completion.tolist())) if r.length == 7 else r for r in rows]))
    assert 'sampling' in v.failed_checks

@pytest.mark.parametrize('change', [lambda c: c[:-1], lambda c: c[:3], lambda c: c + [EOS_ID], lambda c: c[:2] + [EOS_ID] + c[3:]],
                         ids=['no end', 'cut', 'two ends', 'tokens after the end'])
def test_a_completion_that_ends_in_no_honest_way_fails(rows, change):
    v = audit(again([with_completion(r, change(r.completion.tolist())) if r.length == 7 else r for r in rows]))
    assert 'termination' in v.failed_checks


# strangers' bytes

@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.booleans())
def test_any_damage_to_the_files_is_a_verdict(sealed, seed, head):
    rng, files = random.Random(seed), [bytearray(sealed[0]), bytearray(sealed[1])]
    f = files[0 if head else 1]
    for _ in range(rng.randint(1, 4)):
        kind, at = rng.randrange(4), rng.randrange(max(len(f), 1))
        if kind == 0 and f: f[at % len(f)] = rng.randrange(256)
        elif kind == 1: del f[at:at + rng.randint(1, 200)]
        elif kind == 2: f[at:at] = rng.randbytes(rng.randint(1, 50))
        else: f[at:at] = f[:rng.randint(0, 50)]
    v = ask(bytes(files[0]), bytes(files[1]))
    same = (bytes(files[0]), bytes(files[1])) == sealed
    assert v.passed == same and (same or (v.failed_checks == ('structural',) and v.reason))

@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_bytes_are_a_verdict(a, b):
    assert ask(a, b).failed_checks == ('structural',)

json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
                           lambda c: st.lists(c, max_size=4) | st.dictionaries(st.text(max_size=6), c, max_size=4), max_leaves=12)

@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(json_values, st.sampled_from(['hotkey', 'window', 'checkpoint', 'open', 'rollouts', 'body_sha256', 'version', None]))
def test_a_signed_header_may_hold_anything_and_is_a_verdict(sealed, value, field):
    d = json.loads(sealed[0])
    h = {**d['header'], field: value} if field else value
    if h == d['header']: return
    v = ask(canonical_json({'header': h, 'signature': sign(ALICE, 'submission', canonical_json(h))}), sealed[1])
    assert v.failed_checks == ('structural',)

@pytest.mark.parametrize('text', ['\ud800', 'a\udfff'*200, '\x1b[2J', '\u202e'])
def test_a_verdict_about_what_utf8_cannot_hold_is_signed_and_read(sealed, text):
    d = json.loads(sealed[0])
    outers = [{**d, 'header': text}, {**d, 'signature': text}]
    for outer in outers + [{**d, 'header': d['header'] | {k: text}} for k in d['header']]:
        v = ask(json.dumps(outer).encode(), sealed[1])
        assert v.failed_checks == ('structural',) and v.reason.isprintable()
        assert read_verdict(sign_verdict(BOB, v), BOB.ss58_address).verdict == v

@pytest.mark.parametrize('name', CHECKS)
def test_whatever_a_check_says_its_line_can_be_written(name):
    line = summary(name, [CheckResult(name, CHECKS[name].severity, False, 1., 0., '\ud800\x1b'*200, 0, 0)])
    assert canonical_json(line) and len(line['reason']) <= 300 and decide([line], TINY).isprintable()

@settings(max_examples=100, deadline=None)
@given(json_values)
def test_a_verdict_from_a_stranger_is_read_or_refused(value):
    with pytest.raises(FormatError): verdict_from_dict(value)

@pytest.mark.parametrize('bad', [dict(tokens=-1), dict(tokens=10**12), dict(tokens=True), dict(tokens=1.), dict(tokens='1'), dict(lost=-.1), dict(lost=float('nan')),
                                 dict(lost=float('inf')), dict(lost=2*MOST), dict(lost=1), dict(lost='0'), dict(tokens=0, lost=1.), dict(rollouts=-1),
                                 dict(places=[10**3000]*10), dict(places=[-1]*10), dict(sampled_groups=[10**12])], ids=str)
def test_a_verdict_that_counts_what_cannot_be_is_refused(rows, bad):
    good = json.loads(verdict_bytes(audit(rows)))
    assert verdict_from_dict(good).tokens > 0
    with pytest.raises(FormatError): verdict_from_dict({**good, **bad})

@pytest.mark.parametrize('lost', [float('inf'), float('nan'), 1e30])
def test_whatever_tokens_lose_the_verdict_can_be_written_and_the_history_read(rows, monkeypatch, lost):
    monkeypatch.setattr(pipeline, 'margin', lambda logits, *_: torch.full(logits.shape[:1], lost))
    v = audit(rows)
    assert v.lost == MOST and v.failed_checks == ('sampling',) and read_verdict(sign_verdict(BOB, v)).verdict == v
    ledger = Ledger(TINY)
    ledger.record(v)
    assert ledger_from_dict(json.loads(canonical_json(ledger_to_dict(ledger))), TINY) == ledger

def test_a_verdict_keeps_its_value_on_the_wire(rows):
    for v in (audit(rows), audit(rows[:-1]), ask(b'', b''), audit(rows, modified=2., deadline=1.)):
        assert read_verdict(sign_verdict(BOB, v), BOB.ss58_address).verdict == v
        assert verdict_from_dict(json.loads(verdict_bytes(v))) == v

def test_ten_million_rows_end_in_a_verdict_within_bounded_memory(tmp_path):
    n = 10_000_000
    cols = [pa.array(np.zeros(n, f.type.to_pandas_dtype())) if not pa.types.is_list(f.type) else
            pa.ListArray.from_arrays(pa.array(np.zeros(n + 1, np.int32)), pa.array([], f.type.value_type), type=f.type)
            for f in SCHEMA]
    pq.write_table(pa.Table.from_arrays(cols, schema=SCHEMA), tmp_path/'body', compression='zstd', use_dictionary=False)
    body = (tmp_path/'body').read_bytes()
    del cols
    h = json.loads(seal(honest(groups=1), ALICE, W, CHECK, TINY, OPEN)[0])['header']
    h |= dict(body_sha256=sha256(body), body_bytes=len(body), rollouts=4096, groups=256)
    (tmp_path/'header').write_bytes(canonical_json({'header': h, 'signature': sign(ALICE, 'submission', canonical_json(h))}))
    code = f'''
import resource, sys
sys.argv = ['x']
from pathlib import Path
from grail.core.params import TINY
from grail.protocol.randomness import Randomness
from grail.verify.pipeline import audit_submission
head, body = (Path({str(tmp_path)!r})/'header').read_bytes(), (Path({str(tmp_path)!r})/'body').read_bytes()
class Model: pass
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
v = audit_submission(head, body, hotkey={ALICE.ss58_address!r}, window={W}, checkpoint={CHECK!r}, model=Model(), env=None,
                     params=TINY, open=Randomness(**{OPEN.to_dict()!r}), audit=Randomness(**{AUDIT.to_dict()!r}))
print(v.failed_checks, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)//1024, v.reason)
'''
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout
    assert out.startswith("('structural',)"), out
    assert int(out.split()[1]) < 50, f'{out} (megabytes beyond what was in use before)'
