"The learner does not depend on micro-batching, survives what strangers send, and continues to the bit after a kill."
import json
import os
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from learning import TINY, make_groups, small_model
from grail.train.learner import Learner, lr_at, make_rows
from grail.train.losses import Totals
from grail.train.scoring import micro_batch, plan

HERE = Path(__file__).parent


def gradient(parts, rows, config):
    l = Learner(small_model(), config)
    for part in parts: l.micro_loss(rows.take(np.array(part)), Totals(len(rows), rows.tokens))[0].backward()
    return torch.cat([p.grad.flatten() for p in l.model.parameters()])

@pytest.mark.parametrize('aggregation', ['grpo', 'dr_grpo', 'dapo', 'luspo'])
def test_one_batch_of_64_equals_eight_of_8_and_sixty_four_of_1(aggregation):
    config = replace(TINY, loss=replace(TINY.loss, aggregation=aggregation))
    rows   = make_rows(make_groups(8, 8), config)
    assert len(rows) == 64
    split  = lambda n: [list(p) for p in np.array_split(np.random.default_rng(0).permutation(64), 64//n)]
    whole  = gradient(split(64), rows, config)
    for n in (8, 1): assert (gradient(split(n), rows, config) - whole).norm() < 1e-5*whole.norm()

@pytest.mark.parametrize('change', [dict(token_budget=1), dict(token_budget=64), dict(share_prompts=False), dict(head_memory=400),
                                    dict(checkpointing=True)])
def test_weights_after_a_window_do_not_depend_on_how_memory_is_used(change):
    # SGD-like epsilon: Adam's first steps divide rounding errors of near-zero gradients by themselves
    config = replace(TINY, adam_eps=1e-2)
    a, b = Learner(small_model(), config), Learner(small_model(), replace(config, **change))
    for _ in range(2): a.train_window(make_groups()); b.train_window(make_groups())
    for p, q in zip(a.model.parameters(), b.model.parameters()): assert (p - q).abs().max() < 1e-6

def test_the_order_of_arrival_does_not_matter():
    a, b = Learner(small_model(), TINY), Learner(small_model(), TINY)
    groups = make_groups()
    assert a.train_window(groups) == b.train_window(groups[::-1])
    for p, q in zip(a.model.parameters(), b.model.parameters()): assert torch.equal(p, q)

def test_the_learning_rate_moves_with_every_optimizer_step():
    "Not once a window: in the warm-up each of a window's steps has its own"
    config, l, rates = replace(TINY, warmup_steps=6, total_steps=12), Learner(small_model(), TINY), []
    l.config = config
    for _ in range(2): l.train_window(make_groups(), after_update=lambda l: rates.append({g['lr'] for g in l.optimizer.param_groups}))
    assert rates == [{lr_at(i, config)} for i in range(8)] and len({x for r in rates for x in r}) >= 7

def test_entropy_needs_no_second_forward_pass():
    "With an entropy term the model is called as often as without it"
    def calls(coef):
        config = replace(TINY, loss=replace(TINY.loss, entropy_coef=coef), updates_per_window=1, token_budget=1 << 20)
        l, n = Learner(small_model(), config), []
        l.model.model.register_forward_hook(lambda *a: n.append(1))
        m = l.train_window(make_groups())
        assert m['updates'] == 1 and m['entropy'] > 0
        return len(n)
    assert calls(.1) == calls(0.) > 0

def test_bfloat16_computes_in_bf16_and_keeps_fp32_weights():
    l = Learner(small_model().bfloat16(), replace(TINY, dtype='bfloat16'))
    before = [p.clone() for p in l.model.parameters()]
    m = l.train_window(make_groups())
    assert m['updates'] == 4 and all(p.dtype == torch.float32 for p in l.model.parameters())
    assert any((p != q).any() for p, q in zip(before, l.model.parameters()))

def test_logits_of_the_whole_batch_are_never_alive():
    "No tensor of more rows x vocabulary than a chunk appears in forward or backward (the head itself has 8 columns)"
    from torch.utils._python_dispatch import TorchDispatchMode
    from transformers import Qwen2Config, Qwen2ForCausalLM
    V, largest = 5003, [0]
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            out = f(*args, **(kwargs or {}))
            for t in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(t, torch.Tensor) and t.ndim >= 2 and t.shape[-1] == V: largest[0] = max(largest[0], t.numel()//V)
            return out
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=V, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
                                         num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False))
    l = Learner(model, replace(TINY, head_memory=4*V*10))
    with Watch(): m = l.train_window(make_groups())
    assert m['updates'] == 4 and largest[0] == 10


def grow(g):
    g.sequences[3] = np.ones(5000, np.int32)
    g.old_logprobs[3] = np.zeros(5000-g.prompt_lengths[3], np.float32)

BAD = {'a missing reward':     lambda g: g.rewards.__setitem__(0, np.nan),
       'an infinite reward':   lambda g: g.rewards.__setitem__(0, np.inf),
       'an infinite log-prob': lambda g: g.old_logprobs[1].__setitem__(0, -np.inf),
       'a NaN log-prob':       lambda g: g.old_logprobs[1].__setitem__(0, np.nan),
       'a positive log-prob':  lambda g: g.old_logprobs[1].__setitem__(0, 5.),
       'missing log-probs':    lambda g: g.old_logprobs.__setitem__(2, np.zeros(99, np.float32)),
       'a giant sequence':     grow}

@pytest.mark.parametrize('name', BAD)
def test_a_bad_rollout_is_left_out_and_counted(name):
    bad, good = make_groups(), make_groups()
    BAD[name](bad[0])
    l = Learner(small_model(), TINY)
    m = l.train_window(bad)
    assert m['rollouts_dropped'] == 1 and m['updates'] == 4
    assert all(p.isfinite().all() for p in l.model.parameters())
    json.dumps(m, allow_nan=False)
    i = dict(zip(BAD, (0, 0, 1, 1, 1, 2, 3)))[name]
    other = Learner(small_model(), TINY)
    other.train_window([good[0].take([j for j in range(8) if j != i])] + good[1:])
    for p, q in zip(l.model.parameters(), other.model.parameters()): assert torch.equal(p, q)

@pytest.mark.parametrize('kind', ['empty', 'equal rewards', 'single rollouts'])
def test_a_window_without_signal_changes_nothing(kind):
    groups = {'empty': [], 'equal rewards': [replace(g, rewards=np.ones(8)) for g in make_groups(3)],
              'single rollouts': [g.take([0]) for g in make_groups(3)]}[kind]
    l = Learner(small_model(), TINY)
    before = [p.clone() for p in l.model.parameters()]
    m = l.train_window(groups)
    assert m['updates'] == 0 and l.window == 1 and l.step == 0 and m['groups_flat'] == len(groups)
    json.dumps(m, allow_nan=False)
    for p, q in zip(before, l.model.parameters()): assert torch.equal(p, q)

def test_steps_with_numbers_that_are_not_finite_are_skipped_counted_and_harmless():
    l = Learner(small_model(), TINY)
    l.train_window(make_groups())
    before = {k: v.clone() for k, v in l.state()[0].items()}
    with torch.no_grad(): next(l.model.parameters())[5] = torch.nan
    m = l.train_window(make_groups())
    assert m['skipped_updates'] == 4 and m['updates'] == 0
    with torch.no_grad(): next(l.model.parameters())[5] = before['model.model.embed_tokens.weight'][5]
    assert all(torch.equal(v, before[k]) for k, v in l.state()[0].items())
    assert l.train_window(make_groups())['updates'] == 4

@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 60), st.integers(0, 3)), max_size=30), st.integers(1, 400))
def test_a_plan_holds_every_row_once_and_keeps_the_budget(rows, budget):
    seqs = [np.full(p+c, tag) for p, c, tag in rows]
    parts = plan(seqs, [p for p, _, _ in rows], budget)
    assert sorted(i for p in parts for i in p) == list(range(len(rows)))
    for part in parts:
        assert len(part) == 1 or micro_batch([seqs[i] for i in part], [rows[i][0] for i in part]).tokens <= budget


RESUMABLE = replace(TINY, max_age=1, groups_per_window=6, proximal=True, entropy_target=2.,
                    loss=replace(TINY.loss, correction='token_truncate'))

def five_windows(folder, kill):
    "Train with a save after every step; die without a chance to clean up after step `kill`"
    l = Learner(small_model(), RESUMABLE)
    l.load(folder)
    def after(l):
        l.save(folder)
        if l.step == kill: os.kill(os.getpid(), signal.SIGKILL)
    while l.window < 5: l.train_window(make_groups(seed=l.window), after_update=after)
    l.save(folder)

def run(folder, kill):
    "In a process of its own; 0, or minus the signal that ended it"
    child = os.fork()
    if not child:
        try: five_windows(folder, kill)
        except BaseException: traceback.print_exc(); os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def test_a_run_that_is_killed_again_and_again_ends_bit_identical(tmp_path):
    assert run(tmp_path/'whole', 0) == 0
    for kill in (3, 8, 13, 18): assert run(tmp_path/'killed', kill) == -signal.SIGKILL
    assert run(tmp_path/'killed', 0) == 0
    for f in ('state.safetensors', 'state.json'): assert (tmp_path/'whole'/f).read_bytes() == (tmp_path/'killed'/f).read_bytes()

@pytest.mark.parametrize('kill', range(1, 21))
@pytest.mark.slow
def test_killed_at_any_step(tmp_path, kill, whole_run):
    assert run(tmp_path/'killed', kill) == -signal.SIGKILL
    assert run(tmp_path/'killed', 0) == 0
    for f in ('state.safetensors', 'state.json'): assert (whole_run/f).read_bytes() == (tmp_path/'killed'/f).read_bytes()

@pytest.fixture(scope='module')
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp('whole')/'state'
    assert run(folder, 0) == 0
    return folder

def test_an_interrupted_save_leaves_a_state_to_go_on_from(tmp_path):
    l = Learner(small_model(), TINY)
    l.train_window(make_groups())
    l.save(tmp_path/'s')
    (tmp_path/'s').rename(tmp_path/'s.old')            # killed between the two renames
    (tmp_path/'s.new').mkdir(); (tmp_path/'s.new'/'state.json').write_text('{')
    other = Learner(small_model(3), TINY)
    assert other.load(tmp_path/'s') and other.window == 1
    other.save(tmp_path/'s')
    assert sorted(p.name for p in tmp_path.iterdir()) == ['s']
