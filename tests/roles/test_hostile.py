"Whatever lies in a miner's bucket, the validator's answer is a verdict with a reason, in bounded memory."
import io
import json
import resource
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bittensor_core import Keypair

from grail.core.basics import NotFound, canonical_json, sha256
from grail.network.exchange import submission_key
from grail.protocol.rollout import decode_body, encode_body, seal
from grail.protocol.signature import sign
from grail.roles.simulate import FIRST, begin, keypair, settings


def build(out):
    "A network with one honest miner that has worked in the first window, in the middle of the second"
    sim = begin(settings(windows=3, groups=2, miners='honest', eval_tasks=2, eval_samples=1, validators=1), out)
    sim.step(FIRST)
    sim.at(FIRST + 1, 10)
    sim.target = FIRST + 1
    return sim


def honest(sim, key, window):
    "Rollouts that `key` would honestly submit for `window`, and the arguments of its seal"
    from grail.roles.miner import Miner
    m = Miner(key, sim.network, groups=2, models=sim.models)
    loaded, open = m.load(window), sim.network.open(window)
    tasks = m.tasks(loaded, open.value)
    return m.rollouts(loaded, tasks, m.generate(loaded, tasks, open.value), open.value), dict(
        keypair=key, window=window.start, checkpoint=loaded.checkpoint.digest, params=loaded.params, open=open)


def sign_header(header, key):
    return canonical_json({'header': header, 'signature': sign(key, 'submission', canonical_json(header))})


def with_body(header, body, key, **changes):
    "The header for another body, properly signed"
    d = json.loads(header)['header'] | dict(body_sha256=sha256(body), body_bytes=len(body)) | changes
    return sign_header(d, key), body


def edit(body, **columns):
    "The body with columns replaced, its layout otherwise as Arrow writes it"
    t = pq.read_table(io.BytesIO(body))
    for name, column in columns.items(): t = t.set_column(t.column_names.index(name), name, column(t[name]))
    sink = io.BytesIO()
    pq.write_table(t, sink, compression='zstd')
    return sink.getvalue()


def patched(rollouts, **changes):
    return [replace(r, **{k: v(r) for k, v in changes.items()}) for r in rollouts]


def rows(n):
    "A body of `n` equal rows, which compresses to almost nothing"
    one = pa.array(np.zeros(n, np.int32))
    lists = lambda kind: pa.ListArray.from_arrays(pa.array(np.zeros(n + 1, np.int32)), pa.array([], kind))
    t = pa.table(dict(group=one, index=one, prompt_length=one, tokens=lists(pa.int32()),
                      logprobs=lists(pa.float32()), proof=lists(pa.uint32()),
                      reward=pa.array(np.zeros(n)), success=pa.array(np.zeros(n, bool))))
    sink = io.BytesIO()
    pq.write_table(t, sink, compression='zstd')
    return sink.getvalue()


def nan(r):
    x = r.logprobs.copy()
    x[0] = np.nan
    return x


# name -> what a miner puts into its bucket instead, from (its honest header, body, key, rollouts, seal arguments, simulation)
CASES = dict(
    corrupt_header       =lambda h, b, k, r, a, s: (b'\x00\xff{"header":', b),
    empty_header         =lambda h, b, k, r, a, s: (b'', b),
    huge_header          =lambda h, b, k, r, a, s: (b'['*3_000_000, b),
    header_of_wrong_types=lambda h, b, k, r, a, s: with_body(h, b, k, window=[], rollouts='many'),
    header_with_more     =lambda h, b, k, r, a, s: with_body(h, b, k, bonus=1),
    header_without       =lambda h, b, k, r, a, s: (sign_header({n: v for n, v in json.loads(h)['header'].items() if n != 'open'}, k), b),
    negative_counts      =lambda h, b, k, r, a, s: with_body(h, b, k, rollouts=-1),
    endless_counts       =lambda h, b, k, r, a, s: with_body(h, b, k, rollouts=10**15, groups=10**15, tokens=10**15),
    surrogate_header     =lambda h, b, k, r, a, s: (b'{"header":"\\ud800","signature":""}', b),
    unsigned             =lambda h, b, k, r, a, s: (h.replace(b'"signature":"', b'"signature":"00', 1), b),
    signed_by_another    =lambda h, b, k, r, a, s: (sign_header(json.loads(h)['header'], keypair(0, 'somebody else')), b),
    another_hotkey       =lambda h, b, k, r, a, s: with_body(h, b, k, hotkey=keypair(0, 'somebody else').ss58_address),
    path_like_hotkey     =lambda h, b, k, r, a, s: with_body(h, b, k, hotkey='../../../etc/passwd'),
    another_window       =lambda h, b, k, r, a, s: seal(r, **a | dict(window=(s.target - 1).start, open=s.network.open(s.target - 1))),
    another_checkpoint   =lambda h, b, k, r, a, s: seal(r, **a | dict(checkpoint='0'*64)),
    other_randomness     =lambda h, b, k, r, a, s: seal(r, **a | dict(open=replace(a['open'], beacon='ab'*32))),
    no_body              =lambda h, b, k, r, a, s: (h, None),
    another_body         =lambda h, b, k, r, a, s: with_body(h, b, k, body_sha256=sha256(b'x')),
    announced_too_large  =lambda h, b, k, r, a, s: with_body(h, b, k, body_bytes=10**12),
    truncated_parquet    =lambda h, b, k, r, a, s: with_body(h, b[:len(b)//2], k),
    no_parquet           =lambda h, b, k, r, a, s: with_body(h, b'PAR1' + bytes(500) + b'PAR1', k),
    empty_body           =lambda h, b, k, r, a, s: with_body(h, b'', k),
    wrong_types          =lambda h, b, k, r, a, s: with_body(h, edit(b, reward=lambda c: c.cast(pa.string())), k),
    missing_values       =lambda h, b, k, r, a, s: with_body(h, edit(b, reward=lambda c: pa.nulls(len(c), pa.float64())), k),
    ten_million_rows     =lambda h, b, k, r, a, s: with_body(h, rows(10_000_000), k),
    ten_million_announced=lambda h, b, k, r, a, s: with_body(h, rows(10_000_000), k, rollouts=10_000_000, groups=625_000),
    nan_logprobs         =lambda h, b, k, r, a, s: seal(patched(r, logprobs=nan), **a),
    infinite_reward      =lambda h, b, k, r, a, s: seal(patched(r, reward=lambda r: float('inf')), **a),
    foreign_tokens       =lambda h, b, k, r, a, s: seal(patched(r, tokens=lambda r: r.tokens + 1000), **a),
    negative_tokens      =lambda h, b, k, r, a, s: seal(patched(r, tokens=lambda r: -1 - r.tokens), **a),
    negative_group       =lambda h, b, k, r, a, s: seal(patched(r, group=lambda r: r.group - 1), **a),
    skipped_group        =lambda h, b, k, r, a, s: seal(patched(r, group=lambda r: 2*r.group), **a),
    short_group          =lambda h, b, k, r, a, s: seal(r[:-1], **a),
    repeated_rollout     =lambda h, b, k, r, a, s: seal(r + r[:1], **a),
    no_rollouts          =lambda h, b, k, r, a, s: seal([], **a),
    no_prompt            =lambda h, b, k, r, a, s: with_body(h, edit(b, prompt_length=lambda c: pa.array(np.zeros(len(c), np.int32))), k),
    all_prompt           =lambda h, b, k, r, a, s: with_body(
                              h, edit(b, prompt_length=lambda c: pa.array(np.full(len(c), 999, np.int32))), k),
    short_proof          =lambda h, b, k, r, a, s: with_body(h, edit(b, proof=lambda c: pa.array([x[:1] for x in c.to_pylist()])), k),
)


@pytest.fixture(scope='module')
def verdicts(tmp_path_factory):
    "The verdict on each case, all in one window, and on an honest miner beside them"
    sim = build(tmp_path_factory.mktemp('hostile'))
    window, places = sim.target, {}
    for name, change in CASES.items():
        key = keypair(0, f'hostile {name}')
        sim.chain.register(key)
        sim.chain.commit(key, key.ss58_address)
        rollouts, how = honest(sim, key, window)
        header, body = seal(rollouts, **how)
        try: header, body = change(header, body, key, rollouts, how, sim)
        except Exception as e: raise AssertionError(f'{name} could not be made') from e
        bucket = sim.network.bucket(key.ss58_address)
        try: digest = json.loads(header)['header']['body_sha256']
        except (ValueError, KeyError, TypeError, RecursionError): digest = sha256(body)
        if body is not None: bucket.put(submission_key(window, key.ss58_address, f'{digest}.parquet'), body)
        bucket.put(submission_key(window, key.ss58_address), header)
        places[name] = key.ss58_address
    sim.miners[0].run(window)
    sim.at(window + 1, 4)
    v = sim.validators[0]
    due = sim.models.load(window - 1)
    open, audit = sim.network.open(window), sim.network.audit(window, due.params)
    claims = v.claims(window, due.params)
    assert set(claims) == {*places.values(), sim.miners[0].hotkey}       # nobody is lost, however broken the header
    found = {name: v.audit(hotkey, window, due, open, audit) for name, hotkey in places.items()}
    return found | {'honest': v.audit(sim.miners[0].hotkey, window, due, open, audit)}


@pytest.mark.parametrize('case', CASES)
def test_ends_in_a_verdict_with_a_reason(verdicts, case):
    v = verdicts[case]
    assert not v.passed and v.rollouts == 0 and 'structural' in v.failed_checks and len(v.reason) > 20, v


def test_the_honest_miner_beside_them_passes(verdicts): assert verdicts['honest'].passed and verdicts['honest'].rollouts > 0


def test_a_late_submission_is_ignored(tmp_path):
    sim = build(tmp_path)
    sim.clock.advance_to(sim.chain.expected_time(sim.target.end) + 1)
    rollouts, how = honest(sim, sim.miners[0].keypair, sim.target)
    sim.miners[0].submit(sim.target, *seal(rollouts, **how))
    sim.at(sim.target + 1, 4)
    assert sim.validators[0].run(sim.target + 1) == []


def test_a_window_without_a_beacon_is_not_audited(tmp_path):
    sim = build(tmp_path)
    sim.miners[0].run(sim.target)
    sim.at(sim.target + 1, 4)
    from grail.network.chain import Unavailable
    def down(*a): raise Unavailable('no relay answers')
    sim.network.beacon.get = down
    assert sim.validators[0].run(sim.target + 1) == []


MEMORY = '''
import resource, sys, tempfile
sys.path.insert(0, 'tests/roles')
import torch; torch.set_num_threads(1)
from test_hostile import *
sim = build(tempfile.mkdtemp())
key = keypair(0, 'hostile'); sim.chain.register(key); sim.chain.commit(key, key.ss58_address)
rollouts, how = honest(sim, key, sim.target)
bucket, due = sim.network.bucket(key.ss58_address), sim.models.load(sim.target - 1)
body = open(sys.argv[1], 'rb').read()
header, body = with_body(seal(rollouts, **how)[0], body, key)
bucket.put(submission_key(sim.target, key.ss58_address, sha256(body) + '.parquet'), body)
bucket.put(submission_key(sim.target, key.ss58_address), header)
sim.at(sim.target + 1, 4)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
v = sim.validators[0].audit(key.ss58_address, sim.target, due, sim.network.open(sim.target), sim.network.audit(sim.target, due.params))
assert not v.passed
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)//1024)
'''


def test_ten_million_rows_cost_no_memory(tmp_path):
    "What 10,000,000 rows would take if they were decoded is some 500 MB"
    (tmp_path/'body').write_bytes(rows(10_000_000))
    done = subprocess.run([sys.executable, '-c', MEMORY, str(tmp_path/'body')], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) < 64, f'{done.stdout} MB'


def test_what_is_withdrawn_after_the_deadline_has_failed(tmp_path):
    "The draw is public before the audit; a miner that was seen to have submitted cannot take it back, or put something else there"
    sim = build(tmp_path)
    gone, swapped = (keypair(0, f'late {x}') for x in 'ab')
    v, window = sim.validators[0], sim.target
    for key in (gone, swapped):
        sim.chain.register(key)
        sim.chain.commit(key, key.ss58_address)
    made = {key: honest(sim, key, window) for key in (gone, swapped)}
    for key, (rollouts, how) in made.items():
        header, body = seal(rollouts[:16], **how)
        bucket = sim.network.bucket(key.ss58_address)
        bucket.put(submission_key(window, key.ss58_address, f'{sha256(body)}.parquet'), body)
        bucket.put(submission_key(window, key.ss58_address), header)
    sim.at(window + 1, 0)
    assert set(v.observe(window)) == {gone.ss58_address, swapped.ss58_address}
    with pytest.raises(NotFound): sim.network.audit(window, sim.params)              # seen before there is a draw
    sim.network.bucket(gone.ss58_address).delete(submission_key(window, gone.ss58_address))
    header, body = seal(*made[swapped][:1], **made[swapped][1])
    bucket = sim.network.bucket(swapped.ss58_address)
    bucket.put(submission_key(window, swapped.ss58_address, f'{sha256(body)}.parquet'), body)
    bucket.put(submission_key(window, swapped.ss58_address), header)
    sim.at(window + 1, 4)
    verdicts = {x.hotkey: x for x in v.run(window + 1)}
    assert set(verdicts) == {gone.ss58_address, swapped.ss58_address}
    assert not any(x.passed for x in verdicts.values())


@pytest.mark.parametrize('where', ['validator', 'trainer'])
def test_a_store_that_does_not_answer_is_nobodys_fault(tmp_path, where):
    from grail.network.chain import Unavailable
    sim = build(tmp_path)
    sim.miners[0].run(sim.target)
    real = sim.network.buckets
    class Down:
        def __getattr__(self, name):
            def fail(*a, **kw): raise Unavailable('no answer')
            return fail
    class Some:
        def bucket(self, name, *a): return Down() if name == sim.miners[0].hotkey else real.bucket(name, *a)
    sim.at(sim.target + 1, 4)
    if where == 'validator':
        sim.network.buckets = Some()
        assert sim.validators[0].run(sim.target + 1) == []
        assert not sim.validators[0].ledger.banned(sim.miners[0].hotkey, int(sim.target + 2))
    else:
        sim.validators[0].run(sim.target + 1)
        sim.network.buckets = Some()
        assert sim.trainer.learn(sim.target + 1)['miners_used'] == 0


def test_an_honest_miner_does_not_submit_what_would_be_refused(tmp_path):
    sim = begin(settings(windows=3, groups=5, miners='honest', eval_tasks=2, eval_samples=1,
                         validators=1, rules=dict(max_groups=3)), tmp_path)
    sim.step(FIRST)
    _, lines = sim.step(FIRST + 1)
    assert lines[0]['audited'] and lines[0]['passed'] and lines[0]['rollouts'] == 3*16


def test_a_miner_that_starts_again_in_the_same_window_does_no_harm(tmp_path):
    sim = build(tmp_path)
    miner = sim.miners[0]
    assert miner.run(sim.target) > 0
    miner.run(sim.target)
    sim.at(sim.target + 1, 4)
    assert [v.passed for v in sim.validators[0].run(sim.target + 1)] == [True]


def test_a_miner_waits_for_the_randomness_of_the_window(tmp_path):
    sim = begin(settings(windows=1, groups=1, miners='honest', eval_tasks=2, eval_samples=1, validators=1), tmp_path)
    assert sim.miners[0].run(FIRST) == 0                     # the clock still stands in the window before


def test_a_trainer_learns_from_whole_groups_of_each_trusted_miner_and_from_nothing_false_late_or_unsigned(tmp_path):
    "Trust alone is not enough: what a trusted miner sends is checked again, and equal group numbers of two miners do not mix"
    sim = build(tmp_path)
    names = ('one', 'two', 'false reward', 'false success', 'unsigned', 'short', 'late', 'stranger')
    keys  = {n: keypair(0, f'learned from {n}') for n in names}
    def put(n):
        rollouts, how = honest(sim, keys[n], sim.target)
        if n == 'false reward': rollouts = patched(rollouts[:1], reward=lambda r: 1 - r.reward) + rollouts[1:]
        if n == 'false success': rollouts = patched(rollouts[:1], success=lambda r: not r.success) + rollouts[1:]
        header, body = seal(rollouts[:-1] if n == 'short' else rollouts, **how)
        if n == 'unsigned': header = sign_header(json.loads(header)['header'], keypair(0, 'somebody else'))
        bucket = sim.network.bucket(keys[n].ss58_address)
        bucket.put(submission_key(sim.target, keys[n].ss58_address, f'{sha256(body)}.parquet'), body)
        bucket.put(submission_key(sim.target, keys[n].ss58_address), header)
    for n in names:
        sim.chain.register(keys[n])
        sim.chain.commit(keys[n], keys[n].ss58_address)
        if n != 'late': put(n)
    sim.clock.advance_to(sim.chain.expected_time(sim.target.end) + 1)
    put('late')
    sim.at(sim.target + 1, 4)
    trusted = [keys[n].ss58_address for n in names if n != 'stranger']
    sim.chain.set_weights(sim.validators[0].keypair, {h: 1/len(trusted) for h in trusted})
    assert sorted(sim.trainer.trust()) == sorted(trusted)    # the stake has put its trust in liars, too
    groups, results, counts = sim.trainer.collect(sim.target)
    good = [keys[n].ss58_address for n in ('one', 'two')]
    assert sorted(g.key for g in groups) == sorted((h, g) for h in good for g in (0, 1))
    assert all(len(g) == sim.params.rollouts_per_group for g in groups) and {h for h, _, _ in results} == set(good)
    assert counts == dict(miners_trusted=7, miners_used=2, miners_refused=5)


def test_a_validator_that_missed_a_window_audits_the_next_and_bans_nobody(tmp_path):
    sim = begin(settings(windows=5, groups=1, miners='honest', eval_tasks=2, eval_samples=1, validators=2), tmp_path)
    sim.step(FIRST)
    sim.step(FIRST + 1)
    both, v = sim.validators, sim.validators[1]
    sim.validators = both[:1]                                # the second is away
    sim.step(FIRST + 2)
    sim.validators = both
    assert sim.step(FIRST + 3)[0]['verdicts_agree']
    seen = v.ledger.records(sim.miners[0].hotkey, int(FIRST + 2))
    assert [(r.window, r.audited, r.passed) for r in seen] == [(int(FIRST), True, True), (int(FIRST + 2), True, True)]
    assert not v.ledger.banned(sim.miners[0].hotkey, int(FIRST + 3)) and v.shares(FIRST + 2)[sim.miners[0].hotkey] > 0
