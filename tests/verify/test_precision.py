"Validators of different precision, with `grail-v2` and tolerances that were calibrated for both, decide alike"
from dataclasses import replace

import numpy as np
import pytest
import torch
from bittensor_core import Keypair

from grail.core.params import TINY
from grail.envs.base import make_env
from grail.model.engine import TransformersEngine
from grail.model.tiny import genesis
from grail.model.variants import drop_layers, int4, noised
from grail.protocol.projection import calibrate_projection
from grail.protocol.randomness import Randomness, prf
from grail.protocol.rollout import seal
from grail.verify.calibrate import calibrate, honest_rollouts, measure, prove
from grail.verify.pipeline import audit_submission, read_group

W, CHECK = 600, 'c0'*32
OPEN, AUDIT = Randomness('open', W, 'ab'*32, 41, 'cd'*32), Randomness('audit', W, '', 77, 'ef'*32)
ALICE = Keypair.create_from_uri('//Alice')
HOTKEY = ALICE.ss58_address


@pytest.fixture(scope='module')
def world():
    torch.set_num_threads(1)
    full, tok = genesis()
    half, _   = genesis(dtype=torch.bfloat16)
    env, asked = make_env('sort6', tok), replace(TINY, proof='grail-v1')
    rows   = honest_rollouts(full, env, asked, 'cal', b'cal', 40)
    pairs  = []
    for i in range(0, len(rows), 16):
        a, b = (read_group(m, rows[i:i+16], 'cal', b'cal', asked) for m in (full, half))
        pairs += [(a.hidden[k, :n].float(), b.hidden[k, :n].float()) for k, n in enumerate(a.lengths)]
    sample = measure(full, env, asked, 20, {'half': lambda g, h, o: [read_group(half, g, h, o, asked)]})
    params = replace(calibrate(TINY, [sample], safety=4), proof='grail-v2')
    return dict(full=full, half=half, env=env, params=params, calibration=calibrate_projection(pairs, 1e-9))


def mine(w, model, engine=None, proves=None):
    rows = honest_rollouts(model, w['env'], w['params'], HOTKEY, OPEN.value, 4, engine=engine, calibration=w['calibration'])
    return again(w, rows, proves) if proves is not None else rows

def again(w, rows, model):
    rest = HOTKEY, OPEN.value, w['params'], w['calibration']
    return [r for i in range(0, len(rows), 16) for r in prove(model, rows[i:i+16], *rest)]

class Other(TransformersEngine):
    "Decodes with a temperature or noise of its own"
    heat, own = 1.0, False
    def generate(self, prompts, keys, max_new_tokens, temperature, top_k, top_p, eos_id):
        keys = [prf('own', k)[:16] for k in keys] if self.own else keys
        return super().generate(prompts, keys, max_new_tokens, temperature*self.heat, top_k, top_p, eos_id)

def other(model, **kw):
    e = Other(model)
    for k, v in kw.items(): setattr(e, k, v)
    return e

SUBMISSIONS = {
    'honest, float32':            (True,  lambda w: mine(w, w['full'])),
    'honest, bfloat16':           (True,  lambda w: mine(w, w['half'])),
    'noise on the weights':       (False, lambda w: mine(w, noised(w['full'], .05))),
    'four bits':                  (False, lambda w: mine(w, int4(w['full']))),
    'a layer dropped':            (False, lambda w: mine(w, drop_layers(w['full'], 1))),
    'greedy, proof of the right model':   (False, lambda w: mine(w, w['full'], other(w['full'], heat=0.), w['full'])),
    'own noise, proof of the right model': (False, lambda w: mine(w, w['full'], other(w['full'], own=True), w['full'])),
    'one layer decodes, proof of the right model': (False, lambda w:
         mine(w, w['full'], other(drop_layers(w['full'], 1)), w['full'])),
    'no proof':                   (False, lambda w:
         [replace(r, proof=np.zeros(r.length, np.uint32)) for r in mine(w, w['full'])]),
    'log-probs of something else': (False, lambda w:
         [replace(r, logprobs=r.logprobs - np.float32(1.5)) for r in mine(w, w['full'])]),
    'a false reward':             (False, lambda w: [replace(r, reward=1.0, success=True) for r in mine(w, w['full'])]),
}

@pytest.mark.parametrize('name', SUBMISSIONS)
def test_validators_of_two_precisions_reach_the_same_verdict(world, name):
    honest, make = SUBMISSIONS[name]
    header, body = seal(make(world), ALICE, W, CHECK, world['params'], OPEN)
    rules = dict(hotkey=HOTKEY, window=W, checkpoint=CHECK, env=world['env'], params=world['params'], open=OPEN, audit=AUDIT,
                 calibration=world['calibration'])
    verdicts = [audit_submission(header, body, model=world[m], **rules) for m in ('full', 'half')]
    assert [v.passed for v in verdicts] == [honest]*2, [v.reason for v in verdicts]
    assert verdicts[0].sampled_groups == verdicts[1].sampled_groups
