"""What somebody who can write to a bucket may try, and with which reason a reader refuses it; on folders and on S3 servers."""
import numpy as np
import pytest
import torch
from bittensor_core import Keypair
from safetensors.torch import save

from grail.core.basics import FormatError, NotFound, SignatureError, canonical_json, parse_json, sha256
from grail.core.params import profile
from grail.network.beacon import LocalBeacon, open_randomness
from grail.network.chain import LocalChain, VirtualClock
from grail.network.exchange import LABEL, file_key, load_checkpoint, manifest_key, publish_checkpoint, submission_key
from grail.network.exchange import fetch_submission, publish_submission
from grail.network.store import FolderStore
from grail.protocol.rollout import Rollout, seal
from grail.protocol.signature import sign

ADA, EVE, TOM = (Keypair.create_from_uri(f'//{n}') for n in ('Ada', 'Eve', 'Tom'))
PARAMS = profile('tiny')

def shards(seed):
    "A model in two files of the same size"
    g = torch.Generator().manual_seed(seed)
    return {f'model-0000{i}-of-00002.safetensors': save({f'w{i}': torch.randn(2000, generator=g).bfloat16()}) for i in (1, 2)}

@pytest.fixture
def published(store):
    "Checkpoints of two windows, the second with its files whole"
    first = publish_checkpoint(store, shards(0), TOM, 30, '', PARAMS)
    return first, publish_checkpoint(store, shards(1), TOM, 60, first.digest, PARAMS)

def load(store, window=60, cache=None, parent=None): return load_checkpoint(store, window, TOM.ss58_address, cache, parent=parent)
def manifest(store, window=60): return parse_json(store.get(manifest_key(window), limit=10**6), limit=10**6)
def replace(store, d, window=60): store.put(manifest_key(window), canonical_json(d))


# ---- checkpoints

def test_a_forged_manifest_is_refused(store, published):
    good = manifest(store)
    assert load(store).files == shards(1)
    forgeries = dict(weights='0'*64, parent='1'*64, trainer=EVE.ss58_address, info={'step': 9}, window=90,
                     files={n: dict(f, sha256=published[0].manifest['files'][n]['sha256']) for n,
                            f in good['manifest']['files'].items()},
                     params={**good['manifest']['params'], 'audit_min': 0})
    for field, value in forgeries.items():
        replace(store, dict(good, manifest={**good['manifest'], field: value}))
        with pytest.raises(SignatureError, match='has not signed this checkpoint'): load(store)

@pytest.mark.parametrize('signature', ['of another key', 'for another purpose', 'of another manifest', 'empty', 'cut', 'missing'])
def test_a_wrong_signature_is_refused(store, published, signature):
    good = manifest(store)
    data = canonical_json(good['manifest'])
    made = {'of another key': lambda: sign(EVE, LABEL, data), 'for another purpose': lambda: sign(TOM, 'submission', data),
            'of another manifest': lambda: manifest(store, 30)['signature'], 'empty': lambda: '',
            'cut': lambda: good['signature'][:-2]}
    replace(store, {**good, 'signature': made[signature]()} if signature in made else dict(manifest=good['manifest']))
    why = {'empty': '128 hexadecimal', 'cut': '128 hexadecimal',
           'missing': 'no signed manifest'}.get(signature, 'has not signed this checkpoint')
    with pytest.raises(FormatError, match=why): load(store)

def test_a_swapped_shard_is_refused(store, published, tmp_path):
    keys = [file_key(f['sha256']) for f in published[1].manifest['files'].values()]
    one, two = (store.get(k, limit=10**6) for k in keys)
    assert len(one) == len(two) and one != two                                # so the size does not tell
    store.put(keys[0], two)
    store.put(keys[1], one)
    for cache in (None, tmp_path/'cache'):
        with pytest.raises(FormatError, match='has other content'): load(store, cache=cache)
    assert not (tmp_path/'cache').exists() or not list((tmp_path/'cache').iterdir())
    old = [file_key(f['sha256']) for f in published[0].manifest['files'].values()]
    store.put(keys[0], store.get(old[0], limit=10**6))                        # or the same shard of the window before
    store.put(keys[1], two)
    with pytest.raises(FormatError, match='has other content'): load(store)

def test_a_rolled_back_checkpoint_is_refused(store, published):
    store.put(manifest_key(60), store.get(manifest_key(30), limit=10**6))     # signed by the trainer, and old
    with pytest.raises(FormatError, match='is for window 30, not 60'): load(store)

def test_a_checkpoint_that_goes_on_from_another_one_is_refused(store, published):
    other = publish_checkpoint(store, shards(2), TOM, 90, published[0].digest, PARAMS)     # skips what was published in 60
    assert load(store, 90).digest == other.digest
    with pytest.raises(FormatError, match='does not continue'): load(store, 90, parent=published[1].digest)


# ---- time

class World:
    "A chain, a beacon and a bucket on one virtual clock"
    def __init__(self, path):
        self.clock  = VirtualClock(1_700_000_000)
        self.chain  = LocalChain(path/'chain.db', self.clock, seed='test')
        self.beacon = LocalBeacon(b'test', self.clock, self.chain.genesis_time)
        self.store  = FolderStore(path/'bucket', self.clock)
    def at(self, block, plus=0.): self.clock.advance_to(self.chain.expected_time(block) + plus)
    def sealed(self, groups=1):
        rows = [Rollout(g, i, np.arange(12, dtype=np.int32) % 10, 7, np.full(5, -.5, np.float32), np.arange(5, dtype=np.uint32),
                        0., False)
                for g in range(groups) for i in range(16)]
        return seal(rows, ADA, 30, sha256(b'checkpoint'), PARAMS, open_randomness(self.chain, self.beacon, 30))
    def fetch(self): return fetch_submission(self.store, self.chain, ADA.ss58_address, 30, PARAMS)

@pytest.fixture
def world(tmp_path):
    w = World(tmp_path)
    w.at(30)
    yield w
    w.chain.close()

@pytest.mark.parametrize('what', ['header', 'body', 'both', 'both, other content'])
def test_an_object_replaced_after_the_deadline_is_refused(world, what):
    header, body = world.sealed()
    publish_submission(world.store, ADA.ss58_address, 30, header, body)
    world.at(60, PARAMS.grace_seconds + 1)
    assert world.fetch().body == body
    if 'other' in what: header, body = world.sealed(groups=2)
    if what != 'header': world.store.put(submission_key(30, ADA.ss58_address, f'{sha256(body)}.parquet'), body)
    if what != 'body': world.store.put(submission_key(30, ADA.ss58_address), header)
    with pytest.raises(FormatError, match='after the deadline of window 30'): world.fetch()

def test_a_checkpoint_replaced_after_its_window_counts_as_none(world):
    publish_checkpoint(world.store, shards(0), TOM, 30, '', PARAMS)
    load = lambda: load_checkpoint(world.store, 30, TOM.ss58_address, chain=world.chain)
    world.at(60, 1)
    assert load().files == shards(0)
    world.store.delete(manifest_key(30))
    publish_checkpoint(world.store, shards(1), TOM, 30, '', PARAMS)           # the trainer itself, with its key
    with pytest.raises(NotFound, match='1.0 s after its end'): load()
