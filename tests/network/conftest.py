"""S3-compatible servers on loopback, started when a test first asks for one."""
import os
import socket
import subprocess
import sys
import time
import uuid

import pytest

os.environ['NO_PROXY'] = os.environ['no_proxy'] = '127.0.0.1,localhost'

from grail.network.chain import RealClock, Unavailable
from grail.network.s3 import S3Store
from grail.network.store import FolderStore

def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]

def serve(command, port, env=None):
    "Start a server, wait until it accepts connections, stop it at the end"
    p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    try:
        for _ in range(600):
            assert p.poll() is None, f'{command} ended with {p.returncode}'
            with socket.socket() as s:
                if s.connect_ex(('127.0.0.1', port)) == 0: break
            time.sleep(.1)
        yield port
    finally:
        p.terminate()
        p.wait(20)

@pytest.fixture(scope='session')
def moto():
    "Port of moto's server"
    port = free_port()
    code = f"import sys; sys.argv[1:] = ['-H', '127.0.0.1', '-p', '{port}']; from moto.server import main; main()"
    yield from serve([sys.executable, '-c', code], port)

@pytest.fixture(scope='session')
def localbucket(tmp_path_factory):
    "Port of localbucket"
    port = free_port()
    yield from serve([sys.executable, '-m', 'localbucket', str(tmp_path_factory.mktemp('localbucket')), '--port', str(port)],
                     port)

def s3(port_or_url, **kw):
    "A new bucket"
    url = port_or_url if isinstance(port_or_url, str) else f'http://127.0.0.1:{port_or_url}'
    store = S3Store(f'bucket-{uuid.uuid4().hex}', url, 'key', 'secret', **{'region': 'us-east-1', **kw})
    store.make()
    return store

@pytest.fixture(params=['folder', 'moto', 'localbucket'])
def store(request, tmp_path):
    "An empty bucket of each kind"
    if request.param == 'folder': return FolderStore(tmp_path/'bucket', RealClock())
    return s3(request.getfixturevalue(request.param), part=5 << 20)
