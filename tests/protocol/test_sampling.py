"Verifiable sampling: fixed vectors, an oracle in whole numbers, the allowed set against sorting, hostile tokens."
import hashlib
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grail.core.basics import ConfigError
from grail.protocol import sampling as S
from grail.protocol.randomness import as_part, noise_key, prf
from grail.protocol.sampling import allowed, edges, gumbel, gumbel_numpy, margin, pick, step_words

KEYS = [bytes(range(16)), b'\xff'*16]
keys_of = lambda n, tag=b'test': [noise_key(tag, '5Miner', i//16, i%16) for i in range(n)]


def oracle(key, step, token):
    "The noise of one token in whole numbers and `math`, as the page defines it"
    stream = prf('sampling noise', key, as_part(step//64), size=768)[12*(step%64):]
    w = [int.from_bytes(stream[4*i:4*i+4], 'little') for i in range(3)]
    x = (token*0x9E3779B9 + w[0]) % 2**32
    for shift,mult,add in ((17, 0xED5AD4BB, w[1]), (11, 0xAC4C1B51, w[2]),
                           (15, 0x31848BAB, 0)): x = ((x ^ x >> shift)*mult + add) % 2**32
    x ^= x >> 14
    y = (x if x < 2**31 else 2**32-1-x) | 1
    if y >= 2**24:                                         # a float32 has 24 bits: round to nearest, ties to even
        drop = y.bit_length() - 24
        y = round(y / 2**drop) * 2**drop
    e = y.bit_length()-1
    width = 2.0**(e-10)
    low = (y*2**10 >> e) * width if e > 10 else float(y)
    mid = min(low + (width/2 if width >= 2 else 0), 2.0**31)/2**32
    g = -math.log(-math.log(mid)) if x < 2**31 else -math.log(-math.log1p(-mid))
    return round(g*2**19)


def test_noise_has_these_values_for_ever():
    assert step_words(KEYS, [0, 1000]).view(np.uint32).tolist() == [[2637180686, 4115824238, 3552760951],
                                                                    [2415699473, 3384062179, 2068121005]]
    tokens = np.array([0, 1, 2, 3, 49151, 2**31-1])
    expected = [[966335, -736569, 1599852, 56356, 371949, 285261], [769022, 520900, -143994, -97428, -211698, 608597]]
    for g in (gumbel_numpy(KEYS, [0, 1000], tokens), gumbel(KEYS, [0, 1000], torch.tensor(tokens)).numpy()):
        assert g.dtype == np.float32 and (g*2**19).tolist() == expected
    digest = lambda x: hashlib.sha256(x.astype('<f4').tobytes()).hexdigest()
    assert digest(S.TABLE) == '4ad66dd898ed6ef3a23f35ae0e16625ac7529476577f9ba198a129a5f6370030'
    whole = gumbel(KEYS, [5, 64], 49_152).numpy()
    assert digest(whole) == '60fdf714f577f2d3628957f3a8a940d0645b7f58a2de72fd7e34bac6242f2a92'


def test_picks_have_these_values_for_ever():
    logits = (torch.arange(1000) % 97).float().view(1, -1).expand(6, -1)/10
    for kw,expected in [({}, [173, 278, 474, 775, 383, 168]), (dict(top_k=20), [580, 192, 775, 775, 580, 677]),
                        (dict(top_p=.5), [580, 771, 385, 775, 383, 677]), (dict(temperature=0.), [96]*6)]:
        assert pick(logits, KEYS*3, [0, 0, 1, 1, 2, 2], **kw).tolist() == expected, kw


def test_noise_equals_the_definition_in_whole_numbers():
    rng = np.random.default_rng(0)
    for key in keys_of(3):
        for step in (0, 63, 64, 8191):
            tokens = rng.integers(0, 2**17, 200)
            assert (gumbel([key], step, torch.tensor(tokens))[0]*2**19).tolist() == [oracle(key, step, int(t)) for t in tokens]


@pytest.mark.parametrize('device', ['cpu'] + ['cuda']*torch.cuda.is_available())
def test_noise_is_the_same_in_torch_and_numpy_with_no_warning(device):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        keys = keys_of(5)
        assert np.array_equal(gumbel(keys, [0, 1, 2, 3, 999], 50_000, device).cpu().numpy(),
                              gumbel_numpy(keys, [0, 1, 2, 3, 999], 50_000))


def test_threads_do_not_change_the_noise():
    before, keys = torch.get_num_threads(), keys_of(4)
    try:
        torch.set_num_threads(1); one = gumbel(keys, 3, 60_000)
        torch.set_num_threads(2); assert torch.equal(one, gumbel(keys, 3, 60_000))
    finally: torch.set_num_threads(before)


def test_candidates_have_the_noise_of_the_whole_vocabulary():
    keys, few = keys_of(3), torch.randint(0, 30_000, (3, 50), generator=torch.Generator().manual_seed(0))
    whole = gumbel(keys, [7, 8, 9], 30_000)
    assert torch.equal(gumbel(keys, [7, 8, 9], few), whole.gather(1, few))
    assert torch.equal(gumbel(keys, [7, 8, 9], few[0]), whole[:, few[0]])


def test_every_input_of_the_noise_matters():
    base = gumbel(keys_of(1), 0, 1000)
    for other in (gumbel([noise_key(b'test', '5Other', 0, 0)], 0, 1000), gumbel([noise_key(b'test', '5Miner', 1, 0)], 0, 1000),
                  gumbel([noise_key(b'test', '5Miner', 0, 1)], 0, 1000), gumbel([noise_key(b'later', '5Miner', 0, 0)], 0, 1000),
                  gumbel(keys_of(1), 1, 1000)):
        assert (base == other).float().mean() < .01


def test_pairs_of_tokens_and_of_steps_are_independent():
    "Pairs at several distances fall evenly on an 8 x 8 grid of quantiles: chi-square with 63 degrees of freedom"
    keys = keys_of(256)
    u = torch.exp(-torch.exp(-torch.stack([gumbel(keys, t, 512) for t in range(2)]).double()))    # [step, rollout, token]
    bins = (u*8).long().clamp(0, 7)
    pairs = [(bins[0, :, d:], bins[0, :, :-d]) for d in (1, 2, 16, 256)] + [(bins[0], bins[1]), (bins[0, 1:], bins[0, :-1])]
    for a,b in pairs:
        counts = torch.bincount((a*8+b).flatten(), minlength=64).double()
        expected = counts.sum()/64
        assert ((counts-expected)**2/expected).sum() < 63 + 4.5*(2*63)**.5


def test_a_token_wins_as_often_as_softmax_says_on_a_vocabulary_of_50():
    keys, logits = keys_of(20_000, b'chi'), 1.5*torch.randn(50, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(pick(logits.expand(len(keys), -1), keys, 3), minlength=50).double()
    expected = logits.double().softmax(0)*len(keys)
    big = expected > 5
    chi2 = ((counts-expected)[big]**2/expected[big]).sum()
    assert chi2 < big.sum() + 4.5*(2*big.sum())**.5


def by_sorting(logits, temperature, top_k, top_p):
    "The allowed set, one token after the other"
    order = sorted(range(len(logits)), key=lambda v: (-logits[v], v))
    if 0 < top_k < len(order): order = order[:top_k]
    if top_p < 1:
        p = np.exp((np.array([logits[v] for v in order]) - logits[order[0]])/temperature)
        before = np.cumsum(p/p.sum()) - p/p.sum()
        order = [v for v,b in zip(order, before) if b < top_p - 1e-6] or order[:1]
    return set(order)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=12), st.sampled_from([.5, 1., 2.]), st.integers(0, 14),
       st.sampled_from([.05, .3172, .6418, .9173, 1.]))
def test_allowed_tokens_are_those_of_a_stable_sort(values, temperature, top_k, top_p):
    logits = torch.tensor([[float(v) for v in values]])
    mask = S.allowed(logits, temperature, top_k, top_p)
    kept = set(range(len(values))) if mask is None else set(mask[0].nonzero()[:, 0].tolist())
    assert kept == by_sorting([float(v) for v in values], temperature, top_k, top_p)


def test_top_p_that_needs_most_of_a_large_vocabulary_is_exact():
    logits = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(0))*torch.tensor([[.01], [1.], [12.]])
    mask = S.allowed(logits, 1., 0, .9)
    for row,kept in zip(logits.double(), mask):
        p, order = row.softmax(0).sort(descending=True)
        n = int((p.cumsum(0)-p < .9).sum())
        assert abs(int(kept.sum()) - n) <= 1 + n*1e-4 and kept[order[:max(n-5, 0)]].all()


@pytest.mark.parametrize('kw', [{}, dict(temperature=.6), dict(top_k=5), dict(top_p=.7),
                                dict(top_k=50, top_p=.9, temperature=1.3), dict(temperature=0.), dict(top_p=0.)])
def test_margin_is_zero_exactly_for_the_pick(kw):
    logits, keys, steps = torch.randn(300, 700, generator=torch.Generator().manual_seed(0)), keys_of(300), list(range(300))
    x = pick(logits, keys, steps, **kw)
    assert (margin(logits, x, keys, steps, **kw) == 0).all()
    y = (x + 1 + torch.arange(300)) % 700
    assert (margin(logits, y, keys, steps, **kw)[y != x] > 0).all()


def test_margin_is_the_distance_to_the_best_allowed_score():
    logits, keys = torch.randn(4, 90, generator=torch.Generator().manual_seed(0)), keys_of(4)
    score = logits/.5 + gumbel(keys, 2, 90)
    test = torch.tensor([3, 50, 7, 89])
    torch.testing.assert_close(margin(logits, test, keys, 2, .5), score.amax(1) - score.gather(1, test[:, None])[:, 0])


def test_margin_of_a_token_that_was_not_allowed_is_infinite():
    logits, keys = torch.arange(10.).expand(3, -1), keys_of(3)
    assert margin(logits, torch.tensor([0, 6, 9]), keys, 0, top_k=3).isinf().tolist() == [True, True, False]
    assert margin(logits, torch.tensor([0, 6, 9]), keys, 0, top_p=.5).isinf().tolist() == [True, True, False]


@pytest.mark.parametrize('token', [-1, 10, 2**31, -2**63, 2**63-1])
def test_margin_of_an_id_outside_of_the_vocabulary_is_infinite(token):
    for t in (0., 1.): assert margin(torch.zeros(1, 10), torch.tensor([token]), KEYS[:1], [0], t).tolist() == [math.inf]


@pytest.mark.parametrize('bad', [math.nan, math.inf])
def test_broken_logits_of_the_verifier_never_look_like_a_match(bad):
    logits = torch.zeros(1, 10); logits[0, 4] = bad
    assert margin(logits, torch.tensor([3]), KEYS[:1], [0]).tolist() == [math.inf]


def test_rows_are_independent_of_the_batch_they_come_in():
    logits, keys, steps = torch.randn(40, 30_000, generator=torch.Generator().manual_seed(0)), keys_of(40), list(range(40))
    together = pick(logits, keys, steps, top_p=.9)
    assert together.tolist() == [pick(logits[i:i+1], keys[i:i+1], steps[i], top_p=.9).item() for i in range(40)]
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    assert torch.equal(together[order], pick(logits[order], [keys[i] for i in order], [steps[i] for i in order], top_p=.9))


def test_half_precision_logits_are_scored_in_single_precision():
    logits, keys = torch.randn(8, 500, generator=torch.Generator().manual_seed(0)).bfloat16(), keys_of(8)
    assert torch.equal(pick(logits, keys, 0), pick(logits.float(), keys, 0))
    assert (margin(logits, pick(logits, keys, 0), keys, 0) == 0).all()


def test_inputs_are_left_alone_and_may_carry_gradients():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)); before = logits.clone()
    for kw in ({}, dict(top_k=3), dict(top_p=.5), dict(temperature=0.)):
        pick(logits, KEYS, 0, **kw)
        margin(logits, torch.tensor([1, 2]), KEYS, 0, **kw)
    assert torch.equal(logits, before)
    assert pick(logits.requires_grad_(), KEYS, 0, temperature=0.).shape == (2,)


def test_no_rows_give_no_tokens():
    assert pick(torch.zeros(0, 10), [], []).tolist() == [] and margin(torch.zeros(0, 10), torch.zeros(0, dtype=torch.long), [],
                                                                      []).tolist() == []


def test_equal_scores_of_greedy_decoding_go_to_the_smaller_id():
    assert pick(torch.tensor([[1., 5., 5., 0.]]), KEYS[:1], 0, 0.).tolist() == [1]
    assert margin(torch.tensor([[1., 5., 5., 0.]]), torch.tensor([2]), KEYS[:1], 0, 0.).tolist() == [0]


def test_wrong_keys_of_the_caller_are_named():
    with pytest.raises(ConfigError, match='16 bytes'): gumbel([b'short'], 0, 10)
    with pytest.raises(ConfigError, match='2 keys but 1 steps'): gumbel(KEYS, [0], 10)


def test_rows_keys_and_steps_have_to_agree():
    z, t, keys = torch.zeros(4, 30), torch.arange(4), keys_of(4)
    for few in (keys[:2], keys*2):
        with pytest.raises(ConfigError): margin(z, t, few, [0]*len(few))
        with pytest.raises(ConfigError): pick(z, few, [0]*len(few))
    for steps in (np.int64(3), torch.tensor(3), np.array(3)): assert pick(z, keys, steps).tolist() == pick(z, keys, 3).tolist()


@pytest.mark.parametrize('rows, shape', [(1, (4, 3)), (4, (4, 3)), (4, (3,)), (2, (0,))])
def test_noise_of_given_tokens_has_the_shape_that_numpy_gives(rows, shape):
    tokens = torch.arange(int(np.prod(shape))).view(shape)
    ours, plain = gumbel(keys_of(rows), 1, tokens), gumbel_numpy(keys_of(rows), 1, tokens.numpy())
    assert ours.shape == plain.shape and np.array_equal(ours.numpy(), plain)

def test_tokens_of_another_number_of_rows_are_refused():
    for tokens in (torch.arange(6).view(2, 3), torch.zeros(1, 2, 3, dtype=torch.long)):
        with pytest.raises(ConfigError): gumbel(keys_of(4), 1, tokens)


LIMITS = dict(top_k=st.integers(0, 9), top_p=st.sampled_from([.05, .3, .5, .9, .99, .9999, 1.]), T=st.sampled_from([.5, 1., 1.7]))

@given(slack=st.sampled_from([.01, .1, 1.]), seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([.1, 1., 5.]), **LIMITS)
@settings(max_examples=300, deadline=None)
def test_whatever_noise_within_slack_does_the_sure_tokens_are_allowed_and_only_possible_ones(slack, seed, spread, top_k, top_p, T):
    gen    = torch.Generator().manual_seed(seed)
    logits = spread*torch.randn(20, 12, generator=gen)
    least, most = edges(logits, T, top_k, top_p, slack)
    sure, possible = logits/T > least, logits/T >= most
    assert not (sure & ~possible).any() and possible.any(-1).all()
    for noise in (torch.rand(logits.shape, generator=gen), torch.rand(logits.shape, generator=gen).round()):      # inside, and at the corners
        mask = allowed(logits + .999*slack*T*noise, T, top_k, top_p)
        if mask is None: mask = torch.ones_like(sure)
        assert not (sure & ~mask).any() and not (mask & ~possible).any()

@given(seed=st.integers(0, 2**32 - 1), **LIMITS)
@settings(max_examples=100, deadline=None)
def test_without_noise_what_is_sure_is_what_is_allowed(seed, top_k, top_p, T):
    logits = torch.randn(20, 12, generator=torch.Generator().manual_seed(seed))
    mask   = allowed(logits, T, top_k, top_p)
    if mask is None: mask = torch.ones_like(logits, dtype=torch.bool)
    least, most = edges(logits, T, top_k, top_p, 1e-5)
    for found in (logits/T > least, logits/T >= most): assert (found ^ mask).sum() <= 1          # a token within rounding of the edge

@pytest.mark.parametrize('top_p', [.5, .9, .999])
def test_edges_of_a_large_vocabulary_are_those_of_all_of_it(top_p):
    logits = 3*torch.randn(6, 20_000, generator=torch.Generator().manual_seed(1))
    least, most = edges(logits, 1., 0, top_p, .1)
    p, ranked = logits.double().softmax(-1), logits.double().sort(-1, descending=True).values
    for row in range(6):
        z, mass = logits[row].double(), lambda at: p[row][at].sum()
        odds = (1 - top_p)/top_p
        for at in (z > least[row]).nonzero()[:, 0][:: 97]: assert mass(z >= z[at] - .1) - p[row, at] < 1/(1 + odds*math.exp(.1)) + 1e-5
        for limit, n in ((least[row], 1), (most[row], 0)):                      # the next token to either side decides otherwise
            below = z[z < limit].max()
            assert (mass(z > below + .1) >= 1/(1 + odds*math.exp(-.1)) - 1e-5) if n == 0 else below < z.max()

@pytest.mark.parametrize('kw', [dict(top_p=.9), dict(top_p=.99), dict(top_k=5), dict(top_k=1), dict(top_k=7, top_p=.8)], ids=str)
def test_noise_at_the_edge_costs_an_honest_miner_no_more_than_noise_elsewhere(kw):
    gen  = torch.Generator().manual_seed(0)
    true = 2*torch.randn(2000, 50, generator=gen)
    keys = [prf('edge', i.to_bytes(4, 'little'), size=16) for i in range(2000)]
    x    = pick(true, keys, 0, **kw)
    for size in (.2, .1):                                                                        # beyond slack, and within
        off = true + size*torch.rand(true.shape, generator=gen)
        strict, wide = (margin(off, x, keys, 0, slack=w, **kw) for w in (None, .1))
        assert wide.max() <= 2*size + 1e-5 and strict.max() > .1 and (wide <= strict + 1e-5).all()
    assert wide.max() <= .1 + 1e-5
    free = margin(off, pick(true, keys, 0), keys, 0, slack=.1, **kw)                             # a miner that ignores the limits
    assert free.mean() > 5*wide.mean()

@pytest.mark.parametrize('kw', [dict(top_p=.9), dict(top_p=.99), dict(top_k=5), dict(top_k=1), dict(top_k=7, top_p=.8)], ids=str)
def test_a_forbidden_token_loses_at_least_its_distance_from_the_edge(kw):
    logits = 2*torch.randn(500, 50, generator=torch.Generator().manual_seed(0))
    keys   = [prf('edge', i.to_bytes(4, 'little'), size=16) for i in range(500)]
    least, most = edges(logits, 1., kw.get('top_k', 0), kw.get('top_p', 1.), .1)
    for x in (logits.argmin(-1), logits.sort(-1).indices[:, 20]):
        z = logits.gather(1, x[:, None])
        assert (margin(logits, x, keys, 0, slack=.1, **kw) >= (most - z)[:, 0] - 1e-6).all()
