"What programs do when the world fails, without a network of them: asking again, stopping, full disks, settings."
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from bittensor_core import Keypair

from grail.core.basics import ConfigError, NotFound
from grail.core.window import Window
from grail.monitor.metrics import read_metrics
from grail.network.chain import ClockSkew, LocalChain, RateLimited, RealClock, Unavailable, VirtualClock
from grail.roles.process import Diary, Program, Stopped, Worker, ahead, read_state, write_state
from grail.roles.settings import env_example, load_key, node_settings

ROOT = Path(__file__).resolve().parents[2]


def made(tmp_path, kind, **neuron):
    (tmp_path/'key').write_text('07'*32)
    s = node_settings(env={}, key_file=str(tmp_path/'key'), chain=f'local:{tmp_path}/chain.db', endpoint=f'folder:{tmp_path}/buckets',
                      beacon='http://127.0.0.1:9', trainer='nobody', state=str(tmp_path/'state'))
    LocalChain(tmp_path/'chain.db', RealClock(), block_time=.1).register(load_key(s), **neuron)
    return kind(s)

@pytest.fixture
def program(tmp_path):
    p = made(tmp_path, Program)
    yield p
    p.stop.set()

@pytest.fixture
def validator(tmp_path):
    from grail.roles.programs import ValidatorProgram
    p = made(tmp_path, ValidatorProgram, stake=1000., validator=True)
    yield p
    p.stop.set()

@pytest.fixture
def subnet(tmp_path, monkeypatch):
    "A subnet of Bittensor whose node is in memory, and the chain that asks it"
    monkeypatch.setenv('BTCLI_TOKEN_SYMBOLS_CACHE', str(tmp_path/'symbols.json'))
    from network.memory_subtensor import START, MemorySubtensor
    from grail.network.bittensor import BittensorChain
    node  = MemorySubtensor(VirtualClock(START + 1000*12), netuid=7)
    chain = BittensorChain('local', 7, node.clock, substrate=node)
    yield node, chain
    chain.close()

def wait_for(condition, seconds=30):
    end = time.time() + seconds
    while not condition() and time.time() < end: time.sleep(.05)
    assert condition()

@pytest.fixture
def small_disk(tmp_path):
    path = tmp_path/'small'
    path.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=40k', 'tmpfs', str(path)], capture_output=True).returncode:
        pytest.skip('this user may not mount')
    yield path
    subprocess.run(['umount', '-l', str(path)], check=True)

def fill(folder):
    try:
        with open(folder/'filler', 'wb') as f:
            while True: f.write(b'x'*1024); f.flush()
    except OSError: pass


def test_the_example_of_settings_is_the_present_one():
    assert (ROOT/'.env.example').read_text() == env_example()

def test_a_question_is_asked_again_until_it_is_answered(program):
    tries = []
    def flaky():
        tries.append(time.time())
        if len(tries) < 3: raise Unavailable('not now')
        return 'answer'
    assert program.ask('example', flaky) == 'answer'
    pauses = [b - a for a, b in zip(tries, tries[1:])]
    assert .15 < pauses[0] < pauses[1] < 2 and program.counts['failures'] == 2

def test_a_question_is_not_asked_for_longer_than_it_matters(program):
    def absent(): raise NotFound('nothing')
    start = time.time()
    with pytest.raises(NotFound): program.ask('example', absent, until=program.now() + 1)
    assert time.time() - start < 1.5 and program.counts['failures'] == 0        # what is not there yet is no failure

def test_some_errors_are_final(program):
    def wrong(): raise ConfigError('never')
    start = time.time()
    with pytest.raises(ConfigError): program.ask('example', wrong, final=(ConfigError,))
    assert time.time() - start < .2

def test_a_signal_ends_every_kind_of_waiting_at_once(program):
    def absent(): raise NotFound('nothing')
    ended = []
    def wait(f):
        try: f()
        except Stopped: ended.append(time.time())
    jobs = [lambda: program.ask('example', absent), lambda: program.wait_until(program.now() + 100), lambda: program.pause(100),
            lambda: program.due(Window(0), program.now() + 100)]
    threads = [threading.Thread(target=wait, args=(j,)) for j in jobs]
    for t in threads: t.start()
    time.sleep(1)
    stopped = time.time()
    program.stop.set()
    for t in threads: t.join(5)
    assert len(ended) == len(jobs) and max(ended) - stopped < 1

def test_a_program_whose_windows_take_longer_than_they_last_ends_when_it_is_told_to(program):
    seen, real = [], program.network.chain
    class Hurried:                                   # every question finds another window
        def block(self): return 30*(len(seen) + 1)
        def __getattr__(self, name): return getattr(real, name)
    program.network.chain = Hurried()
    program.window = lambda w: seen.append(int(w))
    thread = threading.Thread(target=program.compute)
    thread.start()
    wait_for(lambda: len(seen) > 3)
    program.stop.set()
    thread.join(5)
    assert not thread.is_alive() and len(set(seen)) == len(seen)

def test_a_worker_keeps_no_more_than_its_queue_holds(program):
    gate, made = threading.Event(), []
    worker = Worker('example', program.stop, size=2)
    def produce():
        for i in range(10): made.append(worker.submit(gate.wait, 20))
    t = threading.Thread(target=produce, daemon=True)
    t.start()
    time.sleep(1)
    assert len(made) == 3                                                       # one in work, two in the queue
    gate.set()
    t.join(10)
    assert len(made) == 10

def test_one_submission_is_judged_while_the_next_is_received_in_their_order(program):
    worker, began = Worker('example', program.stop, size=2), {i: threading.Event() for i in range(5)}
    def receive(i): began[i].set(); return i*i
    got = []
    for i, x in ahead(worker, receive, range(5)):
        if i < 4: assert began[i + 1].wait(10)               # before this one is judged the next is already on its way
        got.append((i, x))
    assert got == [(i, i*i) for i in range(5)]

def test_a_full_disk_keeps_the_old_state_and_whole_lines(small_disk):
    write_state(small_disk/'state.json', dict(window=30))
    diary = Diary(small_disk/'timeline.jsonl')
    line  = dict(window=30, role='r', name='n', task='upload', start=1., end=2.)
    diary.write(line)
    fill(small_disk)
    with pytest.raises(OSError): write_state(small_disk/'state.json', dict(window=60, more='x'*5000))
    assert read_state(small_disk/'state.json') == dict(window=30)
    for _ in range(500): diary.write(line)
    assert diary.lost > 0 and diary.take()['upload'] == 501
    (small_disk/'filler').unlink()
    diary.write(dict(line, window=60))
    lines = read_metrics(small_disk/'timeline.jsonl')
    assert lines[0] == line and lines[-1]['window'] == 60 and len(lines) == 502 - diary.lost
    assert [p.name for p in small_disk.iterdir() if p.name.startswith('.')] == []

def test_a_program_whose_state_cannot_be_written_goes_on(program, monkeypatch):
    os.rename(program.folder, program.folder.with_name('gone'))
    program.keep(submitted=90)
    assert program.state['submitted'] == 90 and program.counts['failures'] == 1
    os.rename(program.folder.with_name('gone'), program.folder)
    program.keep(submitted=120)
    assert read_state(program.folder/'state.json') == dict(submitted=120)

def test_two_programs_do_not_share_a_state_folder(program):
    with pytest.raises(ConfigError, match='another program'): Program(program.s)


# ---- clocks

def test_a_clock_that_is_wrong_by_the_chain_is_told_in_every_window_until_it_is_set(program):
    program.network.chain.check_clock = lambda: (_ for _ in ()).throw(ClockSkew('this clock is behind'))
    seen = []
    program.window = lambda w: seen.append((w, program.health()['well'], program.health()['last_error']))
    thread = threading.Thread(target=program.compute, daemon=True)
    thread.start()
    wait_for(lambda: len(seen) >= 2)
    assert all(not well and error == 'this clock is behind' for _, well, error in seen) and program.counts['failures'] >= 2
    del program.network.chain.check_clock                                       # set right, while the program runs
    wait_for(lambda: seen[-1][1])
    assert seen[-1][2] == ''

def test_a_chain_that_does_not_say_the_time_is_no_wrong_clock(program):
    program.network.chain.check_clock = lambda: (_ for _ in ()).throw(Unavailable('silent'))
    program.look_at_clock()
    assert program.clock_error == '' and program.counts['failures'] == 1

@pytest.mark.parametrize('off', [-3600., -10., -4.5, -1., 0., 1., 10., 3600.])
def test_the_store_tells_whose_clock_is_wrong(program, caplog, off):
    "`off` seconds are added to our clock; a writing takes two seconds, the store counts whole ones"
    program.network.chain.clock.offset = off
    true = time.time()
    behind = program.compare_clock(float(int(true)), program.now() - 2)
    if abs(off) <= 3: assert behind == 0 and program.health()['well'] and not caplog.records
    else:
        assert abs(behind + off) < 3.5 and not program.health()['well'] and 'set it right' in caplog.text
        if off < 0: assert behind >= -off                                        # who is behind allows for enough
    assert program.compare_clock(program.now(), program.now() - 2) == 0          # set right
    assert program.health()['well']

def test_what_an_earlier_life_has_written_is_no_wrong_clock(program):
    assert program.compare_clock(program.now() - 1000, began=0.) == 0

@pytest.mark.chain
@pytest.mark.parametrize('offset, word', [(-60, 'behind'), (600, 'ahead'), (0, '')])
def test_a_program_on_a_subnet_compares_its_clock(program, subnet, offset, word):
    node, chain = subnet
    program.network.chain, chain.clock = chain, VirtualClock(node.clock.now() + offset)
    program.look_at_clock()
    assert (word in program.health()['last_error']) and program.health()['well'] == (offset == 0)


# ---- weights

def test_a_chain_that_wants_no_weights_yet_is_asked_once_a_window(validator):
    tries = []
    def too_soon(*_): tries.append(1); raise RateLimited('100 blocks')
    validator.network.chain.set_weights = too_soon
    start = time.time()
    assert validator.weights(Window(30), {}, validator.now() + 60) == 0
    assert (len(tries), validator.counts['failures']) == (1, 0) and time.time() - start < 1

def test_a_chain_that_refuses_for_good_is_asked_once_and_it_is_told(validator, caplog):
    tries = []
    def never(*_): tries.append(1); raise ConfigError('no validator permit')
    validator.network.chain.set_weights = never
    assert validator.weights(Window(30), {}, validator.now() + 60) == 0
    assert (len(tries), validator.counts['failures']) == (1, 1) and 'no validator permit' in caplog.text

def test_a_chain_that_is_down_is_asked_until_it_takes_the_weights(validator):
    tries, real = [], validator.network.chain.set_weights
    def flaky(*args):
        tries.append(1)
        if len(tries) < 3: raise Unavailable('down')
        return real(*args)
    validator.network.chain.set_weights = flaky
    me = validator.keypair.ss58_address
    assert validator.weights(Window(30), {me: 1.}, validator.now() + 60) == 1
    assert len(tries) == 3 and validator.network.chain.weights() == {me: {me: 1.}}

def test_who_has_lost_its_place_gets_no_weight_and_costs_nobody_his(validator):
    me, gone = validator.keypair.ss58_address, Keypair.create_from_seed(bytes([9]*32)).ss58_address
    assert validator.weights(Window(30), {gone: 1., me: .5}, validator.now() + 5) == 1
    assert set(validator.network.chain.weights()[me]) == {me}

@pytest.mark.chain
def test_on_a_subnet_weights_that_come_too_soon_wait_for_a_later_window(validator, subnet):
    node, chain = subnet
    node.join(validator.keypair.ss58_address, stake=1000, validator=True)
    node.advance(node.lag)
    validator.network.chain, me = chain, validator.keypair.ss58_address
    assert validator.weights(Window(30), {me: 1.}, chain.now() + 60) == 1
    node.change(rate_limit=100)
    start = time.time()
    assert validator.weights(Window(60), {me: 1.}, chain.now() + 60) == 0
    assert validator.counts['failures'] == 0 and time.time() - start < 10
    node.advance(100)
    assert validator.weights(Window(180), {me: 1.}, chain.now() + 60) == 1
