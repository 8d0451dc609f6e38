"""What verification costs beside generation: tokens a second of a miner and of a validator, same model, same machine, \
both with transformers.

    python tests/bench/verify.py [--new 128] [--prompt 96] [--batches 1 4 16] [--threads 2] [--repeat 3] [--json FILE]

The miner generates with seeded sampling, a batch at a time. The validator runs everything that needs the model on the same
rollouts: prefill, proof, log-probs, sampling margins, distribution, places of the tokens. A third column is its prefill alone,
log-probs and entropy included. The price of all statistics is taken inside of the validator's own runs, as the time spent in them
by the time spent in the rest: two runs of one and the same job differ by more than that here. Last the price of the noise in one
decode step, and the same per audited window: how many of a window's tokens the blog's sampling makes a validator read."""
import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np
import torch

from grail.core.params import GRAIL_V0, SMOLLM2
from grail.model import forward
from grail.model.engine import TransformersEngine
from grail.model.forward import prefill
from grail.protocol.projection import calibrate_projection
from grail.protocol.proof import ProofContext, proof_scheme
from grail.protocol.randomness import noise_key
from grail.protocol.rollout import Rollout
from grail.protocol.sampling import pick
from grail.verify.audit import audit_size, group_count
from grail.verify import pipeline
from grail.verify.pipeline import check_group, eos_ids

OPEN, AUDIT, DIGEST = b'o'*32, b'a'*32, 'd'*64


def times(*jobs, repeat):
    "Seconds [jobs, repeat], the jobs in turn, so that a slow minute of the machine slows all of them"
    out = np.empty((len(jobs), repeat))
    for r in range(repeat):
        for i, f in enumerate(jobs):
            start = time.perf_counter(); f(); out[i, r] = time.perf_counter()-start
    return out


class Clock:
    "Seconds spent in some functions while the context lasts"
    def __init__(self, *places): self.places, self.total = places, 0.
    def __enter__(self):
        self.real = [getattr(m, name) for m, name in self.places]
        for (m, name), f in zip(self.places, self.real): setattr(m, name, self.timed(f))
        return self
    def __exit__(self, *_):
        for (m, name), f in zip(self.places, self.real): setattr(m, name, f)
    def timed(self, f):
        def call(*args, **kwargs):
            start = time.perf_counter()
            try: return f(*args, **kwargs)
            finally: self.total += time.perf_counter()-start
        return call


def share_of_statistics(check):
    "Time of one `check` outside of the model, log-probs and entropy, divided by the rest of it"
    with Clock((pipeline, 'read_group')) as reading, Clock((pipeline, 'margin'), (forward, 'sum_before')) as inside:
        start = time.perf_counter(); check(); total = time.perf_counter()-start
    extra = total - reading.total + inside.total
    return extra/(total - extra)


def rollouts_of(model, scheme, prompt, completions):
    "What an honest miner would hand in"
    seqs = [prompt + c for c in completions]
    seen = prefill(model, seqs, [len(prompt)]*len(seqs))
    where = [ProofContext(OPEN, 'miner', 0, i) for i in range(len(seqs))]
    proofs = scheme.commit(seen.hidden, seen.lengths, [len(prompt)]*len(seqs), where)
    return [Rollout(0, i, np.array(s, np.int32), len(prompt), lp[:n].numpy(), p, 0., False)
            for i, (s, lp, n, p) in enumerate(zip(seqs, seen.logprobs, seen.lengths, proofs))]


def window_cost(params, miners, groups, ratio):
    "Share of a window's generated tokens that one validator reads, and its cost as a share of the cost of generating them"
    read = audit_size(miners, params)/miners * group_count(groups, params)/groups
    return read, read/ratio


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument('--new', type=int, default=128)
    args.add_argument('--prompt', type=int, default=96)
    args.add_argument('--batches', type=int, nargs='+', default=[1, 4, 16])
    args.add_argument('--threads', type=int, default=2)
    args.add_argument('--repeat', type=int, default=3)
    args.add_argument('--json', help='write the rows to this file too')
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    from grail.model.smollm import load_smollm2
    model, _ = load_smollm2()
    params, vocab = replace(SMOLLM2, max_new_tokens=args.new), model.get_output_embeddings().weight.shape[0]
    prompt = torch.randint(100, vocab, (args.prompt,), generator=torch.Generator().manual_seed(0)).tolist()
    engine, out = TransformersEngine(model), []
    some = engine.generate([prompt]*4, [noise_key(OPEN, 'fit', 0, i) for i in range(4)], 64)
    seen = prefill(model, [prompt + c for c in some], [len(prompt)]*4)
    pairs = [(h[:n], h[:n]*(1 + .01*torch.randn(h[:n].shape))) for h, n in zip(seen.hidden, seen.lengths)]
    scheme = proof_scheme(params, calibrate_projection(pairs))
    print(f'SmolLM2-135M in float32, {args.prompt} prompt and {args.new} new tokens, '
          f'{args.threads} threads, medians of {args.repeat}; completion tokens a second')
    print(f'{"batch":>5} {"generate":>9} {"verify":>9} {"ratio":>6} {"prefill":>9} {"statistics":>11} {"decode step":>12} {"noise":>7}')
    for b in args.batches:
        keys = [noise_key(OPEN, 'miner', 0, i) for i in range(b)]
        make = lambda: engine.generate([prompt]*b, keys, args.new)            # no EOS: every completion has full length
        done = make()
        rows = rollouts_of(model, scheme, prompt, done)
        seqs, width = [list(r.tokens) for r in rows], args.prompt + args.new
        check = lambda: check_group(model, rows, 'miner', OPEN, AUDIT, DIGEST, params, eos_ids(model), scheme)
        assert not any(c.reason for c in check()[0] if c.name in ('proof', 'logprob', 'sampling'))
        bare = lambda: prefill(model, seqs, [args.prompt]*b, pad_to=width)
        made, checked, read = np.median(times(make, check, bare, repeat=args.repeat), 1).tolist()
        extra = float(np.median([share_of_statistics(check) for _ in range(2*args.repeat + 1)]))
        logits = torch.randn(b, vocab)
        noise = float(np.median(np.subtract(*times(lambda: pick(logits, keys, 0), lambda: logits.numpy().argmax(-1), repeat=30))))
        n, step = b*args.new, made/args.new
        print(f'{b:5} {n/made:9.1f} {n/checked:9.1f} {made/checked:6.1f} {n/read:9.1f} {extra:11.1%} {step*1e3:9.1f} ms {noise/step:7.1%}')
        out += [dict(what=f'verify a token against generating it, batch {b}',
                     ours=n/checked, other=n/made, ratio=made/checked, unit='tokens/s', n=n),
                dict(what=f'all statistics against the prefill, batch {b}',
                     ours=extra*checked/(1+extra), other=checked/(1+extra), ratio=extra, unit='s', n=n),
                dict(what=f'noise of {vocab} tokens against a decode step, batch {b}',
                     ours=noise, other=step, ratio=noise/step, unit='s', n=b)]
    ratio = next(r['ratio'] for r in reversed(out) if r['what'].startswith('verify'))
    for name, p in (('grail_v0', GRAIL_V0), ('smollm2', SMOLLM2)):
        read, cost = window_cost(p, 40, 64, ratio)
        print(f'profile {name}: of 40 miners with 64 groups each a validator reads {read:.2%} '
              f'of a window\'s tokens, {cost:.2%} of what generating them cost')
        out.append(dict(what=f'a validator\'s window against generating it, profile {name}, 40 miners of 64 groups',
                        ours=cost, other=1., ratio=cost, unit='share', n=40))
    if args.json: Path(args.json).write_text(json.dumps(out, indent=1))


if __name__ == '__main__': main()
