"""One contract for every store, and what only a folder can suffer."""
import errno
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grail.core.basics import FormatError, GrailError, LimitError, NotFound, sha256
from grail.network import store as store_module
from grail.network.chain import RealClock, Unavailable, VirtualClock
from grail.network.store import Buckets, Exists, FolderStore, check_key


# ---- the contract

def test_what_was_put_can_be_got(store, tmp_path):
    for data in (b'', b'x', os.urandom(100_000), b'\x00'*3_000_000, os.urandom(13 << 20)):
        s = store.put('a/b', data)
        assert (s.key, s.size, s.digest) == ('a/b', len(data), sha256(data))
        assert store.get('a/b') == data
        h = store.head('a/b')
        assert h.size == len(data) and h.digest in (sha256(data), '') and abs(h.modified - s.modified) < 2     # '': not known
        assert store.fetch('a/b', tmp_path/'copy').digest == sha256(data)
        assert (tmp_path/'copy').read_bytes() == data

def test_a_file_can_be_put(store, tmp_path):
    (tmp_path/'f').write_bytes(data := os.urandom(3_000_000))
    assert store.put('f', tmp_path/'f').digest == sha256(data)
    assert store.get('f') == data

def test_the_time_is_the_stores_and_a_replacement_is_newer(store):
    before = time.time()
    first = store.put('a', b'1').modified
    assert before - 1.1 <= first <= time.time() + .1
    time.sleep(1.1)
    assert store.put('a', b'1').modified > first
    assert store.head('a').modified > first

def test_what_is_not_there_is_not_found(store):
    store.put('a/b', b'')
    for key in ('x', 'a', 'a/x'):
        for f in (store.get, store.head):
            with pytest.raises(NotFound): f(key)
    store.delete('x')

def test_a_limit_is_kept_before_anything_is_read(store, tmp_path):
    store.put('a', b'12345')
    assert store.get('a', limit=5) == b'12345'
    for n in (0, 4):
        with pytest.raises(LimitError): store.get('a', limit=n)
        with pytest.raises(LimitError): store.fetch('a', tmp_path/'f', limit=n)
        assert not (tmp_path/'f').exists()

def test_a_conditional_put_makes_and_never_replaces(store):
    store.put('a', b'1', if_absent=True)
    with pytest.raises(Exists): store.put('a', b'2', if_absent=True)
    assert store.get('a') == b'1'
    store.put('a', b'3')
    assert store.get('a') == b'3'
    store.delete('a')
    store.put('a', b'4', if_absent=True)
    assert store.get('a') == b'4'

def test_of_many_who_make_one_object_at_once_one_succeeds(store):
    won, start = [], threading.Barrier(8)
    def one(i):
        start.wait()
        try: won.append((i, store.put('mark', b'%d' % i, if_absent=True)))
        except Exists: pass
    ts = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for t in ts: t.start()
    for t in ts: t.join()
    assert len(won) == 1
    assert store.get('mark') == b'%d' % won[0][0]

def test_listing_is_by_prefix_in_order_and_complete(store):
    keys = sorted(f'{a}/{b:03d}/x' for a in 'ab' for b in range(6)) + ['c']
    for k in random.Random(0).sample(keys, len(keys)): store.put(k, k.encode())
    assert [s.key for s in store.list()] == keys
    assert [s.key for s in store.list('a/')] == keys[:6]
    assert [s.key for s in store.list('a/00')] == keys[:6]
    assert [s.key for s in store.list('b/003')] == ['b/003/x']
    assert store.list('zzz') == store.list('c/') == []
    assert all(s.size == len(s.key) and time.time() - 60 < s.modified < time.time() + 2 for s in store.list())
    store.delete('c')
    assert [s.key for s in store.list()] == keys[:-1]

BAD = ['', '/', '/a', 'a/', 'a//b', '..', '../a', 'a/../b', './a', 'a/./b', '.a', 'a/.tmp', 'a\\b', 'a\x00b', 'a\n', 'é', 'a b',
       'a/b?x', 'a#b', 'x'*513, None, 7, b'a']

def test_a_key_that_is_none_is_refused_by_all_verbs(store, tmp_path):
    for key in BAD:
        for f in (store.get, store.head, store.delete, lambda k: store.put(k, b'x'), lambda k: store.fetch(k, tmp_path/'f')):
            with pytest.raises(FormatError): f(key)
        if isinstance(key, str) and key not in ('', 'a/'):
            with pytest.raises(FormatError): store.list(key)
    assert store.list() == []

def test_a_read_only_view_can_not_change_anything(store):
    store.put('a', b'1')
    view = store.readonly()
    assert view.get('a') == b'1'
    for f in (lambda: view.put('a', b'2'), lambda: view.put('b', b'2', if_absent=True), lambda: view.delete('a')):
        with pytest.raises(GrailError): f()
    assert store.get('a') == b'1'

def test_readers_see_the_old_or_the_new_object_never_a_mixture(store):
    stop, bad = threading.Event(), []
    bodies = [bytes([i])*(200_000 + i) for i in range(4)]
    store.put('a', bodies[0])
    def read():
        while not stop.is_set():
            data = store.get('a')
            if data not in bodies: bad.append(len(data))
    t = threading.Thread(target=read)
    t.start()
    for i in range(40): store.put('a', bodies[i % 4])
    stop.set()
    t.join()
    assert not bad


# ---- keys

@given(st.text(max_size=20))
def test_a_key_is_accepted_or_refused_and_never_leaves_the_folder(tmp_path_factory, key):
    try: check_key(key)
    except FormatError: return
    root = tmp_path_factory.getbasetemp().resolve()
    assert (root/key).resolve().is_relative_to(root) and (root/key).resolve() != root


# ---- a folder, its processes and its disk

def run(code, *args):
    return subprocess.Popen([sys.executable, '-c', code, *map(str, args)], stdout=subprocess.PIPE, text=True)

RACE = '''
import sys, time
from grail.network.store import FolderStore, Exists
from grail.network.chain import RealClock
s = FolderStore(sys.argv[1], RealClock())
print('ready', flush=True)
time.sleep(max(0, float(sys.argv[3]) - time.time()))
for i in range(50):
    try: s.put(f'mark/{i}', sys.argv[2].encode(), if_absent=True); print(i)
    except Exists: pass
'''

def test_of_many_processes_that_make_one_object_one_succeeds(tmp_path):
    ps = [run(RACE, tmp_path/'b', n, time.time() + 2) for n in 'xyz']
    won = {n: [int(i) for i in p.communicate(timeout=60)[0].split()[1:]] for n, p in zip('xyz', ps)}
    assert sorted(sum(won.values(), [])) == list(range(50))
    store = FolderStore(tmp_path/'b', RealClock())
    for n, marks in won.items(): assert all(store.get(f'mark/{i}') == n.encode() for i in marks)
    assert not list((tmp_path/'b/.tmp').iterdir())

WRITE = '''
import hashlib, os, random, sys
from grail.network.store import FolderStore
from grail.network.chain import VirtualClock
s, r = FolderStore(sys.argv[1], VirtualClock(1234.5)), random.Random(int(sys.argv[2]))
print('ready', flush=True)
while True:
    body = os.urandom(r.randrange(2_000_000))
    s.put(f'k/{r.randrange(5)}', hashlib.sha256(body).digest() + body)
'''

@pytest.mark.parametrize('seed', range(4))
def test_a_writer_that_is_killed_leaves_only_whole_objects(tmp_path, seed):
    p = run(WRITE, tmp_path/'b', seed)
    p.stdout.readline()
    time.sleep(random.Random(seed).uniform(.05, .4))
    p.send_signal(signal.SIGKILL)
    p.wait()
    store = FolderStore(tmp_path/'b', RealClock())
    for s in store.list():
        data = store.get(s.key)
        assert data[:32].hex() == sha256(data[32:])
        assert s.modified == 1234.5 and store.head(s.key).digest == sha256(data)
    store.sweep(0)
    assert not list((tmp_path/'b/.tmp').iterdir())

def test_without_extended_attributes_no_digest_is_noted(tmp_path, monkeypatch):
    def refuse(*a, **k): raise OSError(errno.ENOTSUP, 'no such thing here')
    monkeypatch.setattr(os, 'setxattr', refuse, raising=False)
    store = FolderStore(tmp_path/'b', RealClock())
    assert store.put('a', b'1').digest == sha256(b'1') and store.head('a').digest == store.list()[0].digest == ''
    assert store.get('a') == b'1' and store.fetch('a', tmp_path/'f').size == 1

def test_a_full_disk_is_unavailable_and_leaves_the_old_object(tmp_path, monkeypatch):
    store = FolderStore(tmp_path/'b', RealClock())
    store.put('a', b'old')
    def full(fd): raise OSError(errno.ENOSPC, 'No space left on device')
    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(Unavailable, match='No space'): store.put('a', b'new')
    with pytest.raises(Unavailable): store.put('b', b'new', if_absent=True)
    monkeypatch.undo()
    assert store.get('a') == b'old' and [s.key for s in store.list()] == ['a']
    assert not list((tmp_path/'b/.tmp').iterdir())

def test_times_survive_a_copy_that_keeps_them(tmp_path):
    import shutil
    clock = VirtualClock(1_700_000_000.123457)
    FolderStore(tmp_path/'b', clock).put('x/y', b'1')
    shutil.copytree(tmp_path/'b', tmp_path/'c')
    assert FolderStore(tmp_path/'c', RealClock()).head('x/y').modified == clock.now()

@given(st.floats(min_value=1, max_value=4e9))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_time_comes_back_to_the_microsecond(tmp_path, t):
    clock = VirtualClock(t)
    s = FolderStore(tmp_path/'b', clock).put('a', b'')
    assert s.modified == round(t*1e6)/1e6 and abs(s.modified - t) <= 1e-6

def test_a_rollback_forgets_what_came_after_in_all_buckets(tmp_path):
    clock = VirtualClock(100)
    b = Buckets(tmp_path, clock)
    for n in ('ada', 'bob'): b.bucket(n).put('old', b'1')
    clock.advance_to(200)
    b.bucket('ada').put('new', b'1')
    assert b.rollback(100) == 1 and b.rollback(100) == 0
    assert [s.key for n in b.names() for s in b.bucket(n).list()] == ['old', 'old']

def test_a_folder_that_is_not_there_is_an_empty_bucket(tmp_path):
    s = FolderStore(tmp_path/'none', RealClock())
    assert s.list() == []
    with pytest.raises(NotFound): s.head('a')
    s.delete('a')
    assert not (tmp_path/'none').exists()


# ---- a folder that a stranger writes

def strange(root, kind):
    "Put something that is no regular file where the object `a/b` would be"
    root.mkdir(parents=True)
    (root.parent/'secret').mkdir()
    (root.parent/'secret/b').write_bytes(b'the reader may read this, the writer may not')
    if kind == 'link to a folder':
        os.symlink(root.parent/'secret', root/'a')
        return
    (root/'a').mkdir()
    if kind == 'link': os.symlink(root.parent/'secret/b', root/'a/b')
    if kind == 'relative link': os.symlink('../../secret/b', root/'a/b')
    if kind == 'dangling link': os.symlink('nowhere', root/'a/b')
    if kind == 'link to itself': os.symlink('b', root/'a/b')
    if kind == 'device': os.symlink('/dev/zero', root/'a/b')
    if kind == 'pipe': os.mkfifo(root/'a/b')
    if kind == 'socket':
        with socket.socket(socket.AF_UNIX) as s:
            here = os.getcwd()
            os.chdir(root/'a')                     # a socket's path is short
            try: s.bind('b')
            finally: os.chdir(here)
    if kind == 'folder': (root/'a/b').mkdir()

STRANGE = ['link', 'relative link', 'dangling link', 'link to itself', 'device', 'pipe', 'socket', 'folder', 'link to a folder']

@pytest.mark.parametrize('kind', STRANGE)
def test_only_regular_files_are_opened_and_nothing_waits(tmp_path, kind):
    strange(tmp_path/'b', kind)
    store, open_files = FolderStore(tmp_path/'b', RealClock()), len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc') else 0
    said = []
    def read():
        for f in (store.get, lambda k: store.get(k, limit=100), store.head, lambda k: store.fetch(k, tmp_path/'out', limit=100)):
            try: said.append(f('a/b'))
            except (NotFound, FormatError) as e: said.append(e)
        said.append(store.list())
    t = threading.Thread(target=read, daemon=True)
    t.start()
    t.join(10)
    assert not t.is_alive() and len(said) == 5
    assert all(isinstance(x, GrailError) for x in said[:4]) and said[4] == [] and not (tmp_path/'out').exists()
    if open_files: assert len(os.listdir('/proc/self/fd')) == open_files

@pytest.mark.parametrize('kind', [k for k in STRANGE if k not in ('folder', 'link to a folder')])
def test_what_is_no_regular_file_can_be_replaced_and_deleted(tmp_path, kind):
    strange(tmp_path/'b', kind)
    store = FolderStore(tmp_path/'b', RealClock())
    with pytest.raises(Exists): store.put('a/b', b'mine', if_absent=True)
    store.put('a/b', b'mine')
    assert store.get('a/b') == b'mine' and (tmp_path/'secret/b').read_bytes().startswith(b'the reader')
    store.delete('a/b')
    assert store.list() == []

def test_a_huge_object_costs_nothing_to_look_at_or_to_refuse(tmp_path):
    store = FolderStore(tmp_path/'b', RealClock())
    store.put('a', b'')
    (tmp_path/'b/a').unlink()
    with open(tmp_path/'b/a', 'wb') as f: f.truncate(1 << 40)                  # a hole of a terabyte, no digest noted
    start = time.perf_counter()
    assert store.head('a').size == store.list()[0].size == 1 << 40 and store.head('a').digest == ''
    for f in (lambda: store.get('a', limit=1000), lambda: store.fetch('a', tmp_path/'f', limit=1000)):
        with pytest.raises(LimitError): f()
    assert time.perf_counter() - start < 5

def test_a_file_that_grows_while_it_is_read_is_read_to_one_byte_after_its_end(tmp_path, monkeypatch):
    store = FolderStore(tmp_path/'b', RealClock())
    store.put('a', b'x'*100)
    plain, read = store_module._marked, []
    def grows(f):
        found = plain(f)
        with open(tmp_path/'b/a', 'ab') as g: g.truncate(1 << 40)
        return found
    monkeypatch.setattr(store_module, '_marked', grows)
    for f in (lambda: store.get('a', limit=100), lambda: store.fetch('a', tmp_path/'f', limit=100)):
        with open(tmp_path/'b/a', 'r+b') as g: g.truncate(100)
        with pytest.raises(FormatError, match='in its place'): f()
    assert (tmp_path/'f').stat().st_size <= 101

@pytest.mark.skipif(not hasattr(os, 'setxattr'), reason='no extended attributes')
@pytest.mark.parametrize('note', [b'', b'\xff\xfe', b'x'*64, b'A'*64, b'a'*63, b'\xed\xa0\x80'])
def test_a_digest_that_is_none_counts_as_not_noted(tmp_path, note):
    store = FolderStore(tmp_path/'b', RealClock())
    store.put('a', b'1')
    try: os.setxattr(tmp_path/'b/a', store_module.ATTRIBUTE, note)
    except OSError: pytest.skip('no extended attributes here')
    assert store.head('a').digest == '' and store.get('a') == b'1'

def test_files_that_no_key_can_name_are_not_listed(tmp_path):
    store = FolderStore(tmp_path/'b', RealClock())
    store.put('a', b'1')
    for name in (b'.hidden', b'a b', b'\xff', b'x\n', 'é'.encode()):
        open(os.path.join(os.fsencode(tmp_path/'b'), name), 'wb').close()
    assert [s.key for s in store.list()] == ['a']
