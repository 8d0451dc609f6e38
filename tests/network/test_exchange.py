"""What the owner of a bucket can do to those who read it, and what a kill can do to those who write."""
import multiprocessing as mp
import os
import random
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from bittensor_core import Keypair
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from grail.core.basics import FormatError, GrailError, LimitError, NotFound, SignatureError, canonical_json, parse_json, sha256
from grail.core.params import params_to_dict, profile
from grail.network.beacon import AUDIT_MARGIN, LocalBeacon, Rounds, audit_randomness, deadline, open_randomness
from grail.network.chain import LocalChain, RealClock, Unavailable, VirtualClock
from grail.network.exchange import *
from grail.network.exchange import LABEL, MAX_STEPS
from grail.network.store import Buckets, Exists
from grail.protocol.rollout import Rollout, seal
from grail.protocol.signature import sign

ADA, EVE, TOM, VAL = (Keypair.create_from_uri(f'//{n}') for n in ('Ada', 'Eve', 'Tom', 'Val'))
PARAMS = profile('tiny')


class World:
    def __init__(self, path, **params):
        self.path, self.params = path, replace(PARAMS, **params)
        self.clock = VirtualClock(1_700_000_000)
        self.chain = LocalChain(path/'chain.db', self.clock, seed='test')
        self.beacon = LocalBeacon(b'test', self.clock, self.chain.genesis_time)
        self.buckets = Buckets(path/'buckets', self.clock)
    def at(self, block, plus=0.): self.clock.advance_to(self.chain.expected_time(block) + plus)
    def sealed(self, key=ADA, window=30, n=16):
        tokens, logprobs, proof = np.arange(12, dtype=np.int32) % 10, np.full(5, -.5, np.float32), np.arange(5, dtype=np.uint32)
        rows = [Rollout(0, i, tokens, 7, logprobs, proof, 0., False) for i in range(n)]
        return seal(rows, key, window, sha256(b'checkpoint'), self.params, open_randomness(self.chain, self.beacon, window))
    def fetch(self, store, key=ADA, window=30): return fetch_submission(store, self.chain, key.ss58_address, window, self.params)

@pytest.fixture
def world(tmp_path):
    w = World(tmp_path)
    w.at(30)
    yield w
    w.chain.close()


# ---- time

@pytest.mark.parametrize('late, grace, ok', [(-.001, 0., True), (0., 0., True), (.001, 0., False), (5., 5., True),
                                             (5.001, 5., False)])
def test_the_deadline_is_the_windows_end_plus_grace_to_the_microsecond(tmp_path, late, grace, ok):
    w = World(tmp_path, grace_seconds=grace)
    w.at(30)
    header, body = w.sealed()
    w.at(60, late)
    publish_submission(s := w.buckets.bucket('ada'), ADA.ss58_address, 30, header, body)
    w.at(61)
    if ok: assert w.fetch(s).body == body
    else:
        with pytest.raises(FormatError, match='after the deadline'): w.fetch(s)

def test_a_body_that_comes_after_the_deadline_is_late_even_if_its_header_was_not(world):
    header, body = world.sealed()
    s = world.buckets.bucket('ada')
    s.put(submission_key(30, ADA.ss58_address), header)
    world.at(61)
    with pytest.raises(FormatError, match='is not there'): world.fetch(s)
    s.put(submission_key(30, ADA.ss58_address, f'{sha256(body)}.parquet'), body)
    with pytest.raises(FormatError, match='parquet was stored .* after'): world.fetch(s)

def test_an_object_replaced_after_the_deadline_does_not_count(world):
    header, body = world.sealed()
    publish_submission(s := world.buckets.bucket('ada'), ADA.ss58_address, 30, header, body)
    world.at(61)
    assert world.fetch(s)
    s.put(submission_key(30, ADA.ss58_address), world.sealed(n=8)[0])           # another header
    with pytest.raises(FormatError, match='after the deadline'): world.fetch(s)
    s.put(submission_key(30, ADA.ss58_address), header)                         # and the first one again: too late
    with pytest.raises(FormatError, match='after the deadline'): world.fetch(s)

def test_a_header_replaced_while_it_is_read_has_the_later_time(world):
    header, body = world.sealed()
    publish_submission(s := world.buckets.bucket('ada'), ADA.ss58_address, 30, header, body)
    world.at(61)
    class Sneaky:
        def __getattr__(self, name): return getattr(s, name)
        def get(self, key, limit=None):
            data = s.get(key, limit)
            s.put(key, data)                                                    # right after it was read
            return data
    with pytest.raises(FormatError, match='after the deadline'): world.fetch(Sneaky())

def test_nothing_can_be_fetched_before_the_window_is_over(world):
    publish_submission(s := world.buckets.bucket('ada'), ADA.ss58_address, 30, *world.sealed())
    with pytest.raises(NotFound): world.fetch(s)
    with pytest.raises(NotFound): audit_randomness(world.chain, world.beacon, 30)

@given(st.floats(0, 1e5), st.sampled_from([.1, .3, 1., 3., 7.7]))
@settings(max_examples=200, deadline=None)
def test_the_audits_round_is_the_first_that_comes_safely_after_the_deadline(t, period):
    r = Rounds(1_700_000_000.1, period)
    n = r.round_at(1_700_000_000 + t)
    assert r.time_of(n) >= 1_700_000_000 + t and (n == 1 or r.time_of(n-1) < 1_700_000_000 + t)

def test_open_and_audit_randomness_are_the_same_for_all_who_ask_later(world):
    o = open_randomness(world.chain, world.beacon, 30)
    world.at(61, 4)
    a = audit_randomness(world.chain, world.beacon, 30)
    assert world.beacon.time_of(a.round) >= deadline(world.chain, 30) + AUDIT_MARGIN
    world.at(500)
    assert open_randomness(world.chain, world.beacon, 30) == o and audit_randomness(world.chain, world.beacon, 30) == a
    assert audit_randomness(world.chain, world.beacon, 30, 60.).round > a.round

def test_without_a_beacon_there_is_no_randomness(world):
    class Down(Rounds):
        def get(self, round): raise Unavailable('down')
    world.at(70)
    for f in (open_randomness, audit_randomness):
        with pytest.raises(Unavailable): f(world.chain, Down(world.beacon.genesis), 30)


# ---- submissions

def test_a_large_body_is_refused_before_it_is_read(world):
    header, body = world.sealed()
    s = world.buckets.bucket('ada')
    publish_submission(s, ADA.ss58_address, 30, header, body)
    s.put(submission_key(30, ADA.ss58_address, f'{sha256(body)}.parquet'), b'\0'*10_000_000)
    world.at(61)
    class Watched:
        def __getattr__(self, name): return getattr(s, name)
        def get(self, key, limit=None):
            assert 'parquet' not in key
            return s.get(key, limit)
    with pytest.raises(FormatError, match='10,000,000 bytes, the header says'): world.fetch(Watched())
    small = replace(world.params, max_body_bytes=100)
    with pytest.raises(FormatError): fetch_submission(Watched(), world.chain, ADA.ss58_address, 30, small)

@pytest.mark.parametrize('make', [lambda h: b'', lambda h: b'{}', lambda h: b'\xff'*50, lambda h: h[:-1],
                                  lambda h: h + b' '*100_000, lambda h: b'['*15_000,
                                  lambda h: h.replace(b'"window":30', b'"window":60'),
                                  lambda h: h.replace(b'"groups":1', b'"groups":1e999'),
                                  lambda h: h.replace(b'"body_bytes":', b'"body_bytes":1'),
                                  lambda h: canonical_json([parse_json(h)])])
def test_a_header_of_any_kind_ends_in_a_reason(world, make):
    header, body = world.sealed()
    s = world.buckets.bucket('ada')
    publish_submission(s, ADA.ss58_address, 30, make(header), body)
    world.at(61)
    with pytest.raises(FormatError) as e: world.fetch(s)
    assert str(e.value)

def test_a_submission_of_another_miner_or_window_is_refused(world):
    header, body = world.sealed(EVE)
    s = world.buckets.bucket('ada')
    publish_submission(s, ADA.ss58_address, 30, header, body)
    world.at(60)
    publish_submission(s, ADA.ss58_address, 60, *world.sealed(ADA, 30))
    world.at(91)
    for window in (30, 60):
        with pytest.raises(FormatError, match='expected'): world.fetch(s, ADA, window)

def test_a_second_submission_for_a_window_is_refused_and_hurts_nothing(world):
    publish_submission(s := world.buckets.bucket('ada'), ADA.ss58_address, 30, *(first := world.sealed()))
    with pytest.raises(Exists): publish_submission(s, ADA.ss58_address, 30, *world.sealed(n=8))
    world.at(61)
    assert world.fetch(s).body == first[1]

def test_a_restarted_miner_that_signs_again_has_published_already(world):
    first, second = world.sealed(), world.sealed()
    assert first[0] != second[0] and first[1] == second[1]
    stat = publish_submission(s := world.buckets.bucket('ada'), ADA.ss58_address, 30, *first)
    world.at(40)
    assert publish_submission(s, ADA.ss58_address, 30, *second) == stat           # and is as early as it was
    world.at(61)
    assert (world.fetch(s).header, world.fetch(s).stored) == (first[0], stat.modified)

@pytest.mark.parametrize('there', ['eve', 'unsigned', 'more', 'null', 'list', 'noise', 'empty', 'long', 'half'])
def test_a_mark_that_is_not_the_same_header_signed_by_the_same_miner_is_another(world, there):
    header, body = world.sealed()
    d = parse_json(header)
    data = {'eve': canonical_json({**d, 'signature': sign(EVE, 'submission', canonical_json(d['header']))}),
            'unsigned': canonical_json({**d, 'signature': ''}), 'more': canonical_json({**d, 'x': 1}),
            'null': b'null', 'list': b'[]', 'noise': b'\xff'*9, 'empty': b'', 'long': header + b' '*20_000,
            'half': header.replace(b'sort6', b'\\ud800')}[there]
    s = world.buckets.bucket('ada')
    s.put(submission_key(30, ADA.ss58_address), data)
    with pytest.raises(Exists): publish_submission(s, ADA.ss58_address, 30, header, body)
    assert s.get(submission_key(30, ADA.ss58_address)) == data


# ---- damage

def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data)//2] ^= 1
    with open(path, 'r+b') as f: f.write(data)                                    # in its place: the note of the digest stays

def unnoted(path):
    flipped(path)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)                                                        # no note at all

DAMAGE = {'a bit': flipped, 'a bit, no note': unnoted, 'cut': lambda p: os.truncate(p, p.stat().st_size//2),
          'longer': lambda p: os.truncate(p, p.stat().st_size + 1), 'emptied': lambda p: os.truncate(p, 0),
          'a link': lambda p: (p.rename(p.parent/'elsewhere'), p.symlink_to('elsewhere')), 'gone': lambda p: p.unlink()}

@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_file_of_a_checkpoint_is_replaced_when_it_is_published_again(world, damage):
    s, files = world.buckets.bucket('tom'), weights(0) | {'config.json': b'{}'}
    first = publish_checkpoint(s, files, TOM, 30, '', PARAMS)
    for data in files.values(): DAMAGE[damage](s.root/file_key(sha256(data)))
    if damage != 'gone': assert (s.root/file_key(sha256(b'{}'))).exists()
    with pytest.raises(FormatError): load_checkpoint(s, 30, TOM.ss58_address)
    for window in (30, 60):                                                       # the same again, and the next
        publish_checkpoint(s, files, TOM, window, '', PARAMS)
        assert load_checkpoint(s, window, TOM.ss58_address).files == files
    assert load_checkpoint(s, 30, TOM.ss58_address).digest == first.digest

@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_body_is_replaced_when_it_is_published_again(world, damage):
    s, (header, body) = world.buckets.bucket('ada'), world.sealed()
    publish_submission(s, ADA.ss58_address, 30, header, body)
    DAMAGE[damage](s.root/submission_key(30, ADA.ss58_address, f'{sha256(body)}.parquet'))
    publish_submission(s, ADA.ss58_address, 30, header, body)
    world.at(61)
    assert world.fetch(s).body == body

def test_a_name_that_is_a_path_is_refused(world):
    s = world.buckets.bucket('ada')
    for bad in ('../x', 'a/b', '', '.x', None):
        for f in (lambda: publish_submission(s, bad, 30, b'', b''),
                  lambda: world.chain and fetch_header(s, world.chain, bad, 30, PARAMS),
                  lambda: publish_verdict(s, VAL.ss58_address, 30, bad, b'{}'), lambda: list_verdicts(s, bad, 30),
                  lambda: world.buckets.bucket(bad)):
            with pytest.raises(FormatError): f()

def test_a_store_that_is_down_is_nobodys_fault(world):
    class Down:
        def __getattr__(self, name):
            def f(*a, **k): raise Unavailable('down')
            return f
    world.at(61)
    with pytest.raises(Unavailable): world.fetch(Down())
    with pytest.raises(Unavailable): load_checkpoint(Down(), 30, TOM.ss58_address)

def test_strange_keys_in_a_bucket_do_not_disturb_a_listing(world):
    s = world.buckets.bucket('ada')
    publish_submission(s, ADA.ss58_address, 30, *world.sealed())
    for key in ('submissions/000000000030/header.json', 'submissions/000000000030/x/y/header.json', 'submissions/junk',
                'checkpoints/xyz/manifest.json',
                'checkpoints/manifest.json', f'verdicts/000000000030/{VAL.ss58_address}/x/y.json'): s.put(key, b'?')
    assert list_submissions(s, 30) == [ADA.ss58_address]
    assert checkpoint_windows(s) == []
    assert list_verdicts(s, VAL.ss58_address, 30) == []


# ---- checkpoints

def weights(i, n=40_000):
    "A file of weights after `i` updates that move 1 % each"
    w = torch.randn(n, generator=torch.Generator().manual_seed(0)).mul(.02).bfloat16()
    for j in range(i): w.view(torch.int16)[j::100] += 1
    return {'model.safetensors': save({'w': w}), 'config.json': b'{"model":1}'}

def publish_chain(store, n, anchor=3, start=30):
    out = [None]
    for i in range(n):
        out.append(publish_checkpoint(store, weights(i), TOM, start + 30*i, out[-1].digest if out[-1] else '', PARAMS,
                                      base=out[-1], anchor=anchor))
    return out[1:]

def steps(c): return c.manifest['deltas'].get('model.safetensors', {}).get('steps', [])

def test_every_checkpoint_of_a_chain_of_deltas_loads_with_and_without_a_cache(world, tmp_path):
    s = world.buckets.bucket('tom')
    chain = publish_chain(s, 9)
    assert [len(steps(c)) for c in chain] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    for order in (chain, chain[::-1], random.Random(0).sample(chain, 9)):
        shutil.rmtree(tmp_path/'cache', ignore_errors=True)
        for c in order: assert load_checkpoint(s, c.window, TOM.ss58_address, tmp_path/'cache').files == c.files
    for c in chain: assert load_checkpoint(s, c.window, TOM.ss58_address).files == c.files

def test_a_trainer_that_lost_its_memory_goes_on_from_what_it_published(world, tmp_path):
    s = world.buckets.bucket('tom')
    last = publish_chain(s, 3)[-1]
    again = load_checkpoint(s, last.window, TOM.ss58_address)
    nxt = publish_checkpoint(s, weights(3), TOM, 120, again.digest, PARAMS, base=again)
    assert len(steps(nxt)) == 3 and load_checkpoint(s, 120, TOM.ss58_address).files == weights(3)

@pytest.mark.parametrize('keep', [1, 2, 3, 5])
def test_retention_never_breaks_a_chain(world, keep):
    s = world.buckets.bucket('tom')
    for n in range(1, 10):
        last = None if n == 1 else load_checkpoint(s, 30*(n-1), TOM.ss58_address)
        publish_checkpoint(s, weights(n), TOM, 30*n, last.digest if last else '', PARAMS, base=last, anchor=4)
        retain_checkpoints(s, TOM.ss58_address, keep)
        kept = checkpoint_windows(s)
        assert kept == [30*i for i in range(max(1, n-keep+1), n+1)]
        for w in kept: assert load_checkpoint(s, w, TOM.ss58_address).files == weights(w//30)

def test_weights_that_did_not_change_are_not_uploaded_again(world):
    s = world.buckets.bucket('tom')
    last = publish_chain(s, 2)[-1]
    before = {o.key: o.modified for o in s.list('checkpoints/files/')}
    world.at(100)
    for i in range(3): last = publish_checkpoint(s, last.files, TOM, 120 + 30*i, last.digest, PARAMS, base=last)
    assert {o.key: o.modified for o in s.list('checkpoints/files/')} == before
    assert load_checkpoint(s, last.window, TOM.ss58_address).files == weights(1)

def attacks():
    def put(key, data): return lambda s, c: s.put(key(c) if callable(key) else key, data(c) if callable(data) else data)
    part = lambda i, what='sha256': lambda c: file_key(steps(c)[i][what])
    yield 'delta replaced by noise', put(part(0), lambda c: b'?'*steps(c)[0]['size'])
    yield 'deltas swapped', lambda s, c: s.put(file_key(steps(c)[0]['sha256']), s.get(file_key(steps(c)[1]['sha256'])))
    yield 'delta removed', lambda s, c: s.delete(file_key(steps(c)[1]['sha256']))
    yield 'anchor removed', lambda s, c: s.delete(file_key(c.manifest['deltas']['model.safetensors']['anchor']))
    yield 'anchor replaced', put(lambda c: file_key(c.manifest['deltas']['model.safetensors']['anchor']),
                                 weights(7)['model.safetensors'])
    yield 'anchor larger', put(lambda c: file_key(c.manifest['deltas']['model.safetensors']['anchor']), b'\0'*1_000_000)
    yield 'config replaced', put(lambda c: file_key(sha256(c.files['config.json'])), b'{"model":2}')
    yield 'manifest of another window', lambda s, c: s.put(manifest_key(c.window), s.get(manifest_key(c.window - 30)))
    yield 'manifest cut', lambda s, c: s.put(manifest_key(c.window), s.get(manifest_key(c.window))[:-1])
    edit = lambda a, b: lambda s, c: s.put(manifest_key(c.window), s.get(manifest_key(c.window)).replace(a, b))
    yield 'manifest changed', edit(b'"audit_min":2', b'"audit_min":1')
    yield 'manifest of noise', lambda s, c: s.put(manifest_key(c.window), b'\xff'*100)
    yield 'manifest too large', lambda s, c: s.put(manifest_key(c.window), b' '*2_000_000)

@pytest.mark.parametrize('attack', [a for _, a in attacks()], ids=[n for n, _ in attacks()])
def test_a_checkpoint_that_somebody_changed_is_refused(world, tmp_path, attack):
    s = world.buckets.bucket('tom')
    last = publish_chain(s, 3)[-1]
    attack(s, last)
    for cache in (None, tmp_path/'cache'):
        with pytest.raises(FormatError): load_checkpoint(s, last.window, TOM.ss58_address, cache)

FORGED = dict(version=2, window=True, parent='x', params={}, files=[], deltas={'x': 1}, weights='', trainer=7, info=None)

@pytest.mark.parametrize('field', FORGED)
def test_a_signed_manifest_of_the_wrong_form_is_refused(world, field):
    s = world.buckets.bucket('tom')
    m = publish_chain(s, 1)[-1].manifest
    for change in ({**m, field: FORGED[field]}, {k: v for k, v in m.items() if k != field}, {**m, 'more': 1}):
        s.put(manifest_key(30), canonical_json(dict(manifest=change, signature=sign(TOM, LABEL, canonical_json(change)))))
        with pytest.raises(FormatError): load_checkpoint(s, 30, TOM.ss58_address)

D = sha256(b'')
BAD_FILES = [{'../x': dict(sha256=D, size=0)}, {'a/b': dict(sha256=D, size=0)}, {'x': dict(sha256=D)},
             {'x': dict(sha256=D, size=-1)}, {'x': dict(sha256=D, size=1.)},
             {'x': dict(sha256='../../etc/passwd', size=1)}, {'x': dict(sha256=D, size=10**15)}, {'x': None},
             {'x': dict(sha256=D.upper(), size=0)},
             {f'f{i}': dict(sha256=D, size=0) for i in range(1001)}]
STEP = dict(sha256=D, size=0, result=D)
BAD_DELTAS = [{'y': dict(anchor=D, size=0, steps=[STEP])}, {'x': dict(anchor=D, size=0, steps=[])},
              {'x': dict(anchor=D, size=0, steps=[STEP]*(MAX_STEPS+1))},
              {'x': dict(anchor=D, size=0, steps=[dict(STEP, result='0'*64)])}, {'x': dict(anchor='x', size=0, steps=[STEP])},
              {'x': dict(anchor=D, steps=[STEP])},
              {'x': dict(anchor=D, size=-1, steps=[STEP])}, {'x': dict(anchor=D, size=0, steps=[None])}, {'x': [1]},
              {'x': dict(anchor=D, size=0, steps='ab', more=1)}]

def test_a_manifest_names_files_and_deltas_strictly(world):
    m = publish_chain(world.buckets.bucket('tom'), 1)[-1].manifest
    good = {**m, 'files': {'x': dict(sha256=D, size=0)}}
    assert check_manifest(good) and check_manifest({**good, 'deltas': {'x': dict(anchor=D, size=0, steps=[STEP])}})
    for files in BAD_FILES:
        with pytest.raises(FormatError): check_manifest({**m, 'files': files})
    for deltas in BAD_DELTAS:
        with pytest.raises(FormatError): check_manifest({**good, 'deltas': deltas})

def test_the_trainers_hotkey_counts_not_the_bucket(world):
    s = world.buckets.bucket('tom')
    publish_checkpoint(s, weights(0), EVE, 30, '', PARAMS)
    with pytest.raises(SignatureError): load_checkpoint(s, 30, TOM.ss58_address)
    m = {**load_manifest(s, 30, EVE.ss58_address), 'trainer': TOM.ss58_address}
    s.put(manifest_key(30), canonical_json(dict(manifest=m, signature=sign(EVE, LABEL, canonical_json(m)))))
    for t in (TOM, EVE):
        with pytest.raises(FormatError): load_checkpoint(s, 30, t.ss58_address)

def test_a_damaged_cache_is_noticed_and_mended(world, tmp_path):
    s = world.buckets.bucket('tom')
    c = publish_chain(s, 2)[-1]
    load_checkpoint(s, c.window, TOM.ss58_address, tmp_path/'cache')
    for f in (tmp_path/'cache').iterdir(): f.write_bytes(f.read_bytes()[:-1] + b'?')
    assert load_checkpoint(s, c.window, TOM.ss58_address, tmp_path/'cache').files == c.files
    assert all(sha256(f.read_bytes()) == f.name for f in (tmp_path/'cache').iterdir())

def test_a_full_disk_costs_the_cache_not_the_checkpoint(world, tmp_path, monkeypatch):
    import os
    s = world.buckets.bucket('tom')
    c = publish_chain(s, 2)[-1]
    def full(fd): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(os, 'fsync', full)
    assert load_checkpoint(s, c.window, TOM.ss58_address, tmp_path/'cache').files == c.files
    monkeypatch.undo()
    assert not list((tmp_path/'cache').iterdir())

def test_a_late_checkpoint_counts_as_none_for_everybody(world):
    s = world.buckets.bucket('tom')
    world.at(59)
    publish_chain(s, 1)
    assert load_checkpoint(s, 30, TOM.ss58_address, chain=world.chain)
    world.at(90, .5)
    publish_checkpoint(s, weights(1), TOM, 60, '', PARAMS)
    with pytest.raises(NotFound, match='0.5 s after its end'): load_checkpoint(s, 60, TOM.ss58_address, chain=world.chain)


# ---- verdicts

def test_the_first_verdict_stands(world):
    s = world.buckets.bucket('val')
    publish_verdict(s, VAL.ss58_address, 30, ADA.ss58_address, b'{"passed":true}')
    publish_verdict(s, VAL.ss58_address, 30, ADA.ss58_address, b'{"passed":false}')
    assert read_verdict(s, VAL.ss58_address, 30, ADA.ss58_address) == b'{"passed":true}'
    with pytest.raises(LimitError): publish_verdict(s, VAL.ss58_address, 30, EVE.ss58_address, b' '*2_000_000)
    s.put(verdict_key(30, VAL.ss58_address, EVE.ss58_address), b' '*2_000_000)
    with pytest.raises(LimitError): read_verdict(s, VAL.ss58_address, 30, EVE.ss58_address)


# ---- kills and races

def _mine(path, ready):
    w = World(path)
    w.at(30)
    keys = [Keypair.create_from_uri(f'//m{n}') for n in range(40)]
    sealed = [w.sealed(k) for k in keys]
    ready.set()
    for k, (header, body) in zip(keys, sealed): publish_submission(w.buckets.bucket('ada'), k.ss58_address, 30, header, body)

def _train(path, ready):
    w, last = World(path), None
    files = [weights(i, 400_000) for i in range(12)]
    ready.set()
    for i, f in enumerate(files):
        parent = last.digest if last else ''
        last = publish_checkpoint(w.buckets.bucket('tom'), f, TOM, 30 + 30*i, parent, PARAMS, base=last, anchor=4)

def _load(path, ready):
    w = World(path)
    ready.set()
    while True:
        for i in range(6): load_checkpoint(w.buckets.bucket('tom'), 30 + 30*i, TOM.ss58_address, path/'cache')
        shutil.rmtree(path/'cache')

def killed(work, path, seconds):
    "Let another process do its work, and kill it after so many seconds"
    fork = mp.get_context('fork')
    ready = fork.Event()
    p = fork.Process(target=work, args=(path, ready))
    p.start()
    assert ready.wait(30)
    time.sleep(seconds)
    p.kill()
    p.join()

@pytest.mark.parametrize('seconds', [.02, .08])
def test_a_miner_that_is_killed_has_submitted_all_or_nothing(tmp_path, seconds):
    killed(_mine, tmp_path, seconds)
    w = World(tmp_path)
    w.at(61)
    s = w.buckets.bucket('ada')
    found = list_submissions(s, 30)
    for hotkey in found: assert fetch_submission(s, w.chain, hotkey, 30, w.params).body
    k = Keypair.create_from_uri('//m39')                                          # one that did not come to it can go on
    if k.ss58_address not in found:
        w2 = World(tmp_path)
        w2.at(30)
        publish_submission(s2 := w2.buckets.bucket('ada'), k.ss58_address, 30, *w2.sealed(k))
        assert fetch_submission(s, w.chain, k.ss58_address, 30, w.params)

@pytest.mark.parametrize('seconds', [.05, .2])
def test_a_trainer_that_is_killed_has_published_whole_checkpoints(tmp_path, seconds):
    killed(_train, tmp_path, seconds)
    w = World(tmp_path)
    s, last = w.buckets.bucket('tom'), None
    windows = checkpoint_windows(s)
    for window in windows:
        last = load_checkpoint(s, window, TOM.ss58_address)
        assert last.files == weights(window//30 - 1, 400_000)
    i = len(windows)                                                              # and it goes on
    publish_checkpoint(s, weights(i, 400_000), TOM, 30 + 30*i, last.digest if last else '', PARAMS, base=last, anchor=4)
    assert load_checkpoint(s, 30 + 30*i, TOM.ss58_address).files == weights(i, 400_000)

def test_a_reader_that_is_killed_leaves_a_cache_of_whole_files(tmp_path):
    w = World(tmp_path)
    chain = publish_chain(w.buckets.bucket('tom'), 6)
    killed(_load, tmp_path, .3)
    cache = tmp_path/'cache'
    if cache.exists(): assert all(sha256(f.read_bytes()) == f.name for f in cache.iterdir() if not f.name.startswith('.'))
    for c in chain: assert load_checkpoint(w.buckets.bucket('tom'), c.window, TOM.ss58_address, cache).files == c.files
