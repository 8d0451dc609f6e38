"""Relays may be slow, dead or dishonest: a round is proved or it is not there."""
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grail.core.basics import ConfigError, FormatError, NotFound
from grail.network.beacon import audit_randomness
from grail.network.chain import LocalChain, Unavailable, VirtualClock
from grail.network.drand import GENESIS, PERIOD, QUICKNET, DrandBeacon, check_round, verify_round

SIGNATURES = {123: 'b75c69d0b72a5d906e854e808ba7e2accb1542ac355ae486d591aa9d43765482e26cd02df835d3546d23c4b13e0dfc92',
              1000: 'b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39'}
RANDOMNESS = {r: hashlib.sha256(bytes.fromhex(s)).hexdigest() for r, s in SIGNATURES.items()}

def answer(round, signature=None): return json.dumps(dict(round=round, randomness='0'*64,
                                                          signature=signature or SIGNATURES[round])).encode()

@pytest.fixture
def relays():
    "`relays(f, ...)` starts servers and gives their addresses; each answers `f(how many it was asked)`: `(status, body)`"
    servers = []
    def start(*functions):
        for f in functions:
            def handler(f=f, seen=[0]):
                class Relay(BaseHTTPRequestHandler):
                    def log_message(self, *a): pass
                    def do_GET(self):
                        asked.append(self.path)
                        seen[0] += 1
                        status, body = f(seen[0])
                        try:
                            self.send_response(status)
                            self.end_headers()
                            for part in body if not isinstance(body, bytes) else [body]: self.wfile.write(part)
                        except OSError: pass
                return Relay
            s = ThreadingHTTPServer(('127.0.0.1', 0), handler(seen=[0]))
            s.daemon_threads = True
            threading.Thread(target=s.serve_forever, kwargs=dict(poll_interval=.05), daemon=True).start()
            servers.append(s)
        return [f'http://127.0.0.1:{s.server_address[1]}' for s in servers]
    asked = start.asked = []
    yield start
    for s in servers:
        s.shutdown()
        s.server_close()

def at(round): return VirtualClock(GENESIS + (round - 1)*PERIOD)
def good(n): return 200, answer(1000)


@pytest.mark.parametrize('round', SIGNATURES)
def test_public_rounds_are_verified(round):
    assert verify_round(round, SIGNATURES[round]) == RANDOMNESS[round]
    for other in (round - 1, round + 1, 1):
        with pytest.raises(FormatError): verify_round(other, SIGNATURES[round])

@given(st.integers(0, 383))
@settings(max_examples=40, deadline=None)
def test_no_other_bits_are_a_signature(i):
    flipped = (int(SIGNATURES[1000], 16) ^ 1 << i).to_bytes(48, 'big').hex()
    with pytest.raises(FormatError): verify_round(1000, flipped)

@pytest.mark.parametrize('signature', [None, 7, '', 'z'*96, 'ab', SIGNATURES[1000].upper(), SIGNATURES[1000] + '\n', '0'*96,
                                       'c0' + '0'*94])
def test_what_is_no_signature_is_refused(signature):
    with pytest.raises(FormatError): verify_round(1000, signature)

@pytest.mark.parametrize('data', [b'', b'null', b'[]', b'{}', b'\xff', b'{"round":1000}', b'{"round":"1000","signature":"x"}',
                                  answer(123), b' '*5000,
                                  answer(1000)[:-1], answer(1000, SIGNATURES[123])])
def test_what_is_no_answer_is_refused(data):
    with pytest.raises(FormatError): check_round(1000, data)

def endless(n):
    def body():
        for _ in range(10_000): yield b'{'*100_000
    return 200, body()

LIES = dict(down=lambda n: (500, b''), missing=lambda n: (404, b'{}'), noise=lambda n: (200, b'\xff'*100), endless=endless,
            empty=lambda n: (200, b''),
            other_round=lambda n: (200, answer(123)), wrong_signature=lambda n: (200, answer(1000, SIGNATURES[123])))

@pytest.mark.parametrize('lie', LIES)
def test_one_honest_relay_is_enough_and_none_is_not(relays, lie):
    urls = relays(LIES[lie], LIES[lie], good)
    assert DrandBeacon(urls, at(1000), pause=0).get(1000) == RANDOMNESS[1000]
    with pytest.raises(Unavailable, match='no relay proves round 1000'): DrandBeacon(urls[:2], at(1000), pause=0).get(1000)
    assert all(p == f'/{QUICKNET}/public/1000' for p in relays.asked)

def test_a_relay_that_does_not_answer_costs_its_timeout_only(relays):
    urls = relays(lambda n: (time.sleep(3), (200, b''))[1], good)
    start = time.time()
    assert DrandBeacon(urls, at(1000), timeout=.3).get(1000) == RANDOMNESS[1000]
    assert time.time() - start < 2.5
    assert DrandBeacon(['http://127.0.0.1:9', urls[1]], at(1000), timeout=.3).get(1000) == RANDOMNESS[1000]

def test_a_relay_that_is_a_little_late_is_asked_again(relays):
    urls = relays(lambda n: good(n) if n == 3 else (404, b''))
    assert DrandBeacon(urls, at(1000), tries=3, pause=0).get(1000) == RANDOMNESS[1000] and len(relays.asked) == 3

def test_a_round_is_fetched_once_and_the_future_never(relays):
    urls, clock = relays(good), at(999)
    b = DrandBeacon(urls, clock)
    with pytest.raises(NotFound, match='comes in 3.0 s'): b.get(1000)
    assert not relays.asked
    clock.advance_to(GENESIS + 999*PERIOD)
    for _ in range(3): assert b.get(1000) == RANDOMNESS[1000]
    assert len(relays.asked) == 1
    for bad in (0, -1, 1.0, '1', None, True):
        with pytest.raises(FormatError): b.get(bad)

def test_when_drand_is_down_no_window_is_audited(relays, tmp_path):
    clock = VirtualClock(GENESIS + 10*PERIOD)
    chain = LocalChain(tmp_path/'c.db', clock, seed='x')
    clock.advance_to(chain.expected_time(70))
    with pytest.raises(Unavailable): audit_randomness(chain, DrandBeacon(relays(LIES['down']), clock, tries=1), 30)

def test_a_beacon_without_relays_is_a_mistake():
    with pytest.raises(ConfigError): DrandBeacon([])
