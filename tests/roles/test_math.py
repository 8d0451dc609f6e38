"Competition mathematics from end to end: what miners write on MATH problems passes the validators."
import os
import subprocess
import sys

import pytest

from grail.monitor.metrics import read_metrics

pytestmark = pytest.mark.smollm


@pytest.fixture(scope='module')
def lines(data, tmp_path_factory):
    out = tmp_path_factory.mktemp('math')/'run'
    command = [sys.executable, '-c', 'from grail.cli.main import app; app()', 'simulate', '--model', 'smollm2', '--env', 'math',
               '--data', str(data/'math500_test.json'), '--windows', '2', '--groups', '1', '--miners', 'honest',
               '--validators', '1', '--out', str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {'OMP_NUM_THREADS': str(os.cpu_count())})
    assert done.returncode == 0, done.stderr[-3000:]
    return read_metrics(out/'metrics.jsonl')


def test_the_work_of_the_first_window_passes_in_the_second(lines):
    assert len([l for l in lines if l['kind'] == 'window']) == 2
    miner, = [l for l in lines if l['kind'] == 'miner']
    assert miner['behaviour'] == 'honest' and miner['audited'] and miner['passed'] is True
    assert miner['failed_checks'] == [] and miner['rollouts'] == miner['credited'] == 4
