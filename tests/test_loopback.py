"Tests speak to nothing but this machine, and that is watched: in this process and in those that it starts."
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

ELSEWHERE = '192.0.2.1'      # an address that the internet keeps free for examples


@pytest.fixture
def attempts(guard, flags):
    "What was tried in this test; it is expected, so it does not count as a failure"
    if 'net' in flags: pytest.skip('the flag net allows it')
    yield guard.new
    guard.forget()

def test_a_connection_to_elsewhere_fails_and_is_noted(attempts):
    with pytest.raises(ConnectionRefusedError, match='nothing but this machine'): socket.create_connection((ELSEWHERE, 80), timeout=1)
    with pytest.raises(urllib.error.URLError): urllib.request.urlopen('https://example.org', timeout=1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s, pytest.raises(ConnectionRefusedError): s.sendto(b'x', (ELSEWHERE, 53))
    assert [(l.split()[0], where in l) for l, where in zip(attempts(), (ELSEWHERE, 'example.org', ELSEWHERE), strict=True)] == [
        ('socket.connect', True), ('socket.getaddrinfo', True), ('socket.sendto', True)]

def test_so_does_one_of_a_process_that_was_started(attempts):
    code = f'import socket; socket.create_connection(("{ELSEWHERE}", 80), timeout=1)'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and 'nothing but this machine' in done.stderr and ELSEWHERE in attempts()[0]

def test_an_attempt_that_the_program_hides_is_found_after_the_test(attempts):
    try: socket.create_connection((ELSEWHERE, 80), timeout=1)
    except OSError: pass
    assert len(attempts()) == 1                     # the fixture of all tests fails on these

def test_this_machine_may_be_spoken_to(attempts):
    with socket.create_server(('127.0.0.1', 0)) as server:
        for name in ('127.0.0.1', 'localhost'): socket.create_connection((name, server.getsockname()[1]), timeout=5).close()
    assert attempts() == []
