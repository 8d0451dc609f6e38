"Estimators against enumeration and simulation; an evaluation is the same through any batching."
import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from grail.train.evaluate import PROTOCOLS, bootstrap, evaluate, iqm, pass_at_k, summarise


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(samples, k):
    if k > len(samples): return
    subsets = list(itertools.combinations(samples, k))
    assert abs(pass_at_k(sum(samples), len(samples), k) - np.mean([any(s) for s in subsets])) < 1e-12

def test_pass_at_k_of_many_samples_does_not_overflow():
    p = pass_at_k(np.arange(0, 10_001, 500), 10_000, 5_000)
    assert np.isfinite(p).all() and p[0] == 0 and p[-1] == 1 and (np.diff(p) >= 0).all()

def test_iqm_ignores_outliers_and_bootstrap_is_reproducible():
    x = np.r_[np.full(8, .5), -100, 100]
    assert abs(iqm(x) - .5) < 1e-12
    y = np.random.default_rng(0).normal(size=50)
    assert bootstrap(y, iqm, 100) == bootstrap(y, iqm, 100) != bootstrap(y, iqm, 100, seed=1)

def test_summary_leaves_out_what_cannot_be_estimated():
    s = summarise([[1, 0]], [[1, 0]], k=(1, 2, 5))
    assert 'pass@2' in s and 'pass@5' not in s

@pytest.mark.parametrize('protocol', PROTOCOLS)
def test_evaluation_does_not_depend_on_batches_or_order(protocol):
    from grail.envs.base import make_env
    from grail.model.engine import TransformersEngine
    from grail.model.tiny import genesis
    model, tokenizer = genesis()
    env = make_env('sort6', tokenizer)
    tasks = env.validation(12)
    a = evaluate(TransformersEngine(model), env, tasks, **PROTOCOLS[protocol])
    b = evaluate(TransformersEngine(model, batch_tokens=64), env, tasks, **PROTOCOLS[protocol])
    assert a == b
    c = evaluate(TransformersEngine(model), env, tasks[::-1], **PROTOCOLS[protocol])
    assert c['pass@1'] == pytest.approx(a['pass@1'])

def test_a_broken_engine_output_scores_zero_and_does_not_raise():
    from grail.envs.base import make_env
    from grail.model.tiny import tokenizer
    class Broken:
        def generate(self, prompts, keys, *a, **k): return [[], [99999], [-1]]*(len(prompts)//3)
    env = make_env('sort6', tokenizer())
    assert evaluate(Broken(), env, env.validation(3), samples=3, k=(1,))['pass@1'] == 0
