"What the tests of the train room share: a small model and groups of rollouts that it could have made."
from dataclasses import replace

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from grail.train.learner import PRESETS
from grail.train.losses import BLOG
from grail.train.scoring import Scorer, micro_batch
from grail.train.selection import TrainGroup

TINY = replace(PRESETS['tiny'], groups_per_window=8, warmup_steps=2, total_steps=40, loss=replace(BLOG, max_length=8,
                                                                                                  entropy_coef=.01))


def small_model(seed=0):
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=20, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                        tie_word_embeddings=True))


def make_groups(n=8, size=8, seed=0, noise=.1):
    "Groups with ragged prompts and completions, log-probs near the small model's"
    rng, scorer, out = np.random.default_rng(seed), Scorer(small_model()), []
    for i in range(n):
        prompt = rng.integers(3, 20, rng.integers(2, 9))
        seqs = [np.concatenate([prompt, rng.integers(1, 20, rng.integers(1, 9))]).astype(np.int32) for _ in range(size)]
        with torch.no_grad(): logp = scorer(micro_batch(seqs, [len(prompt)]*size))[0].numpy()
        near = lambda lp, n: np.minimum(lp[:n] + rng.normal(0, noise, n), 0).astype(np.float32)
        old  = [near(lp, len(s)-len(prompt)) for lp, s in zip(logp, seqs)]
        out.append(TrainGroup(('5Alice', i), seqs, [len(prompt)]*size, old, (rng.random(size) < .4).astype(np.float64)))
    return out
