"""Building and verifying a proof beside TOPLOC 0.1.6, on the same states in one run.

    python tests/bench/proof.py [--tokens 1024] [--hidden 2048] [--threads 1 2] [--prefill]

TOPLOC's wheel does not fit a newer torch; build it:  pip install --no-binary toploc --no-build-isolation toploc==0.1.6
`--prefill` also times SmolLM2's forward pass over as many tokens, in which all of this would hide."""
import argparse
import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import torch

from grail.core.params import ProtocolParams
from grail.protocol.projection import calibrate_projection
from grail.protocol.proof import ProofContext, proof_scheme


def milliseconds(f, seconds=3.):
    "Best of as many runs as fit into some `seconds`: other processes only ever add, so the shortest run is the one that they left alone"
    f()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter(); f(); times.append(time.perf_counter()-start)
    return min(times)*1e3


def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024      # MB


def jobs(states):
    "Name, build, verify, bytes a token"
    T, H   = states.shape
    noisy  = (states.float()*(1 + .01*torch.randn(states.shape, generator=torch.Generator().manual_seed(1)))).bfloat16()
    cal    = calibrate_projection([(states[i:i+64], noisy[i:i+64]) for i in range(0, T, 64)])
    hidden, at = states[None], [ProofContext(b'o'*32, 'miner', 0, 0)]
    for version in ('grail-v2', 'grail-v1'):
        scheme = proof_scheme(ProtocolParams(proof=version), cal)
        proof  = scheme.commit(hidden, [T], [100], at)
        check  = lambda s=scheme, p=proof: s.verify(hidden, [T], [100], at, p, b'a'*32, 'd'*64)
        assert check()[0].passed
        yield version, lambda s=scheme: s.commit(hidden, [T], [100], at), check, proof[0].nbytes/T
    try: from toploc import build_proofs_bytes, verify_proofs_bytes
    except ImportError as e:
        print(f'no TOPLOC here: {e}')
        return
    how   = dict(decode_batching_size=32, topk=128, skip_prefill=True)
    proof = build_proofs_bytes(states, **how)
    assert len(proof) == T//32
    yield 'TOPLOC', lambda: build_proofs_bytes(states, **how), lambda: verify_proofs_bytes(states, proof, **how), sum(map(len, proof))/T


def prefill_ms(tokens):
    "SmolLM2's forward pass over `tokens` tokens without its head, and the cost of the proof of its states"
    from grail.model.smollm import load_smollm2
    model, _ = load_smollm2()
    ids = torch.randint(0, model.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = model.get_decoder()(input_ids=ids).last_hidden_state[0]
        forward = milliseconds(lambda: model.get_decoder()(input_ids=ids), 10.)
    build, verify = next((b, v) for name, b, v, _ in jobs(states) if name == 'grail-v2')
    return forward, milliseconds(build), milliseconds(verify)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument('--tokens', type=int, default=1024)
    args.add_argument('--hidden', type=int, default=2048)
    args.add_argument('--threads', type=int, nargs='+', default=[1, 2])
    args.add_argument('--prefill', action='store_true')
    args.add_argument('--json', help='write the rows to this file too')
    args = args.parse_args()
    states = (torch.randn(args.tokens, args.hidden, generator=torch.Generator().manual_seed(0))*3).bfloat16()
    out    = []
    for threads in args.threads:
        torch.set_num_threads(threads)
        print(f'{args.tokens} x {args.hidden} states in bfloat16, {threads} thread{"s"*(threads > 1)}')
        print(f'{"":10} {"build ms":>9} {"verify ms":>10} {"bytes/token":>12} {"peak +MB":>9}')
        rows = {}
        for name, build, verify, size in jobs(states):
            before = peak()
            rows[name] = milliseconds(build), milliseconds(verify)
            print(f'{name:10} {rows[name][0]:9.2f} {rows[name][1]:10.2f} {size:12.2f} {peak()-before:9.1f}')
        for i, what in enumerate(('build', 'verify')):
            if 'TOPLOC' in rows:
                ours, other = rows['grail-v2'][i], rows['TOPLOC'][i]
                out.append(dict(what=f'{what} of {args.tokens} x {args.hidden} states, {threads} thread(s), grail-v2 against TOPLOC 0.1.6',
                                ours=ours, other=other, ratio=other/ours, unit='ms', n=args.tokens))
        if 'TOPLOC' in rows:
            print(f'grail-v2 builds {rows["TOPLOC"][0]/rows["grail-v2"][0]:.1f} times as fast as TOPLOC '
                  f'and verifies {rows["TOPLOC"][1]/rows["grail-v2"][1]:.1f} times as fast')
    if args.prefill:
        forward, build, verify = prefill_ms(args.tokens)
        print(f'SmolLM2-135M, {args.tokens} tokens, {args.threads[-1]} threads: forward pass {forward:.0f} ms; '
              f'build {build:.2f} ms ({build/forward:.2%}), verify {verify:.2f} ms ({verify/forward:.2%})')

        out += [dict(what=f'{w} against a SmolLM2 prefill', ours=x, other=forward, ratio=x/forward, unit='ms', n=args.tokens)
                for w, x in (('build', build), ('verify', verify))]
    if args.json: Path(args.json).write_text(json.dumps(out, indent=1))


if __name__ == '__main__': main()
