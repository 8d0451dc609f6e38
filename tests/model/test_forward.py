import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from grail.core.basics import ConfigError, FormatError
from grail.model import forward as fw
from grail.model.forward import canonical_prefill, join, prefill
from grail.model.tiny import examples, genesis
from model.model_zoo import llama


def naive(model, sequence, prompt):
    "Everything from the whole table of logits"
    with torch.no_grad(): out = model(input_ids=torch.tensor([sequence]), output_hidden_states=True)
    logp = out.logits[0].float().log_softmax(-1)[prompt-1:len(sequence)-1]
    return (out.hidden_states[-1][0, prompt:], logp[range(len(logp)), sequence[prompt:]], -(logp.exp()*logp).sum(-1),
            logp[:, model.config.eos_token_id])

MODELS = {}
def model_of(attention):
    if attention not in MODELS: MODELS[attention] = llama(attention=attention)
    return MODELS[attention]

rollouts = st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 299), max_size=12)), min_size=1, max_size=5)

@settings(max_examples=40, deadline=None)
@given(rollouts, st.sampled_from(['sdpa', 'eager']), st.integers(1, 20), st.integers(0, 7))
def test_it_equals_the_whole_table_whatever_the_lengths_chunks_and_padding(rollouts, attention, chunk, more):
    model = model_of(attention)
    seqs = [[7]*prompt + tail for prompt, tail in rollouts]
    prompts = [p for p, _ in rollouts]
    out = prefill(model, seqs, prompts, pad_to=max(map(len, seqs))+more, chunk=chunk)
    assert out.lengths == [len(t) for _, t in rollouts]
    for b, (s, p, n) in enumerate(zip(seqs, prompts, out.lengths)):
        for ours, theirs in zip((out.hidden, out.logprobs, out.entropy, out.eos_logprob), naive(model, s, p)):
            assert torch.allclose(ours[b, :n], theirs, atol=2e-4, rtol=1e-4)
            assert not ours[b, n:].any()

@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_batch_and_padding_change_results_within_rounding_only(attention, dtype):
    model, tol = genesis(dtype=dtype, attention=attention)[0], {torch.float32: 5e-5, torch.bfloat16: .15}[dtype]
    rows = examples(np.random.default_rng(0), 16).tolist()
    whole = prefill(model, rows, [7]*16)
    assert whole.hidden.dtype == dtype and whole.logprobs.dtype == torch.float32
    for other in (join([prefill(model, [r], [7]) for r in rows]), prefill(model, rows, [7]*16, pad_to=50)):
        assert (other.logprobs - whole.logprobs).abs().max() < tol
        assert (other.entropy - whole.entropy).abs().max() < tol

def test_one_group_gives_the_same_bits_whatever_else_was_run():
    model = genesis()[0]
    groups = [examples(np.random.default_rng(i), 16).numpy() for i in range(3)]
    first = [canonical_prefill(model, g, [7]*16) for g in groups]
    second = [canonical_prefill(genesis()[0], [list(map(int, r)) for r in g], np.full(16, 7)) for g in reversed(groups)][::-1]
    for a, b in zip(first, second):
        for k in ('hidden', 'logprobs', 'entropy', 'eos_logprob'): assert torch.equal(getattr(a, k), getattr(b, k))

def test_what_comes_back_can_enter_a_gradient():
    out = prefill(genesis()[0], examples(np.random.default_rng(0), 2), [7, 7])
    assert not out.logprobs.requires_grad
    x = torch.ones_like(out.logprobs, requires_grad=True)
    (x*out.logprobs).sum().backward()
    assert torch.equal(x.grad, out.logprobs)

def test_the_visitor_sees_each_position_once():
    model, rows = genesis()[0], examples(np.random.default_rng(0), 5)
    places = []
    def visit(logits, r, s):
        places.extend(zip(r.tolist(), s.tolist()))
        return {'top': logits.argmax(-1)}
    out = prefill(model, rows, [7, 8, 13, 14, 9], chunk=4, visit=visit)
    assert places == [(b, s) for b, n in enumerate([7, 6, 1, 0, 5]) for s in range(n)]
    assert out.extra['top'].shape == (5, 7) and out.extra['top'].dtype == torch.long

@pytest.mark.parametrize('sequences, prompts', [
    ([[1, 20]], [1]), ([[1, -2]], [1]), ([[1, 2]], [0]), ([[1, 2]], [3]), ([[1, 2]], [-1]), ([[1., 2.]], [1]),
    (['ab'], [1]), ([[[1, 2]]], [1]), ([[]], [0]),
    ([], []), ([[1, 2]], [1, 1]), ([[1, 2**64]], [1]), ([[1, [2]]], [1]),
    ([None], [1]), ([[True, False]], [1]), ([np.array([1, 2], np.uint64)*2**62], [1])])
def test_malformed_rollouts_are_format_errors(sequences, prompts):
    with pytest.raises(FormatError): prefill(genesis()[0], sequences, prompts)

def test_a_model_with_more_after_its_head_is_refused():
    model = genesis()[0]
    model.config.logits_scaling = 8.
    with pytest.raises(ConfigError, match='logits_scaling'): prefill(model, [[1, 2]], [1])

MEMORY = '''
import resource, torch
from grail.model.forward import prefill
from model.model_zoo import llama
torch.set_num_threads(1)
model = llama(vocab_size=60_000, hidden_size=24, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1)
rows = torch.randint(0, 60_000, (8, 256)).tolist()
prefill(model, [r[:8] for r in rows], [4]*8, chunk=64)                       # load what is loaded lazily
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
prefill(model, rows, [4]*8, chunk=64)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)/1024)
'''

def test_peak_memory_does_not_hold_the_table_of_logits():
    "The table would be 8 x 256 x 60,000 float32 = 469 MiB; a chunk of 64 positions 15, of which a few live at a time"
    from pathlib import Path
    done = subprocess.run([sys.executable, '-c', MEMORY], capture_output=True, text=True,
                          cwd=Path(__file__).parents[2], env={**os.environ, 'PYTHONPATH': 'tests:.'}, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 160


@settings(deadline=None)       # machine code is made in the first call
@given(st.integers(1, 6), st.sampled_from([1, 2, 40, 127, 128, 129, 300]), st.integers(0, 2**32-1))
def test_what_comes_before_a_token_is_the_same_as_one_loop_and_as_tensor_operations(n, vocab, seed):
    rng = np.random.default_rng(seed)
    logits, tokens = torch.from_numpy(rng.integers(-3, 4, (n, vocab)).astype(np.float32)), torch.from_numpy(rng.integers(0, vocab, n))
    p = logits.softmax(-1)
    plain = [sum(float(p[b, v]) for v in range(vocab) if (-float(logits[b, v]), v) < (-float(logits[b, t]), t))
             for b, t in enumerate(tokens.tolist())]
    for way in (fw.sum_before, fw._passes, lambda *a: torch.from_numpy(fw._sum_before.py_func(*(x.numpy() for x in a)))):
        assert torch.allclose(way(logits, p, tokens), torch.tensor(plain, dtype=torch.float32), atol=1e-5)


@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
@pytest.mark.parametrize('lengths', [(5, 5, 5), (9, 0, 3), (0, 0)])
def test_a_shared_prompt_is_read_once_and_nothing_changes(attention, lengths, monkeypatch):
    model, rng = model_of(attention), np.random.default_rng(0)
    seqs, read = [[7, 8, 9, 11] + rng.integers(0, 299, n).tolist() for n in lengths], []
    decoder = model.get_decoder()
    hook = decoder.register_forward_pre_hook(lambda m, a, kw: read.append(tuple(kw['input_ids'].shape)), with_kwargs=True)
    try: out = prefill(model, seqs, [4]*len(seqs))
    finally: hook.remove()
    assert read == ([(1, 4), (len(seqs), max(lengths))] if max(lengths) else [(len(seqs), 4)])
    for b, (s, n) in enumerate(zip(seqs, out.lengths)):
        for ours, theirs in zip((out.hidden, out.logprobs, out.entropy, out.eos_logprob), naive(model, s, 4)):
            assert torch.allclose(ours[b, :n], theirs, atol=2e-4, rtol=1e-4)


def test_prompts_that_differ_in_one_token_are_all_read():
    model, rng = model_of('sdpa'), np.random.default_rng(1)
    seqs = [[7, 8, x] + rng.integers(0, 299, 6).tolist() for x in (9, 10)]
    out = prefill(model, seqs, [3, 3])
    for b, s in enumerate(seqs): assert torch.allclose(out.logprobs[b], naive(model, s, 3)[1], atol=2e-4)


@pytest.mark.parametrize('config', ['mamba', 'conv'])
def test_models_without_a_plain_cache_are_read_in_full(config):
    import transformers as tr
    torch.manual_seed(0)
    c = (tr.MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2, state_size=8) if config == 'mamba' else
         tr.Lfm2Config(vocab_size=97, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
                       num_hidden_layers=2, layer_types=['conv', 'full_attention']))
    model, seqs = tr.AutoModelForCausalLM.from_config(c).eval(), [[1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8], [1, 2, 3, 9]]
    out = prefill(model, seqs, [3, 3, 3])
    for b, s in enumerate(seqs):
        with torch.no_grad(): logp = model(input_ids=torch.tensor([s])).logits[0].log_softmax(-1)
        assert torch.allclose(out.logprobs[b, :len(s)-3], logp[range(2, len(s)-1), s[3:]], atol=1e-4)


def test_a_group_whose_cache_would_be_too_large_is_read_in_full(monkeypatch):
    model, seqs = model_of('sdpa'), [[7, 8, 9, 1, 2], [7, 8, 9, 3, 4]]
    shared, read = prefill(model, seqs, [3, 3]), []
    monkeypatch.setattr(fw, 'CACHE_BYTES', 100)
    hook = model.get_decoder().register_forward_pre_hook(lambda m, a, kw: read.append(tuple(kw['input_ids'].shape)), with_kwargs=True)
    try: full = prefill(model, seqs, [3, 3])
    finally: hook.remove()
    assert read[-1] == (2, 5) and torch.allclose(full.logprobs, shared.logprobs, atol=1e-4)


def test_positions_that_depend_on_the_length_are_refused():
    model = llama()
    model.config.rope_parameters = {'rope_type': 'dynamic', 'factor': 4., 'rope_theta': 1e4}
    with pytest.raises(ConfigError, match='dynamic'): prefill(model, [[1, 2, 3]], [1])


def test_a_token_outside_of_the_vocabulary_is_refused_where_memory_would_be_read():
    z = torch.zeros(2, 10)
    for tokens in ([10, 0], [-1, 0], [0, 2**40]):
        with pytest.raises(ConfigError): fw.sum_before(z, z, torch.tensor(tokens))
    with pytest.raises(ConfigError): fw.sum_before(z, z, torch.tensor([0, 1, 2]))
