"""One GRPO update, ours against TRL 1.16's: samples a second and peak memory of the same model, batch, lengths and threads.

    python tests/bench/train_step.py [--model tiny|smollm2] [--repeat 5] [--threads 1] [--wall] [--shape size=4,micro=4] [--json FILE]

Each side runs in a process of its own, in turns; what is reported are medians and their ratio. The batch is what a trainer
has after generation: prompts, completions, old log-probs, advantages. An update is forward, loss, backward, gradient clip and
AdamW step, with as many micro-batches as asked for. TRL runs with its defaults (gradient checkpointing on) and once more
without checkpointing. Time is processor time unless --wall is given, so that a busy machine does not decide; memory is the
peak of the resident set during the updates, in all and beyond what was resident before them (weights, and Adam's moments from
a first update)."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np
import torch

#                  groups, rollouts, prompt, completion, TRL micro-batch in sequences, our micro-batch in tokens
SHAPES = {'tiny':    dict(groups=12, size=16, prompt=7,   completion=7,   micro=192, budget=16384),
          'smollm2': dict(groups=1,  size=16, prompt=256, completion=256, micro=8,   budget=768)}


def load(name):
    if name == 'tiny':
        from grail.model.tiny import genesis
        return genesis()
    from grail.model.smollm import load_smollm2
    model, tokenizer = load_smollm2()
    return model.float(), tokenizer

def batch(shape, vocab):
    "Random prompts and completions of exactly the given lengths"
    g, n = torch.Generator().manual_seed(0), shape['groups']*shape['size']
    prompts = torch.randint(3, vocab, (shape['groups'], shape['prompt']), generator=g).repeat_interleave(shape['size'], 0)
    return dict(prompts=prompts, completions=torch.randint(3, vocab, (n, shape['completion']), generator=g),
                old=-1 - torch.rand(n, shape['completion'], generator=g), A=torch.randn(n, generator=g))

def ours(model, tokenizer, x, shape):
    "A function that makes one update"
    from grail.train.learner import Learner, Rows, train_config
    from grail.train.losses import LossConfig
    loss = LossConfig(ratio='token', aggregation='dapo')
    learner = Learner(model, train_config('tiny', lr=1e-6, token_budget=shape['budget'], loss=loss))
    rows = Rows([torch.cat(s).numpy() for s in zip(x['prompts'], x['completions'])], [shape['prompt']]*len(x['A']),
                list(x['old'].numpy()), x['A'].double().numpy(), np.arange(len(x['A']))//shape['size'])
    model.train()
    return lambda: learner.update(rows)

def trl(model, tokenizer, x, shape, checkpointing):
    "The same with GRPOTrainer, given the inputs that its generation step would have made"
    import tempfile, warnings
    warnings.filterwarnings('ignore')
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    tokenizer.padding_side = 'left'
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    n, micro = len(x['A']), shape['micro']
    args = GRPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to='none', num_generations=shape['size'],
                      max_completion_length=shape['completion'], per_device_train_batch_size=micro, generation_batch_size=n,
                      gradient_accumulation_steps=n//micro, learning_rate=1e-6, epsilon_high=.28, max_grad_norm=.5,
                      gradient_checkpointing=checkpointing)
    t = GRPOTrainer(model, reward_funcs=lambda completions, **kw: [0.]*len(completions), args=args, processing_class=tokenizer,
                    train_dataset=Dataset.from_dict({'prompt': ['1']*8}))
    t.create_optimizer()
    t.current_gradient_accumulation_steps = n//micro
    if checkpointing: t.model.gradient_checkpointing_enable({'use_reentrant': False})
    t.model.train()
    def part(s):
        p, c = x['prompts'][s], x['completions'][s]
        return dict(prompt_ids=p, prompt_mask=torch.ones_like(p), completion_ids=c, completion_mask=torch.ones_like(c),
                    advantages=x['A'][s], old_per_token_logps=x['old'][s],
                    num_items_in_batch=torch.tensor(x['completions'].numel()))
    parts = [part(slice(i, i+micro)) for i in range(0, n, micro)]
    def update():
        for p in parts: t._compute_loss(t.model, p).backward()
        torch.nn.utils.clip_grad_norm_(t.model.parameters(), .5)
        t.optimizer.step()
        t.optimizer.zero_grad()
    return update

def resident(key):
    for line in open('/proc/self/status'):
        if line.startswith(key): return int(line.split()[1])/1024

def worker(side, name, repeat, wall, change):
    "Measure one side; a line of JSON"
    model, tokenizer = load(name)
    shape = SHAPES[name] | change
    x = batch(shape, model.config.vocab_size)
    update = ours(model, tokenizer, x, shape) if side == 'ours' else trl(model, tokenizer, x, shape, side == 'trl')
    update()                                             # warm-up; also makes Adam's moments
    import gc; gc.collect()
    clock, times, before = time.perf_counter if wall else time.process_time, [], resident('VmRSS')
    Path('/proc/self/clear_refs').write_text('5')        # forget the peak so far
    for _ in range(repeat):
        start = clock(); update(); times.append(clock()-start)
    print(json.dumps(dict(rate=[len(x['A'])/t for t in times], peak=resident('VmHWM'), before=before)))

def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument('--model', choices=SHAPES, default='tiny')
    args.add_argument('--repeat', type=int, default=5)
    args.add_argument('--threads', type=int, default=1)
    args.add_argument('--wall', action='store_true')
    args.add_argument('--sides', default='ours,trl,trl-plain')
    args.add_argument('--shape', default='', help='changes of the shape, such as size=4,budget=1024')
    args.add_argument('--json', help='write the rows to this file too')
    args.add_argument('--worker', help=argparse.SUPPRESS)
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    change = {k: int(v) for k, v in (kv.split('=') for kv in args.shape.split(',') if kv)}
    if args.worker: return worker(args.worker, args.model, args.repeat, args.wall, change)
    env = {**os.environ, 'OMP_NUM_THREADS': str(args.threads)}
    out, sides = {}, args.sides.split(',')
    for side in sides:
        cmd = [sys.executable, __file__, '--model', args.model, '--repeat', str(args.repeat), '--threads', str(args.threads),
               '--shape', args.shape, '--worker', side] + ['--wall']*args.wall
        out[side] = json.loads(subprocess.run(cmd, env=env, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
    print(f'{args.model}: {SHAPES[args.model] | change}, {args.threads} thread(s), medians of {args.repeat}')
    print(f'{"":12}{"samples/s":>12}{"peak MiB":>12}{"beyond start":>14}')
    med = {s: (statistics.median(o['rate']), o['peak'], o['peak']-o['before']) for s, o in out.items()}
    for s, (r, p, b) in med.items(): print(f'{s:12}{r:12.2f}{p:12.0f}{b:14.0f}')
    rows = []
    for s in sides[1:]:
        speed, peak, beyond = (a/max(b, 1e-9) for a, b in zip(med[sides[0]], med[s]))
        print(f'{sides[0]} / {s:9} speed {speed:.2f}x, peak {peak:.2f}x, beyond start {beyond:.2f}x')
        rows += [dict(what=f'{what} of an update, {args.model}, {sides[0]} against {s}',
                      ours=med[sides[0]][i], other=med[s][i], ratio=r, unit=unit, n=args.repeat)
                 for i, (what, unit, r) in enumerate((('speed', 'samples/s', speed), ('peak memory', 'MiB', peak),
                                                      ('memory beyond the start', 'MiB', beyond)))]
    if args.json: Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == '__main__': main()
