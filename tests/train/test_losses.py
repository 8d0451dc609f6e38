"The losses and advantages equal those that TRL 1.16.0 computed, in value and in gradient."
import json
from pathlib import Path

import pytest
import torch

from grail.train.advantages import group_advantages
from grail.train.losses import AGGREGATIONS, CLIPS, RATIOS, LossConfig, Totals, policy_loss, totals

ORACLE = json.loads((Path(__file__).parent/'trl_losses.json').read_text())
D = torch.float64


def recipe(config, common):
    "Our choices for a TRL configuration"
    c = {**common, **config}
    kind = c.get('loss_type', 'dapo')
    clip = kind if kind in ('cispo', 'sapo', 'vespo') else 'ppo'
    return LossConfig(ratio=c.get('importance_sampling_level', 'token'), clip=clip, eps_low=c['epsilon'],
                      eps_high=c['epsilon_high'], cap=c['epsilon_high'], ceiling=c.get('delta'),
                      max_length=c['max_completion_length'],
                      aggregation={'cispo': 'dapo', 'vespo': 'dapo', 'sapo': 'grpo'}.get(kind, kind))


@pytest.mark.parametrize('name', ORACLE['outputs'])
def test_every_stored_trl_loss_and_gradient_is_met(name):
    x, want = ORACLE['inputs'], ORACLE['outputs'][name]
    logp = torch.tensor(x['per_token_logps'], dtype=D, requires_grad=True)
    mask = torch.tensor(x['completion_mask'])
    loss, _ = policy_loss(logp, torch.tensor(x['old_per_token_logps'], dtype=D), torch.tensor(x['advantages'], dtype=D), mask,
                          recipe(want['config'], ORACLE['common_config']), whole=Totals(len(mask), x['num_items_in_batch']))
    loss.backward()
    assert abs(loss.item() - want['loss']) < 2e-6
    assert (logp.grad - torch.tensor(want['logp_grad'], dtype=D)).abs().max() < 1e-5


@pytest.mark.parametrize('ours,theirs', [('group', 'group'), ('mean', 'none'), ('batch', 'batch')])
def test_every_stored_trl_advantage_is_met(ours, theirs):
    x = ORACLE['advantage_oracle']
    rewards = [[float('nan') if r is None else r for r in row] for row in x['rewards']]
    assert torch.allclose(group_advantages(rewards, kind=ours), torch.tensor(x['advantages'][theirs], dtype=D), atol=2e-6)


def random_batch(B=64, T=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    mask = torch.arange(T) < torch.randint(0, T+1, (B,), generator=g)[:, None]
    logp = -2*torch.rand(B, T, generator=g, dtype=D)
    old  = logp + .3*torch.randn(B, T, generator=g, dtype=D)
    return logp, old, torch.randn(B, generator=g, dtype=D), mask, torch.rand(B, T, generator=g, dtype=D)


@pytest.mark.parametrize('aggregation', [a for a in AGGREGATIONS if a != 'bnpo'])
@pytest.mark.parametrize('clip', CLIPS)
@pytest.mark.parametrize('ratio', RATIOS)
def test_gradients_of_the_parts_add_up_to_those_of_the_whole_batch(ratio, clip, aggregation):
    old, logp, A, mask, H = random_batch()
    grads = {}
    for size in (64, 8, 1):
        x, h = logp.clone().requires_grad_(), H.clone().requires_grad_()
        for i in range(0, 64, size):
            s = slice(i, i+size)
            policy_loss(x[s], old[s], A[s], mask[s], ratio=ratio, clip=clip, aggregation=aggregation, whole=totals(mask),
                        entropy=h[s], entropy_coef=.01, ref_logp=old[s]-.1, kl_coef=.1, ceiling=2.)[0].backward()
        grads[size] = torch.cat([x.grad, h.grad])
    for size in (8, 1): assert (grads[size] - grads[64]).norm() <= 1e-12*grads[64].norm()
