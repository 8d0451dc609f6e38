"""A subnet that says no, a node that lies or is silent, and what an operator is told."""
import asyncio
import multiprocessing as mp
import socket
import time

import pytest
from bittensor_core import Keypair

from grail.core.basics import ConfigError, GrailError, NotFound
from grail.core.window import Window
from grail.network.beacon import LocalBeacon, open_randomness
from grail.network.chain import ClockSkew, RateLimited, Unavailable, VirtualClock

pytestmark = pytest.mark.chain

def key(name): return Keypair.create_from_uri(f'//{name}')
VAL, ADA, BOB = map(key, ('Val', 'Ada', 'Bob'))
SHARES = {ADA.ss58_address: 3.0, BOB.ss58_address: 1.0}

@pytest.fixture(autouse=True)
def no_files_at_home(tmp_path, monkeypatch): monkeypatch.setenv('BTCLI_TOKEN_SYMBOLS_CACHE', str(tmp_path/'symbols.json'))

@pytest.fixture
def node():
    from network.memory_subtensor import START, MemorySubtensor
    node = MemorySubtensor(VirtualClock(START + 1000*12), netuid=7)
    node.join(VAL.ss58_address, stake=1000, validator=True)
    for k in (ADA, BOB): node.join(k.ss58_address)
    node.advance(node.lag)
    return node

@pytest.fixture
def chain(node):
    from grail.network.bittensor import BittensorChain
    chain = BittensorChain('local', 7, node.clock, substrate=node)
    yield chain
    chain.close()

def refused(f, exc, *words):
    with pytest.raises(exc) as e: f()
    assert all(w in str(e.value) for w in words), str(e.value)
    return e.value


# ---- what is signed

def test_what_the_sdk_sends_is_signed_by_the_hotkey_and_nothing_of_it_can_be_changed(node, chain):
    from network.memory_subtensor import Refused
    chain.commit(ADA, 'ada-bucket')
    data, nonce = node.submitted[-1], node.state['nonces'][ADA.ss58_address]
    assert b'ada-bucket' in data and ADA.public_key in data
    with pytest.raises(Refused, match='Stale'): node.receive(data)                                    # once more
    node.state['nonces'][ADA.ss58_address] = nonce - 1
    for forged in (data.replace(b'ada-bucket', b'eve-bucket'), data.replace(ADA.public_key, BOB.public_key)):
        with pytest.raises(Refused, match='BadProof|Stale'): node.receive(forged)
    assert chain.commitments() == {ADA.ss58_address: 'ada-bucket'}
    node.receive(data)                                                                                # only its nonce was used up

def test_a_wallet_of_the_sdk_can_sign(node, chain, tmp_path):
    import bittensor as bt
    wallet = bt.Wallet('cold', 'hot', str(tmp_path))
    wallet.regenerate_hotkey(seed='0x' + '07'*32, use_password=False)
    node.join(wallet.hotkey.ss58_address, stake=10, validator=True)
    node.advance(node.lag)
    assert chain.set_weights(bt.Wallet('cold', 'hot', str(tmp_path)).hotkey, SHARES) <= chain.block()
    assert set(chain.weights()) == {wallet.hotkey.ss58_address}

def test_weights_reach_the_chain_as_the_sdks_intent_with_our_version(node, chain):
    from grail.network.bittensor import WEIGHTS_VERSION
    from network.memory_subtensor import CODEC
    chain.set_weights(VAL, SHARES)
    call = CODEC.decode_extrinsic(node.submitted[-1])['call']
    assert call['call_function'] == 'set_mechanism_weights'
    assert {a['name']: a['value'] for a in call['call_args']} == dict(netuid=7, mecid=0, dests=[2, 3], weights=[65535, 21845],
                                                                      version_key=WEIGHTS_VERSION)

def test_a_subnets_limit_on_a_single_weight_is_kept(node, chain):
    node.change(max_weight=39321)                                             # 60 %
    chain.set_weights(VAL, SHARES)
    assert chain.weights()[VAL.ss58_address][ADA.ss58_address] == pytest.approx(.6, abs=1e-4)

def test_zeros_go_to_the_owner_who_is_nobodys_miner(node, chain):
    chain.set_weights(VAL, {ADA.ss58_address: 0.0})
    assert node.state['weights'][1] == [(0, 65535)] and node.state['hotkeys'][0] == node.state['owner']
    assert chain.weights() == {VAL.ss58_address: {}}


# ---- refusals of the chain

def test_too_soon_says_how_long_and_signs_nothing(node, chain):
    chain.set_weights(VAL, SHARES)
    before, sent = chain.weights(), len(node.submitted)
    node.change(rate_limit=100)
    e = refused(lambda: chain.set_weights(VAL, {ADA.ss58_address: 1}), RateLimited, '100 blocks', 'Retry in', 'later window')
    assert isinstance(e, Unavailable)                                         # a role goes on
    assert (chain.weights(), len(node.submitted)) == (before, sent)
    node.advance(100)
    chain.set_weights(VAL, {ADA.ss58_address: 1})
    assert chain.weights() != before

def test_too_soon_is_understood_from_the_chain_too(node, chain):
    chain.set_weights(VAL, SHARES)
    node.before_submit = lambda: node.change(rate_limit=100)                  # after the SDK has looked
    refused(lambda: chain.set_weights(VAL, SHARES), RateLimited, 'SettingWeightsTooFast', 'later window')

def test_who_commits_too_much_is_told_to_wait(chain):
    def often():
        for i in range(60): chain.commit(ADA, f'{i:0128d}')
    refused(often, RateLimited, 'SpaceLimitExceeded', 'later window')

def test_who_is_not_registered_is_told_the_command(chain):
    for f in (lambda: chain.set_weights(key('Eve'), SHARES), lambda: chain.commit(key('Eve'), 'x'),
              lambda: chain.register(key('Eve'))):
        refused(f, ConfigError, 'not registered', 'btcli subnets register --netuid 7')

def test_without_a_permit_the_advice_is_stake(chain):
    refused(lambda: chain.set_weights(ADA, SHARES), ConfigError, 'permit', 'stake')
    refused(lambda: chain.register(ADA, validator=True), ConfigError, 'permit', 'stake')

def test_an_old_version_of_the_weights_is_told_to_update(node, chain):
    from grail.network.bittensor import WEIGHTS_VERSION
    node.change(version=WEIGHTS_VERSION)
    chain.set_weights(VAL, SHARES)
    node.change(version=WEIGHTS_VERSION + 1)
    refused(lambda: chain.set_weights(VAL, SHARES), ConfigError, f'version {WEIGHTS_VERSION + 1}', 'update grail')

def test_a_subnet_that_is_not_there(node):
    from grail.network.bittensor import BittensorChain
    for f in (lambda c: c.metagraph(), lambda c: c.weights()):
        node.netuid, chain = 7, BittensorChain('local', 8, node.clock, substrate=node)
        refused(lambda: f(chain), ConfigError, 'no subnet 8', 'btcli subnets list')
        chain.close()

def test_too_few_weights_for_the_subnet(node, chain):
    node.change(min_weights=5)
    refused(lambda: chain.set_weights(VAL, SHARES), ConfigError, 'at least 5')


# ---- commit-reveal

def test_with_commit_reveal_weights_are_sealed_and_the_old_ones_stay_readable(node, chain):
    chain.set_weights(VAL, SHARES)
    before = chain.weights()
    node.change(commit_reveal=True)
    chain.set_weights(VAL, {BOB.ss58_address: 1})
    signer, block, sealed, reveal = node.state['commits'][-1]
    assert signer == VAL.ss58_address and chain.weights() == before
    sealed = bytes.fromhex(sealed.removeprefix('0x')) if isinstance(sealed, str) else bytes(sealed)
    assert len(sealed) > 200 and (3).to_bytes(2, 'little') + (65535).to_bytes(2, 'little') not in sealed
    now_round = (time.time() - 1692803367)/3
    assert reveal > now_round                                                 # quicknet has not come to it: nobody can open it

@pytest.mark.parametrize('first', [False, True])
def test_commit_reveal_that_is_switched_on_the_way_is_later_not_never(node, chain, first):
    node.change(commit_reveal=first)
    node.before_submit = lambda: node.change(commit_reveal=not first)
    refused(lambda: chain.set_weights(VAL, SHARES), Unavailable, 'CommitReveal', 'the next try')
    node.before_submit = None
    chain.set_weights(VAL, SHARES)
    assert bool(node.state['commits']) is not first


# ---- what is final

def test_randomness_comes_from_finalized_blocks_so_a_reorganization_of_the_head_changes_nothing(node, chain):
    from grail.network.bittensor import BittensorChain
    beacon = LocalBeacon(b'secret', node.clock, genesis=1_600_000_000)
    w = Window(node.head//30*30 + 30)
    node.advance(int(w) - node.head)
    assert node.head == int(w)
    with pytest.raises(NotFound, match='not yet final'): open_randomness(chain, beacon, w)       # a branch is there, not taken
    branch = node.hash(int(w))
    node.reorganize(int(w))
    assert node.hash(int(w)) != branch
    node.advance(node.lag)
    early = open_randomness(chain, beacon, w)
    node.reorganize(chain.block() + 1)
    node.advance(1)
    late = BittensorChain('local', 7, node.clock, substrate=node)
    assert early == open_randomness(chain, beacon, w) == open_randomness(late, beacon, w)
    assert early.block_hash == node.hash(int(w)).removeprefix('0x') != branch.removeprefix('0x')
    late.close()

def test_a_node_that_takes_back_what_was_final_is_not_followed(node, chain):
    from grail.network.bittensor import Reorganized
    beacon, w = LocalBeacon(b'secret', node.clock, genesis=1_600_000_000), Window(chain.block()//30*30)
    open_randomness(chain, beacon, w)
    node.reorganize(int(w) - 1)
    e = refused(lambda: open_randomness(chain, beacon, w), Reorganized, 'another branch', 'name one node')
    assert isinstance(e, Unavailable)                                         # nobody is judged by it
    node.fork.clear()
    open_randomness(chain, beacon, w)

def test_a_node_that_lags_does_not_turn_back_the_time(node, chain):
    n = chain.block()
    chain.block_hash(n)
    node.behind = 50
    assert chain.block() == n
    refused(lambda: chain.block_hash(n), Unavailable, 'lags')

def test_state_is_read_where_it_is_final(node, chain):
    node.join(key('New').ss58_address)
    assert key('New').ss58_address not in [n.hotkey for n in chain.metagraph()]
    node.advance(node.lag)
    assert key('New').ss58_address in [n.hotkey for n in chain.metagraph()]


# ---- nodes that are down or silent

def calls(chain):
    return dict(block=chain.block, metagraph=chain.metagraph, commitments=chain.commitments, weights=chain.weights,
                skew=chain.skew,
                hash=lambda: chain.block_hash(5), time=lambda: chain.block_time(5), expected=lambda: chain.expected_time(5000),
                commit=lambda: chain.commit(ADA, 'x'), set_weights=lambda: chain.set_weights(VAL, SHARES),
                register=lambda: chain.register(ADA))

@pytest.mark.parametrize('error', [ConnectionRefusedError('refused'), TimeoutError('late'), OSError('no route'), 'rpc'])
def test_a_node_that_is_down_is_nobodys_fault_and_comes_back(node, chain, error):
    import bittensor as bt
    for name, f in calls(chain).items(): f()
    node.down = bt.RpcConnectionError('endpoint retries exhausted') if error == 'rpc' else error
    node.clock.advance_to(node.clock.now() + 12)
    for name, f in calls(chain).items(): refused(f, Unavailable, 'local')
    node.down = None
    for name, f in calls(chain).items(): f()

def test_a_node_is_not_asked_the_same_thing_again_and_again(node, chain):
    asked = []
    for name in ('query_map', 'runtime_call', 'finalized_block_number', 'get_block'):
        def count(*args, f=getattr(node, name), name=name, **kw):
            asked.append(name)
            return f(*args, **kw)
        setattr(node, name, count)
    chain.commit(ADA, 'ada')
    asked.clear()
    for _ in range(100):
        chain.commitments(), chain.metagraph(), chain.weights(), chain.expected_time(10**6), chain.expected_time(1)
        node.clock.advance_to(node.clock.now() + .05)                         # five seconds of polling
    assert len(asked) < 20, asked
    node.advance(1)
    chain.commit(ADA, 'other')
    assert chain.commitments()[ADA.ss58_address] == 'other'                   # and nothing old is shown

def test_a_silent_node_holds_nobody(node, chain):
    async def silent(*args, **kw): await asyncio.sleep(30)
    chain.timeout, node.finalized_block_number = .2, silent
    start = time.monotonic()
    refused(chain.block, Unavailable, 'does not answer')
    assert time.monotonic() - start < 5

def _child(chain, q): q.put([n.hotkey for n in chain.metagraph()])

def test_a_forked_process_makes_its_own_connection(node, chain):
    chain.metagraph()
    node.advance(1)
    ctx = mp.get_context('fork')
    q = ctx.Queue()
    p = ctx.Process(target=_child, args=(chain, q))
    p.start()
    assert q.get(timeout=30) == node.state['hotkeys']
    p.join()

def test_a_port_where_nobody_listens():
    "The SDK's own connection, on loopback"
    from grail.network.bittensor import BittensorChain
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    chain = BittensorChain(f'ws://127.0.0.1:{port}', 7, timeout=3)
    refused(chain.block, Unavailable, f'127.0.0.1:{port}', 'name another node')

def test_a_pruned_state_is_later_not_never(node, chain):
    import bittensor as bt
    def raise_(e): raise e
    node.at = lambda block_hash: raise_(bt.ChainError('State discarded'))
    refused(chain.block, Unavailable, 'State discarded')

def test_a_network_that_is_none():
    from grail.network.bittensor import BittensorChain
    refused(lambda: BittensorChain('finny', 7), ConfigError, 'finny')


# ---- clocks

@pytest.mark.parametrize('offset, word', [(-15, 'behind'), (-3600, 'behind'), (200, 'ahead')])
def test_a_wrong_clock_is_named(node, chain, offset, word):
    chain.clock = VirtualClock(node.clock.now() + offset)
    assert chain.skew() == pytest.approx(offset)
    refused(chain.check_clock, ClockSkew, word, 'timedatectl')

@pytest.mark.parametrize('offset', [-9, 0, 11, 60])
def test_a_clock_that_is_a_little_off_will_do(node, chain, offset):
    chain.clock = VirtualClock(node.clock.now() + offset)
    chain.check_clock()

def test_a_wrong_clock_moves_no_deadline(node, chain):
    n = chain.block()
    before = chain.block(), chain.block_time(n), chain.expected_time(n + 30)
    chain.clock = VirtualClock(node.clock.now() + 3600)
    assert (chain.block(), chain.block_time(n), chain.expected_time(n + 30)) == before
