"""Deltas are exact for whatever a state dict can hold, refuse whatever is not theirs, and are worth their time."""
import random
import struct
import time
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from grail.core.basics import FormatError, GrailError, LimitError, canonical_json, parse_json
from grail.network.delta import DTYPES, MAGIC, _pack, _read, apply, apply_file, encode, encode_file
from grail.network.delta import bits, changed, narrow, planes, unplanes


def same(a, b):
    kinds = [[(n, t.dtype, t.shape) for n, t in x.items()] for x in (a, b)]
    return kinds[0] == kinds[1] and all((bits(a[n]) == bits(b[n])).all() for n in a)

def tensor(rng, dtype, shape):
    "Any bits at all: NaN, infinities, negative zeros, subnormal numbers"
    n = int(np.prod(shape))*dtype.itemsize
    raw = torch.zeros(n, dtype=torch.uint8)
    raw.copy_(torch.from_numpy(rng.integers(0, 2 if dtype is torch.bool else 256, n, dtype=np.uint8)))
    if dtype.is_complex: return torch.view_as_complex(raw.view(dtype.to_real()).reshape(*shape, 2)).clone()
    return raw.view(dtype).reshape(shape).clone()

def mutate(rng, t, fraction):
    t = t.clone()
    flat = (torch.view_as_real(t) if t.is_complex() else t).reshape(-1).view(torch.uint8)
    at = rng.random(len(flat)) < fraction
    flat[torch.from_numpy(at)] ^= 1 if t.dtype is torch.bool else 85
    return t

SHAPES = st.one_of(st.just(()), st.lists(st.integers(0, 7), min_size=1, max_size=4).map(tuple),
                   st.integers(1, 3000).map(lambda n: (n,)))


@given(st.sampled_from(sorted(DTYPES)), SHAPES, st.sampled_from([0, .001, .05, .5, 1]), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_a_delta_is_exact_for_any_type_shape_and_amount_of_change(dtype, shape, fraction, seed):
    rng = np.random.default_rng(seed)
    old = {'w': tensor(rng, DTYPES[dtype], shape), 'other': torch.ones(3)}
    new = {'w': mutate(rng, old['w'], fraction), 'other': old['other']}
    before = {n: t.clone() for n, t in old.items()}
    assert same(apply(old, encode(old, new)), new)
    assert same(old, before)                                        # the base is not touched

@given(st.dictionaries(st.text(max_size=8), st.integers(0, 20), max_size=5),
       st.dictionaries(st.text(max_size=8), st.integers(0, 20), max_size=5), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_tensors_may_come_go_and_change_shape_or_type(a, b, seed):
    rng = np.random.default_rng(seed)
    make = lambda d: {n: tensor(rng, random.Random(s).choice(list(DTYPES.values())), (s,)) for n, s in d.items()}
    old, new = make(a), make(b)
    new.update({n: old[n] for n in list(new) if n in old and rng.random() < .5})
    assert same(apply(old, encode(old, new)), new)

@given(st.integers(0, 2**32), st.integers(1, 30))
@settings(max_examples=50, deadline=None)
def test_a_slice_a_transpose_and_an_expanded_tensor_are_read_by_their_values(seed, n):
    rng = np.random.default_rng(seed)
    base = tensor(rng, torch.bfloat16, (n, 8))
    for view in (base[:, ::2], base.T, base[:1].expand(n, 8), base[n//2:]):
        old, new = {'w': torch.zeros(view.shape, dtype=view.dtype)}, {'w': view}
        assert same(apply(old, encode(old, new)), {'w': view.contiguous()})

def test_tied_weights_stay_tied_and_are_sent_once():
    e = torch.randn(1000, 16).bfloat16()
    old = {'head': e, 'embed': e, 'x': torch.zeros(2)}
    f = torch.randn(1000, 16).bfloat16()
    blob = encode(old, {'head': f, 'embed': f, 'x': old['x']})
    new = apply(old, blob)
    assert new['head'] is new['embed'] and torch.equal(new['head'], f)
    assert len(blob) < 1.2*f.nbytes
    apart = apply(old, encode(old, {'head': f, 'embed': e, 'x': old['x']}))
    assert torch.equal(apart['embed'], e) and torch.equal(apart['head'], f)
    again = apply(old, encode(old, old))
    assert again['head'] is again['embed']
    g = e.clone()
    joined = {'head': g, 'embed': g, 'x': old['x']}                  # the same values, one memory
    loose = {'head': e.clone(), 'embed': e.clone(), 'x': old['x']}
    assert same(apply(loose, encode(loose, joined)), joined)

def test_an_empty_change_is_small_and_copies_nothing():
    old = {f'w{i}': torch.randn(10_000) for i in range(20)}
    blob = encode(old, {n: t.clone() for n, t in old.items()})
    assert len(blob) < 300
    assert all(a is b for a, b in zip(apply(old, blob).values(), old.values()))
    assert same(apply({}, encode({}, {})), {})

@pytest.mark.parametrize('how', ['neighbours', 'anything'])
def test_a_chain_of_a_hundred_updates_is_exact(how):
    rng = np.random.default_rng(0)
    here = there = {'a': tensor(rng, torch.bfloat16, (300, 40)), 'b': tensor(rng, torch.float32, (77,)),
                    'c': tensor(rng, torch.bfloat16, ())}
    for i in range(100):
        if how == 'anything': new = {n: mutate(rng, t, rng.choice([0, .01, .3])) for n, t in here.items()}
        else: new = {n: t.clone() for n, t in here.items()}; new['a'].view(torch.int16)[rng.random((300, 40)) < .01] += 1
        there = apply(there, encode(here, new))
        here = new
    assert same(there, here)


# ---- what is refused

OLD = {'a': torch.arange(64, dtype=torch.int16), 'b': torch.ones(5)}
NEW = {'a': OLD['a'] + (torch.arange(64) % 20 == 0).to(torch.int16), 'b': OLD['b']}

def test_another_base_is_refused_even_if_it_differs_in_one_bit():
    blob = encode(OLD, NEW)
    bad = {n: t.clone() for n, t in OLD.items()}
    bad['b'].view(torch.int32)[4] ^= 1
    swapped = {'a': OLD['a'].flip(0), 'b': OLD['b']}
    for base in (bad, swapped, NEW, {}, {'a': OLD['a']}, {**OLD, 'c': OLD['b']}, {'b': OLD['a'], 'a': OLD['b']},
                 {'a': OLD['a'].view(8, 8), 'b': OLD['b']}):
        with pytest.raises(FormatError, match='another base'): apply(base, blob)

def test_every_single_byte_is_protected():
    blob = encode(OLD, NEW)
    for i in range(len(blob)):
        for flip in (1, 128):
            with pytest.raises(FormatError): apply(OLD, blob[:i] + bytes([blob[i] ^ flip]) + blob[i+1:])
        with pytest.raises(FormatError): apply(OLD, blob[:i])

def forge(change, payload=None):
    "A delta whose header was changed by somebody who can compute digests"
    import hashlib
    d, rest = _read(encode(OLD, NEW))
    rest = bytes(rest) if payload is None else _pack(payload)
    change(d)
    head = canonical_json(d)
    packed = _pack(head)
    rest = struct.pack('<II', len(head), len(packed)) + packed + rest
    return MAGIC + hashlib.sha256(rest).digest() + rest

def setting(**kw):
    def f(d): d['entries']['a'].update(kw)
    return f

WHOLE = lambda **kw: lambda d: d['entries'].update(z=dict(mode='whole', **{**dict(dtype='float32', shape=[2]), **kw}))
CHANGES = dict(count=setting(count=5), negative=setting(count=-1), none=setting(count=0), huge=setting(count=2**40),
               width=setting(width=2), width3=setting(width=3),
               text=setting(count='4'), mode=setting(mode='sparse2'), unhashable=setting(mode=[]), dtype=setting(dtype='int32'),
               evil=setting(dtype='load'),
               shape=setting(shape=[65]), shapes=setting(shape='64'), minus=setting(shape=[-64]), more=setting(more=1),
               dense=setting(mode='dense'),
               tied=lambda d: d['entries'].update(b=dict(mode='tied', to='b')),
               tied_to_nothing=lambda d: d['entries'].update(b=dict(mode='tied', to='q')),
               tied_to_number=lambda d: d['entries'].update(b=dict(mode='tied', to=[1])),
               names=lambda d: d.update(names=['a']) or d['entries'].update(b=dict(mode='tied', to='a')),
               missing=lambda d: d.update(names=['a', 'b', 'c']),
               twice=lambda d: d.update(names=['a', 'a', 'b']), number=lambda d: d.update(names=7),
               numbers=lambda d: d.update(names=[1, 2]),
               entries=lambda d: d.update(entries=[]), entry=lambda d: d['entries'].update(a=None),
               size=lambda d: d.update(size=10**15),
               terabytes=WHOLE(shape=[2**40]), product=WHOLE(shape=[2**40, 2**40]), deep=WHOLE(shape=[1]*65), unlisted=WHOLE())

@pytest.mark.parametrize('name', CHANGES)
def test_a_header_that_lies_is_refused(name):
    with pytest.raises(FormatError): apply(OLD, forge(CHANGES[name]))

@pytest.mark.parametrize('gaps', [bytes([0, 0, 0, 255]), bytes([63, 0, 0, 0])])
def test_positions_outside_a_tensor_are_refused(gaps):
    with pytest.raises(FormatError, match='outside'): apply(OLD, forge(lambda d: None, gaps + b'\x01\0'*4))

def test_positions_that_wrap_around_are_refused():
    big = np.array([0, 2**64-1, 2**63, 5], '<u8')
    def change(d): d['entries']['a'].update(width=8); d['size'] = 40
    with pytest.raises(FormatError): apply(OLD, forge(change, planes(big) + b'\x01\0'*4))

def test_a_small_blob_can_not_ask_for_much_memory():
    bomb = forge(lambda d: d.update(size=2**34, names=None), b'\0'*50_000_000)
    bomb2 = forge(WHOLE(shape=[2**28]), b'\0'*50_000_000)
    tracemalloc.start()
    for b in (bomb, bomb2):
        assert len(b) < 10_000
        with pytest.raises(FormatError): apply(OLD, b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000

@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_noise_is_refused(data):
    for blob in (data, MAGIC + data, encode(OLD, NEW)[:40] + data):
        with pytest.raises(FormatError): apply(OLD, blob)
        with pytest.raises(FormatError): apply_file(save(OLD), blob)
        with pytest.raises(FormatError): encode_file(data, save(OLD))


# ---- parts

@given(st.lists(st.integers(0, 2**63-1), max_size=50))
def test_integers_come_back(values):
    x = narrow(np.array(values, np.int64))
    assert (unplanes(planes(x), x.itemsize) == np.array(values, np.int64)).all()

@given(st.integers(0, 100), st.sampled_from(['u1', '<u2', '<u4', '<u8']), st.integers(0, 2**32))
def test_changed_positions_are_those_that_differ(n, kind, seed):
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 3, n).astype(kind)
    b = np.where(rng.random(n) < .2, rng.integers(0, 3, n).astype(kind), a)
    assert changed(a, b).tolist() == [i for i in range(n) if a[i] != b[i]]


# ---- files

def test_a_file_comes_back_with_its_header():
    rng = np.random.default_rng(0)
    a = save({'w': tensor(rng, torch.bfloat16, (50, 20)), 'b': torch.ones(3, dtype=torch.bool)}, metadata={'format': 'pt'})
    t = load(a)
    t['w'] = mutate(rng, t['w'], .01)
    for b in (save(t), save(t, metadata={'format': 'pt', 'step': '9'}), save({}), save({'new': torch.zeros(2, 0)})):
        assert apply_file(a, encode_file(a, b)) == b
        assert apply_file(b, encode_file(b, a)) == a

def test_a_file_whose_header_lies_is_refused():
    good = save({'w': torch.ones(4, dtype=torch.bfloat16), 'v': torch.ones(4)})
    size = int.from_bytes(good[:8], 'little')
    head = parse_json(good[8:8+size].rstrip())
    def with_head(**kw):
        h = canonical_json({**head, **kw})
        return len(h).to_bytes(8, 'little') + h + good[8+size:]
    assert encode_file(with_head(), good)
    w, v = head['w'], head['v']
    for bad in (dict(w={**w, 'shape': [5]}), dict(w={**w, 'dtype': 'F32'}), dict(w={**w, 'data_offsets': [0, 8]}),
                dict(w={**w, 'data_offsets': [-8, 0]}),
                dict(w={**w, 'data_offsets': [0]}), dict(w={**w, 'shape': [2**70, 2**70]}), dict(w=None), dict(w=v), dict(x=w),
                dict(w={**w, 'dtype': []}),
                dict(w={**w, 'shape': ['4']})):
        with pytest.raises(FormatError): encode_file(with_head(**bad), good)


# ---- is it worth it?

def model_135m():
    "Shapes of a Llama-like model of 135 million weights"
    shapes = {'embed': (49152, 576), 'norm': (576,)}
    for i in range(30):
        shapes.update({f'{i}.{n}': (s, 576) for n, s in zip('qkvo', (576, 192, 192, 576))})
        shapes.update({f'{i}.gate': (1536, 576), f'{i}.up': (1536, 576), f'{i}.down': (576, 1536), f'{i}.n1': (576,),
                       f'{i}.n2': (576,)})
    g = torch.Generator().manual_seed(0)
    return {n: torch.randn(s, generator=g).mul_(.02).bfloat16() for n, s in shapes.items()}

def best(f, n=4):
    times = []
    for _ in range(n):
        start = time.perf_counter()
        out = f()
        times.append(time.perf_counter() - start)
    return out, min(times)

@pytest.mark.slow
@pytest.mark.parametrize('values', ['neighbours', 'random'])
def test_at_one_percent_a_delta_of_135_million_weights_is_small_and_faster_than_zstd(values):
    rng, old = np.random.default_rng(0), model_135m()
    new = {n: t.clone() for n, t in old.items()}
    for t in new.values():
        b = t.view(torch.int16).reshape(-1).numpy()
        at = rng.choice(len(b), max(1, len(b)//100), replace=False)
        if values == 'neighbours': b[at] += rng.choice([-1, 1], len(at)).astype(np.int16)
        else: b[at] = bits(torch.randn(len(at)).mul(.02).bfloat16()).view(np.int16)
    whole = b''.join(bits(t).tobytes() for t in new.values())
    blob, t_encode = best(lambda: encode(old, new))
    got, t_apply = best(lambda: apply(old, blob))
    _, t_zstd = best(lambda: pa.Codec('zstd', compression_level=1).compress(whole, asbytes=True))
    print(f'\n{values}: {len(whole):,} bytes, delta {len(blob):,} ({len(whole)/len(blob):.0f} times smaller); '
          f'encode {t_encode:.2f} s, apply {t_apply:.2f} s, zstd-1 {t_zstd:.2f} s')
    assert same(got, new)
    assert len(blob)*30 <= len(whole)
    assert t_encode < t_zstd and t_apply < t_zstd
