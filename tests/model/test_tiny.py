import numpy as np
import pytest
import torch

from grail.core.params import profile
from grail.envs.sort import Sort, held_out
from grail.model import tiny
from grail.model.engine import TransformersEngine
from grail.model.files import weights_digest
from grail.model.tiny import ALPHABET, examples, genesis, genesis_path, make_genesis, skill, tokenizer


def test_the_shipped_weights_are_small_and_named():
    assert genesis_path().stat().st_size < 1_000_000
    assert weights_digest(genesis()[0]) == '5a7e779e836e05452fc8d6cc0bc543b379ede636107f72f90bee446551d0a1a9'

def test_every_character_is_one_token():
    tok = tokenizer()
    assert [len(tok(c)['input_ids']) for c in ALPHABET] == [1]*len(ALPHABET)
    text = ALPHABET*3 + ALPHABET[::-1]
    assert tok.decode(tok(text)['input_ids']) == text and len(tok(text)['input_ids']) == len(text)

def test_the_sorting_environment_takes_it_and_it_mostly_fails():
    model, tok = genesis()
    env, params, engine = Sort(tok), profile('tiny'), TransformersEngine(genesis()[0], seed=0)
    tasks = env.validation(200)
    def solved(k, **how):
        prompts = [list(t.prompt_ids) for t in tasks for _ in range(k)]
        done = engine.generate(prompts, None, params.max_new_tokens, eos_id=tok.eos_token_id, **how)
        return np.mean([env.evaluate(tasks[i//k], c).success for i, c in enumerate(done)])
    assert solved(1, temperature=0) > .94
    assert .02 < solved(8) < .08

def test_no_example_is_held_out():
    rows = examples(np.random.default_rng(3), 500)
    assert not any(held_out(''.join(str(d-3) for d in row[:6].tolist())) for row in rows)

def test_training_is_a_function_of_the_seed_and_leaves_no_trace(monkeypatch):
    monkeypatch.setattr(tiny, 'STEPS', 3)
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    a = weights_digest(make_genesis(0))
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
    torch.manual_seed(6)
    assert weights_digest(make_genesis(0)) == a and weights_digest(make_genesis(1)) != a

def test_bfloat16_differs_from_float32_by_rounding_only():
    assert np.allclose(skill(genesis(dtype=torch.bfloat16)[0]), skill(genesis()[0]), atol=.02)

@pytest.mark.slow
def test_the_recipe_still_makes_the_shipped_weights():
    "To the bit where they were made; elsewhere floating point differs, and the skill must agree within two points"
    made, shipped = make_genesis(), genesis()[0]
    if weights_digest(made) != weights_digest(shipped): assert np.allclose(skill(made), skill(shipped), atol=.02)
