"`grail train` under torchrun: two processes share one learner, the first one publishes, a signal ends both."
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from bittensor_core import Keypair

from grail.core.window import Window
from grail.monitor.metrics import read_metrics
from grail.network.chain import LocalChain, RealClock
from grail.network.exchange import load_manifest
from grail.network.served import BeaconServer
from grail.network.store import Buckets

pytestmark = pytest.mark.slow
KEYS = {name: f'{i:02x}'*32 for i, name in enumerate(('trainer', 'miner', 'validator'), 41)}


def start(folder, name, command, chain, beacon, trainer, *before):
    (folder/f'{name}.key').write_text(KEYS[name])
    (folder/f'{name}.key').chmod(0o600)
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'GRAIL_NAME': name, 'GRAIL_KEY_FILE': str(folder/f'{name}.key'),
           'GRAIL_CHAIN': f'local:{chain}', 'GRAIL_ENDPOINT': f'folder:{folder}/buckets', 'GRAIL_BEACON': beacon,
           'GRAIL_TRAINER': trainer, 'GRAIL_STATE': str(folder/name),
           'GRAIL_THREADS': '1', 'GRAIL_EVAL_TASKS': '20', 'GRAIL_GROUPS': '8'}
    with open(folder/f'{name}.log', 'w') as log:
        return subprocess.Popen([sys.executable, *before, '-m', 'grail.cli.network', command],
                                env=env, stdout=log, stderr=subprocess.STDOUT)

def wait(done, seconds, *processes):
    end = time.time() + seconds
    while not (found := done()) and time.time() < end and all(p.poll() is None for p in processes): time.sleep(.5)
    return found


def test_a_trainer_of_two_processes_learns_publishes_and_ends(tmp_path):
    pairs = {n: Keypair.create_from_seed(bytes.fromhex(k)) for n, k in KEYS.items()}
    with BeaconServer(b'torchrun') as beacon:
        chain = LocalChain(tmp_path/'chain.db', RealClock(), block_time=.8)
        for n, p in pairs.items(): chain.register(p, stake=1000. if n == 'validator' else 0., validator=n == 'validator')
        where = (tmp_path/'chain.db', beacon.url, pairs['trainer'].ss58_address)
        port  = str(29500 + (os.getpid() + 500) % 1000)
        two   = start(tmp_path, 'trainer', 'train', *where, '-m', 'torch.distributed.run', '--nproc-per-node', '2',
                      '--master-addr', '127.0.0.1', '--master-port', port)
        miner = start(tmp_path, 'miner', 'mine', *where)
        try:
            def trained():
                chain.set_weights(pairs['validator'], {pairs['miner'].ss58_address: 1.})      # whose rollouts are trusted
                path = tmp_path/'trainer'/'metrics.jsonl'
                lines = read_metrics(path) if path.exists() else []
                return [l for l in lines if l.get('training/updates', 0)]
            lines = wait(trained, 300, two, miner)
            logs  = '\n'.join((tmp_path/f'{n}.log').read_text()[-3000:] for n in ('trainer', 'miner'))
            assert lines, logs
            state = json.loads((tmp_path/'trainer'/'state.json').read_text())
            assert (sorted(f.name for f in (tmp_path/'trainer'/state['folder']).glob('state-*.safetensors'))
                    == ['state-0.safetensors', 'state-1.safetensors'])
            bucket = Buckets(tmp_path/'buckets', chain.clock).bucket(pairs['trainer'].ss58_address)
            assert (load_manifest(bucket, Window(state['published']), pairs['trainer'].ss58_address)['trainer']
                    == pairs['trainer'].ss58_address)
            start_ = time.time()
            two.send_signal(signal.SIGTERM)
            two.wait(40)
            assert time.time() - start_ < 30
            assert 'ends' in (tmp_path/'trainer.log').read_text()
        finally:
            for p in (two, miner):
                p.terminate()
                try: p.wait(20)
                except subprocess.TimeoutExpired: p.kill()
            chain.close()
