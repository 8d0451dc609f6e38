"""Cost of the sampling noise, beside a softmax of the same logits.

    python tests/bench/sampling.py [--vocab 49152] [--threads 1]"""
import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import torch

from grail.protocol.randomness import noise_key
from grail.protocol.sampling import gumbel, margin, pick


def microseconds(f, rows, repeat=20):
    "Lower quartile of the CPU time of `f` for one row"
    f()
    times = []
    for _ in range(repeat):
        start = time.process_time(); f(); times.append(time.process_time()-start)
    return sorted(times)[repeat//4]/rows*1e6


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument('--vocab', type=int, default=49_152)
    args.add_argument('--threads', type=int, default=1)
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    print(f'vocabulary {args.vocab:,}, {args.threads} threads; microseconds a row')
    print(f'{"rows":>5} {"softmax":>9} {"gumbel":>9} {"pick":>9} {"top_k=50":>9} {"top_p=.95":>9} {"margin":>9}')
    for rows in (1, 4, 16, 64):
        logits = 4*torch.randn(rows, args.vocab, generator=torch.Generator().manual_seed(0))
        keys = [noise_key(b'bench', '5Miner', 0, i) for i in range(rows)]
        tokens = pick(logits, keys, 0)
        jobs = [lambda: logits.softmax(-1), lambda: gumbel(keys, 0, args.vocab), lambda: pick(logits, keys, 0),
                lambda: pick(logits, keys, 0, top_k=50),
                lambda: pick(logits, keys, 0, top_p=.95), lambda: margin(logits, tokens, keys, 0)]
        print(f'{rows:5}', *(f'{microseconds(j, rows):9.0f}' for j in jobs))


if __name__ == '__main__': main()
