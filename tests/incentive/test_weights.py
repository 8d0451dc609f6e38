"Pay: what no submission, split or claim may achieve"
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from grail.core.params import GRAIL_V0, TINY
from grail.incentive.trust import consensus, trusted, weighted_median
from grail.incentive.weights import earned, weights
from grail.verify.audit import Record

count = st.floats(0, 1e6, allow_nan=False)
counts = st.dictionaries(st.text('abcdef', min_size=1, max_size=3), count, max_size=8)


@given(counts, st.floats(1, 8))
def test_weights_sum_to_one_or_to_nothing(c, alpha):
    w = weights(c, alpha)
    assert set(w) == set(c) and all(0 <= x <= 1 for x in w.values())
    assert math.isclose(sum(w.values()), 1) if any(c.values()) else not any(w.values())


@given(counts, st.floats(1, 8))
def test_who_counted_more_earns_at_least_as_much(c, alpha):
    w = weights(c, alpha)
    for a in c:
        for b in c:
            if c[a] >= c[b]: assert w[a] >= w[b]


@given(st.lists(count, min_size=1, max_size=6), st.lists(count, max_size=6), st.floats(1, 8))
def test_splitting_over_hotkeys_never_pays(parts, others, alpha):
    rest = {f'other{i}': c for i, c in enumerate(others)}
    one = weights({**rest, 'me': sum(parts)}, alpha)['me']
    many = weights({**rest, **{f'me{i}': p for i, p in enumerate(parts)}}, alpha)
    assert sum(many[f'me{i}'] for i in range(len(parts))) <= one + 1e-9


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6))
def test_counts_that_are_no_numbers_earn_nothing(values):
    w = weights(dict(enumerate(values)))
    assert all(math.isfinite(x) for x in w.values())
    assert all(w[i] == 0 for i, v in enumerate(values) if not (math.isfinite(v) and v > 0))


records = st.lists(st.builds(lambda claimed, audited, made: (claimed, audited, min(made, claimed)),
                             st.integers(0, 5000), st.booleans(), st.integers(0, 5000)), max_size=12)

def history(rows): return [Record(30*i, c, a, True, m if a else 0) for i, (c, a, m) in enumerate(rows)]


@given(records)
def test_nobody_is_paid_for_more_than_the_mean_of_what_was_verified(rows):
    recs = history(rows)
    verified = [r.rollouts for r in recs if r.audited]
    assert earned(recs, TINY) <= (sum(verified)/len(verified) if verified else 0) + 1e-9


@given(records, st.integers(0, 11), st.integers(0, 10**9))
def test_a_claim_that_nobody_checked_never_raises_income_beyond_an_honest_one(rows, i, claim):
    recs = history(rows)
    if i >= len(recs) or recs[i].audited: return
    mean = [r.rollouts for r in recs if r.audited]
    boasted = recs[:i] + [Record(30*i, claim)] + recs[i+1:]
    gain = earned(boasted, TINY) - earned(recs[:i] + recs[i+1:], TINY)
    assert gain <= (sum(mean)/len(mean) if mean else 0)/TINY.weight_history + 1e-9


@given(records, st.integers(0, 11))
def test_any_failure_in_the_history_earns_nothing(rows, i):
    recs = history(rows)
    if i < len(recs): recs[i] = Record(30*i, 100, True, False)
    if any(not r.passed for r in recs if r.audited): assert earned(recs, TINY) == 0


def test_never_audited_earns_nothing():
    assert earned([Record(30*i, 10**6) for i in range(12)], GRAIL_V0) == 0


def test_extrapolation_does_not_favour_a_miner_that_is_audited_often():
    "Equal work, audited in 3 or in 12 of 12 windows: equal pay"
    few = [Record(30*i, 160, i % 4 == 0, True, 150 if i % 4 == 0 else 0) for i in range(12)]
    all_ = [Record(30*i, 160, True, True, 150) for i in range(12)]
    assert math.isclose(earned(few, TINY), earned(all_, TINY))


votes = st.dictionaries(st.sampled_from('uvwxyz'), st.dictionaries(st.sampled_from('abcd'), st.floats(0, 1), max_size=4),
                        max_size=6)


@given(votes, st.data())
def test_trust_is_never_given_to_who_has_no_weight_from_half_of_the_stake(by, data):
    stakes = {v: data.draw(st.floats(.1, 10)) for v in by}
    speaking = [v for v in by if any(w > 0 for w in by[v].values())]
    for h in trusted(by, stakes):
        assert sum(stakes[v] for v in speaking if by[v].get(h, 0) > 0) >= sum(stakes[v] for v in speaking)/2 - 1e-9


@given(votes, st.integers(0, 5))
def test_trusted_miners_are_at_most_top_and_in_order(by, top):
    stakes = dict.fromkeys(by, 1)
    found, c = trusted(by, stakes, top=top), consensus(by, stakes)
    assert len(found) <= top and [c[h] for h in found] == sorted((c[h] for h in found), reverse=True)
    assert all(c[h] > 0 for h in found)


def test_one_validator_with_a_tenth_of_the_stake_decides_nothing():
    by = {**{f'v{i}': {'good': 1} for i in range(9)}, 'bad': {'friend': 1}}
    assert trusted(by, {**{f'v{i}': 10 for i in range(9)}, 'bad': 10}) == ['good']


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), max_size=9))
def test_a_weighted_median_is_one_of_the_values(pairs):
    m = weighted_median([x for x, _ in pairs], [s for _, s in pairs])
    assert m == 0 or m in [x for x, _ in pairs]
