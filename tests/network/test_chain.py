"""The local chain under several processes, threads, kills, and people who hand in garbage."""
import multiprocessing as mp
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from bittensor_core import Keypair

from grail.core.basics import ConfigError, FormatError, GrailError, LimitError, NotFound, SignatureError, canonical_json
from grail.network.chain import LABEL, LocalChain, RealClock, StaleCall, VirtualClock
from grail.protocol.signature import sign


def key(name): return Keypair.create_from_uri(f'//{name}')

@pytest.fixture
def chain(tmp_path):
    c = LocalChain(tmp_path/'chain.db', RealClock(), genesis_time=1_000_000, seed='test')
    yield c
    c.close()

def run(code, *args, wait=True):
    "Start another Python process"
    p = subprocess.Popen([sys.executable, '-c', code, *map(str, args)], stdout=subprocess.PIPE, text=True)
    if not wait: return p
    out = p.communicate(timeout=60)[0]
    assert p.returncode == 0
    return out

def replayed(chain, path):
    "A chain that is given nothing but the record of `chain`"
    twin = LocalChain(path, chain.clock, genesis_time=chain.genesis_time, block_time=chain.period, seed=chain.seed)
    for x in chain.extrinsics(): twin.submit(x.hotkey, x.body, x.signature)
    return twin

def state(chain):
    return [(n.uid, n.hotkey, n.stake, n.validator) for n in chain.metagraph()], chain.commitments(), chain.weights()


REGISTER = '''
import sys
from bittensor_core import Keypair
from grail.network.chain import LocalChain, RealClock
chain = LocalChain(sys.argv[1], RealClock(), seed='test')
for i in range(10): chain.register(Keypair.create_from_uri(f'//{sys.argv[2]}/{i}'), stake=i)
'''
COMMIT = '''
import sys
from bittensor_core import Keypair
from grail.network.chain import LocalChain, RealClock
chain, k = LocalChain(sys.argv[1], RealClock(), seed='test'), Keypair.create_from_uri('//Ada')
print('ready', flush=True)
for i in range(int(sys.argv[2])): chain.commit(k, f'{sys.argv[3]} {i}')
'''


def test_processes_that_register_at_once_get_different_uids_without_gaps(chain):
    ps = [run(REGISTER, chain.path, n, wait=False) for n in ('a', 'b', 'c')]
    for p in ps: assert p.wait(60) == 0
    neurons = chain.metagraph()
    assert [n.uid for n in neurons] == list(range(30))
    assert len({n.hotkey for n in neurons}) == 30

def test_processes_of_one_hotkey_lose_no_call_and_repeat_none(chain, tmp_path):
    chain.register(key('Ada'))
    ps = [run(COMMIT, chain.path, 20, n, wait=False) for n in 'xyz']
    for p in ps: assert p.wait(60) == 0
    assert [x.nonce for x in chain.extrinsics()] == list(range(61))
    said = [x.args['text'] for x in chain.extrinsics()[1:]]
    assert sorted(said) == sorted(f'{p} {i}' for p in 'xyz' for i in range(20))
    assert state(replayed(chain, tmp_path/'twin.db')) == state(chain)

def test_threads_share_one_chain(chain):
    keys = [key(f'T{i}') for i in range(8)]
    ts = [threading.Thread(target=chain.register, args=(k,)) for k in keys]
    for t in ts: t.start()
    for t in ts: t.join()
    assert {n.hotkey for n in chain.metagraph()} == {k.ss58_address for k in keys}

def _child(chain, q):
    chain.register(key('Child'))
    q.put(len(chain.metagraph()))

def test_a_forked_process_opens_its_own_connection(chain):
    chain.register(key('Parent'))
    ctx = mp.get_context('fork')
    q = ctx.Queue()
    p = ctx.Process(target=_child, args=(chain, q))
    p.start()
    assert q.get(timeout=30) == 2
    p.join()
    assert len(chain.metagraph()) == 2
    chain.register(key('Parent'), stake=1)

@pytest.mark.parametrize('seed', range(3))
def test_a_writer_that_is_killed_leaves_a_whole_chain(chain, tmp_path, seed):
    chain.register(key('Ada'))
    p = run(COMMIT, chain.path, 100_000, 'x', wait=False)
    p.stdout.readline()
    time.sleep(random.Random(seed).uniform(.02, .3))
    p.send_signal(signal.SIGKILL)
    p.wait()
    assert sqlite3.connect(chain.path).execute('pragma integrity_check').fetchone() == ('ok',)
    calls = chain.extrinsics()
    assert len(calls) > 1 and [x.nonce for x in calls] == list(range(len(calls)))
    assert chain.commitments() == {key('Ada').ss58_address: calls[-1].args['text']}
    assert state(replayed(chain, tmp_path/'twin.db')) == state(chain)
    chain.commit(key('Ada'), 'after')                                      # and it goes on

def test_a_snapshot_beside_a_writer_is_consistent_and_replaced_whole(chain, tmp_path):
    chain.register(key('Ada'))
    p = run(COMMIT, chain.path, 100_000, 'x', wait=False)
    p.stdout.readline()
    try:
        for i in range(5):
            chain.snapshot(tmp_path/'snap.db')
            con = sqlite3.connect(tmp_path/'snap.db')
            n = con.execute('select count(*) from extrinsics').fetchone()[0]
            text = con.execute('select text from commitments').fetchone()
            assert text is None or text[0] == f'x {n-2}'                   # the record and its outcome are of one moment
            con.close()
    finally:
        p.kill()
        p.wait()
    assert sorted(f.name for f in tmp_path.iterdir() if 'snap' in f.name) == ['snap.db']

SNAPSHOT = '''
import sys
from grail.network.chain import LocalChain, RealClock
chain = LocalChain(sys.argv[1], RealClock(), seed='test')
chain.snapshot(sys.argv[2])
print('ready', flush=True)
while True: chain.snapshot(sys.argv[2])
'''

def test_a_kill_during_a_snapshot_leaves_the_last_one(chain, tmp_path):
    chain.register(key('Ada'))
    for i in range(3):
        p = run(SNAPSHOT, chain.path, tmp_path/'snap.db', wait=False)
        p.stdout.readline()
        time.sleep(.05*(i+1))
        p.kill()
        p.wait()
        back = LocalChain.restore(tmp_path/'snap.db', tmp_path/f'back{i}.db', RealClock())
        assert state(back) == state(chain)
        back.close()

def test_restore_drops_what_came_after_and_the_log_beside_the_file(tmp_path):
    clock = VirtualClock(1000)
    chain = LocalChain(tmp_path/'c.db', clock, seed='test')
    chain.register(key('Ada'))
    clock.advance_to(1100)
    chain.snapshot(tmp_path/'s.db')
    want, hash = state(chain), chain.block_hash(8)
    clock.advance_to(9000)
    for n in 'BCD': chain.register(key(n))                                  # left open: there is a -wal file beside it
    assert (tmp_path/'c.db-wal').exists()
    later = VirtualClock()
    back = LocalChain.restore(tmp_path/'s.db', tmp_path/'c.db', later)
    assert state(back) == want and later.now() == 1100 and back.block_hash(8) == hash
    assert back.register(key('B')) == 1

def test_times_that_are_no_whole_numbers_count_blocks_right(tmp_path):
    clock = VirtualClock(1_700_000_000.1)
    chain = LocalChain(tmp_path/'c.db', clock, block_time=.1, seed='test')
    for n in range(1, 500):
        clock.advance_to(chain.expected_time(n))
        assert chain.block() == n and chain.block_time(n) == clock.now()
    with pytest.raises(NotFound): LocalChain(tmp_path/'d.db', clock, genesis_time=clock.now() + 1).block()

@pytest.mark.parametrize('n', [-1, 1.0, '1', None, True])
def test_a_block_is_a_number(chain, n):
    for f in (chain.block_hash, chain.block_time):
        with pytest.raises(FormatError): f(n)

def forge(chain, k, nonce=0, **changes):
    body = canonical_json({**dict(args=dict(text='x'), call='commit', genesis=chain.genesis, nonce=nonce), **changes})
    return k.ss58_address, body, sign(k, LABEL, body)

@pytest.mark.parametrize('changes', [dict(call='drop table'), dict(call=None), dict(call=[]), dict(args=[]), dict(args={}),
                                     dict(args={'text': 7}),
                                     dict(args={'text': 'x', 'more': 1}), dict(genesis='0'*64), dict(more=1), dict(nonce='0'),
                                     dict(nonce=True),
                                     dict(nonce=0.0), dict(nonce=5), dict(call='set_weights', args={'weights': {'x': 1}}),
                                     dict(call='set_weights', args={'weights': {'x': True}}),
                                     dict(call='register', args=dict(stake=1, validator=True)),
                                     dict(call='register', args=dict(stake=-1., validator=True)),
                                     dict(call='set_weights', args={'weights': []})])
def test_a_call_of_the_wrong_form_changes_nothing(chain, changes):
    chain.register(key('Ada'), validator=True)
    before = state(chain), len(chain.extrinsics())
    with pytest.raises(GrailError): chain.submit(*forge(chain, key('Ada'), **{'nonce': 1, **changes}))
    assert (state(chain), len(chain.extrinsics())) == before

def test_bytes_that_are_no_call_are_refused(chain):
    k = key('Ada')
    for body in (b'', b'null', b'[]', b'\xff', b'{"a":', b'['*5000):
        with pytest.raises(FormatError): chain.submit(k.ss58_address, body, sign(k, LABEL, body))
    with pytest.raises(LimitError): chain.submit(k.ss58_address, b' '*2_000_000, '0'*128)

@pytest.mark.parametrize('signature', ['', '0'*128, 'zz'*64, None, 7, 'é'*128])
def test_a_wrong_signature_is_refused(chain, signature):
    hotkey, body, _ = forge(chain, key('Ada'))
    with pytest.raises(SignatureError): chain.submit(hotkey, body, signature)
    with pytest.raises(SignatureError): chain.submit('../etc', body, signature)

def test_a_signature_for_something_else_is_no_call(chain):
    hotkey, body, _ = forge(chain, key('Ada'))
    with pytest.raises(SignatureError): chain.submit(hotkey, body, sign(key('Ada'), 'checkpoint', body))

def test_a_call_can_not_be_handed_in_twice(chain):
    chain.register(key('Ada'))
    x = chain.extrinsics()[0]
    with pytest.raises(StaleCall): chain.submit(x.hotkey, x.body, x.signature)

@pytest.mark.parametrize('weights', [{'Ada': -1.}, {'Ada': float('inf')}, {'Ada': float('nan')}, {'Eve': 1.},
                                     {'Ada': 1e308, 'Val': 1e308}])
def test_weights_are_finite_not_negative_and_for_the_registered(chain, weights):
    chain.register(key('Val'), validator=True)
    chain.register(key('Ada'))
    with pytest.raises(GrailError): chain.set_weights(key('Val'), {key(k).ss58_address: w for k, w in weights.items()})
    assert chain.weights() == {}

def test_weights_are_shares(chain):
    val, ada = key('Val'), key('Ada')
    for k in (val, ada): chain.register(k, validator=True)
    for w in ({ada.ss58_address: 1e-300}, {val.ss58_address: 1e300, ada.ss58_address: 3e300}, {}):
        chain.set_weights(val, w)
        assert sum(chain.weights()[val.ss58_address].values()) == pytest.approx(1 if w else 0)
    with pytest.raises(ConfigError): chain.set_weights(key('Stranger'), {})

def test_a_permit_can_be_lost(chain):
    chain.register(key('Val'), validator=True)
    chain.register(key('Val'), validator=False)
    with pytest.raises(ConfigError, match='permit'): chain.set_weights(key('Val'), {})
