"The losses against TRL 1.16 itself, where it is installed (the `bench` extra): value and gradient on random batches in float64."
from itertools import product

import pytest
import torch

from grail.train.losses import LossConfig, Totals, correction_weight, policy_loss

pytestmark = pytest.mark.slow
D, B, T, P = torch.float64, 12, 9, 3

POLICY = [dict(loss_type=l, importance_sampling_level=s, **extra) for l, s, extra in
          product(('grpo', 'bnpo', 'dr_grpo', 'dapo', 'luspo'), ('token', 'sequence'),
                  (dict(), dict(delta=1.5), dict(epsilon=3e-4, epsilon_high=4e-4)))]
SEQUENCE = dict(importance_sampling_level='sequence')
MODES  = ('token_truncate', 'token_mask', 'sequence_truncate', 'sequence_mask')
OTHERS = [dict(loss_type='cispo', epsilon_high=5.), dict(loss_type='cispo', epsilon_high=1.2, **SEQUENCE),
          dict(loss_type='sapo'), dict(loss_type='sapo', sapo_temperature_pos=2., sapo_temperature_neg=3., **SEQUENCE),
          dict(loss_type='vespo'), dict(loss_type='vespo', vespo_k_pos=1., vespo_lambda_neg=4.),
          dict(loss_type='dapo', entropy_coef=.01), dict(loss_type='luspo', entropy_coef=.02, **SEQUENCE),
          dict(loss_type='dapo', top_entropy_quantile=.3), dict(loss_type='grpo', top_entropy_quantile=.2, entropy_coef=.05),
          dict(loss_type='dapo', off_policy_mask_threshold=.05), dict(loss_type='dapo', beta=.1),
          dict(loss_type='grpo', beta=.1, use_bias_correction_kl=False), dict(loss_type='dapo', beta=.05, **SEQUENCE),
          *(dict(loss_type=l, mode=m) for l, m in product(('dapo', 'vespo'), MODES)),
          dict(loss_type='dapo', mode='token_truncate', vllm_importance_sampling_clip_max=1.1),
          dict(loss_type='luspo', tools=True), dict(loss_type='grpo', tools=True, **SEQUENCE)]
CASES = POLICY + OTHERS


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    rand = lambda *s: torch.rand(*s, generator=g, dtype=D)
    n = torch.randint(1, T+1, (B,), generator=g)
    logp = -3*rand(B, T)
    near = lambda: logp + .4*torch.randn(B, T, generator=g, dtype=D)
    return dict(logp=logp, old=near(), ref=near(), sampler=near(), entropy=3*rand(B, T), A=torch.randn(B, generator=g, dtype=D),
                mask=(torch.arange(T) < n[:, None]).long(), tools=(rand(B, T) < .8).long(),
                ids=torch.randint(2, 20, (B, P+T), generator=g))


@pytest.fixture(scope='module')
def make_trainer(tmp_path_factory):
    trl = pytest.importorskip('trl')
    if not trl.__version__.startswith('1.16'): pytest.skip(f'the comparison is with TRL 1.16, this is {trl.__version__}')
    from datasets import Dataset
    from grail.model.tiny import genesis
    model, tokenizer = genesis()
    folder = tmp_path_factory.mktemp('model')
    model.save_pretrained(folder)
    tokenizer.padding_side = 'left'

    def make(config):
        # a trainer modifies its arguments, so each case has its own
        args = trl.GRPOConfig(output_dir=str(folder/'out'), use_cpu=True, bf16=False, report_to='none',
                              max_completion_length=16, num_generations=4, per_device_train_batch_size=B,
                              **{'epsilon': .2, 'epsilon_high': .28, 'beta': 0., **config})
        nothing = lambda completions, **kw: [0.]*len(completions)
        return trl.GRPOTrainer(type(model).from_pretrained(folder), reward_funcs=nothing, args=args,
                               train_dataset=Dataset.from_dict({'prompt': ['1=']*8}), processing_class=tokenizer)
    return make


def theirs(trainer, x, mode, tools):
    logp, H = x['logp'].clone().requires_grad_(), x['entropy'].clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: (logp, H, None)
    trainer.current_gradient_accumulation_steps = 1
    inputs = dict(prompt_ids=x['ids'][:, :P], prompt_mask=torch.ones(B, P, dtype=torch.long),
                  completion_ids=x['ids'][:, P:], completion_mask=x['mask'], advantages=x['A'],
                  num_items_in_batch=x['mask'].sum(), old_per_token_logps=x['old'], ref_per_token_logps=x['ref'])
    if tools: inputs['tool_mask'] = x['tools']
    if mode:
        trainer.use_vllm, m = True, x['mask'].bool()
        zero = lambda t: torch.where(m, t, 0.)
        cap  = trainer.args.vllm_importance_sampling_clip_max
        inputs['importance_sampling_ratio'] = correction_weight(zero(x['old']), zero(x['sampler']), m, mode, cap)
    trainer.model.train()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss, logp.grad, H.grad


def ours(x, c):
    c = {**dict(epsilon=.2, epsilon_high=.28), **c}
    kind, mode = c['loss_type'], c.get('mode', 'none')
    config = LossConfig(ratio=c.get('importance_sampling_level', 'token'),
        clip=kind if kind in ('cispo', 'sapo', 'vespo') else 'ppo',
        aggregation={'cispo': 'dapo', 'vespo': 'dapo', 'sapo': 'grpo'}.get(kind, kind), max_length=16,
        eps_low=c['epsilon'], eps_high=c['epsilon_high'], cap=c['epsilon_high'], ceiling=c.get('delta'),
        sapo_tau=(c.get('sapo_temperature_pos', 1.), c.get('sapo_temperature_neg', 1.05)),
        vespo_pos=(c.get('vespo_k_pos', 2.), c.get('vespo_lambda_pos', 3.)),
        vespo_neg=(c.get('vespo_k_neg', 3.), c.get('vespo_lambda_neg', 2.)),
        entropy_coef=c.get('entropy_coef', 0.), top_entropy=c.get('top_entropy_quantile', 1.),
        kl_coef=c.get('beta', 0.), kl_weighted=c.get('use_bias_correction_kl', True),
        drift_limit=c.get('off_policy_mask_threshold'),
        correction=mode, correction_high=c.get('vllm_importance_sampling_clip_max', 3.))
    logp, H = x['logp'].clone().requires_grad_(), x['entropy'].clone().requires_grad_()
    mask = x['mask']*x['tools'] if c.get('tools') else x['mask']
    whole = Totals(B, int(x['mask'].sum())) if c.get('tools') else None
    loss, _ = policy_loss(logp, x['old'], x['A'], mask, config, whole=whole, entropy=H, ref_logp=x['ref'],
                          behaviour_logp=x['sampler'] if mode != 'none' else None)
    loss.backward()
    return loss, logp.grad, H.grad


@pytest.mark.parametrize('case', range(len(CASES)), ids=lambda i: '-'.join(f'{v}' for v in CASES[i].values()))
def test_loss_and_gradients_equal_trl(make_trainer, case):
    c = CASES[case]
    trainer = make_trainer({k: v for k, v in c.items() if k not in ('mode', 'tools')})
    for seed in range(3):
        x = batch(100*case + seed)
        want, got = theirs(trainer, x, c.get('mode'), c.get('tools')), ours(x, c)
        assert abs(want[0].item() - got[0].item()) < 2e-6
        for a, b in zip(want[1:], got[1:]):
            zero = torch.zeros(B, T, dtype=D)
            assert ((zero if a is None else a) - (zero if b is None else b)).abs().max() < 1e-5


def test_at_least_thirty_configurations_are_compared(): assert len(CASES) >= 30
