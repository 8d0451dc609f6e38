"""How much of the time miners and the trainer compute when lines are slow: side by side, and everything in turn.

    python tests/bench/overlap.py [--minutes 5.5] [--out runs/overlap]

A network of processes with an S3 server over HTTP. Every role reaches the store through a line of its own of 2 MB/s in each
direction; a checkpoint has 20 MB, so it takes ten seconds to publish and ten to load. Blocks take 2.5 seconds, windows 75.
The same network runs twice, one after the other: as it is, and with GRAIL_SEQUENTIAL, where nothing is done beside anything else.
Counted are the seconds of wall time in which the role's compute thread generates, proves, trains, calibrates or evaluates, from
the first window that was trained on to the end.

The model is the embedded one with a wider MLP whose new columns begin as zeros: it says what the small one says, in 20 MB.
Writes table.md, overlap.json and timeline.png to the folder."""
import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1]/'network')]
import torch
from faults import Faults

from grail.model.files import model_to_files
from grail.model.tiny import genesis
from grail.monitor.metrics import read_metrics
from grail.roles.localnet import Localnet, LocalnetSettings

RATE, WIDTH = 2_000_000, 12_500                     # bytes a second; columns of the MLP that make it 20 MB
COMPUTE  = ('generate', 'prove', 'train', 'calibrate', 'evaluate', 'verify')
TRANSFER = ('download', 'load', 'upload', 'publish')

def wide(folder, seed=0):
    "Write the embedded model with a wider MLP to a folder; its bytes"
    from transformers import Qwen2ForCausalLM
    small, tokenizer = genesis()
    config = type(small.config).from_dict({**small.config.to_dict(), 'intermediate_size': WIDTH})
    torch.manual_seed(seed)
    model, have = Qwen2ForCausalLM(config), small.state_dict()
    new = model.state_dict()
    for name, t in have.items():
        if t.shape == new[name].shape: new[name] = t
        elif 'down_proj' in name: new[name] = torch.cat([t, torch.zeros(t.shape[0], WIDTH - t.shape[1])], 1)
        else: new[name][:t.shape[0]] = t
    model.load_state_dict(new)
    ids = torch.arange(10)[None] + 3
    assert torch.allclose(model(ids).logits, small(ids).logits, atol=1e-4), 'the wide model says something else'
    files = model_to_files(model, tokenizer)
    folder.mkdir(parents=True)
    for name, data in files.items(): (folder/name).write_bytes(data)
    return sum(map(len, files.values()))

def run(out, model, minutes, sequential):
    "One network, until the time is up"
    s = LocalnetSettings(minutes=minutes, miners=2, validators=1, block_time=2.5, groups=2048)
    common = dict(GRAIL_SEQUENTIAL=sequential, GRAIL_MODEL=model, GRAIL_PRESET='tiny',
                  GRAIL_EVAL_TASKS=10**6, GRAIL_CHUNK=2, GRAIL_RULES='max_groups=2048')
    s = LocalnetSettings(**{**vars(s), 'extra': {name: common for name in s.roles}})
    with ExitStack() as lines:
        line = lambda name, url: lines.enter_context(Faults(int(url.rpartition(':')[2]), rate=RATE)).url
        with Localnet(s, out, lambda text: print('in turn     ' if sequential else 'side by side', text, flush=True),
                      store=line) as net: net.watch()
        return net.story(), net.verdict()

def seconds(spans, begin, end):
    "Length of the union of intervals within [begin, end]"
    total, reached = 0., begin
    for a, b in sorted(spans):
        a, b = max(a, reached), min(b, end)
        if b > a: total, reached = total + b - a, b
    return total

def shares(out, story):
    "Role -> (computing share, transferring share, rollouts or updates), from the first window that was trained on"
    trained = [r['window'] for r in story if r['trained']]
    marks = {n: read_metrics(out/n/'timeline.jsonl') for n in ('trainer', 'miner-0', 'miner-1')}
    begin = min(m['start'] for m in marks['trainer'] if m['task'] == 'train' and m['window'] == trained[0])
    end   = min(max(m['end'] for m in ms) for ms in marks.values())
    rows  = {}
    for name, ms in marks.items():
        of = lambda tasks: seconds([(m['start'], m['end']) for m in ms if m['task'] in tasks], begin, end)/(end - begin)
        rows[name] = dict(computing=of(COMPUTE), transferring=of(TRANSFER))
    return rows, begin, end, marks

def picture(results, path):
    "Two timelines of two windows, one above the other"
    import matplotlib
    matplotlib.use('agg')
    import matplotlib.pyplot as plt
    fig, axes = plt.subplots(2, 1, figsize=(10, 5), sharex=True)
    for ax, (title, (_, begin, end, marks)) in zip(axes, results.items()):
        begin = max(begin, end - 160)
        for y, (name, ms) in enumerate(marks.items()):
            for tasks, color, dy in ((COMPUTE, '.25', .05), (TRANSFER, '.7', -.35)):
                bars = [(m['start'] - begin, m['end'] - m['start']) for m in ms if m['task'] in tasks and m['end'] > begin]
                ax.broken_barh(bars, (y + dy, .3), color=color)
        ax.set(title=title, yticks=range(len(marks)), yticklabels=list(marks), xlim=(0, 160))
    axes[-1].set_xlabel('seconds; dark: computing, light: transferring')
    fig.tight_layout()
    fig.savefig(path, dpi=110)

def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--minutes', type=float, default=5.5)
    p.add_argument('--out', type=Path, default=Path('runs/overlap'))
    a = p.parse_args()
    size = wide(a.out/'model')
    print(f'checkpoint: {size/1e6:.1f} MB, line: {RATE/1e6:.0f} MB/s')
    done = {title: run(a.out/title.replace(' ', '-'), a.out/'model', a.minutes, sequential)
            for title, sequential in (('side by side', False), ('in turn', True))}
    results = {t: shares(a.out/t.replace(' ', '-'), done[t][0]) for t in ('side by side', 'in turn')}
    table = ['| | ' + ' | '.join(f'{t}: computing | transferring' for t in results) + ' |', '|---' + '|---:'*4 + '|']
    for name in results['in turn'][0]:
        table.append(f'| {name} | ' + ' | '.join(f'{100*r[0][name][k]:.1f} %'
                                                 for r in results.values() for k in ('computing', 'transferring')) + ' |')
    for key in ('rollouts', 'trained'):
        table.append(f'| {key} a window | ' + ' | '.join(f'{sum(r[key] for r in rows)/max(len(rows), 1):.0f} |' for t in results
                                                       for rows in [[r for r in done[t][0] if r['complete']]]) + ' |')
    (a.out/'table.md').write_text('\n'.join(table) + '\n')
    (a.out/'overlap.json').write_text(json.dumps({t: dict(shares=r[0], seconds=r[2] - r[1], verdict=done[t][1])
                                                  for t, r in results.items()}, indent=1))
    picture(results, a.out/'timeline.png')
    print('\n'.join(table))
    low = min(r['computing'] for r in results['side by side'][0].values())
    print(f'least computing share side by side: {100*low:.1f} % (wanted: 90 %)')
    return 0 if low >= .9 else 1

if __name__ == '__main__': sys.exit(main())
