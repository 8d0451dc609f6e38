"""Size and speed of a submission's body, against JSON + gzip of the same content, and the size that the first public version had.

    python tests/bench/store.py [--rollouts 7000] [--tokens 512] [--json-rollouts 700]

JSON is measured on fewer rollouts, since it is slow; all numbers are for each completion token. The content is what an honest
miner has: token ids of a 49,152-token vocabulary as frequent as words are, one prompt of 120 tokens for a group of 16, proof
bytes that look random, log-probs with random mantissas. The first public version sent 32 indices, a sketch and a position for
each token. Speeds are per second of CPU time on one core, so that they hold on a busy machine."""
import argparse
import gzip
import json
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

from grail.core.params import GRAIL_V0
from grail.protocol.rollout import Rollout, decode_body, encode_body


def rollouts(n, length, prompt=120, vocabulary=49_152, seed=0):
    "n rollouts of so many completion tokens, as an honest miner would have them"
    rng = np.random.default_rng(seed)
    p = 1/(np.arange(vocabulary)+2.7)                                  # Zipf and Mandelbrot: 11 bits a token
    names, p = rng.permutation(vocabulary), p/p.sum()
    out = []
    for i in range(n):
        if i % 16 == 0: start = names[rng.choice(vocabulary, prompt, p=p)]
        out.append(Rollout(i//16, i%16, np.r_[start, names[rng.choice(vocabulary, length, p=p)]], prompt,
                           -rng.gamma(.4, 3, length),
                           rng.integers(0, 2**32, length), float(i % 3 == 0), i % 3 == 0))
    return out

def to_json(rollouts):
    "As compact as JSON gets: no spaces, and the fewest digits that give the same float32"
    def plain(v): return [float(str(x)) for x in v] if v.dtype == np.float32 else v.tolist()
    rows = [{f.name: plain(v) if isinstance(v := getattr(r, f.name),
                                            np.ndarray) else v for f in fields(Rollout)} for r in rollouts]
    return gzip.compress(json.dumps(rows, separators=(',', ':')).encode(), 6)

def to_json_v0(rollouts, hidden=576):
    rng = np.random.default_rng(0)
    def token(position, sketch): return {'indices': rng.choice(hidden, 32, replace=False).tolist(), 'sketch': sketch,
                                         'position': position}
    rows = [dict(tokens=r.tokens.tolist(), prompt_length=r.prompt_length, token_logprobs=[float(str(x)) for x in r.logprobs],
                 reward=r.reward, success=r.success,
                 commitments=[token(t, s) for t,s in enumerate(r.proof.tolist())]) for r in rollouts]
    return gzip.compress(json.dumps(rows, separators=(',', ':')).encode(), 6)

def from_json(data): return [Rollout(**row) for row in json.loads(gzip.decompress(data))]

def best(f, repeat):
    "Result, and the shortest CPU time in seconds"
    times = []
    for _ in range(repeat):
        start = time.process_time(); result = f(); times.append(time.process_time()-start)
    return result, min(times)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument('--rollouts', type=int, default=7000)
    args.add_argument('--tokens', type=int, default=512)
    args.add_argument('--json-rollouts', type=int, default=700)
    args.add_argument('--out', help='write the numbers to this JSON file')
    args = args.parse_args()
    params = replace(GRAIL_V0, max_new_tokens=max(GRAIL_V0.max_new_tokens, args.tokens))
    data = rollouts(args.rollouts, args.tokens)
    rows = {}
    for name,part,write,read,repeat in [('Parquet', data, encode_body, lambda b: decode_body(b, params), 3),
                                        ('JSON + gzip', data[:args.json_rollouts], to_json, from_json, 1)]:
        body, w = best(lambda: write(part), repeat)
        back, r = best(lambda: read(body), repeat)
        assert back == part, f'{name} does not give back what was written'
        n = sum(x.length for x in part)
        rows[name] = dict(tokens=n, bytes=len(body), bytes_per_token=len(body)/n, write_mb_s=len(body)/w/1e6,
                          read_mb_s=len(body)/r/1e6,
                          write_ns_per_token=w/n*1e9, read_ns_per_token=r/n*1e9)
    for name,row in rows.items():
        print(f'{name:12} {row["tokens"]:>10,} tokens {row["bytes"]:>12,} bytes {row["bytes_per_token"]:6.2f} bytes/token',
              end='')
        for way in ('write', 'read'):
            print(f'   {way} {row[f"{way}_mb_s"]:5.0f} MB/s, {row[f"{way}_ns_per_token"]:5.0f} ns/token', end='')
        print()
    a, b = rows['Parquet'], rows['JSON + gzip']
    smaller, written, read = (b[k]/a[k] for k in ('bytes_per_token', 'write_ns_per_token', 'read_ns_per_token'))
    print(f'Parquet is {smaller:.2f} x smaller, {written:.0f} x faster to write, {read:.0f} x faster to read')
    few = data[:64]
    v0 = len(to_json_v0(few))/sum(r.length for r in few)
    print(f'the first public version: {v0:.1f} bytes/token, {v0/a["bytes_per_token"]:.1f} x as much')
    rows['first public version'] = dict(bytes_per_token=v0)
    if args.out: Path(args.out).write_text(json.dumps(rows, indent=1))


if __name__ == '__main__': main()
