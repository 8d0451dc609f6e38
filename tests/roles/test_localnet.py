"""Roles as real processes, over HTTP, in real time: they stop when told, go on where they were, and outlive what the world does to them.

One short network is part of `make test`; the disturbances take minutes each and are marked slow."""
import importlib.util
import json
import os
import random
import re
import signal
import socket
import sqlite3
import struct
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from grail.core.window import Window
from grail.monitor.metrics import read_metrics
from grail.roles.localnet import Localnet, LocalnetSettings, free_port, row_text
from grail.roles.simulate import lock

pytest.importorskip('moto', reason='the extra localnet is not installed')

spec = importlib.util.spec_from_file_location('faults', Path(__file__).parent.parent/'network'/'faults.py')
faults = importlib.util.module_from_spec(spec)
spec.loader.exec_module(faults)


def until(net, condition, seconds):
    "Supervise until `condition(net)` or time is up; did it come true?"
    end = time.time() + seconds
    while time.time() < end:
        if condition(net): return True
        net.watch(time.time() + 1)
    return bool(condition(net))

def complete(n, after=0): return lambda net: sum(r['complete'] and r['window'] >= after for r in net.story()) >= n

def window_now(net): return int(Window.of(net.chain.block()))

def assert_nothing_is_damaged(net):
    "Every file that a role keeps can be read, the chain is whole, and no honest miner has failed"
    for name in net.s.roles:
        for line in read_metrics(net.out/name/'metrics.jsonl'): assert type(line['window']) is int
        state = json.loads((net.out/name/'state.json').read_bytes())
        if name.startswith('validator'):
            assert sum(state.get('ledger', {}).get('failures', {}).values()) == 0, state['ledger']
            assert not state.get('ledger', {}).get('bans')
        if name == 'trainer': assert (net.out/name/state['folder']/'trainer.json').exists()
        assert 'unexpected' not in (net.out/f'{name}.log').read_text(), f'{name} met an error that nobody expected'
    with sqlite3.connect(net.out/'chain.db') as con: assert con.execute('pragma integrity_check').fetchone() == ('ok',)
    assert all(r['failed'] == 0 for r in net.story())

def assert_recovered(net, after, seconds=150):
    assert until(net, complete(1, after), seconds), 'no complete window after the disturbance:\n' + '\n'.join(map(row_text, net.story()))


def test_a_short_network_completes_a_window_stops_in_time_and_goes_on_where_it_was(tmp_path):
    wandb = 'offline' if importlib.util.find_spec('wandb') else 'off'
    with Localnet(LocalnetSettings(miners=2, block_time=.8, groups=8, wandb=wandb), tmp_path/'net') as net:
        assert until(net, complete(1), 300), '\n'.join(map(row_text, net.story())) + (tmp_path/'net'/'trainer.log').read_text()
        assert [r['agree'] for r in net.story() if r['agree'] is not None].count(False) == 0
        status = {n: json.loads((net.out/n/'status.json').read_bytes())['url'] for n in net.s.roles}
        read = lambda url: urllib.request.urlopen(url, timeout=10).read()
        assert all(json.loads(read(u + '/healthz'))['well'] for u in status.values())
        page = read(status['miner-0'] + '/metrics').decode()
        assert 'grail_mining_uploaded_rollouts{name="miner-0",role="miner"}' in page
        parent = json.loads((net.out/'trainer'/'state.json').read_bytes())

        for name in ('trainer', 'validator-0', 'miner-0'):
            began = time.time()
            net.procs[name].send_signal(signal.SIGTERM)
            assert net.procs[name].wait(15) == 0
            assert time.time() - began < 10, name
        states = {n: json.loads((net.out/n/'state.json').read_bytes()) for n in net.s.roles}
        assert states['trainer']['published'] >= parent['published'] and states['miner-0']['submitted'] > 0
        after = window_now(net)
        net.supervise()                                              # starts them again
        assert_recovered(net, after + 30, 200)
        assert json.loads((net.out/'validator-0'/'state.json').read_bytes())['audited'] > states['validator-0']['audited']
        assert_nothing_is_damaged(net)
    assert max(net.stopping.values()) < 10 and {p.returncode for p in net.procs.values()} == {0}
    secrets = [net.digits(f'{n} write', 64) for n in net.s.roles] + [(net.out/n/'key').read_text() for n in net.s.roles]
    logs = ''.join((net.out/f'{n}.log').read_text() for n in net.s.roles)
    assert not any(s in logs for s in secrets)
    if wandb == 'off': return
    for name in net.s.roles:                                           # W&B's files hold what metrics.jsonl holds
        lines = read_metrics(net.out/name/'metrics.jsonl')
        rows  = [r for path in sorted((net.out/name).rglob('*.wandb'), key=lambda p: p.stat().st_mtime) for r in wandb_rows(path)]
        assert [r['window'] for r in rows] == [l['window'] for l in lines]
        for r, l in zip(rows, lines): assert {k: v for k, v in l.items() if '/' in k} == {k: v for k, v in r.items() if '/' in k}
    names = {k for n in net.s.roles for l in read_metrics(net.out/n/'metrics.jsonl') for k in l}
    assert names >= {'mining/rollouts_generated', 'mining/uploaded_rollouts', 'mining/success_rate',
                     'validation/active_miners/window_files_found', 'miner_sampling/miners_selected', 'miner_sampling/check_rate',
                     'weights/submission/success', 'training/block/loss_total',
                     'training/block/grad_norm', 'training/block/lr', 'training/prefilter/pass@1', 'training/checkpoint_published_on_time',
                     'eval/pass@1', 'profiling/rollout_generation', 'profiling/rollout_verification', 'profiling/upload',
                     'profiling/checkpoint_load', 'profiling/checkpoint_publish', 'profiling/training_duration'}


def wandb_rows(path):
    "The logged rows of a W&B file: records in blocks of 32 kB, each a protobuf message"
    from wandb.proto import wandb_internal_pb2 as pb
    data, at, part = path.read_bytes(), 7, b''
    assert data[:4] == b':W&B'
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7: at += left; continue
        _, n, kind = struct.unpack('<IHB', data[at:at+7])
        if kind == 0: break
        part, at = part + data[at+7:at+7+n], at + 7 + n
        if kind not in (1, 4): continue                                 # whole, or the last part
        record, part = pb.Record.FromString(part), b''
        if record.WhichOneof('record_type') == 'history':
            yield {i.key or '/'.join(i.nested_key): json.loads(i.value_json) for i in record.history.item}


def test_a_role_whose_settings_make_no_sense_ends_with_a_message_and_no_traceback(tmp_path):
    import sys
    env = {**{k: v for k, v in os.environ.items() if not k.startswith('GRAIL_')},
           'GRAIL_TRAINER': 'x', 'GRAIL_KEY_FILE': str(tmp_path/'none')}
    done = subprocess.run([sys.executable, '-m', 'grail.cli.network', 'mine'],
                          env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and 'cannot be read' in done.stderr and 'Traceback' not in done.stderr


@pytest.mark.slow
def test_every_role_may_be_killed_at_any_moment(tmp_path):
    rng = random.Random(11)
    with Localnet(LocalnetSettings(), tmp_path/'net') as net:
        assert until(net, complete(1), 300)
        plan = sorted((time.time() + rng.uniform(0, 100), name) for name in net.s.roles)
        for t, name in plan:
            net.watch(t)
            net.procs[name].send_signal(signal.SIGKILL)
        net.watch(time.time() + 5)
        assert sorted(n for _, n, code in net.exits if code == -signal.SIGKILL) == sorted(net.s.roles)
        assert_recovered(net, window_now(net))
        assert_nothing_is_damaged(net)


@pytest.mark.slow
def test_a_store_that_fails_every_fifth_request_for_a_minute_costs_nobody_his_name(tmp_path):
    with ExitStack() as stack:
        proxy = []
        def through(name, url):
            if not proxy: proxy.append(stack.enter_context(faults.Faults(int(url.rpartition(':')[2]), seed=5, delay=3.,
                                                                         kinds=('status', 'late', 'cut', 'lie', 'drop', 'lost'))))
            return proxy[0].url
        with Localnet(LocalnetSettings(), tmp_path/'net', store=through) as net:
            assert until(net, complete(1), 300)
            proxy[0].share = .2
            net.watch(time.time() + 60)
            proxy[0].share = 0.
            assert sum(kind is not None for *_, kind in proxy[0].log) >= 20
            assert_recovered(net, window_now(net))
            assert_nothing_is_damaged(net)


@pytest.mark.slow
def test_without_a_beacon_nothing_is_audited_and_with_it_all_goes_on(tmp_path):
    with ExitStack() as stack:
        proxy = []
        def through(name, url):
            if not proxy: proxy.append(stack.enter_context(faults.Faults(int(url.rpartition(':')[2]), kinds=('status',))))
            return proxy[0].url
        with Localnet(LocalnetSettings(), tmp_path/'net', beacon=through) as net:
            assert until(net, complete(1), 300)
            net.watch(time.time() + (net.chain.expected_time(window_now(net) + 30) - time.time()))
            dark = window_now(net)
            proxy[0].share = 1.
            net.watch(time.time() + 60)
            proxy[0].share = 0.
            light = window_now(net)
            assert_recovered(net, light)
            rows = {r['window']: r for r in net.story()}
            assert rows.get(dark, dict(audits=0))['audits'] == 0          # its audit would have needed the beacon
            assert_nothing_is_damaged(net)


@pytest.mark.slow
def test_clocks_that_are_ten_seconds_wrong_hurt_only_their_owner_and_no_name(tmp_path):
    extra = {'miner-0': {'GRAIL_CLOCK_OFFSET': 10}, 'miner-1': {'GRAIL_CLOCK_OFFSET': -10}, 'validator-1': {'GRAIL_CLOCK_OFFSET': 10}}
    with Localnet(LocalnetSettings(extra=extra), tmp_path/'net') as net:
        assert until(net, complete(3), 400)
        assert_nothing_is_damaged(net)
        assert any(r['miners'] == 3 and r['complete'] for r in net.story())          # also the miners with wrong clocks get there
        assert all(r['agree'] is not False for r in net.story())
        for name, sign in (('miner-0', '+'), ('miner-1', '-')):                      # and each says so
            assert re.search(rf'this clock is \{sign}(9|10|11)\.\d s off the store', (net.out/f'{name}.log').read_text()), name
        assert 'off the store' not in (net.out/'miner-2.log').read_text()


@pytest.mark.slow
def test_a_wandb_that_refuses_or_hangs_makes_nobody_slower(tmp_path):
    """Three miners side by side, so that they meet the same machine: one without W&B, one whose W&B refuses, one whose W&B never answers.

    They work the whole window, and what is compared is all that they made in some windows; W&B is given up after a minute and a half."""
    pytest.importorskip('wandb', reason='the extra wandb is not installed')
    with socket.create_server(('127.0.0.1', 0)) as silent:
        away = lambda port: dict(GRAIL_WANDB='online', WANDB_MODE='online', WANDB_BASE_URL=f'http://127.0.0.1:{port}', WANDB_API_KEY='0'*40)
        refuses, hangs = away(free_port()), away(silent.getsockname()[1])
        extra = {'miner-1': refuses, 'miner-2': hangs, 'trainer': {**hangs, 'GRAIL_RULES': 'max_groups=2048'}, 'validator-0': refuses}
        with Localnet(LocalnetSettings(extra=extra, groups=2048), tmp_path/'net') as net:
            assert until(net, complete(4), 400), '\n'.join(map(row_text, net.story()))
            assert_nothing_is_damaged(net)
    assert max(net.stopping.values()) < 10
    assert all('W&B is off' in (net.out/f'{m}.log').read_text() for m in ('miner-1', 'miner-2'))
    rates = {m: {l['window']: l['mining/rollouts_per_second']
                 for l in read_metrics(net.out/m/'metrics.jsonl') if 'mining/rollouts_per_second' in l}
             for m in ('miner-0', 'miner-1', 'miner-2')}
    both = sorted(set.intersection(*map(set, rates.values())))
    for m in ('miner-1', 'miner-2'):
        log_ratio = np.log([rates['miner-0'][w]/rates[m][w] for w in both])
        slower, error = np.expm1(log_ratio.mean()), log_ratio.std(ddof=1)/np.sqrt(len(both))
        print(f'{m}: {100*slower:+.1f} % slower than without W&B, standard error {100*error:.1f} %, {len(both)} windows')
        assert slower < .03 + 2*error and error < .05, m


@pytest.fixture
def small_disk(tmp_path):
    "A file system of 200 kB: less than one checkpoint"
    path = tmp_path/'small'
    path.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=200k', 'tmpfs', str(path)], capture_output=True).returncode:
        pytest.skip('this user may not mount')
    yield path
    subprocess.run(['umount', '-l', str(path)], check=True)

@pytest.mark.slow
def test_a_full_disk_under_the_cache_costs_the_cache_only(tmp_path, small_disk):
    extra = {n: {'GRAIL_CACHE': small_disk/n} for n in LocalnetSettings().roles}
    with Localnet(LocalnetSettings(extra=extra), tmp_path/'net') as net:
        assert until(net, complete(2), 300), '\n'.join(map(row_text, net.story()))
        assert_nothing_is_damaged(net)
        assert os.statvfs(small_disk).f_bavail*4096 < 200_000


@pytest.mark.heavy
def test_memory_stays_flat_in_half_an_hour(tmp_path):
    with Localnet(LocalnetSettings(minutes=30), tmp_path/'net') as net:
        net.watch()
        assert complete(40)(net)
        assert_nothing_is_damaged(net)
    for name in net.s.roles:
        points = [(l['time'], l['process/memory_mb']) for l in read_metrics(net.out/name/'metrics.jsonl')]
        t, mb = np.array(points[len(points)//3:]).T                     # the first ten minutes warm up
        slope = np.polyfit((t - t[0])/3600, mb, 1)[0]
        print(f'{name}: {mb[-1]:.0f} MB, {slope:+.1f} MB an hour')
        assert slope < .15*mb[-1], name
