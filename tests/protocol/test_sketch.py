"The published sketch: scalar reference against the vectorised path, and what must not change it."
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from grail.protocol.sketch import Q, log_bucket, sketch, sketch_distance, tolerance, top_values


def bucket(h, B=16):
    "The definition, one value at a time"
    if math.isnan(h) or abs(h) < 1e-6: return 0
    if math.isinf(h): return B-1 if h > 0 else 1-B
    b = min(B-1, math.floor(math.log2(abs(h)+1) * B/10))
    return b if h > 0 else -b


def one(h, r, k=32, B=16):
    "The sketch of one state by the definition"
    h = [0. if math.isnan(x) else x for x in h]
    order = sorted(range(len(h)), key=lambda i: (-abs(h[i]), i))[:k]
    return sum(int(c)*bucket(h[i], B) for c, i in zip(r, order)) % Q


def test_buckets_as_published():
    values = [0.5, 0.55, 1, 3, -10, -5, 30, 7, 100, 662, 663, 1e-7, math.nan, math.inf, -math.inf]
    assert log_bucket(values).tolist() == [0, 1, 1, 3, -5, -4, 7, 4, 10, 14, 15, 0, 0, 15, -15]


def test_tolerances_as_published():
    assert [tolerance(p) for p in (0, 50, 100, 200, 500, 1000, 2047)] == [50, 66, 75, 83, 91, 95, 97]
    p = np.arange(20_000)
    assert ((tolerance(p) == np.floor(50*(2 - 1/(1 + p/100)) + 1e-9)).all()
            and (np.diff(tolerance(p)) >= 0).all() and tolerance(p).max() < 100)


@pytest.mark.parametrize('B', [8, 16])
def test_a_million_random_values_equal_the_reference(B):
    rng = np.random.default_rng(B)
    h = (np.sign(rng.normal(size=10**6)) * 2**rng.uniform(-30, 14, 10**6)).astype(np.float32)
    assert (log_bucket(h, B) == np.fromiter((bucket(x, B) for x in h.tolist()), np.int64, len(h))).all()
    assert (log_bucket(torch.from_numpy(h), B).numpy() == log_bucket(h, B)).all()


@settings(deadline=None)
@given(st.integers(0, 6), st.integers(1, 80), st.integers(1, 40), st.integers(0, 2**32-1), st.booleans())
def test_sketch_equals_the_reference(n, H, k, seed, coarse):
    rng = np.random.default_rng(seed)
    h = np.round(rng.normal(size=(n, H))*3) if coarse else rng.normal(size=(n, H))*10**rng.uniform(-3, 3, H)   # coarse: many ties
    h = h.astype(np.float32)
    if n: h[0, rng.integers(H)] = rng.choice([math.nan, math.inf, -math.inf])
    r = rng.integers(-127, 128, (n, k))
    expected = [one(x, c, k) for x, c in zip(h.tolist(), r)]
    assert sketch(h, r, k).tolist() == expected and sketch(torch.from_numpy(h), torch.from_numpy(r), k).tolist() == expected


@given(st.integers(1, 40), st.integers(0, 2**32-1))
def test_the_order_of_dimensions_matters_only_for_ties(H, seed):
    rng = np.random.default_rng(seed)
    h = torch.from_numpy(rng.permutation(np.arange(1, H+1)).astype(np.float32))
    assert top_values(h, 8).tolist() == list(range(H, max(H-8, 0), -1))


def test_dtypes_only_change_the_values():
    h, r = torch.randn(50, 64), torch.randint(-127, 128, (50, 32))
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        x = h.to(dtype)
        assert (sketch(x, r) == sketch(x.float(), r)).all()


@given(st.integers(0, 2**32-1), st.integers(0, 2**32-1))
def test_distance_is_a_distance_on_the_circle(a, b):
    d = int(sketch_distance(np.uint32(a), np.uint32(b)))
    if max(a, b) >= Q: assert d == Q
    else: assert d == int(sketch_distance(np.uint32(b), np.uint32(a))) == min((a-b) % Q, (b-a) % Q) <= Q//2
