"Selection loses nothing silently, does not depend on the order of arrival, and gives exactly n where there are n."
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings, strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from grail.train.advantages import KINDS, group_advantages
from grail.train.selection import clean, rank_groups, raw_variance, select, toy_group

reward = st.sampled_from([0., 1., .5, np.nan])
groups = st.lists(st.lists(reward, min_size=0, max_size=6), max_size=12).map(
    lambda gs: [toy_group(('m', i), r, [1 + (3*i+j) % 7 for j in range(len(r))]) for i, r in enumerate(gs)])

@settings(max_examples=150, deadline=None)
@given(groups, st.integers(1, 10), st.floats(.1, 1), st.integers(0, 2), groups)
def test_every_group_is_taken_spared_or_counted(arrived, n, keep, max_age, old):
    old = [replace(g, key=('old', g.key[1]), age=1) for g in old if not np.isnan(g.rewards).any() and raw_variance(g) > 0]
    s = select(arrived, n, keep, max_age=max_age, spare=old)
    c = s.counts
    assert c['groups_arrived'] == len(arrived)
    assert c['groups_taken'] == len(s.groups) <= n and c['groups_short'] == n - len(s.groups)
    assert c['groups_flat'] + c['groups_informative'] == len(clean(arrived)[0])
    assert len({g.key for g in s.groups + s.spare}) == len(s.groups) + len(s.spare)
    assert all(raw_variance(g) > 0 and np.isfinite(g.rewards).all() and g.age <= max_age for g in s.groups)
    assert all(g.age <= max_age for g in s.spare)
    if max_age == 0: assert not s.spare and c['groups_refilled'] == 0
    if keep == 1 and max_age == 0: assert len(s.groups) == min(n, c['groups_informative'])
    again = select(arrived[::-1], n, keep, max_age=max_age, spare=old[::-1])
    assert [g.key for g in again.groups] == [g.key for g in s.groups] and again.counts == c

@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.one_of(st.floats(-100, 100), st.just(np.nan)), min_size=1, max_size=8), min_size=1, max_size=6),
       st.sampled_from(KINDS[:4]), st.sampled_from([0, 1]))
def test_advantages_are_finite_add_up_to_zero_and_keep_the_order_of_rewards(rows, kind, ddof):
    r, g = np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(x) for x in rows])
    a = group_advantages(r, g, kind, ddof).numpy()
    assert np.isfinite(a).all() and (a[np.isnan(r)] == 0).all()
    for i in range(len(rows)):
        x, y = r[g == i], a[g == i]
        assert abs(y.sum()) < 1e-6
        known = ~np.isnan(x)
        order = np.argsort(x[known], kind='stable')
        assert (np.diff(y[known][order]) >= -1e-9).all()

def test_of_groups_with_equal_reward_per_token_the_one_with_more_raw_variance_is_taken():
    "After normalisation all variances are one: they must be taken before it"
    some, half = toy_group(('m', 0), [1, 0, 0, 0, 0, 0, 0, 0], [2]*8), toy_group(('m', 1), [1, 1, 1, 1, 0, 0, 0, 0], [8]*8)
    assert group_advantages(some.rewards, np.zeros(8, int)).abs().sum() > 0 and raw_variance(half) > raw_variance(some)
    for arrived in ([some, half], [half, some]):
        assert [g.key for g in rank_groups(arrived)] == [half.key, some.key]
        assert [g.key for g in select(arrived, 1).groups] == [half.key]

def test_a_group_that_is_solved_already_is_never_taken_however_short_it_is():
    solved, hard = toy_group(('m', 0), [1]*8, [1]*8), toy_group(('m', 1), [1] + [0]*7, [1000]*8)
    s = select([solved, hard], 2)
    assert [g.key for g in s.groups] == [hard.key] and s.counts['groups_flat'] == 1
