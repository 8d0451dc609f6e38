"Every derived value is pinned by a vector, and changes with each thing that it is bound to."
import numpy as np
import pytest
from bittensor_core import Keypair
from hypothesis import given, strategies as st

from grail.core.basics import FormatError, SignatureError
from grail.protocol.randomness import (Randomness, as_part, challenge_positions, noise_key, prf, sketch_coefficients, task_seed)
from grail.protocol.signature import sign, verify

OPEN = Randomness('open', 900, '0x' + 'ab'*32, 1000, 'fe290beca10872ef2fb164d2aa4442de4566183ec51c56ff3cd603d930e54fdd')
AUDIT = Randomness('audit', 900, '', 1121, 'c0'*32)
ALICE = '5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY'
DIGEST = 'd'*64


def test_vectors():
    assert prf('label', b'a', b'bc').hex() == VECTORS['prf']
    assert OPEN.value.hex() == '98dcd040b4632888e07ef51234fd30218120b6a023b15763ee060cf8001751d6'
    assert AUDIT.value.hex() == '146cb7971cbd0b487f1b8a77b2ba7a457625725600e2284e48fc76b05a24e4df'
    assert task_seed(OPEN.value, ALICE, 0) == 8036326762841036699
    assert noise_key(OPEN.value, ALICE, 0, 0).hex() == 'f963f2edc8e7755bf60640a469cb914e'
    assert sketch_coefficients(OPEN.value, ALICE, 0, 0, 8).tolist() == [108, 8, 20, -104, -86, 88, 91, 69]
    assert challenge_positions(AUDIT.value, DIGEST, 0, 0, 100, 4).tolist() == VECTORS['positions']


VECTORS = {'prf': 'd9ae8b7ed49c915536c848e184ade8bf8a5cbee853478a59e5eb094a226fb2ef', 'positions': [0, 28, 74, 98]}


@given(st.lists(st.binary(max_size=12), max_size=4), st.lists(st.binary(max_size=12), max_size=4))
def test_different_parts_give_different_bytes(a, b):
    assert (prf('x', *a) == prf('x', *b)) == (a == b)


@given(st.integers(0, 2**64-1), st.integers(0, 2**64-1))
def test_numbers_are_injective(a, b): assert (as_part(a) == as_part(b)) == (a == b)


@pytest.mark.parametrize('change', [dict(open=b'x'*32), dict(hotkey='other'), dict(group=1), dict(index=1)])
def test_derived_values_are_bound_to_where_they_belong(change):
    base = dict(open=OPEN.value, hotkey=ALICE, group=0, index=0)
    moved = {**base, **change}
    assert noise_key(**base) != noise_key(**moved)
    assert (sketch_coefficients(**base, k=32) != sketch_coefficients(**moved, k=32)).any()
    base.pop('index'), moved.pop('index')
    if base != moved: assert task_seed(**base) != task_seed(**moved)


@pytest.mark.parametrize('change', [dict(audit=b'x'*32), dict(submission='e'*64), dict(group=1), dict(index=1)])
def test_challenges_are_bound_to_the_submission(change):
    base = dict(audit=AUDIT.value, submission=DIGEST, group=0, index=0, length=1024, count=16)
    assert (challenge_positions(**base) != challenge_positions(**{**base, **change})).any()


@given(st.integers(0, 300), st.integers(0, 40), st.binary(min_size=32, max_size=32))
def test_challenges_are_distinct_sorted_and_inside(length, count, audit):
    got = challenge_positions(audit, DIGEST, 0, 0, length, count)
    assert got.dtype == np.int64 and len(got) == min(length, count)
    assert (np.diff(got) > 0).all() and (not len(got) or 0 <= got[0] <= got[-1] < length)


@given(st.one_of(st.none(), st.integers(), st.text(), st.lists(st.integers()), st.dictionaries(st.text(), st.integers()),
                 st.fixed_dictionaries(dict(kind=st.sampled_from(['open', 'audit', None]),
                                            window=st.one_of(st.integers(), st.text(), st.floats()),
                                            block_hash=st.one_of(st.text(), st.none()),
                                            round=st.one_of(st.integers(), st.booleans()), beacon=st.text()))))
def test_foreign_randomness_is_valid_or_a_format_error(d):
    try: assert isinstance(Randomness.from_dict(d), Randomness)
    except FormatError: pass


@given(st.one_of(st.none(), st.integers(), st.text(), st.binary()),
       st.one_of(st.none(), st.text(), st.from_regex('[0-9a-f]{128}', fullmatch=True)))
def test_foreign_signatures_are_a_signature_error(hotkey, signature):
    with pytest.raises(SignatureError): verify(hotkey, 'submission', b'data', signature)


def test_a_signature_is_good_for_one_label_and_one_object():
    key = Keypair.create_from_uri('//Alice')
    signed = sign(key, 'submission', b'data')
    verify(key.ss58_address, 'submission', b'data', signed)
    for label, data in [('verdict', b'data'), ('submission', b'dat'), ('submissio', b'ndata')]:
        with pytest.raises(SignatureError): verify(key.ss58_address, label, data, signed)
