"The draw and the memory: nobody can foresee the one, nothing is lost from the other"
import json
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grail.core.basics import FormatError
from grail.core.params import GRAIL_V0, SMOLLM2, STANDARD, TINY
from grail.protocol.randomness import as_part, prf
from grail.verify.audit import (Ledger, audit_size, cheating_gain, detection, draw, group_count, groups_for, ledger_from_dict,
                                ledger_to_dict, minimum_probability, select_groups, select_miners)
from grail.verify.detectors import loss_bets, place_bets


@dataclass(frozen=True)
class Found:
    hotkey:str; window:int; passed:bool; rollouts:int=0
    failed_checks:tuple=(); hard:bool=False; checks:tuple=({},); places:tuple=(); tokens:int=0; lost:float=0.


names = st.lists(st.text('abcdefgh', min_size=1, max_size=4), max_size=40)


@given(names, st.binary(min_size=1, max_size=8))
def test_the_draw_depends_on_the_set_of_miners_not_on_their_order(hotkeys, audit):
    assert select_miners(audit, hotkeys, {}, GRAIL_V0) == select_miners(audit, hotkeys[::-1], {}, GRAIL_V0)
    assert len(select_miners(audit, hotkeys, {}, GRAIL_V0)) == audit_size(len(set(hotkeys)), GRAIL_V0)


@given(st.integers(0, 300), st.binary(min_size=1, max_size=8))
def test_groups_drawn_exist_and_are_different(groups, audit):
    g = select_groups(audit, 'd'*64, groups, GRAIL_V0)
    assert len(g) == len(set(g)) == group_count(groups, GRAIL_V0) and all(0 <= x < groups for x in g)


def test_every_miner_keeps_a_minimum_chance_whatever_its_history():
    "Selection by waiting alone tells a miner that was just audited that it is safe"
    hotkeys, trials = [f'm{i}' for i in range(10)], 3000
    last = {'m0': 970, **{f'm{i}': 0 for i in range(1, 10)}}             # m0 a moment ago, all others very long ago
    seen = Counter(h for i in range(trials) for h in select_miners(prf('t', as_part(i)), hotkeys, last, GRAIL_V0, window=990))
    assert seen['m0']/trials > minimum_probability(10, GRAIL_V0) - .025
    assert all(seen[h] > seen['m0'] for h in hotkeys[1:])


def test_nothing_known_before_the_deadline_decides_who_is_audited():
    "Same miners and history, another beacon: the correlation of two draws is that of independent ones"
    hotkeys = [f'm{i}' for i in range(20)]
    pick = lambda i: set(select_miners(prf('b', as_part(i)), hotkeys, {}, GRAIL_V0))
    overlap = sum(len(pick(2*i) & pick(2*i + 1)) for i in range(400))/400
    assert abs(overlap - 5*5/20) < .2


def test_more_tickets_mean_proportionally_more_draws():
    c = Counter(draw(prf('x', as_part(i)), 't', [('a', 1), ('b', 3)], 1)[0] for i in range(4000))
    assert abs(c['b']/4000 - .75) < .03


@given(st.floats(0, 1), st.integers(1, 200), st.integers(1, 30))
def test_detection_grows_with_the_sample_and_reaches_one(cheat, groups, k):
    assert detection(cheat, groups, k) <= detection(cheat, groups, k + 1) + 1e-12
    assert detection(1.0, groups, 1) == 1
    if cheat > 1e-6: assert detection(cheat, groups, groups) == 1


def test_a_sampling_plan_meets_its_target():
    for c in (.05, .1, .3): assert detection(c, 300, groups_for(.9, c, 300)) >= .9


def test_with_as_many_groups_audited_as_the_exponent_no_dose_of_cheating_pays():
    p = replace(GRAIL_V0, audit_groups_max=int(GRAIL_V0.weight_alpha))
    assert all(cheating_gain(c/100, 400, rate, p) < 1 for c in range(1, 100) for rate in (.05, .25, 1))


@pytest.mark.parametrize('p', [TINY, STANDARD, SMOLLM2], ids=lambda p: p.profile)
def test_our_profiles_audit_as_many_groups_as_their_exponent_so_no_dose_of_cheating_pays(p):
    assert all(group_count(g, p) >= min(g, p.weight_alpha) for g in range(1, p.max_groups + 1))
    assert all(cheating_gain(c/100, 437, rate, p) < 1 for c in range(1, 100) for rate in (.05, .25, 1))


def test_a_ban_lasts_two_hours_of_windows_and_a_second_failure_extends_it():
    led = Ledger(TINY)
    led.record(Found('m', 300, False, hard=True))
    assert led.banned('m', 330) and led.banned('m', 300 + 30*TINY.ban_windows) and not led.banned('m', 330 + 30*TINY.ban_windows)
    led.record(Found('m', 600, False, hard=True))
    assert led.banned('m', 600 + 30*TINY.ban_windows)


def test_soft_failures_cost_income_but_are_no_ban():
    led = Ledger(TINY)
    led.record(Found('m', 300, False, failed_checks=('distribution',)))
    assert not led.banned('m', 330) and not led.records('m', 300)[0].passed


def test_a_late_submission_is_held_against_nobody():
    led = Ledger(TINY)
    led.record(Found('m', 300, False, checks=()))
    assert not led.history and not led.bans and not led.audits


def test_two_validators_audits_of_one_window_count_once():
    led = Ledger(TINY)
    for _ in range(3): led.record(Found('m', 300, True, 5))
    assert led.audits['m'] == 1 and len(led.records('m', 300)) == 1


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from('abc'), st.integers(0, 60), st.booleans(), st.booleans(), st.integers(0, 99)),
                max_size=40))
def test_a_ledger_survives_a_restart_at_any_point(events):
    led = Ledger(TINY)
    for h, w, passed, hard, n in events:
        led.submitted(h, 30*w, n)
        led.record(Found(h, 30*w, passed, n, () if passed else ('proof',), hard and not passed))
        led = ledger_from_dict(json.loads(json.dumps(ledger_to_dict(led))), TINY)
    for h in 'abc':
        assert [r.window for r in led.history.get(h, [])] == sorted({r.window for r in led.history.get(h, [])})


def test_history_does_not_grow_for_ever():
    led = Ledger(TINY)
    for w in range(500): led.submitted('m', 30*w, 16)
    assert len(led.history['m']) <= max(TINY.weight_history, TINY.ban_windows)


def test_a_broken_ledger_is_refused():
    good = ledger_to_dict(Ledger(TINY))
    for k in good:
        with pytest.raises(FormatError): ledger_from_dict({x: v for x, v in good.items() if x != k}, TINY)


def test_who_loses_more_than_honest_nodes_in_every_audit_is_found_over_its_windows_and_no_other():
    led, p = Ledger(SMOLLM2), SMOLLM2
    allowed = p.sampling_margin*p.sampling_misses
    for w in range(300):
        for name, times in ('edge', 1.), ('fork', 2.): led.record(Found(name, 30*w, True, 16, tokens=16*p.max_new_tokens, lost=times*allowed*16*p.max_new_tokens))
        if led.banned('fork', 30*w + 30): break
    assert led.history['fork'][-1].failed == ('history',) and led.history['fork'][-1].hard and not led.history['fork'][-1].passed
    assert not led.banned('edge', 30*w + 30) and led.failures['edge'] == 0
    assert 'fork' not in led.bets and 'fork' not in led.places        # who was punished starts anew


def test_bets_are_placed_under_the_rules_of_their_audit():
    led, strict = Ledger(SMOLLM2), replace(SMOLLM2, sampling_misses=SMOLLM2.sampling_misses/10)
    led.record(Found('m', 0, True, 16, tokens=1000, lost=1.))
    led.params = strict
    led.record(Found('m', 30, True, 16, tokens=1000, lost=1.))
    one, other = (loss_bets(1., 1000, q.sampling_margin, q.sampling_misses) for q in (SMOLLM2, strict))
    audits, *bets = led.bets['m']
    assert audits == 2 and np.allclose(bets, place_bets(place_bets(None, one, 1), other, 2))


def test_who_was_accused_starts_anew_as_a_stranger_does():
    led, stranger = Ledger(SMOLLM2), Ledger(SMOLLM2)
    for w in range(300):
        led.record(Found('m', 30*w, True, 16, tokens=512, lost=2*SMOLLM2.sampling_margin*SMOLLM2.sampling_misses*512))
        if 'm' not in led.bets: break
    for l in (led, stranger): l.record(Found('m', 30*w + 30, True, 16, tokens=512, lost=1.))
    assert led.audits['m'] == w + 2 and led.bets == stranger.bets


RECORD = dict(window=0, audited=True, passed=True, hard=False, rollouts=1, claimed=1, failed=[])

@pytest.mark.parametrize('bad', [{'places': {'a': [1]}}, {'places': {'a': [-1]*10}}, {'places': {'a': [10**20]*10}}, {'bets': {'a': [1, 0.]}},
                                 {'bets': {'a': [1, *[float('nan')]*4]}}, {'bets': {'a': [0, *[0.]*4]}}, {'bets': {'a': [1., *[0.]*4]}},
                                 {'bets': {'a': [1, 0, 0, 0, 0]}}, {'bets': {'a': 'abcde'}}, {'bets': {'a': None}}, {'bets': []},
                                 {'bans': {'a': 1.5}}, {'bans': {'a': -1}}, {'last_audited': {'a': '7'}}, {'audits': {'a': True}}, {'failures': {'a': None}},
                                 *({'history': {'a': [{**RECORD, **r}]}} for r in (dict(window='0'), dict(passed=1), dict(rollouts=-1), dict(claimed=None),
                                                                                  dict(failed=[1]), dict(failed='x'), dict(more=1)))], ids=str)
def test_a_damaged_memory_is_refused_when_it_is_read(bad):
    with pytest.raises(FormatError): ledger_from_dict({**ledger_to_dict(Ledger(TINY)), **bad}, TINY)
