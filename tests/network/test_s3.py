"""S3 over a network that fails, with keys that may not do everything, and strangers' buckets."""
import hashlib
import logging
import os
import sys
import time
from datetime import datetime, timezone

import pytest
from bittensor_core import Keypair

from grail.core.basics import ConfigError, FormatError, LimitError, NotFound, sha256
from grail.core.params import profile
from grail.network.chain import Unavailable
from grail.network.exchange import load_checkpoint, publish_checkpoint
from grail.network.s3 import Access, Forbidden, S3Buckets, S3Store, check_access
from grail.network.store import Exists
from network.conftest import free_port, s3, serve
from network.faults import Faults

TOM = Keypair.create_from_uri('//Tom')
FAST = dict(timeout=3, tries=8, part=5 << 20)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    "Pauses between tries are for real networks"
    import botocore.retries.standard as standard
    monkeypatch.setattr(standard.ExponentialBackoff, 'delay_amount', lambda self, context: .01)
    pause = time.sleep
    monkeypatch.setattr('grail.network.s3.time', type('T', (), dict(sleep=staticmethod(lambda s: pause(min(s, .01))))))

@pytest.fixture
def proxy(moto):
    with Faults(moto) as p: yield p

def through(proxy, **kw):
    "A bucket that is reached through the proxy"
    share, proxy.share = proxy.share, 0
    store = s3(proxy.url, **{**FAST, **kw})
    proxy.share = share
    return store


@pytest.mark.parametrize('kind', ['status', 'cut', 'drop', 'lost'])
def test_a_fifth_of_all_requests_may_fail(proxy, kind, tmp_path):
    proxy.share, proxy.kinds = .2, [kind]
    store = through(proxy)
    for i in range(6):
        data = os.urandom(50_000)
        store.put(f'k/{i}', data, if_absent=True)
        assert store.get(f'k/{i}') == data
        assert store.fetch(f'k/{i}', tmp_path/'f').digest == sha256(data)
        with pytest.raises(Exists): store.put(f'k/{i}', b'other', if_absent=True)
        store.delete(f'k/{i}') if i % 2 else None
    assert [s.key for s in store.list('k/')] == ['k/0', 'k/2', 'k/4']
    assert sum(k is not None for _, _, k in proxy.log) > 3

def test_a_large_object_gets_through_faults_in_parts(proxy, tmp_path):
    proxy.share, proxy.kinds = .2, ['status', 'cut', 'drop', 'lost']
    store, data = through(proxy), os.urandom(17 << 20)
    (tmp_path/'f').write_bytes(data)
    for source in (data, tmp_path/'f'):
        assert store.put('large', source).digest == sha256(data)
        assert store.fetch('large', tmp_path/'g').digest == sha256(data)
        assert (tmp_path/'g').read_bytes() == data

def test_a_conditional_put_whose_answer_was_lost_has_succeeded(proxy):
    store = through(proxy)
    seen = []
    def choose(h):
        seen.append(h.command)
        return 'lost' if h.command == 'PUT' and seen.count('PUT') == 1 else None
    proxy.choose = choose
    assert store.put('mark', b'mine', if_absent=True).digest == sha256(b'mine')
    assert seen.count('PUT') == 2 and store.get('mark') == b'mine'

def test_a_conditional_put_that_was_retried_is_not_taken_for_anothers(proxy, moto):
    store = through(proxy)
    other = S3Store(store.bucket, f'http://127.0.0.1:{moto}', 'k', 's', region='us-east-1')
    seen = []
    def choose(h):
        seen.append(h.command)
        if h.command == 'PUT' and seen.count('PUT') == 1:
            other.put('mark', b'theirs')                                 # while our first request is on its way
            return 'status'
    proxy.choose = choose
    with pytest.raises(Exists): store.put('mark', b'mine', if_absent=True)
    assert store.get('mark') == b'theirs'

@pytest.mark.parametrize('kind', ['status', 'drop', 'cut', 'late'])
def test_a_store_that_stays_down_is_unavailable_never_not_found(proxy, kind, tmp_path):
    store = through(proxy, tries=2, timeout=.3)
    proxy.share = 0
    store.put('a', b'12345678')
    proxy.share, proxy.kinds, proxy.delay = 1., [kind], 1.
    verbs = [lambda: store.get('a'), lambda: store.fetch('a', tmp_path/'f')]
    if kind != 'cut': verbs += [lambda: store.head('a'), lambda: store.list(), lambda: store.put('b', b''),
                                lambda: store.delete('a')]
    for f in verbs:
        with pytest.raises(Unavailable): f()

def test_a_body_that_is_cut_and_called_whole_is_noticed(proxy):
    store = through(proxy)
    store.put('a', b'12345678')
    seen = []
    def choose(h):
        seen.append(h.command)
        return 'lie' if h.command == 'GET' and seen.count('GET') == 1 else None
    proxy.choose = choose
    assert store.get('a') == b'12345678' and seen.count('GET') == 2       # asked once more
    proxy.choose = lambda h: 'lie' if h.command == 'GET' else None
    with pytest.raises(FormatError, match='digest differs'): store.get('a')

def test_an_object_that_is_replaced_during_a_parallel_download_is_never_mixed(proxy, moto, tmp_path):
    store = through(proxy)
    old, new = os.urandom(16 << 20), os.urandom(16 << 20)
    store.put('a', old)
    other, seen = S3Store(store.bucket, f'http://127.0.0.1:{moto}', 'k', 's', region='us-east-1'), []
    def choose(h):
        with proxy.lock:
            seen.append(h.command)
            if h.command == 'GET' and seen.count('GET') == 2: other.put('a', new)
    proxy.choose = choose
    assert store.fetch('a', tmp_path/'f').digest == sha256(new)
    assert (tmp_path/'f').read_bytes() == new

def test_a_digest_that_its_owner_made_up_is_refused(moto, tmp_path):
    store = s3(moto, **FAST)
    store.client.put_object(Bucket=store.bucket, Key='a', Body=b'12345678', Metadata={'sha256': sha256(b'something else')})
    store.client.put_object(Bucket=store.bucket, Key='b', Body=b'12345678', Metadata={'sha256': '../../x'})
    for f in (lambda: store.get('a'), lambda: store.fetch('a', tmp_path/'f')):
        with pytest.raises(FormatError): f()
    assert store.head('b').digest == '' and store.get('b') == b'12345678'

def test_a_listing_has_all_pages_and_leaves_out_names_that_are_no_keys(moto, monkeypatch):
    store = s3(moto, **FAST)
    put = lambda k: store.client.put_object(Bucket=store.bucket, Key=k, Body=b'')
    for i in range(25): put(f'a/{i:02d}')
    for k in ('a/../b', '/a', 'a//b', 'a/.x', 'ä', 'a b'): put(k)
    ask = store._ask_bucket
    pages = []
    def small(verb, writing=False, **kw):
        pages.append(kw)
        return ask(verb, writing, MaxKeys=10, **kw)
    monkeypatch.setattr(store, '_ask_bucket', small)
    assert [s.key for s in store.list()] == [f'a/{i:02d}' for i in range(25)] and len(pages) == 4
    monkeypatch.setattr('grail.network.s3.MAX_LISTING', 20)
    with pytest.raises(LimitError, match='more than 20'): store.list()

def test_a_bucket_that_is_not_there_is_empty_for_readers_and_a_mistake_for_its_owner(moto):
    store = S3Store('no-such-bucket', f'http://127.0.0.1:{moto}', 'k', 's', region='us-east-1', tries=1)
    for f in (lambda: store.get('a'), lambda: store.head('a'), lambda: store.list()):
        with pytest.raises(NotFound): f()
    with pytest.raises(ConfigError, match='is there such a bucket'): store.put('a', b'')

def test_an_upload_that_fails_in_the_middle_leaves_nothing_visible(proxy):
    store = through(proxy, tries=2)
    store.put('a', b'old')
    proxy.choose = lambda h: 'status' if 'partNumber=3' in h.path else None
    with pytest.raises(Unavailable): store.put('a', os.urandom(17 << 20))
    assert store.get('a') == b'old' and not store.client.list_multipart_uploads(Bucket=store.bucket).get('Uploads')

def test_a_forked_process_has_connections_of_its_own(moto):
    import multiprocessing as mp
    store = s3(moto, **FAST)
    store.put('a', b'1')
    fork = mp.get_context('fork')
    p = fork.Process(target=lambda: [store.put('b', b'2') for _ in range(5)])
    p.start()
    for _ in range(5): assert store.get('a') == b'1'
    p.join(30)
    assert p.exitcode == 0 and store.get('b') == b'2'

def test_the_time_is_the_servers(moto, monkeypatch):
    store = s3(moto, **FAST)
    monkeypatch.setattr(time, 'time', lambda: 0.)                          # ours is wrong
    now = datetime.now(timezone.utc).timestamp()
    assert abs(store.put('a', b'').modified - now) < 3


# ---- keys

KEY, SECRET = 'b'*32, hashlib.sha256(b'writes').hexdigest()

@pytest.fixture(scope='module')
def nanio(tmp_path_factory):
    "Port of a server that checks signatures, and that does not know conditional puts"
    port = free_port()
    env = dict(os.environ, NANIO_ACCESS_KEY=KEY, NANIO_SECRET_KEY=SECRET)
    command = [sys.executable, '-m', 'nanio', 'serve', '--host', '127.0.0.1', '--port', str(port), '--data-dir',
               str(tmp_path_factory.mktemp('nanio'))]
    yield from serve(command, port, env)

def test_a_wrong_secret_is_the_operators_mistake_when_writing_and_an_empty_bucket_when_reading(nanio):
    url = f'http://127.0.0.1:{nanio}'
    good = S3Store('a'*32, url, KEY, SECRET, region='us-east-1', **FAST)
    good.make()
    good.put('a', b'1')
    for key, secret in ((KEY, 'c'*64), ('d'*32, SECRET)):
        bad = S3Store('a'*32, url, key, secret, region='us-east-1', **FAST)
        for f in (lambda: bad.get('a'), lambda: bad.head('a'), lambda: bad.list()):
            with pytest.raises(Forbidden): f()
        with pytest.raises(ConfigError, match='may not write'): bad.put('a', b'2')
    assert good.get('a') == b'1'

def test_a_server_without_conditional_puts_is_found_out_and_survived(nanio, moto):
    store = S3Store('b'*32, f'http://127.0.0.1:{nanio}', KEY, SECRET, region='us-east-1', **FAST)
    store.make()
    assert not store.conditional() and s3(moto, **FAST).conditional()
    store.put('mark', b'1', if_absent=True)
    with pytest.raises(Exists): store.put('mark', b'2', if_absent=True)
    assert store.get('mark') == b'1'

def test_two_keys_to_a_bucket_are_checked(moto, nanio):
    own, read = Access('e'*32, '1'*32, '2'*64), Access('e'*32, '3'*32, '4'*64)
    with Faults(moto) as proxy:
        S3Store(own.account, proxy.url, 'k', 's', region='us-east-1').make()
        check = lambda: check_access(own, read, proxy.url, region='us-east-1', **FAST)
        assert [p for p in check() if 'everybody could' in p]                          # moto does not look at keys
        proxy.deny = lambda h: read.key_id in h.headers.get('Authorization', '') and h.command != 'GET'
        assert check() == []
        proxy.deny = lambda h: read.key_id in h.headers.get('Authorization', '')
        assert check() == ['the key that should read does not']
        proxy.deny = lambda h: h.command == 'PUT'
        assert len(check()) == 1 and 'should write does not' in check()[0]
        assert not S3Store(own.account, proxy.url, 'k', 's', region='us-east-1').list()     # the probes are gone
    assert check_access(own, Access('f'*32, '3'*32, '4'*64)) == ['the two keys are for different buckets']
    n = Access('a'*32, KEY, SECRET)
    S3Store(n.account, f'http://127.0.0.1:{nanio}', KEY, SECRET, region='us-east-1').make()
    assert any('told not to' in p for p in check_access(n, n, f'http://127.0.0.1:{nanio}', region='us-east-1', **FAST))

def test_secrets_are_in_no_repr_error_or_log(moto, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    own = Access('a'*32, 'b'*32, SECRET)
    store = S3Store('bucket-secrets', f'http://127.0.0.1:{moto}', own.key_id, SECRET, region='us-east-1', tries=1)
    store.make()
    store.put('a', b'1'); store.get('a'); store.list()
    said = [repr(own), str(own), repr(store), repr(S3Buckets(own).bucket(own.commitment())), repr(store.readonly())]
    for bad in (lambda: store.get('nothing'), lambda: S3Store('b'*10, 'http://127.0.0.1:9', own.key_id, SECRET, tries=1,
                                                              timeout=.2).get('a'),
                lambda: Access('a'*32, 'b'*32, SECRET + 'x'), lambda: Access(SECRET, 'b'*32, SECRET),
                lambda: Access.from_commitment(SECRET*2 + 'x'),
                lambda: Access.from_commitment('G' + SECRET + SECRET[1:])):
        with pytest.raises(Exception) as e: bad()
        said += [str(e.value), repr(e.value)]
    out = capsys.readouterr()
    said += [r.getMessage() for r in caplog.records] + [out.out, out.err]
    assert len(caplog.records) > 10 and not [s for s in said if SECRET in s or SECRET[:20] in s]

def test_a_strangers_commitment_chooses_no_host():
    buckets = S3Buckets()
    for text in ('evil.example.com'.ljust(128, '0'), '127.0.0.1:80/'.ljust(128, 'a'), '{account}'.ljust(128, 'a'), 'a'*127 + '\n',
                 'ａ'*128):
        with pytest.raises(FormatError): buckets.bucket(text)
    ok = buckets.bucket('a'*128)
    assert ok.endpoint == f'https://{"a"*32}.r2.cloudflarestorage.com' and not ok.writable

def test_our_own_bucket_opens_with_the_key_that_writes(moto):
    own, read = Access('c'*32, '1'*32, '2'*64), Access('c'*32, '3'*32, '4'*64)
    buckets = S3Buckets(own, f'http://127.0.0.1:{moto}', region='us-east-1')
    mine = buckets.bucket(read.commitment())
    mine.make()
    mine.put('a', b'1')
    theirs = S3Buckets(None, f'http://127.0.0.1:{moto}', region='us-east-1').bucket(read.commitment())
    assert theirs.get('a') == b'1'
    with pytest.raises(ConfigError): theirs.put('b', b'')


# ---- the exchange on it

def test_a_checkpoint_travels_over_a_bad_network(proxy, tmp_path):
    proxy.share, proxy.kinds = .15, ['status', 'cut', 'lost']
    store = through(proxy)
    last, files = None, {'model.safetensors': os.urandom(6 << 20), 'config.json': b'{}'}
    for w in (30, 60): last = publish_checkpoint(store, files, TOM, w, last.digest if last else '', profile('tiny'))
    assert load_checkpoint(store, 60, TOM.ss58_address, tmp_path).files == files
    assert len(store.list('checkpoints/files/')) == 2
