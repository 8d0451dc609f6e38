import time

import numpy as np
import pytest
import torch

from grail.core.basics import ConfigError
from grail.model import engine as engine_module
from grail.model.engine import Shelf, TransformersEngine
from grail.model.forward import prefill
from grail.model.tiny import draw, genesis
from grail.protocol.sampling import margin
from model.model_zoo import llama

def keys_of(n, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.bytes(16) for _ in range(n)]

def prompts_of(n, seed=0, longest=12, vocab=300):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocab, rng.integers(1, longest)).tolist() for _ in range(n)]

def watch(model, monkeypatch):
    "The shapes of all inputs of the model's body"
    shapes, forward = [], model.model.forward
    def seen(input_ids, **kwargs):
        shapes.append(tuple(input_ids.shape))
        return forward(input_ids=input_ids, **kwargs)
    monkeypatch.setattr(model.model, 'forward', seen)
    return shapes


@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
def test_greedy_equals_transformers_for_prompts_of_all_lengths(attention):
    model = llama(attention=attention)
    prompts = prompts_of(9)
    for p, c in zip(prompts, TransformersEngine(model).generate(prompts, None, 10, temperature=0, eos_id=2)):
        theirs = model.generate(torch.tensor([p]), max_new_tokens=10, do_sample=False, eos_token_id=2, pad_token_id=0)[0, len(p):]
        assert c == theirs.tolist()

@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_a_validator_recomputes_every_token_from_one_prefill(attention, dtype):
    model, how = llama(attention=attention, dtype=dtype), dict(temperature=.8, top_k=50, top_p=.95)
    prompts, keys = prompts_of(24), keys_of(24)
    done = TransformersEngine(model).generate(prompts, keys, 16, eos_id=2, **how)
    def visit(logits, rows, steps):
        tokens = torch.tensor([done[r][s] for r, s in zip(rows.tolist(), steps.tolist())])
        return {'margin': margin(logits, tokens, [keys[r] for r in rows.tolist()], steps, **how)}
    out = prefill(model, [p+c for p, c in zip(prompts, done)], [len(p) for p in prompts], visit=visit)
    lost = out.extra['margin'][out.mask]
    assert len(lost) > 200
    assert (lost > 0).float().mean() <= (0 if dtype == torch.float32 else .1)

def test_a_rollout_depends_on_its_own_prompt_and_key_alone():
    model, prompts, keys = llama(), prompts_of(20), keys_of(20)
    whole = TransformersEngine(model).generate(prompts, keys, 12, eos_id=2)
    assert whole == [TransformersEngine(model).generate([p], [k], 12, eos_id=2)[0] for p, k in zip(prompts, keys)]
    assert whole[::-1] == TransformersEngine(model, batch_tokens=64).generate(prompts[::-1], keys[::-1], 12, eos_id=2)
    assert whole == TransformersEngine(model).generate(prompts, keys, 12, eos_id=2)

def test_completions_end_with_the_first_eos_or_at_full_length():
    prompts = [[*(d+3), 13] for d in draw(np.random.default_rng(0), 100)]
    done = TransformersEngine(genesis()[0]).generate(prompts, keys_of(100), 8, eos_id=5)     # a digit in the role of EOS
    assert all(5 not in c[:-1] and (c[-1] == 5 or len(c) == 8) for c in done)
    assert len({len(c) for c in done}) > 4
    free = TransformersEngine(genesis()[0]).generate(prompts, keys_of(100), 8)
    assert all(len(c) == 8 for c in free)
    assert all(f[:len(c)] == c for f, c in zip(free, done))

def test_equal_prompts_share_one_prefill_and_finished_rows_are_dropped(monkeypatch):
    model = genesis()[0]
    shapes = watch(model, monkeypatch)
    a, b = [8, 5, 10, 4, 6, 3, 13], [3, 3, 4, 5, 6, 7, 13]
    TransformersEngine(model).generate([a, b]*16, keys_of(32), 8, eos_id=5)
    assert shapes[0] == (2, 7)
    steps = [n for n, _ in shapes[1:]]
    assert steps[0] == 32 and steps[-1] <= 16 and steps == sorted(steps, reverse=True)

def test_decoding_stops_when_all_have_ended(monkeypatch):
    model = genesis()[0]
    shapes = watch(model, monkeypatch)
    TransformersEngine(model).generate([[8, 5, 10, 4, 6, 3, 13]]*4, None, 100, temperature=0, eos_id=1)
    assert len(shapes) == 7

def test_no_batch_exceeds_the_budget(monkeypatch):
    sizes, decode = [], TransformersEngine._decode
    monkeypatch.setattr(TransformersEngine, '_decode',
                        lambda self, p, k, new, *a, **kw: (sizes.append((len(p), max(map(len, p)) + new)),
                                                           decode(self, p, k, new, *a, **kw))[1])
    TransformersEngine(llama(), batch_tokens=100).generate(prompts_of(40), None, 5)
    assert len(sizes) > 3 and sum(n for n, _ in sizes) == 40 and all(n*w <= 100 for n, w in sizes)

def test_the_cache_is_written_in_place(monkeypatch):
    places = []
    update = Shelf.update
    monkeypatch.setattr(Shelf, 'update', lambda self, *a, **k: (update(self, *a, **k), places.append(self.stores[0].data_ptr()))[0])
    TransformersEngine(llama()).generate(prompts_of(4), keys_of(4), 20)
    assert len(places) == 3*19 and len(set(places)) == 3

def test_sampling_choices_reach_the_dice():
    model, prompts, keys = llama(), prompts_of(10), keys_of(10)
    engine = TransformersEngine(model)
    greedy = engine.generate(prompts, keys, 8, temperature=0)
    assert engine.generate(prompts, keys, 8, top_k=1) == greedy
    assert engine.generate(prompts, keys, 8, top_p=1e-6) == greedy
    assert engine.generate(prompts, keys, 8) != greedy
    assert engine.generate(prompts, keys, 8, temperature=1.5) != engine.generate(prompts, keys, 8)

def test_own_dice_are_fresh_and_a_seed_repeats_them():
    model, prompts = llama(), prompts_of(10)
    one, two = TransformersEngine(model, seed=1), TransformersEngine(model, seed=1)
    first = one.generate(prompts, None, 8)
    assert first == two.generate(prompts, None, 8) and first != one.generate(prompts, None, 8)
    assert TransformersEngine(model).generate(prompts, None, 8) != TransformersEngine(model).generate(prompts, None, 8)

def test_what_cannot_be_continued_is_refused():
    engine = TransformersEngine(genesis()[0])
    with pytest.raises(ConfigError, match='empty prompt'): engine.generate([[5], []], None, 4)
    with pytest.raises(ConfigError, match='keys'): engine.generate([[5], [6]], keys_of(1), 4)
    assert engine.generate([], None, 4) == [] and engine.generate([[5]], None, 0) == [[]]

def test_prompts_may_be_arrays_or_tensors():
    engine = TransformersEngine(genesis()[0])
    as_list = engine.generate([[8, 5, 13]], keys_of(1), 4)
    assert (as_list == engine.generate([np.array([8, 5, 13], np.int32)], keys_of(1), 4)
            == engine.generate([torch.tensor([8, 5, 13])], keys_of(1), 4))

def test_a_window_of_rollouts_takes_less_than_half_a_second_of_one_core():
    model = genesis()[0]
    prompts = [[*(d+3), 13] for d in draw(np.random.default_rng(0), 48) for _ in range(16)]
    engine, best = TransformersEngine(model), float('inf')
    for i in range(3):
        start = time.process_time()
        engine.generate(prompts, keys_of(768, i), 8, eos_id=1)
        best = min(best, time.process_time() - start)
    assert best < .5
