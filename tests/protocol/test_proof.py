"Both versions of the proof behind one interface: honest rollouts pass, and each way of passing without the states fails."
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from grail.core.basics import ConfigError
from grail.core.params import ProtocolParams
from grail.protocol.projection import calibrate_projection
from grail.protocol.proof import ProofContext, ProofResult, proof_scheme
from grail.protocol.randomness import sketch_coefficients
from grail.protocol.sketch import sketch_distance

AUDIT, DIGEST = b'a'*32, 'd'*64


def states(B, C, H, seed=0): return torch.randn(B, C, H, generator=torch.Generator().manual_seed(seed))*2 + torch.linspace(-1, 1, H)
def noisy(h, eps=.01, seed=1): return h * (1 + eps*torch.randn(h.shape, generator=torch.Generator().manual_seed(seed)))
def calibration(H): return calibrate_projection([(x, noisy(x, seed=i)) for i, x in enumerate(states(40, 24, H, seed=9))])


@pytest.fixture(scope='module', params=['grail-v1', 'grail-v2'])
def net(request):
    "A scheme, five honest rollouts and their proofs"
    H, lengths, prompts = 64, [24, 40, 17, 40, 33], [10, 10, 200, 7, 7]
    hidden = states(5, 40, H)
    at     = [ProofContext(b'o'*32, 'miner', 3, i) for i in range(5)]
    scheme = proof_scheme(ProtocolParams(proof=request.param), calibration(H))
    assert scheme.version == request.param
    return scheme, hidden, lengths, prompts, at, scheme.commit(hidden, lengths, prompts, at)


def passed(net, proofs=None, hidden=None, at=None, audit=AUDIT, digest=DIGEST):
    scheme, h, lengths, prompts, contexts, p = net
    results = scheme.verify(h if hidden is None else hidden, lengths, prompts, at or contexts,
                            p if proofs is None else proofs, audit, digest)
    assert all(isinstance(r, ProofResult) and r.passed == (not r.reason) for r in results)
    return [r.passed for r in results]


ALL, NONE = [True]*5, [False]*5


def test_honest_proofs_hold(net): assert passed(net) == ALL
def test_four_bytes_a_token(net): assert [p.nbytes for p in net[5]] == [4*n for n in net[2]] and all(p.dtype == np.uint32 for p in net[5])


@pytest.mark.parametrize('change', [dict(open=b'p'*32), dict(hotkey='other'), dict(group=4), dict(index=9)])
def test_other_randomness_hotkey_group_or_index_is_rejected(net, change):
    assert passed(net, at=[replace(c, **change) for c in net[4]]) == NONE


def test_replay_in_another_window_is_rejected(net):
    scheme, hidden, lengths, prompts, at, _ = net
    old = scheme.commit(hidden, lengths, prompts, [replace(c, open=b'last window'.ljust(32)) for c in at])
    assert passed(net, proofs=old) == NONE


def test_choosing_the_randomness_is_of_no_use(net):
    "The verifier's context counts: a proof made with coefficients that the miner found favourable fails"
    scheme, hidden, lengths, prompts, at, _ = net
    for seed in range(20):
        chosen = scheme.commit(hidden, lengths, prompts, [replace(c, open=bytes([seed])*32) for c in at])
        assert passed(net, proofs=chosen) == NONE


def test_repeating_an_index_is_rejected(net):
    "One rollout's states and context, sent as all of them"
    scheme, hidden, lengths, prompts, at, proofs = net
    repeated = scheme.commit(hidden, lengths, prompts, [at[0]]*5)
    assert passed(net, proofs=repeated) == [True] + [False]*4


def test_the_verifier_picks_dimensions_and_coefficients_so_a_ground_sketch_is_rejected():
    "One dimension repeated, under coefficients that were searched until their sum vanishes: near 0 whatever the model says"
    h, lengths, prompts, at = states(5, 40, 64), [40]*5, [10]*5, [ProofContext(b'o'*32, 'miner', 3, i) for i in range(5)]
    scheme, total = (proof_scheme(ProtocolParams(proof='grail-v1')),
                     lambda c: abs(int(sketch_coefficients(c.open, c.hotkey, c.group, c.index, 32).sum())))
    ground = [next(x for s in range(20_000) if total(x := replace(c, open=s.to_bytes(32, 'big'))) <= 3) for c in at]
    forged = scheme.commit(h[..., :1].expand_as(h), lengths, prompts, ground)
    assert all((sketch_distance(p, np.zeros_like(p)) <= 50).all() for p in forged)       # by the miner's rules it would have worked
    assert [r.passed for r in scheme.verify(h, lengths, prompts, at, forged, AUDIT, DIGEST)] == NONE


def test_swapping_two_proofs_is_rejected(net):
    scheme, hidden, lengths, prompts, at, proofs = net
    assert passed(net, proofs=[proofs[0], proofs[3], proofs[2], proofs[1], proofs[4]]) == [True, False, True, False, True]


def test_shuffled_positions_and_previous_tokens_are_rejected(net):
    rng = np.random.default_rng(0)
    assert passed(net, proofs=[rng.permutation(p) for p in net[5]]) == NONE
    assert passed(net, proofs=[np.roll(p, 1) for p in net[5]]) == NONE


def test_states_of_other_tokens_are_rejected(net):
    scheme, hidden, lengths, prompts, at, _ = net
    assert passed(net, proofs=scheme.commit(hidden.roll(1, 1), lengths, prompts, at)) == NONE
    assert passed(net, proofs=scheme.commit(states(5, 40, 64, seed=5), lengths, prompts, at)) == NONE
    assert passed(net, proofs=scheme.commit(torch.zeros_like(hidden), lengths, prompts, at)) == NONE


@pytest.mark.parametrize('constant', [0, 1, 128, 0x01010101, 0x80808080, 2**31-1, 2**32-1])
def test_constants_are_rejected(net, constant):
    assert passed(net, proofs=[np.full(n, constant, np.uint32) for n in net[2]]) == NONE


def test_one_altered_token_changes_the_states_and_is_rejected(net):
    "Altering a token changes the states from there on: the verifier's differ from the committed ones"
    scheme, hidden, lengths, prompts, at, proofs = net
    other = hidden.clone()
    other[:, 8:] = states(5, 40, 64, seed=6)[:, 8:]
    assert passed(net, hidden=other) == NONE


def test_another_version_is_rejected():
    h, at = states(1, 40, 64), [ProofContext(b'o'*32, 'miner', 0, 0)]
    v1, v2 = (proof_scheme(ProtocolParams(proof=v), calibration(64)) for v in ('grail-v1', 'grail-v2'))
    for a, b in [(v1, v2), (v2, v1)]:
        assert not b.verify(h, [40], [5], at, a.commit(h, [40], [5], at), AUDIT, DIGEST)[0].passed


def test_malformed_proofs_fail_with_a_reason(net):
    scheme, hidden, lengths, prompts, at, p = net
    for bad in ([None]*5, [x.tolist() for x in p], [x.astype(np.int64) for x in p], [x.astype(np.float32) for x in p], [x[:-1] for x in p],
                [x[:, None] for x in p], [np.concatenate([x, x]) for x in p], [b''.join([x.tobytes()]) for x in p], ['x']*5):
        assert passed(net, proofs=bad) == NONE


def test_any_number_of_proofs_gives_one_result_a_rollout(net):
    for sent in ([], net[5][:4], net[5] + net[5][:1], net[5][1:]):
        assert passed(net, proofs=sent) == NONE


def test_contexts_lengths_and_prompts_of_other_numbers_are_an_error(net):
    scheme, hidden, lengths, prompts, at, proofs = net
    for args in ((hidden, lengths, prompts, at[:4]), (hidden, lengths, prompts, at + at[:1]),
                 (hidden, lengths[:4], prompts, at), (hidden, lengths, prompts[:4], at),
                 (hidden[:4], lengths, prompts, at), (hidden, [41]*5, prompts, at), (hidden, [-1]*5, prompts, at)):
        with pytest.raises(ConfigError): scheme.commit(*args)
        with pytest.raises(ConfigError): scheme.verify(*args, proofs, AUDIT, DIGEST)


def test_padding_counts_for_nothing(net):
    scheme, hidden, lengths, prompts, at, proofs = net
    dirty = hidden.clone()
    for b, n in enumerate(lengths): dirty[b, n:] = torch.nan
    assert all((a == b).all() for a, b in zip(scheme.commit(dirty, lengths, prompts, at), proofs)) and passed(net, hidden=dirty) == ALL


def test_a_rollout_is_proved_the_same_alone_and_in_a_batch(net):
    scheme, hidden, lengths, prompts, at, proofs = net
    for b, n in enumerate(lengths):
        assert (scheme.commit(hidden[b:b+1, :n], [n], [prompts[b]], [at[b]])[0] == proofs[b]).all()


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(['grail-v1', 'grail-v2']), st.sampled_from([8, 9, 12, 31, 64]),
       st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(0, 99),
       st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_any_shape_from_hidden_8_and_length_0_on(version, H, lengths, seed, dtype):
    scheme = proof_scheme(ProtocolParams(proof=version), CALIBRATIONS[H])
    hidden = states(len(lengths), max(lengths), H, seed).to(dtype)
    at     = [ProofContext(bytes(32), 'm', 0, i) for i in range(len(lengths))]
    proofs = scheme.commit(hidden, lengths, [3]*len(lengths), at)
    assert [len(p) for p in proofs] == lengths
    assert [r.passed for r in scheme.verify(hidden, lengths, [3]*len(lengths), at, proofs, AUDIT, DIGEST)] == [n > 0 for n in lengths]
    same = scheme.commit(hidden.float(), lengths, [3]*len(lengths), at)
    assert all((a == b).all() for a, b in zip(proofs, same))          # identical states give identical codes, whatever holds them


CALIBRATIONS = {H: calibration(H) for H in (8, 9, 12, 31, 64)}


def test_two_thousand_short_rollouts_take_half_a_second():
    import time
    torch.set_num_threads(1)
    h, at, n = states(2000, 8, 64), [ProofContext(b'o'*32, 'm', i//16, i%16) for i in range(2000)], [7]*2000
    for version in ('grail-v1', 'grail-v2'):
        scheme, best = proof_scheme(ProtocolParams(proof=version), CALIBRATIONS[64]), 9.
        for _ in range(4):
            start  = time.process_time()
            proofs = scheme.commit(h, n, n, at)
            assert all(r.passed for r in scheme.verify(h, n, n, at, proofs, AUDIT, DIGEST))
            best = min(best, time.process_time() - start)
        assert best < 1., f'{version}: {best:.2f} s for commit and verify'
