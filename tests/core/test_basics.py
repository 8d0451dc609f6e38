"""What strangers can do to a reader of JSON and to the texts of errors."""
import json
import os
import random
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grail.core import basics
from grail.core.basics import FormatError, GrailError, LimitError, canonical_json, check_name, parse_json, readable
from grail.network.chain import Unavailable
from grail.network.store import Exists

ANY = st.text(st.characters(codec=None, exclude_categories=()), max_size=400)      # surrogates and control codes among them


# ---- texts of errors

@given(ANY, st.integers(1, 400))
def test_a_readable_text_is_printable_encodable_short_and_stays_so(text, width):
    out = readable(text, width)
    assert out.isprintable() and len(out) <= width
    assert json.loads(canonical_json(out)) == out == readable(out, width)
    if text.isprintable(): assert out == text[:width]

KINDS = [k for k in vars(basics).values() if isinstance(k, type) and issubclass(k, GrailError)] + [Unavailable, Exists]

@given(ANY)
def test_the_text_of_every_error_can_be_written_in_a_verdict(text):
    for kind in KINDS: assert json.loads(canonical_json(f'unreadable: {kind(text)}'))

def test_errors_keep_what_is_not_text_and_cut_what_is_long():
    assert GrailError('a', 7).args == ('a', 7) and GrailError().args == ()
    assert len(str(FormatError('x'*10**6))) == 2000

@pytest.mark.parametrize('f', [lambda: check_name('\ud800'), lambda: canonical_json('\ud800'),
                               lambda: canonical_json({'\ud800': 1}),
                               lambda: parse_json(b'{"\\ud800":1,"\\ud800":2}'), lambda: parse_json(b'\xff')])
def test_errors_about_half_characters_hold_none(f):
    with pytest.raises(FormatError) as e: f()
    assert canonical_json(str(e.value))


# ---- reading JSON

N = 64_000
HARD = {'escaped quotes, no end': b'"' + b'\\"'*(N//2), 'the same, then a line': b'"' + b'\\"'*(N//2) + b'\\\n',
        'quotes': b'"'*(N + 1), 'backslashes': b'\\'*N, 'a string of backslashes': b'"' + b'\\'*(N + 1),
        'escaped quotes outside': b'\\"'*(N//2), 'pairs': b'"\\'*(N//2), 'an open string': b'"' + b'x'*N,
        'lines': b'"' + b'\\\n"'*(N//3), 'open lists in strings': b'["\\"[",'*(N//7)}

@pytest.mark.parametrize('name', HARD)
def test_no_text_keeps_the_reader_busy(name):
    best = 9.
    for _ in range(3):                                  # the best of three: other work of the machine is not the reader's
        start = time.perf_counter()
        with pytest.raises(FormatError): parse_json(HARD[name])
        best = min(best, time.perf_counter() - start)
    assert best < .1

def test_a_long_string_of_escapes_is_read():
    data = b'["' + b'\\"'*30_000 + b'"]'
    assert parse_json(data, depth=1) == ['"'*30_000]

values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.text('"\\[]{}\n', max_size=8),
                      lambda c: st.lists(c, max_size=4) | st.dictionaries(st.text('"\\[]{}', max_size=6), c, max_size=4),
                      max_leaves=12)

def depth_of(v):
    if not isinstance(v, (dict, list)): return 0
    return 1 + max(map(depth_of, v.values() if isinstance(v, dict) else v), default=0)

@given(values)
def test_brackets_in_strings_do_not_count_and_all_others_do(value):
    data, deep = json.dumps(value).encode(), depth_of(value)
    assert parse_json(data, depth=deep) == value
    if deep:
        with pytest.raises(LimitError): parse_json(data, depth=deep - 1)

def test_any_bytes_are_json_or_a_format_error():
    rng = random.Random(0)
    for _ in range(3000):
        data = bytes(rng.choice(b'"\\[]{}:,1 \nu\xff') for _ in range(rng.randrange(30)))
        try: parse_json(data, depth=4)
        except FormatError as e: assert canonical_json(str(e))


DAMAGED = '''
import torch
from grail.protocol.sampling import pick
print(pick(torch.zeros(1, 50), [bytes(16)], 0).tolist())
'''

def test_machine_code_that_was_damaged_on_the_disk_is_made_anew(tmp_path):
    "As a power cut leaves it: files of no bytes, and of half their bytes"
    env = {**os.environ, 'NUMBA_CACHE_DIR': str(tmp_path), 'OMP_NUM_THREADS': '1'}
    run = lambda: subprocess.run([sys.executable, '-c', DAMAGED], env=env, capture_output=True, text=True, check=True).stdout
    first = run()
    for kind in ('*.nbi', '*.nbc'):
        files = list(tmp_path.rglob(kind))
        assert files
        for f in files: f.write_bytes(f.read_bytes()[:len(f.read_bytes())//2 if kind == '*.nbc' else 0])
        assert run() == first
