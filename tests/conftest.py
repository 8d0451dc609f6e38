"""What all tests share: one thread, no network, and one list of flags for cells of notebooks and for tests.

A test marked `slow`, `heavy`, `smollm`, ... runs only when its flag is asked for, like a notebook's cell:
`pytest tests --flags 'slow smollm'`, or GRAIL_FLAGS='slow smollm'."""
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

for name, value in dict(OMP_NUM_THREADS='1', TOKENIZERS_PARALLELISM='false', MPLBACKEND='agg', HF_HUB_OFFLINE='1', TRANSFORMERS_OFFLINE='1',
                        HF_DATASETS_OFFLINE='1', HF_HUB_DISABLE_TELEMETRY='1', WANDB_MODE='offline', WANDB_SILENT='true').items():
    os.environ[name] = value

ROOT = Path(__file__).resolve().parent.parent
for p in (ROOT, ROOT/'tests'):
    if str(p) not in sys.path: sys.path.insert(0, str(p))
os.environ['PYTHONPATH'] = os.pathsep.join([str(ROOT), str(ROOT/'tests'/'loopback')]   # for processes that tests start
                                           + [p for p in [os.environ.get('PYTHONPATH')] if p])

import pytest

class Guard:
    "Watches that nothing but this machine is spoken to, in this process and in those that it starts"
    def __init__(self):
        self.path, self.known = Path(tempfile.mkdtemp())/'elsewhere', 0
        os.environ['GUARD_LOG'] = str(self.path)
        spec = importlib.util.spec_from_file_location('loopback_guard', ROOT/'tests'/'loopback'/'sitecustomize.py')
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

    def new(self):
        "Attempts that were not known yet, one line each"
        return self.path.read_text().splitlines()[self.known:] if self.path.exists() else []

    def forget(self): self.known += len(self.new())

GUARD = Guard()

FLAGS = dict(slow='takes longer than half a minute', heavy='takes many minutes or gigabytes', smollm='needs SmolLM2 (make test-all)',
             gpu='needs a GPU', vllm='needs vLLM', chain="needs Bittensor's SDK (make test-all)", net='talks to real servers',
             bench='an experiment of many core-minutes, kept in the cache folder; needs the extra bench')


def pytest_addoption(parser):
    parser.addoption('--flags', default=os.environ.get('GRAIL_FLAGS', ''), help='run what these flags mark too: ' + ', '.join(FLAGS))

def pytest_configure(config):
    if 'net' in config.getoption('--flags').split(): os.environ.pop('GUARD_LOG')
    config.option.importmode = 'importlib'          # rooms may have tests of the same name
    for name, why in FLAGS.items(): config.addinivalue_line('markers', f'{name}: {why}; off without --flags {name}')

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for i in items:                                 # one process for each file of tests, so that what a module sets up is set up once;
        if i.path.name != 'test_notebooks.py': i.add_marker(pytest.mark.xdist_group(i.path.name))   # notebooks go wherever there is room
    off = set(FLAGS) - set(config.getoption('--flags').split())
    out = [i for i in items if any(i.get_closest_marker(f) for f in off)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [i for i in items if i not in set(out)]


@pytest.fixture(scope='session', autouse=True)
def one_thread():
    import torch
    torch.set_num_threads(1)

@pytest.fixture(autouse=True)
def guard(request):
    "A test in which another machine was spoken to has failed, whatever it made of that; the flag `net` allows it"
    GUARD.forget()
    yield GUARD
    if attempts := GUARD.new():
        GUARD.forget()
        pytest.fail('another machine was spoken to:\n' + '\n'.join(attempts), pytrace=False)

@pytest.fixture(autouse=True)
def working_folder():
    "A test that changes the working folder does not change it for the next"
    here = os.getcwd()
    yield
    os.chdir(here)

@pytest.fixture(scope='session')
def flags(request): return request.config.getoption('--flags').split()

@pytest.fixture(scope='session')
def data():
    "The folder with the evaluation sets; they are not part of the repository"
    path = Path(os.environ.get('GRAIL_DATA', ROOT.parent/'shared'/'data'))
    if not path.is_dir():
        pytest.skip('no evaluation data: set GRAIL_DATA to a folder with gsm8k_test.jsonl, '
                    'math500_test.json and amc23_test.jsonl')
    return path
