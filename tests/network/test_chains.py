"""What every chain must do, on the local one and on a Bittensor subnet: the roles know no difference."""
import math

import pytest
from bittensor_core import Keypair

from grail.core.basics import ConfigError, FormatError, GrailError, LimitError, NotFound, is_digest
from grail.core.window import Window
from grail.network.beacon import LocalBeacon, audit_randomness, deadline, open_randomness
from grail.network.chain import LocalChain, VirtualClock
from grail.network.s3 import Access
from grail.incentive.trust import consensus


def key(name): return Keypair.create_from_uri(f'//{name}')
def hotkey(name): return key(name).ss58_address


class LocalWorld:
    "A chain in a file"
    def __init__(self, tmp_path):
        self.clock = VirtualClock(1_700_000_000)
        self.path  = tmp_path/'chain.db'
        self.chain = self.another()
        self.advance(100)

    def another(self): return LocalChain(self.path, self.clock, genesis_time=1_700_000_000, block_time=12, seed='test')
    def join(self, name, stake=0.0, validator=False): self.chain.register(key(name), stake, validator)
    def advance(self, blocks): self.clock.advance_to(self.clock.now() + 12*blocks)

class SubnetWorld:
    "A subnet in memory, behind the SDK"
    def __init__(self, tmp_path):
        from grail.network.bittensor import BittensorChain
        from network.memory_subtensor import START, MemorySubtensor
        self.clock = VirtualClock(START + 100*12)
        self.node  = MemorySubtensor(self.clock, netuid=7)
        self.another = lambda: BittensorChain('local', 7, self.clock, substrate=self.node)
        self.chain = self.another()
        self.advance = self.node.advance

    def join(self, name, stake=0.0, validator=False):
        self.node.join(hotkey(name), stake, validator)
        self.advance(self.node.lag)

@pytest.fixture(params=['local', pytest.param('bittensor', marks=pytest.mark.chain)])
def world(request, tmp_path, monkeypatch):
    monkeypatch.setenv('BTCLI_TOKEN_SYMBOLS_CACHE', str(tmp_path/'symbols.json'))
    w = LocalWorld(tmp_path) if request.param == 'local' else SubnetWorld(tmp_path)
    yield w
    w.chain.close()

@pytest.fixture
def subnet(world):
    "With a validator and two miners"
    world.join('Val', stake=1000, validator=True)
    for name in ('Ada', 'Bob'): world.join(name)
    return world


def test_blocks_come_by_the_clock_and_are_known_from_then_on(world):
    n = world.chain.block()
    assert world.chain.expected_time(n + 30) - world.chain.block_time(n) == 30*12
    for f in (world.chain.block_hash, world.chain.block_time):
        with pytest.raises(NotFound, match='still to come'): f(n + 1)
    world.advance(1)
    assert world.chain.block() == n + 1
    assert world.chain.block_time(n + 1) - world.chain.block_time(n) == 12
    assert world.chain.expected_time(n) == world.chain.block_time(n) <= world.chain.now()

def test_hashes_are_64_digits_differ_and_stay(world):
    n = world.chain.block()
    hashes = [world.chain.block_hash(i) for i in range(n - 5, n)]
    assert all(map(is_digest, hashes)) and len(set(hashes)) == 5
    world.advance(50)
    assert [world.chain.block_hash(i) for i in range(n - 5, n)] == hashes

def test_two_nodes_see_the_same_chain(world):
    other, n = world.another(), world.chain.block()
    assert (other.block(), other.block_hash(n), other.block_time(n)) == (n, world.chain.block_hash(n), world.chain.block_time(n))
    other.close()

@pytest.mark.parametrize('n', [-1, 1.0, '1', None, True])
def test_a_block_is_a_number(world, n):
    for f in (world.chain.block_hash, world.chain.block_time):
        with pytest.raises(FormatError): f(n)

def test_a_window_has_randomness_and_a_deadline_that_all_nodes_agree_on(world):
    beacon = LocalBeacon(b'secret', world.clock, genesis=1_600_000_000)
    w = Window(world.chain.block()//30*30 + 30)
    with pytest.raises(NotFound): open_randomness(world.chain, beacon, w)
    world.advance(31)
    other = world.another()
    assert open_randomness(world.chain, beacon, w) == open_randomness(other, beacon, w)
    with pytest.raises(NotFound): deadline(world.chain, w)
    world.advance(31)
    assert deadline(world.chain, w, 2) == world.chain.block_time(w.end) + 2
    assert audit_randomness(world.chain, beacon, w) == audit_randomness(other, beacon, w)
    other.close()

def test_the_metagraph_lists_who_takes_part(subnet):
    got = {n.hotkey: n for n in subnet.chain.metagraph()}
    assert {hotkey(n) for n in ('Val', 'Ada', 'Bob')} <= set(got)
    assert [n.uid for n in subnet.chain.metagraph()] == list(range(len(got)))
    assert (got[hotkey('Val')].stake, got[hotkey('Val')].validator) == (1000.0, True)
    assert (got[hotkey('Ada')].stake, got[hotkey('Ada')].validator) == (0.0, False)
    assert all(type(n.registered) is int and n.registered <= subnet.chain.block() for n in got.values())

def test_registering_again_gives_the_same_uid(subnet):
    uids = {n.hotkey: n.uid for n in subnet.chain.metagraph()}
    assert subnet.chain.register(key('Ada')) == uids[hotkey('Ada')]
    assert subnet.chain.register(key('Val'), stake=1000, validator=True) == uids[hotkey('Val')]

def test_the_last_commitment_counts_and_may_have_128_characters(subnet):
    assert subnet.chain.commitments() == {}
    subnet.chain.commit(key('Ada'), 'first')
    block = subnet.chain.commit(key('Ada'), '0123456789abcdef'*8)
    subnet.chain.commit(key('Bob'), 'ü')
    assert subnet.chain.commitments() == {hotkey('Ada'): '0123456789abcdef'*8, hotkey('Bob'): 'ü'}
    assert type(block) is int and block <= subnet.chain.block()

def test_read_only_access_to_a_bucket_comes_back_as_it_was_committed(subnet):
    access = Access('0123456789abcdef'*2, 'fedcba9876543210'*2, '00ff'*16)
    subnet.chain.commit(key('Ada'), access.commitment())
    assert Access.from_commitment(subnet.chain.commitments()[hotkey('Ada')]) == access

def test_a_commitment_is_refused_if_it_is_too_long_or_of_a_stranger(subnet):
    with pytest.raises(LimitError, match='bytes'): subnet.chain.commit(key('Ada'), 'x'*2000)
    with pytest.raises(ConfigError, match='not registered'): subnet.chain.commit(key('Eve'), 'x')
    assert subnet.chain.commitments() == {}

def test_weights_are_shares_and_the_last_ones_count(subnet):
    val, ada, bob = map(hotkey, ('Val', 'Ada', 'Bob'))
    for w in ({ada: 3, bob: 1}, {ada: 1e-300}, {ada: 1e300, bob: 3e300}, {ada: 3, bob: 1, val: 0}):
        block = subnet.chain.set_weights(key('Val'), w)
        got, total = subnet.chain.weights(), sum(w.values())
        assert set(got) == {val} and type(block) is int
        assert all(math.isclose(got[val].get(k, 0), x/total, abs_tol=1e-4) for k, x in w.items())
        assert math.isclose(sum(got[val].values()), 1)
    assert max(consensus(subnet.chain.weights(), {val: 1000.0}).items(), key=lambda kv: kv[1])[0] == ada

def test_nobody_earned_anything_can_be_said(subnet):
    subnet.chain.set_weights(key('Val'), {hotkey('Ada'): 1})
    for w in ({hotkey('Ada'): 0.0}, {}):
        subnet.chain.set_weights(key('Val'), w)
        assert set(subnet.chain.weights()) == {hotkey('Val')}
        assert not any(subnet.chain.weights()[hotkey('Val')].values())

def test_old_weights_can_be_left_out(subnet):
    block = subnet.chain.set_weights(key('Val'), {hotkey('Ada'): 1})
    assert set(subnet.chain.weights(since=block)) == {hotkey('Val')}
    assert subnet.chain.weights(since=block + 1) == {}

@pytest.mark.parametrize('who, weights, why', [('Eve', {'Ada': 1.}, 'not registered|permit'), ('Ada', {'Bob': 1.}, 'permit'),
    ('Val', {'Eve': 1.}, 'not registered'), ('Val', {'Ada': -1.}, None), ('Val', {'Ada': float('inf')}, None),
                                               ('Val', {'Ada': float('nan')}, None)])
def test_weights_that_break_a_rule_change_nothing(subnet, who, weights, why):
    subnet.chain.set_weights(key('Val'), {hotkey('Bob'): 1})
    before = subnet.chain.weights()
    with pytest.raises(GrailError, match=why): subnet.chain.set_weights(key(who), {hotkey(k): w for k, w in weights.items()})
    assert subnet.chain.weights() == before
