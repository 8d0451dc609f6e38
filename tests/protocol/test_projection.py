"""The projection's codes are integers that do not depend on who computes them; its calibration survives strangers; \
its decision keeps its rate."""
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from grail.core.basics import ConfigError, FormatError
from grail.protocol.projection import (LEVELS, Calibration, calibrate_projection, codes, coefficients, distances, far_limit,
                                       honest_distances, judge, mean_limit, project, squash, stale)
from grail.protocol.randomness import prf


def reference(h, open, hotkey, group, index, mean, scale, step):
    "Codes by the definition, in numpy and plain integers, one dimension at a time"
    n, H  = h.shape
    width = -(-H//8)
    place = open, hotkey.encode(), group.to_bytes(8, 'big'), index.to_bytes(8, 'big')
    raw, dither = prf('projection', *place, size=width + (n+H+7)//8), prf('dither', *place, size=8*n)
    sign  = lambda part, i: 1 - 2*(part[i//8] >> i % 8 & 1)
    out   = []
    for t in range(n):
        with np.errstate(all='ignore'):
            a = h[t].astype(np.float32) - mean
            q = np.rint(np.clip(a*(np.float32(LEVELS)/scale), -LEVELS, LEVELS))
        word = 0
        for j in range(4):
            block = range(j*-(-H//4), min((j+1)*-(-H//4), H))
            u     = sum(sign(raw[:width], i)*sign(raw[width:], t+i)*int(q[i]) for i in block if not math.isnan(q[i]))
            eta   = int.from_bytes(dither[8*t+2*j:8*t+2*j+2], 'little')*step >> 16
            word |= ((u + eta)//step % 256) << 8*j
        out.append(word)
    return out


def ours(h, mean, scale, step, at=(b'o'*32, 'miner', 1, 2)):
    signs, dither = coefficients(*at, *h.shape)
    return codes(project(h, signs, torch.from_numpy(mean), torch.from_numpy(scale)), dither, step)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 90), st.integers(0, 5), st.integers(0, 2**32-1), st.integers(1, 3000),
       st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]), st.booleans())
def test_codes_equal_the_reference_in_every_dtype(H, n, seed, step, dtype, odd):
    rng = np.random.default_rng(seed)
    h   = torch.from_numpy(rng.normal(size=(n, H))*10**rng.uniform(-2, 3, H)).to(dtype)
    if odd and n: h[0, rng.integers(H)] = rng.choice([math.nan, math.inf, -math.inf, 65504.])
    mean, scale = rng.normal(size=H).astype(np.float32), rng.uniform(.01, 5, H).astype(np.float32)
    assert ours(h, mean, scale, step).tolist() == reference(h.float().numpy(), b'o'*32, 'miner', 1, 2, mean, scale, step)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('step', [1, 2, 5])
def test_small_scales_and_steps_equal_the_reference_to_the_last_bit(dtype, step):
    "64 states of 2,048 dimensions: a factor M/s that is rounded twice moves some q by one, and at small steps the code with it"
    rng = np.random.default_rng(7)
    h   = torch.from_numpy(rng.normal(size=(64, 2048)).astype(np.float32)*.03).to(dtype)
    mean, scale = (rng.normal(size=2048)*.003).astype(np.float32), (.03*rng.uniform(.5, 2, 2048)).astype(np.float32)
    with np.errstate(all='raise'): q = np.rint(np.clip((h.float().numpy() - mean)*(np.float32(LEVELS)/scale), -LEVELS, LEVELS))
    assert (squash(h, torch.from_numpy(mean), torch.from_numpy(scale)).numpy() == q).all()
    assert ours(h, mean, scale, step).tolist() == reference(h.float().numpy(), b'o'*32, 'miner', 1, 2, mean, scale, step)


def test_sums_are_exact_up_to_the_largest_hidden_size():
    H = 2**24//LEVELS*4
    h = torch.full((2, H), 1e30)
    signs = torch.ones(H), torch.ones(2+H)
    assert project(h, signs, torch.zeros(H), torch.ones(H)).tolist() == [[LEVELS*(H//4)]*4]*2 and LEVELS*(H//4) <= 2**24


def test_two_threads_and_any_batch_give_the_same():
    h, mean, scale = torch.randn(300, 513), np.zeros(513, np.float32), np.ones(513, np.float32)
    expected, threads = ours(h, mean, scale, 37), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert (ours(h, mean, scale, 37) == expected).all()
    finally: torch.set_num_threads(threads)
    signs, dither = coefficients(b'o'*32, 'miner', 1, 2, 300, 513)
    m, s = torch.from_numpy(mean), torch.from_numpy(scale)
    assert (np.concatenate([codes(project(h[i:i+7], (signs[0], signs[1][i:]), m, s), dither[i:i+7], 37)
                            for i in range(0, 300, 7)]) == expected).all()


def test_every_bit_of_the_context_changes_all_positions():
    h, mean, scale = torch.randn(64, 256), np.zeros(256, np.float32), np.ones(256, np.float32)
    base = ours(h, mean, scale, 100)
    for at in [(b'p'*32, 'miner', 1, 2), (b'o'*32, 'Miner', 1, 2), (b'o'*32, 'miner', 0, 2), (b'o'*32, 'miner', 1, 3)]:
        assert distances(ours(h, mean, scale, 100, at), base).mean() > 50


def test_positions_have_signs_of_their_own():
    "Equal states at all positions give codes as different as unrelated ones"
    h, mean, scale = torch.randn(1, 256).expand(64, 256), np.zeros(256, np.float32), np.ones(256, np.float32)
    c = ours(h, mean, scale, 100)
    assert distances(c, np.roll(c, 1)).mean() > 50


@given(st.integers(0, 2**32-1), st.integers(0, 2**32-1), st.integers(0, 2**32-1))
def test_distance_is_a_distance(a, b, c):
    d = lambda x, y: float(distances(np.uint32([x]), np.uint32([y]))[0])
    assert d(a, b) == d(b, a) and d(a, c) <= d(a, b) + d(b, c) and 0 <= d(a, b) <= 128 and (d(a, b) == 0) == (a == b)
    assert d(a, b) == sum(min((a >> s) - (b >> s) & 255, (b >> s) - (a >> s) & 255) for s in (0, 8, 16, 24))/4


def gaussian_pairs(n, H=64, length=24, eps=.01, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [(h, h + eps*torch.randn(h.shape, generator=g)) for h in torch.randn(n, length, H, generator=g)]


def test_false_positives_stay_below_the_stated_rate():
    "2,000 new honest rollouts at a stated rate of one percent: at most 1.7 %"
    cal   = calibrate_projection(gaussian_pairs(400), false_positives=.01)
    fresh = honest_distances(gaussian_pairs(2000, seed=1), torch.from_numpy(cal.mean), torch.from_numpy(cal.scale), cal.step)
    assert np.mean([bool(judge(d, cal)[2]) for d in fresh]) < .017


@pytest.mark.parametrize('length', [1, 3, 7, 64, 500])
def test_the_rate_holds_for_lengths_that_were_not_calibrated(length):
    cal   = calibrate_projection(gaussian_pairs(400), false_positives=.01)
    fresh = honest_distances(gaussian_pairs(600 if length < 100 else 150, length=length, seed=2),
                             torch.from_numpy(cal.mean), torch.from_numpy(cal.scale), cal.step)
    assert np.mean([bool(judge(d, cal)[2]) for d in fresh]) < .03


def test_a_few_forged_positions_of_a_long_rollout_are_seen():
    cal = calibrate_projection(gaussian_pairs(400))
    d   = honest_distances(gaussian_pairs(1, length=1024, seed=3), torch.from_numpy(cal.mean), torch.from_numpy(cal.scale), cal.step)[0]
    assert not judge(d, cal)[2]
    d[::32] = 5.
    assert 'far off' in judge(d, cal)[2] or 'mean' in judge(d, cal)[2]
    d[::32] = 64.
    assert judge(d, cal)[2]


def test_no_noise_at_all_still_gives_a_calibration():
    "A network of bitwise equal machines: the limit is one step, not zero"
    cal = calibrate_projection([(h, h) for h, _ in gaussian_pairs(20)])
    assert (cal.step, cal.honest, mean_limit(cal, 24)) == (1, 0., 1.) and not judge(np.zeros(24), cal)[2] and judge(np.full(24, 2.), cal)[2]


def test_dimensions_that_never_change_are_harmless():
    pairs = [(torch.cat([a, torch.ones(24, 2)], 1), torch.cat([b, torch.ones(24, 2)], 1)) for a, b in gaussian_pairs(40)]
    cal   = calibrate_projection(pairs)
    assert all(not judge(d, cal)[2] for d in honest_distances(pairs, torch.from_numpy(cal.mean), torch.from_numpy(cal.scale), cal.step))


def test_limits_are_monotone():
    cal = calibrate_projection(gaussian_pairs(100))
    assert all(mean_limit(cal, n) >= mean_limit(cal, n+1) for n in range(1, 300))
    assert all(far_limit(cal, n) <= far_limit(cal, n+1) <= far_limit(cal, n)+1 for n in range(1, 300))


def test_a_rate_too_small_for_float64_is_refused():
    with pytest.raises(FormatError, match='false_positives'): calibrate_projection(gaussian_pairs(20), false_positives=1e-13)
    cal = calibrate_projection(gaussian_pairs(20), false_positives=1e-12)
    assert math.isfinite(mean_limit(cal, 1)) and far_limit(cal, 32768) < 3000         # the tail of a long rollout is not lost in rounding


def test_empty_pairs_count_for_nothing_and_misfits_are_refused():
    pairs, nothing = gaussian_pairs(20), (torch.zeros(0, 64), torch.zeros(0, 64))
    cal = calibrate_projection(pairs)
    assert calibrate_projection([*pairs, nothing, nothing]).digest == cal.digest and not stale(cal, [*pairs, nothing])
    for few in ([], pairs[:1], [nothing]*5, [pairs[0], nothing]):
        for measure in (calibrate_projection, lambda x: stale(cal, x)):
            with pytest.raises(ConfigError, match='at least 2'): measure(few)
    for misfit in (gaussian_pairs(1, H=32), [(pairs[0][0], pairs[0][1][:-1])], [(pairs[0][0][0], pairs[0][1][0])]):
        for measure in (calibrate_projection, lambda x: stale(cal, x)):
            with pytest.raises(ConfigError, match='states of honest pairs'): measure(pairs + misfit)
    with pytest.raises(ConfigError, match='states of honest pairs'): stale(cal, gaussian_pairs(5, H=32))


def test_stale_says_when_noise_has_changed():
    cal = calibrate_projection(gaussian_pairs(200))
    assert not stale(cal, gaussian_pairs(100, seed=5)) and stale(cal, gaussian_pairs(100, eps=.013, seed=6))


GOOD = calibrate_projection(gaussian_pairs(20, H=8)).to_bytes()

@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=200), st.tuples(st.integers(0, len(GOOD)-1), st.integers(0, 255)), st.integers(0, len(GOOD))))
def test_a_foreign_calibration_is_valid_or_a_format_error(x):
    data = x if isinstance(x, bytes) else GOOD[:x] if isinstance(x, int) else GOOD[:x[0]] + bytes([x[1]]) + GOOD[x[0]+1:]
    try: cal = Calibration.from_bytes(data)
    except FormatError: return
    assert mean_limit(cal, 7) >= 1. and 0 <= far_limit(cal, 7) <= 7


def test_equal_calibrations_have_one_digest():
    a, b = (calibrate_projection(gaussian_pairs(20, H=8)) for _ in range(2))
    assert a.digest == b.digest == Calibration.from_bytes(GOOD).digest
