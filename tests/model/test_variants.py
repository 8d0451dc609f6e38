import numpy as np
import pytest
import torch

from grail.core.basics import ConfigError
from grail.model.engine import TransformersEngine
from grail.model.files import weights_digest
from grail.model.forward import prefill
from grail.model.variants import drop_layers, fp8, int4, int8, map_weights, noised, rounded
from model.model_zoo import llama


@pytest.mark.parametrize('make', [lambda m: drop_layers(m, 1), lambda m: noised(m, .1), int8, int4, fp8],
                         ids='drop noise int8 int4 fp8'.split())
def test_an_impostor_differs_and_leaves_the_original_alone(make):
    model = llama()
    before = weights_digest(model)
    other = make(model)
    assert weights_digest(model) == before != weights_digest(other)
    assert model.config.num_hidden_layers == 3

@pytest.mark.parametrize('n, at, kept', [(1, None, (0, 1)), (2, None, (0,)), (1, 0, (1, 2)), (1, 1, (0, 2))])
def test_a_model_with_fewer_layers_generates_as_transformers_says(n, at, kept):
    model = llama()
    small = drop_layers(model, n, at)
    assert [torch.equal(a.mlp.up_proj.weight, model.model.layers[i].mlp.up_proj.weight)
            for a, i in zip(small.model.layers, kept)] == [True]*len(kept)
    theirs = small.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 3:].tolist()
    assert TransformersEngine(small).generate([[5, 6, 7]], None, 8, temperature=0)[0] == theirs

@pytest.mark.parametrize('n, at', [(3, None), (-1, None), (1, 3), (2, 2), (1, -1)])
def test_layers_that_are_not_there_cannot_be_dropped(n, at):
    with pytest.raises(ConfigError): drop_layers(llama(), n, at)

@pytest.mark.parametrize('bits', [2, 4, 8])
def test_rounding_is_to_the_nearest_of_the_grid_and_changes_nothing_twice(bits):
    w = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    r, scale = rounded(w, bits), w.abs().amax(-1, keepdim=True)/(2**(bits-1)-1)
    assert ((w-r).abs() <= scale/2 + 1e-6).all()
    assert torch.allclose(rounded(r, bits), r, atol=1e-6)
    assert max(len(row.unique()) for row in r) <= 2**bits - 1

def test_impostors_are_ordered_by_their_damage():
    model, rows = llama(), np.random.default_rng(0).integers(3, 300, (8, 20)).tolist()
    truth = prefill(model, rows, [4]*8).logprobs
    damage = lambda m: (prefill(m, rows, [4]*8).logprobs - truth).abs().mean().item()
    assert damage(int8(model)) < damage(fp8(model)) < damage(int4(model, 16))
    assert damage(noised(model, .001)) < damage(noised(model, .01)) < damage(noised(model, .1))

def test_dtype_and_ties_survive():
    model = llama(dtype=torch.bfloat16, tie_word_embeddings=True)
    other = map_weights(model, lambda w: -w, embeddings=True)
    assert other.dtype == torch.bfloat16 and other.lm_head.weight is other.model.embed_tokens.weight
    assert torch.equal(other.lm_head.weight, -model.lm_head.weight)
