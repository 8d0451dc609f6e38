"Two processes with FSDP2 do what one does."
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from learning import TINY, make_groups, small_model
from grail.train.distributed import read_shards
from grail.train.learner import Learner

pytestmark = pytest.mark.slow
CONFIG = replace(TINY, updates_per_window=5, token_budget=200, adam_eps=1e-4, proximal=True,
                 loss=replace(TINY.loss, correction='sequence_truncate'))

def main(folder):
    "What each of the two processes runs"
    from grail.train.distributed import ShardedLearner, export_model, join_processes
    import torch.distributed as dist
    torch.set_num_threads(1)
    l = ShardedLearner(small_model(), CONFIG, join_processes())
    m = l.train_window(make_groups())
    l.save(folder/'state')
    model = export_model(l)
    again = ShardedLearner(small_model(5), CONFIG, l.mesh)
    assert again.load(folder/'state')
    m2, m3 = l.train_window(make_groups(seed=1)), again.train_window(make_groups(seed=1))
    assert m2 == m3
    a, b = l.state(), again.state()
    assert a[1] == b[1] and all(torch.equal(v, b[0][k]) for k, v in a[0].items())
    bad = make_groups(seed=2)
    with torch.no_grad(): next(iter(l.names.values())).to_local()[0] = torch.nan
    assert l.train_window(bad)['skipped_updates'] == 5
    if l.rank == 0:
        torch.save(model.state_dict(), folder/'model.pt')
        (folder/'metrics.json').write_text(json.dumps([m, m2]))
    dist.destroy_process_group()

@pytest.fixture(scope='module')
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp('two')
    cmd = [sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node', '2', '--master-addr', '127.0.0.1',
           '--master-port', str(29500 + os.getpid() % 1000), __file__, str(folder)]
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(Path(__file__).parents[2])}
    subprocess.run(cmd, check=True, timeout=600, env=env)
    return folder

def test_two_processes_give_the_weights_of_one_after_five_steps(two):
    one = Learner(small_model(), CONFIG)
    m = one.train_window(make_groups())
    assert one.step == 5
    whole, model = one.state()[0], torch.load(two/'model.pt', weights_only=True)
    for n, p in one.model.state_dict().items(): assert (model[n] - p).abs().max() < 1e-5
    for k, v in json.loads((two/'metrics.json').read_text())[0].items(): assert abs(v - m[k]) < 1e-4*max(1, abs(v)), k
    sharded = read_shards(two/'state')[0]
    assert sharded.keys() == whole.keys()
    for k, v in whole.items(): assert torch.allclose(sharded[k], v, atol=1e-5), k

def test_one_process_goes_on_from_the_state_of_two(two):
    one, other = Learner(small_model(), CONFIG), Learner(small_model(7), CONFIG)
    one.train_window(make_groups())
    other.load_state(*read_shards(two/'state'))
    one.train_window(make_groups(seed=1)); other.train_window(make_groups(seed=1))
    for p, q in zip(one.model.parameters(), other.model.parameters()): assert (p - q).abs().max() < 1e-5


if __name__ == '__main__': main(Path(sys.argv[1]))
