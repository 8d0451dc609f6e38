"The same loops on a real language model and real questions: nothing is tied to the toy."
import os
import subprocess
import sys

import pytest

from grail.monitor.metrics import read_metrics

pytestmark = pytest.mark.smollm


@pytest.fixture(scope='module')
def lines(data, tmp_path_factory):
    out = tmp_path_factory.mktemp('smollm')/'run'
    command = [sys.executable, '-c', 'from grail.cli.main import app; app()', 'simulate', '--model', 'smollm2', '--env', 'gsm8k',
               '--data', str(data/'gsm8k_test.jsonl'), '--windows', '2', '--out', str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {'OMP_NUM_THREADS': str(os.cpu_count())})
    assert done.returncode == 0, done.stderr[-3000:]
    assert (out/'report.html').exists()
    return read_metrics(out/'metrics.jsonl')


def miners(lines): return {l['behaviour']: l for l in lines if l['kind'] == 'miner'}


def test_both_windows_are_there(lines): assert len([l for l in lines if l['kind'] == 'window']) == 2

def test_the_honest_miner_passes(lines): assert miners(lines)['honest']['passed'] is True

def test_a_miner_that_skips_the_last_ten_layers_fails(lines):
    line = miners(lines)['skip10']
    assert line['passed'] is False and 'proof' in line['failed_checks'] and line['weight'] == 0
