"Detectors: what they promise about honest samples, and fits that must follow their samples"
import math
from dataclasses import replace

import numpy as np
import torch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grail.core.basics import ConfigError
from grail.core.params import TINY
from grail.verify.calibrate import Sample, bound95, calibrate, fit_logprob, fit_sampling, round_digit, soft_false_positives
from grail.verify.detectors import (BINS, LIFETIME, SINGLE, STAKES, auc, bin_counts, history_evidence, ks_test,
                                    log_evidence, loss_bets, loss_evidence, pit, place_bets, pit_noise, roc, rollouts_to,
                                    step_statistics, surprise_z, trace_features)


def sampled(logits, rng):
    p = torch.softmax(logits.double(), -1).numpy()
    return torch.tensor([rng.choice(p.shape[-1], p=row/row.sum()) for row in p])


def test_step_statistics_are_those_of_the_distribution():
    g = torch.Generator().manual_seed(0)
    logits, rng = torch.randn(50, 30, generator=g)*2, np.random.default_rng(0)
    tokens = sampled(logits, rng)
    s, p = step_statistics(logits, tokens, .8), torch.softmax(logits.double()/.8, -1)
    logp = p.log()
    assert np.allclose(s['entropy'], -(p*logp).sum(-1), atol=1e-5)
    assert np.allclose(s['variance'], (p*logp**2).sum(-1) - (p*logp).sum(-1)**2, atol=1e-4)
    assert np.allclose(s['above'], [float(p[i][p[i] > p[i, t]].sum()) for i, t in enumerate(tokens)], atol=1e-5)


def test_tokens_that_were_not_allowed_stand_at_the_end():
    logits = torch.tensor([[3., 2., 1., 0.]])
    mask = torch.tensor([[True, True, False, False]])
    s = step_statistics(logits, torch.tensor([2]), 1., mask)
    assert s['logp'].item() == -math.inf and pit(s['above'], s['logp'], .5)[0] == 1
    assert math.isfinite(s['entropy'].item()) and math.isfinite(s['variance'].item())


def test_honest_samples_have_uniform_places_and_small_z():
    rng, g = np.random.default_rng(1), torch.Generator().manual_seed(1)
    logits = torch.randn(6000, 20, generator=g)*torch.rand(6000, 1, generator=g)*4
    tokens = sampled(logits, rng)
    s = {k: v.double().numpy() for k, v in step_statistics(logits, tokens).items()}
    assert ks_test(pit(s['above'], s['logp'], rng.random(6000)))[1] > 1e-3
    assert abs(surprise_z(s['logp'], s['entropy'], s['variance'])) < 3.5
    greedy = {k: v.double().numpy() for k, v in step_statistics(logits, logits.argmax(-1)).items()}
    assert ks_test(pit(greedy['above'], greedy['logp'], rng.random(6000)))[1] < 1e-12
    assert surprise_z(greedy['logp'], greedy['entropy'], greedy['variance']) > 20


def test_the_noise_of_places_is_not_the_miners():
    a = pit_noise(b'a', 'd'*64, 0, 0, 50)
    assert (a == pit_noise(b'a', 'd'*64, 0, 0, 50)).all() and ((0 <= a) & (a < 1)).all()
    for other in ((b'b', 'd'*64, 0, 0), (b'a', 'e'*64, 0, 0), (b'a', 'd'*64, 1, 0), (b'a', 'd'*64, 0, 1)):
        assert not (a == pit_noise(*other, 50)).any()


@given(st.lists(st.integers(0, 10_000), min_size=BINS, max_size=BINS))
def test_evidence_depends_on_the_counts_alone_and_is_finite(counts):
    e = log_evidence(counts)
    assert math.isfinite(e) and math.isclose(e, log_evidence(counts[::-1]), rel_tol=1e-9, abs_tol=1e-6)


def test_evidence_of_honest_lives_stays_below_the_threshold():
    "A thousand lives of 100,000 tokens, looked at a hundred times each: the budget is one in a million"
    rng = np.random.default_rng(0)
    steps = rng.multinomial(1000, [1/BINS]*BINS, (1000, 100)).cumsum(1)
    lg = np.vectorize(math.lgamma)
    n = steps.sum(-1)
    e = n*math.log(BINS) + math.lgamma(5*BINS) - lg(5*BINS + n) + (lg(5 + steps) - math.lgamma(5)).sum(-1)
    assert e.max() < LIFETIME < SINGLE


@given(st.lists(st.floats(0, 1), max_size=50), st.floats(0, 2))
def test_only_steps_with_a_choice_count(u, h):
    assert bin_counts(np.array(u), np.full(len(u), h)).sum() == (len(u) if h >= .3 else 0)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_auc_is_the_probability_to_be_ranked_right(a, b):
    pairs = np.mean([(y > x) + .5*(y == x) for x in a for y in b])
    assert math.isclose(auc(a, b), pairs, abs_tol=1e-9)
    x, y = roc(a, b)
    assert x[0] == y[0] == 0 and x[-1] == y[-1] == 1 and (np.diff(x) >= 0).all() and (np.diff(y) >= 0).all()


@given(st.floats(1e-4, .9999))
def test_rollouts_to_a_target_are_enough_and_not_one_more(rate):
    n = rollouts_to(rate)
    assert 1 - (1 - rate)**n >= .999 - 1e-9 and (n == 1 or 1 - (1 - rate)**(n - 1) < .999 + 1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=80))
def test_features_of_any_trace_are_finite(probs): assert all(math.isfinite(v) for v in trace_features(probs).values())


def sample(drift, margins, logprobs=None):
    lp = logprobs if logprobs is not None else [np.full(7, -.1, np.float32)]*40
    flat = np.concatenate(lp)
    return Sample([len(x) for x in lp], lp, {'a': (np.full(len(flat), drift), flat, np.full(len(flat), margins))})


@given(st.floats(0, 1), st.floats(0, 5))
def test_fitted_tolerances_are_beyond_the_drift_they_were_fitted_to(drift, margin):
    p = calibrate(TINY, [sample(drift, margin)], safety=10)
    assert p.sampling_margin >= 10*margin*(1 - 1e-9) and max(p.logprob_abs, p.logprob_rel*.1) >= drift
    if drift > 1e-3: assert p.logprob_abs >= 10*drift*(1 - 1e-9)


def test_a_more_confident_model_never_gets_a_higher_quantile_threshold_alone():
    low, high = sample(0, 0, [np.full(7, -1., np.float32)]*40), sample(0, 0, [np.full(7, -.01, np.float32)]*40)
    assert calibrate(TINY, [low, high]).dist_q10 == calibrate(TINY, [low]).dist_q10


@given(st.floats(1e-9, 1e9))
def test_rounding_to_a_digit_goes_the_way_that_was_asked(x):
    assert round_digit(x) >= x*(1 - 1e-6) and round_digit(x, up=False) <= x*(1 + 1e-6) and round_digit(x) <= 10*x


def test_soft_failures_of_honest_miners_are_as_rare_as_stated():
    assert soft_false_positives(.05, 64, TINY) < 1e-20 and soft_false_positives(.5, 1, TINY) == .5
    assert math.isclose(bound95(0, 300), 1 - .05**(1/300), rel_tol=1e-6) and bound95(3, 300) > bound95(0, 300)


@given(st.floats(0, 100), st.integers(0, 10**6), st.integers(1, 10**5))
def test_a_bet_is_worth_what_was_placed_times_what_it_won(nats, n, audit):
    new, rules = loss_bets(nats, n, .1, .02), (.1, .02)
    assert np.allclose(new, np.add(loss_bets(nats/2, n/2, *rules), loss_bets(nats/2, n/2, *rules)))
    before = np.array([-3., 0., 1., 2.])
    assert np.allclose(np.exp(place_bets(before, new - new, audit)), np.exp(before) + 1/(audit*(audit + 1)))
    assert np.allclose(place_bets(None, new, audit), place_bets(np.full(4, -np.inf), new, audit))
    assert loss_evidence(loss_bets(0., n, *rules)) <= 1e-9

def test_what_is_placed_over_all_audits_is_never_more_than_one():
    bets = None
    for t in range(1, 2000): bets = place_bets(bets, np.zeros(4), t)           # nothing won, nothing lost
    assert .999 < math.exp(loss_evidence(bets)) <= 1

def lives(misses, allowed, n, audits=150, before=0, tokens=1024, margin=.1):
    rng, bets, best = np.random.default_rng(7), None, np.full(n, -np.inf)
    for t in range(before + audits):
        hits = rng.binomial(tokens, misses*(t >= before), n)
        bets = place_bets(bets, loss_bets(rng.standard_gamma(np.maximum(hits, 1e-9))*margin*(hits > 0), tokens, margin, allowed), t + 1)
        best = np.maximum(best, loss_evidence(bets))
    return best

@pytest.mark.parametrize('rate', [.02, .005])
def test_honest_losses_are_accused_no_more_often_than_stated_and_twice_as_many_are_found(rate):
    n = 3000
    assert 0 < (lives(rate, rate, n) >= math.log(20)).mean() <= .05 + 3*math.sqrt(.05*.95/n)
    assert (lives(2*rate, rate, 300) >= LIFETIME).mean() > .99
    assert history_evidence([0]*BINS, place_bets(None, loss_bets(0., 640, .1, rate), 1)) <= 0

def test_a_year_of_exactness_is_no_credit_for_cheating():
    assert (lives(.04, .02, 200, audits=60, before=1000) >= LIFETIME).all()

@settings(max_examples=30)
@given(st.floats(.001, .3), st.floats(.002, .5), st.sampled_from(['exponential', 'uniform', 'constant']), st.integers(0, 99))
def test_fitted_losses_are_beyond_those_they_were_fitted_to(rate, size, kind, seed):
    rng  = np.random.default_rng(seed)
    gaps = {'exponential': rng.exponential(size, 3000), 'uniform': rng.uniform(0, 2*size, 3000), 'constant': np.full(3000, size)}[kind]
    lost = gaps*(rng.random(3000) < rate)
    p    = calibrate(TINY, [Sample([7]*40, [np.full(7, -.1, np.float32)]*40, {'a': (np.zeros(3000), -np.ones(3000), lost)})], sampling_safety=1.)
    for k in STAKES: assert np.expm1(k*lost/p.sampling_margin).mean() <= p.sampling_misses*k/(1 - k) + 1e-12
    assert loss_evidence(loss_bets(lost.sum(), 3000, p.sampling_margin, p.sampling_misses)) < 1


def losses_of(margins): return [(np.zeros(1), -np.ones(1), np.asarray(margins, float))]

@pytest.mark.parametrize('margins', [[0.]*99, [0.]*200 + [-1e-3], [0.]*200 + [float('nan')], [0.]*200 + [float('inf')], [0.]*200 + [1e308]],
                         ids=['few', 'negative', 'NaN', 'infinite', 'immense'])
def test_rules_are_not_fitted_to_what_is_no_measurement_of_losses(margins):
    with pytest.raises(ConfigError): fit_sampling(losses_of([0., .1]*100) + losses_of(margins), TINY, 2.)

@pytest.mark.parametrize('drifts', [[], [(np.zeros(0), np.zeros(0), np.zeros(0))], [(np.array([np.nan]), -np.ones(1), np.zeros(0))],
                                    [(np.ones(1), np.array([-np.inf]), np.zeros(0))]], ids=['none', 'empty', 'NaN', 'infinite'])
def test_rules_are_not_fitted_to_what_is_no_measurement_of_log_probs(drifts):
    with pytest.raises(ConfigError): fit_logprob(drifts, TINY, 2.)

@pytest.mark.parametrize('safety', [0., -1., float('inf'), float('nan')])
def test_a_safety_that_is_no_factor_is_refused(safety):
    with pytest.raises(ConfigError): fit_sampling(losses_of([0., .1]*100), TINY, safety)
    with pytest.raises(ConfigError): fit_logprob([(np.ones(5), -np.ones(5), np.zeros(0))], TINY, safety)

@pytest.mark.parametrize('often', [.001, .02, .5, 1.])
def test_fitted_rules_accuse_none_of_the_nodes_they_were_fitted_to(often):
    rng  = np.random.default_rng(0)
    m    = np.where(rng.random(20_000) < often, rng.exponential(.05, 20_000), 0.)
    p    = replace(TINY, **fit_sampling(losses_of(m), TINY, 1.))
    nats = m.reshape(-1, 40).sum(1)
    bets = None
    for audit in range(1, 1001):
        bets = place_bets(bets, loss_bets(rng.choice(nats, (100, 16)).sum(1), 640, p.sampling_margin, p.sampling_misses), audit)
        assert loss_evidence(bets).max() - math.log(2) < LIFETIME
