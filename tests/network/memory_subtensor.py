"""A Subtensor chain in memory behind the SDK's own seam: `bittensor.Substrate`, what its `Client` reads and writes.

Everything above the seam is the SDK's: intents, checks before signing, reads, the SCALE codec, the form of a signed extrinsic.
Below it is this: a virtual clock, blocks with finality behind the head, forks, and the rules of the few calls that grail makes.
An extrinsic arrives as bytes; it is decoded, its signature, genesis, era and nonce are checked, and only then it is applied."""
import copy
import hashlib
import math

import bittensor as bt
from bittensor._transport.codec import RuntimeCodec
from bittensor._transport.extrinsics import create_signed_extrinsic
from bittensor.result import ChainError, ExtrinsicResult
from bittensor_core import Keypair, era_birth

from network.memory_runtime import metadata

START, BLOCK_TIME, FINALITY = 1_700_000_000.0, 12.0, 3
CODEC = RuntimeCodec(metadata(), spec_version=440, transaction_version=1, spec_name='node-subtensor')


class Refused(Exception):
    "A call breaks a rule of the chain; the name is the runtime's"


class MemorySubtensor:
    "One subnet; `Client(substrate=...)` takes it"
    def __init__(self, clock, netuid=7, **hyperparameters):
        self.clock, self.netuid, self.token_symbols = clock, netuid, {}
        self.fork, self.down, self.lag, self.before_submit, self.behind, self.submitted = {}, None, FINALITY, None, 0, []
        owner = Keypair.create_from_uri('//SubnetOwner').ss58_address
        self.state = dict(owner=owner, hotkeys=[], stake=[], permits=[], registered=[], last=[], commitments={}, weights={},
                          commits=[], nonces={},
                          space={}, hyper={**dict(commit_reveal=False, rate_limit=0, min_weights=0, max_weight=65535, version=0,
                                                  tempo=360,
                                                  reveal_period=1), **hyperparameters})
        self.history = [(0, copy.deepcopy(self.state))]
        self.join(owner)

    # ---- what a test does to the chain

    def change(self, **hyperparameters):
        "As the subnet's owner would"
        self.state['hyper'].update(hyperparameters)
        self.keep()

    def keep(self): self.history.append((self.head, copy.deepcopy(self.state)))

    def join(self, hotkey, stake=0.0, validator=False):
        "A uid, and stake and permit as an epoch would find them"
        s = self.state
        if hotkey not in s['hotkeys']:
            for name, value in (('hotkeys', hotkey), ('stake', 0), ('permits', False), ('registered', self.head),
                                ('last', 0)): s[name].append(value)
        uid = s['hotkeys'].index(hotkey)
        s['stake'][uid], s['permits'][uid] = int(stake*10**9), validator
        self.keep()
        return uid

    def advance(self, blocks=1): self.clock.advance_to(START + BLOCK_TIME*(self.head + blocks))

    def reorganize(self, block):
        "Another branch wins from `block` on"
        self.fork[block] = len(self.fork) + 1

    # ---- blocks

    @property
    def head(self): return math.floor((self.clock.now() - START)/BLOCK_TIME) - self.behind

    def hash(self, n): return '0x' + hashlib.sha256(repr((n, [v for k, v in sorted(self.fork.items())
                                                              if k <= n])).encode()).hexdigest()

    def at(self, block_hash):
        "Number and state of the block with this hash; the head without one"
        if self.down: raise self.down
        if block_hash is None: return self.head, self.state
        n = next((n for n in range(self.head, -1, -1) if self.hash(n) == block_hash), None)
        if n is None: raise ChainError('State discarded: unknown block')
        return n, [s for b, s in self.history if b <= n][-1]

    async def connect(self): self.at(None)
    async def close(self): pass
    async def block_time(self): return BLOCK_TIME
    async def spec_version(self): return CODEC.spec_version
    async def block_number(self): return self.at(None)[0]
    async def finalized_block_number(self): return max(0, self.at(None)[0] - self.lag)

    async def block_hash(self, block=None):
        head = self.at(None)[0]
        if block is not None and block > head: raise ChainError(f'block {block} not found')
        return self.hash(head if block is None else block)

    async def get_block(self, block_number=None, block_hash=None):
        head = self.at(block_hash)[0]
        n = head if block_number is None else block_number
        if n > head: return None
        call = dict(call_module='Timestamp', call_function='set',
                    call_args=[dict(name='now', value=int(1000*(START + BLOCK_TIME*n)))])
        return dict(header=dict(number=n, hash=self.hash(n), parentHash=self.hash(n-1)), extrinsics=[dict(call=call)])

    # ---- reads

    def balance(self, rao, netuid=0): return bt.Balance(int(rao), netuid)
    async def constant(self, module, name): raise KeyError((module, name))

    async def query(self, module, storage_function, params=None, block_hash=None):
        n, s = self.at(block_hash)
        h, uids = s['hyper'], {k: i for i, k in enumerate(s['hotkeys'])}
        if (module, storage_function) == ('Timestamp', 'Now'): return int(1000*(START + BLOCK_TIME*n))
        if (module, storage_function) == ('Commitments', 'CommitmentOf'): return s['commitments'].get(params[1])
        assert module == 'SubtensorModule' and params[0] == self.netuid, (module, storage_function, params)
        return dict(Uids=uids.get(params[1]) if len(params) > 1 else None, CommitRevealWeightsEnabled=h['commit_reveal'],
                    WeightsSetRateLimit=h['rate_limit'], LastUpdate=s['last'], MinAllowedWeights=h['min_weights'],
                    MaxWeightsLimit=h['max_weight'], SubnetEpochConsensus='Yuma', ValidatorPermit=s['permits'], Tempo=h['tempo'],
                    RevealPeriodEpochs=h['reveal_period'], LastEpochBlock=n - n % h['tempo'], PendingEpochAt=0,
                    SubnetEpochIndex=n//h['tempo'], BlocksSinceLastStep=n % h['tempo'],
                    WeightsVersionKey=h['version'])[storage_function]

    async def query_map(self, module, storage_function, params=None, block_hash=None):
        n, s = self.at(block_hash)
        return dict(TokenSymbol=[], CommitmentOf=list(s['commitments'].items()), RevealedCommitments=[],
                    TimelockedWeightCommits=[],
                    Uids=[(k, i) for i, k in enumerate(s['hotkeys'])], Weights=list(s['weights'].items()))[storage_function]

    async def query_batch(self, module, storage_function, param_sets, block_hash=None):
        return [await self.query(module, storage_function, p, block_hash) for p in param_sets]

    async def runtime_call(self, api, method, params, block_hash=None):
        n, s = self.at(block_hash)
        assert (api, method) == ('SubnetInfoRuntimeApi', 'get_metagraph'), (api, method)
        if params != [self.netuid]: return None
        zero = [0]*len(s['hotkeys'])
        return dict(netuid=self.netuid, name='grail', symbol='g', block=n, tempo=s['hyper']['tempo'], last_step=0,
                    blocks_since_last_step=n,
                    owner_hotkey=s['owner'], owner_coldkey=s['owner'], network_registered_at=0, num_uids=len(zero), max_uids=256,
                    tao_in=1, alpha_in=1,
                    hotkeys=s['hotkeys'], coldkeys=s['hotkeys'], active=[True]*len(zero), validator_permit=s['permits'],
                    last_update=s['last'],
                    block_at_registration=s['registered'], total_stake=s['stake'], alpha_stake=s['stake'], tao_stake=zero,
                    rank=zero, trust=zero)

    # ---- writes

    async def compose(self, call): return CODEC.compose_call(*call)
    async def estimate_fee(self, call, keypair): return bt.Balance.from_rao(0)
    async def account_next_index(self, address): return self.at(None)[1]['nonces'].get(address, 0)

    async def submit(self, call, keypair, *, nonce=None, period=128, wait_for_inclusion=True, wait_for_finalization=True):
        if self.before_submit: self.before_submit()
        n = self.at(None)[0]
        nonce = await self.account_next_index(keypair.ss58_address) if nonce is None else nonce
        era = dict(period=period, current=n)
        signed = await create_signed_extrinsic(CODEC, call, keypair, era=era, nonce=nonce, genesis_hash=self.hash(0),
                                               era_block_hash=self.hash(era_birth(period, n)))
        try: events = self.receive(bytes(signed.data))
        except Refused as e: return ExtrinsicResult(success=False, message=str(e), error=ChainError(str(e), str(e)))
        at = self.head
        if wait_for_finalization: self.advance(self.lag)
        return ExtrinsicResult(success=True, message='Success', block_hash=self.hash(at), extrinsic_id=f'{at}-0001',
                               events=events)

    def receive(self, data):
        "The chain's side: bytes from anybody"
        x = CODEC.decode_extrinsic(data)
        self.submitted.append(data)
        if 'address' not in x: raise Refused('BadProof')
        signer, call = x['address'], x['call']
        raw = CODEC.compose_call(call['call_module'], call['call_function'], {a['name']: a['value'] for a in call['call_args']})
        n, (period, phase) = self.head, x['era']
        birth = max(n - phase, 0)//period*period + phase
        if not birth <= n < birth + period: raise Refused('AncientBirthBlock')
        parts = CODEC.signature_payload_parts(raw, era=dict(period=period, phase=phase), nonce=x['nonce'], tip=x.get('tip', 0),
                                              tip_asset_id=None,
                                              genesis_hash=self.hash(0), era_block_hash=self.hash(birth), metadata_hash=None)
        payload = b''.join(bytes(p) for p in parts)
        if len(payload) > 256: payload = hashlib.blake2b(payload, digest_size=32).digest()
        signature = bytes.fromhex(x['signature']['Sr25519'].removeprefix('0x'))
        if not Keypair(ss58_address=signer).verify(payload, signature): raise Refused('BadProof')
        if x['nonce'] != self.state['nonces'].get(signer, 0): raise Refused('Stale')
        self.advance(1)                                   # it goes into the next block
        args = {a['name']: a['value'] for a in call['call_args']}
        self.state['nonces'][signer] = x['nonce'] + 1
        try: getattr(self, call['call_function'])(signer, **args)
        finally: self.keep()
        return []

    # ---- the rules, in the runtime's order and with its names

    def uid(self, hotkey):
        if hotkey not in self.state['hotkeys']: raise Refused('HotKeyNotRegisteredInSubNet')
        return self.state['hotkeys'].index(hotkey)

    def burned_register(self, signer, netuid, hotkey):
        if hotkey in self.state['hotkeys']: raise Refused('HotKeyAlreadyRegisteredInSubNet')
        self.join(hotkey)

    def set_commitment(self, signer, netuid, info):
        if signer not in self.state['hotkeys']: raise Refused('AccountNotAllowedCommit')
        if len(info['fields']) > 1: raise Refused('TooManyFieldsInCommitmentInfo')
        size = sum((len(v) - 2)//2 for f in info['fields'] for v in f.values())
        epoch = self.head//self.state['hyper']['tempo']   # 3,100 bytes an epoch
        used = self.state['space'].get((signer, epoch), 0) + size
        if used > 3100: raise Refused('SpaceLimitExceeded')
        self.state['space'][signer, epoch] = used
        self.state['commitments'][signer] = dict(deposit=0, block=self.head, info=info)

    def may_set(self, signer, commit):
        s, uid = self.state, self.uid(signer)
        if s['hyper']['commit_reveal'] and not commit: raise Refused('CommitRevealEnabled')
        if commit and not s['hyper']['commit_reveal']: raise Refused('CommitRevealDisabled')
        if s['last'][uid] and self.head - s['last'][uid] < s['hyper']['rate_limit']: raise Refused('SettingWeightsTooFast')
        return uid

    def set_mechanism_weights(self, signer, netuid, mecid, dests, weights, version_key):
        s, uid = self.state, self.may_set(signer, commit=False)
        if not s['permits'][uid]: raise Refused('NeuronNoValidatorPermit')
        if s['hyper']['version'] and version_key < s['hyper']['version']: raise Refused('IncorrectWeightVersionKey')
        if any(d >= len(s['hotkeys']) for d in dests): raise Refused('UidVecContainInvalidOne')
        s['weights'][uid], s['last'][uid] = list(zip(dests, weights)), self.head

    def commit_timelocked_mechanism_weights(self, signer, netuid, mecid, commit, reveal_round, commit_reveal_version):
        uid = self.may_set(signer, commit=True)
        self.state['commits'].append((signer, self.head, commit, reveal_round))
        self.state['last'][uid] = self.head
