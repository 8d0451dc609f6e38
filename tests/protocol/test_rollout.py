"Submissions in front of strangers: what is honest survives, what is hostile is refused with a reason and without memory."
import json
import subprocess
import sys
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bittensor_core import Keypair
from hypothesis import given, settings
from hypothesis import strategies as st

from grail.core.basics import FormatError, LimitError, SignatureError, canonical_json
from grail.core.params import GRAIL_V0, TINY
from grail.core.window import Window
from grail.protocol import rollout as R
from grail.protocol.randomness import Randomness
from grail.protocol.rollout import Rollout, check_layout, decode_body, encode_body, read_header, read_submission, seal
from grail.protocol.signature import sign

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import parquet_by_hand as by_hand
from parquet_by_hand import BIN, I32, I64, LIST, STRUCT, build, page, raw_page, run, zstd_zeros

ALICE, BOB = (Keypair.create_from_uri(u) for u in ('//Alice', '//Bob'))
OPEN = Randomness('open', 90, 'ab'*32, 1234, 'cd'*32)


def make(group=0, index=0, prompt=5, n=8, seed=0, **kw):
    rng = np.random.default_rng([seed, abs(group), abs(index)])
    return replace(Rollout(group, index, rng.integers(0, 20, prompt+n), prompt, -rng.gamma(.5, 1, n), rng.integers(0, 2**32, n),
                           float(rng.integers(2)), bool(rng.integers(2))), **kw)

ROLLOUTS = [make(g, i, n=1+(g*7+i) % 8) for g in range(4) for i in range(16)]
def refused(data, params=TINY):
    with pytest.raises(FormatError) as e: decode_body(data, params)
    assert len(str(e.value)) < 600
    return e.value


# ---------------------------------------------------------------- honest

@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 15), st.lists(st.integers(0, 2**31-1), min_size=2, max_size=24),
                          st.data()), min_size=1, max_size=12))
def test_what_was_encoded_is_decoded(specs):
    rollouts = []
    for group,index,tokens,data in specs:
        prompt = data.draw(st.integers(max(1, len(tokens)-8), min(16, len(tokens)-1)))
        n = len(tokens)-prompt
        floats = st.floats(allow_nan=False, allow_infinity=False, width=32)
        rollouts.append(Rollout(group, index, tokens, prompt, data.draw(st.lists(floats, min_size=n, max_size=n)),
                                data.draw(st.lists(st.integers(0, 2**32-1), min_size=n, max_size=n)),
                                data.draw(st.floats(allow_nan=False, allow_infinity=False)), data.draw(st.booleans())))
    body = encode_body(rollouts)
    assert decode_body(body, TINY) == rollouts and encode_body(rollouts) == body


def test_rollouts_of_many_pages_survive():
    rng = np.random.default_rng(0)
    rollouts = [Rollout(g, i, rng.integers(0, 49_152, 1500), 476, -rng.random(1024), rng.integers(0, 2**32, 1024), 1.,
                        True) for g in range(40) for i in range(16)]
    body = encode_body(rollouts)
    assert decode_body(body, GRAIL_V0) == rollouts


def test_a_full_submission_of_the_smallest_profile_fits_its_own_limits():
    full = [make(g, i, prompt=16, n=8) for g in range(TINY.max_groups) for i in range(TINY.rollouts_per_group)]
    header, body = seal(full, ALICE, 90, 'ef'*32, TINY, OPEN)
    assert read_submission(header, body, TINY).rollouts == full


def test_constant_content_of_a_small_submission_is_not_taken_for_a_bomb():
    same = [Rollout(g, i, np.zeros(24, int), 16, np.zeros(8), np.zeros(8, int), 0., False) for g in range(256) for i in range(16)]
    assert decode_body(encode_body(same), TINY) == same


def test_decoded_arrays_have_the_promised_types_and_cannot_be_written():
    for r in decode_body(encode_body(ROLLOUTS), TINY):
        assert (r.tokens.dtype, r.logprobs.dtype, r.proof.dtype) == (np.int32, np.float32, np.uint32)
        assert [type(x) for x in (r.group, r.index, r.prompt_length, r.reward, r.success)] == [int, int, int, float, bool]
        assert not (r.tokens.flags.writeable or r.logprobs.flags.writeable or r.proof.flags.writeable)


def test_a_file_of_another_writer_in_the_same_form_is_read():
    r, = decode_body(by_hand.honest(), TINY)
    assert r == Rollout(0, 0, [7, 8, 9, 10, 11], 2, [-1, -.5, -.25], [1, 2, 2**32-1], 1., True)


def test_a_rollout_whose_parts_do_not_fit_cannot_be_made():
    for kw in (dict(prompt_length=4), dict(logprobs=np.zeros(9)), dict(proof=np.zeros(7)), dict(tokens=np.zeros(12))):
        with pytest.raises(FormatError): make(**kw)


# ---------------------------------------------------------------- values

def test_values_that_no_rollout_has_are_refused():
    nan, inf = make().logprobs.copy(), make().logprobs.copy()
    nan[2], inf[5] = np.nan, -np.inf
    for bad,reason in [(make(logprobs=nan), 'logprobs has nan'), (make(logprobs=inf), 'logprobs has -inf'),
                       (make(reward=float('nan')), 'a reward is finite'), (make(reward=-float('inf')), 'a reward is finite'),
                       (make(group=-1), 'group of a rollout is from'), (make(group=256), 'group of a rollout is from'),
                       (make(index=16), 'index of a rollout is from'), (make(index=-2**31), 'index of a rollout is from'),
                       (make(tokens=np.r_[make().tokens[:-1], -1]), 'tokens has -1'), (make(prompt=0), 'length of a prompt'),
                       (make(prompt=17), 'length of a prompt'),
                       (make(n=0), 'length of a completion'), (make(n=9), 'length of a completion')]:
        e = refused(encode_body(ROLLOUTS[:5] + [bad] + ROLLOUTS[5:]))
        assert f'rollout 5 of the body: ' in str(e) and reason in str(e)


def test_lists_whose_lengths_do_not_fit_are_refused():
    values = lambda name, v: page(len(v), raw_page(name, v))
    for name in ('logprobs', 'proof'):
        for v in ([1, 2], [1, 2, 3, 4]):
            assert 'each completion token has' in str(refused(build({name: values(name, v)}, {name: len(v)})))
    for n in (3, 1, 0, -1, 2**31-1, -2**31):
        reason = str(refused(build({'prompt_length': values('prompt_length', [n])})))
        assert ('each completion token has' if n in (1, 3) else 'length of a prompt') in reason
    empty = page(1, run((1, 0)) + run((1, 0)))
    assert 'length of a completion' in str(refused(build({'tokens': empty}, {'tokens': 1})))


# ---------------------------------------------------------------- form

def table(**replaced):
    "Arrow columns of ROLLOUTS, some of them replaced; None drops one"
    columns = {f.name: (f, R._column(f.name, f.type, ROLLOUTS)) for f in R.SCHEMA} | replaced
    columns = {k: v for k,v in columns.items() if v is not None}
    return pa.Table.from_arrays([a for _,a in columns.values()], schema=pa.schema([f for f,_ in columns.values()]))

def write(t, **kw):
    out = BytesIO()
    pq.write_table(t, out, **dict(dict(compression='zstd', use_dictionary=False, write_statistics=False, store_schema=False),
                                  **kw))
    return out.getvalue()

def test_arrows_plain_options_are_in_our_form():
    assert decode_body(write(table()), TINY) == ROLLOUTS

def column(name, kind, values, nullable=False): return pa.field(name, kind, nullable=nullable), pa.array(values, kind)

N = len(ROLLOUTS)
rows = [r.tokens.tolist() for r in ROLLOUTS]
required = lambda t: pa.list_(pa.field('element', t, nullable=False))
@pytest.mark.parametrize('replaced', [
    dict(tokens=column('tokens', required(pa.int64()), rows)), dict(tokens=column('tokens', required(pa.float32()), rows)),
    dict(tokens=column('tokens', required(pa.int16()), rows)), dict(tokens=column('tokens', required(pa.uint32()), rows)),
    dict(tokens=column('tokens', pa.list_(pa.int32()), [[None]*len(r) for r in rows])),
    dict(tokens=column('tokens', required(pa.int32()), [None, *rows[1:]], nullable=True)),
    dict(tokens=column('tokens', required(required(pa.int32())), [[r] for r in rows])),
    dict(tokens=column('tokens', pa.string(), ['1 2 3']*N)), dict(tokens=column('tokens', pa.binary(), [b'123']*N)),
    dict(tokens=column('tokens', pa.int32(), [5]*N)), dict(tokens=column('tokens', required(pa.date32()), rows)),
    dict(proof=column('proof', required(pa.int32()), [[1]]*N)),
    dict(logprobs=column('logprobs', required(pa.float64()), [[-1.]]*N)),
    dict(logprobs=column('logprobs', required(pa.float16()), [[-1.]]*N)),
    dict(group=column('group', pa.int32(), [None]*N, nullable=True)), dict(group=column('group', pa.int64(), [2**40]*N)),
    dict(group=column('group', pa.string(), ['0']*N)),
    dict(group=column('group', pa.decimal128(5, 0), [1]*N)), dict(group=column('gruppe', pa.int32(), [0]*N)),
    dict(reward=column('reward', pa.float32(), [0.]*N)),
    dict(reward=column('reward', pa.string(), ['__import__("os")']*N)),
    dict(reward=column('reward', pa.struct([('x', pa.float64())]), [{'x': 1.}]*N)),
    dict(success=column('success', pa.int32(), [1]*N)), dict(success=column('success', pa.bool_(), [None]*N, nullable=True)),
    dict(success=None), dict(group=None),
    dict(extra=column('extra', pa.int32(), [0]*N)), dict(note=column('note', pa.string(), ['x'*1000]*N)),
    dict(index=column('index', pa.map_(pa.int32(), pa.int32()), [[(1, 1)]]*N)),
], ids=lambda d: ' '.join(f'{k} {v[0].type if v else "missing"} {v[0].nullable if v else ""}' for k,v in d.items()))
def test_other_columns_types_nulls_and_nesting_are_refused(replaced):
    refused(write(table(**replaced)))


def test_columns_in_another_order_are_refused():
    refused(write(table().select(list(reversed(table().column_names)))))


@pytest.mark.parametrize('kw,reason', [
    (dict(compression='snappy'), 'compressed with method 1'), (dict(compression='gzip'), 'compressed with method 2'),
    (dict(compression='none'), 'compressed with method 0'), (dict(compression='brotli'), 'compressed with method 4'),
    (dict(use_dictionary=True), 'field'), (dict(write_statistics=True), 'field 12'), (dict(store_schema=True), 'field 5'),
    (dict(row_group_size=7), 'row groups'),
    (dict(data_page_version='2.0'), 'page'), (dict(column_encoding={'tokens.list.element': 'DELTA_BINARY_PACKED'}),
                                              'encoding 5'), (dict(write_page_index=True), 'field'),
], ids=str)
def test_other_ways_to_write_the_same_are_refused_by_name(kw, reason):
    assert reason in str(refused(write(table(), **kw)))


def test_key_value_metadata_is_refused():
    assert 'footer has the field 5' in str(refused(build(footer={5: (LIST,
                                                                     (STRUCT, [{1: (BIN, b'ARROW:schema'), 2: (BIN, b'x')}]))})))
    assert 'footer has the field 5' in str(refused(write(table().replace_schema_metadata({'pandas': '{}'}), store_schema=True)))


def test_garbage_and_pieces_are_refused():
    body, rng = encode_body(ROLLOUTS), np.random.default_rng(0)
    for n in [*range(0, 40), *range(len(body)-60, len(body)), *rng.integers(0, len(body), 50)]: refused(body[:n])
    for n in (1, 8, 12, 100, 5000):
        noise = rng.bytes(n)
        for data in (noise, b'PAR1'+noise+b'PAR1', b'PAR1'+noise+(n).to_bytes(4, 'little')+b'PAR1', body+noise, noise+body,
                     body[:50]+noise+body[50:]): refused(data)
    refused(b'{"tokens": [1]}'); refused(b'PK\3\4'+body); refused(body[:-4]+b'PARE'); refused(b'')


def test_footers_that_lie_are_refused():
    for data,reason in [
        (build(rows=2), 'column group has 1 values for 2 rows'), (build(rows=0), 'no rollouts'),
        (build(rows=-1), 'not a count'), (build(rows=2**62), 'at most'), (build(counts={'group': 2}), 'at most 1 are allowed'),
        (build(counts={'tokens': 6}), 'its footer says 6'), (build(counts={'tokens': 4}), 'its footer says 4'),
        (build(counts={'tokens': -5}), 'not a count'), (build(counts={'tokens': 2**62}), 'at most'),
        (build(chunk={'tokens': {7: (I64, -10)}}), 'not a count'),
        (build(chunk={'tokens': {7: (I64, 2**60)}}), 'starts at byte'),
        (build(chunk={'proof': {9: (I64, 4)}}), 'starts at byte 4'),
        (build(chunk={'tokens': {11: (I64, 4)}}), 'field 11'), (build(chunk={'tokens': {4: (I32, 0)}}), 'method 0'),
        (build(chunk={'tokens': {8: (LIST, (STRUCT, []))}}), 'field 8'), (build(gap=b'hidden'), 'the columns end'),
        (build(row_group={3: (I64, 2)}), 'not those of the file'), (build(footer={8: (STRUCT, {})}), 'field 8'),
        (build(footer={3: None}), 'not a count'), (build(footer={4: None}), 'no row groups'),
        (build(footer={2: None}), 'no schema'),
        (build(footer={4: (LIST, (STRUCT, [{}]*15))}), '15 row groups'),
        (build(row_group={1: (LIST, (STRUCT, []))}), '8 columns'), (build(row_group={1: (I64, 5)}), '8 columns'),
        (build(footer={4: (BIN, b'x')}), 'no row groups'),
        (build(chunk={'tokens': {5: (BIN, b'5')}}), 'not a count'),
        (build(tail=(2**31-1).to_bytes(4, 'little')), 'at most 16,384'),
        (build(tail=(9999).to_bytes(4, 'little')), 'shorter than its footer'), (build(tail=b'\0\0\0\0'), 'metadata'),
    ]: assert reason in str(refused(data)), reason


def test_metadata_that_would_hang_or_overflow_a_parser_is_refused():
    foot = lambda data: b'PAR1' + data + len(data).to_bytes(4, 'little') + b'PAR1'
    for data in (foot(b'\x19\xfc' + b'\xff'*9 + b'\x01'), foot(b'\x19\xf1\xff\xff\x03'), foot(b'\x1c'*16_000),
                 foot(b'\x19\x19'*8000), foot(b'\x16' + b'\xff'*5000), foot(b'\x18\xff\xff\xff\xff\x0f'), foot(b'\x1b\x01'),
                 foot(b'\x06\x02\x02\x06\x02\x02\0'), foot(b'\x11'*16_000), foot(b'\x17' + b'\0'*9), foot(b'\0'), foot(b''),
                 foot(b'\xff'*16_000), foot(b'\xff'*17_000)): refused(data)


# ---------------------------------------------------------------- bombs

MILLION = 1_000_000
WIDTH = dict(group=4, index=4, prompt_length=4, tokens=4, logprobs=4, proof=4, reward=8)
one_row   = lambda n: run((1, 0), (n-1, 1)) + run((n, 1))           # levels of one list of n values
one_value = lambda n: run((n, 0)) + run((n, 1))                     # of n lists of one value

def many_rows(n):
    "n rollouts of one token each, all zero: a valid file"
    pages = {k: by_hand.zeros(n, w, one_value(n) if k in by_hand.LISTS else b'') for k,w in WIDTH.items()}
    return build(pages | {'success': page(n, b'', packed=zstd_zeros(n//8), size=n//8)},
                 counts=dict.fromkeys([*WIDTH, 'success'], n), rows=n)

def heaviest_legal_counts():
    "As many rows and tokens as the largest profile allows, all of them zero: every single limit holds"
    rows, n = 32_768, 32_768*2048
    counts = dict.fromkeys([*WIDTH, 'success'], rows) | dict(tokens=n, logprobs=n//2, proof=n//2)
    pages = {k: by_hand.zeros(counts[k], w, one_row(counts[k]) if k in by_hand.LISTS else b'') for k,w in WIDTH.items()}
    return build(pages | {'success': page(rows, b'', packed=zstd_zeros(rows//8), size=rows//8)}, counts=counts, rows=rows)

BOMBS = {
    'half a gigabyte that the footer does not mention': (
        lambda: build({'tokens': page(5, b'', packed=zstd_zeros(1 << 29), size=1 << 29)}), TINY, 'decode to more than'),
    'two gigabytes claimed by a few bytes': (
        lambda: build({'tokens': page(5, raw_page('tokens', [1]*5), size=2**31-1)}), TINY, 'decode to more than'),
    'a negative size': (
        lambda: build({'tokens': page(5, raw_page('tokens', [1]*5), size=-1)}), TINY, 'not a count'),
    'a page of two billion values': (
        lambda: build({'tokens': page(2**31-1, raw_page('tokens', [1]*5))}), TINY, 'hold 2,147,483,647 values'),
    'a row of 100 million tokens, honestly declared': (
        lambda: build({'tokens': by_hand.zeros(100*MILLION, 4, one_row(100*MILLION))}, {'tokens': 100*MILLION}), GRAIL_V0,
        'at most 2,048 are allowed'),
    'ten million rows': (
        lambda: many_rows(10*MILLION), GRAIL_V0, 'has 10,000,000 rollouts, at most 32,768'),
    'the largest legal counts in a few kilobytes': (
        heaviest_legal_counts, GRAIL_V0, 'times as much'),
    'more zeros in the frame than the page header says': (
        lambda: build({'tokens': page(5, b'', packed=zstd_zeros(1 << 30), size=46)}), TINY, 'cannot be decoded'),
    'a dictionary page': (
        lambda: build({'tokens': page(5, b'x'*100, kind=2, extra={7: (STRUCT, {1: (I32, 5), 2: (I32, 0)})})}), TINY, 'field 7'),
    'a dictionary page in disguise': (
        lambda: build({'tokens': page(5, b'x'*100, kind=2)}), TINY, 'only plain data pages'),
    'a hundred thousand empty pages': (
        lambda: build({'tokens': page(0, b'')*100_000 + page(5, raw_page('tokens', [1]*5))}), TINY, 'pages for 5 values'),
    'a page header without end': (
        lambda: build({'tokens': b'\x18\xff\xff\xff\x7f' + bytes(5000)}), TINY, 'middle of its metadata'),
    'a page longer than its column': (
        lambda: build({'success': page(1, b'\1', packed_size=10**6)}), TINY, 'its footer says'),
    'a page that jumps back': (
        lambda: build({'success': page(1, b'\1', packed_size=-40)}), TINY, 'not a count'),
}

PEAK = '''
def peak(reset=False):
    "Highest resident memory of this process in MB since the last reset (getrusage would start with the parent's)"
    if reset: open('/proc/self/clear_refs', 'w').write('5')
    return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])//1024
'''
CHILD = PEAK + '''
import sys
sys.path[:0] = [{root!r}, {here!r}]
from test_rollout import BOMBS, ROLLOUTS, TINY, FormatError, decode_body, encode_body
import pyarrow.parquet as pq
from io import BytesIO
decode_body(encode_body(ROLLOUTS), TINY)                     # everything is loaded
for name in {names!r}:
    make, params, _ = BOMBS[name]
    data = make()
    before = peak(reset=True)
    try:
        if {how!r} == 'grail': decode_body(data, params)
        else: pq.read_table(BytesIO(data), use_threads=False)
        outcome = 'read'
    except FormatError as e: outcome = 'refused'
    except Exception as e: outcome = type(e).__name__
    print(outcome, len(data), peak()-before)
'''
linux = pytest.mark.skipif(not Path('/proc/self/clear_refs').exists(), reason='measures memory as Linux tells it')

def in_child(names, how):
    "For each bomb: outcome, size of the file in bytes, growth of the peak memory in MB"
    code = CHILD.format(root=str(HERE.parent.parent), here=str(HERE), names=names, how=how)
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr[-2000:]
    return [(o, int(size), int(growth)) for o,size,growth in map(str.split, out.stdout.strip().split('\n'))]


@pytest.mark.parametrize('name', BOMBS)
def test_bombs_are_refused_with_a_reason(name):
    make, params, reason = BOMBS[name]
    assert reason in str(refused(make(), params))


@linux
def test_bombs_take_no_memory():
    for name,(outcome,size,growth) in zip(BOMBS, in_child(list(BOMBS), 'grail')):
        assert outcome == 'refused' and size < 3_000_000 and growth < 16, (name, outcome, size, growth)


@linux
def test_the_bomb_is_real():
    "The same file opened by Arrow alone takes it: the walk through the page headers is what stops it"
    (_, size, growth), = in_child(['half a gigabyte that the footer does not mention'], 'arrow')
    assert size < 20_000 and growth > 450


FUZZ = PEAK + '''
import sys
sys.path[:0] = [{root!r}, {here!r}]
import numpy as np
import parquet_by_hand as by_hand
from test_rollout import ROLLOUTS, TINY, FormatError, decode_body, encode_body
rng, body, raised = np.random.default_rng(int(sys.argv[1])), encode_body(ROLLOUTS), 0
def one(data):
    try: decode_body(bytes(data), TINY); return 0
    except FormatError: return 1
one(body)
before = peak(reset=True)
for _ in range(int(sys.argv[2])):                                         # flipped bytes of a whole file
    data = bytearray(body if rng.random() < .5 else by_hand.honest())
    start = 0 if rng.random() < .4 else len(data)-1000        # mostly in the footer
    for at in rng.integers(max(0, start), len(data), rng.integers(1, 5)): data[at] = rng.integers(256)
    raised += one(data)
for _ in range(int(sys.argv[2])):                             # flipped bytes inside of a page, compressed again
    name = by_hand.LEAVES[rng.integers(8)][0]
    raw = bytearray(by_hand.raw_page(name, by_hand.ROW[name]))
    for at in rng.integers(0, len(raw), rng.integers(1, 4)): raw[at] = rng.integers(256)
    if rng.random() < .3: raw = raw[:rng.integers(len(raw)+1)]
    n = len(by_hand.ROW[name])
    raised += one(by_hand.build({{name: by_hand.page(n, bytes(raw), encoding=int(rng.choice([0, 0, 3, 9])))}}))
print(raised, peak()-before)
'''

@linux
@pytest.mark.parametrize('seed,n', [(0, 300), pytest.param(1, 10_000, marks=pytest.mark.slow)])
def test_damaged_files_raise_only_format_errors_and_never_crash(seed, n):
    out = subprocess.run([sys.executable, '-c', FUZZ.format(root=str(HERE.parent.parent), here=str(HERE)), str(seed), str(n)],
                         capture_output=True, text=True, timeout=600)
    assert out.returncode == 0, out.stderr[-3000:]
    raised, growth = map(int, out.stdout.split())
    assert raised > n and growth < 60


# ---------------------------------------------------------------- headers

def header(**changed):
    "Header and body by ALICE with some fields changed, and signed again"
    data, body = seal(ROLLOUTS, ALICE, 90, 'ef'*32, TINY, OPEN)
    h = json.loads(data)['header'] | changed
    h = {k: v for k,v in h.items() if v is not ...}
    return canonical_json({'header': h, 'signature': sign(ALICE, 'submission', canonical_json(h))}), body


def test_an_honest_submission_is_read():
    data, body = header()
    s = read_submission(data, body, TINY, hotkey=ALICE.ss58_address, window=Window(90), checkpoint='ef'*32, open=OPEN)
    h = s.header
    assert s.rollouts == ROLLOUTS and (h.groups, h.rollouts, h.tokens) == (4, 64, sum(r.length for r in ROLLOUTS))


@pytest.mark.parametrize('changed', [
    dict(version=2), dict(version='1'), dict(version=True), dict(version=1.0), dict(hotkey=BOB.ss58_address),
    dict(hotkey='../../etc/passwd'), dict(hotkey='/abs'), dict(hotkey=''), dict(hotkey='5'*4000), dict(hotkey=7),
    dict(hotkey=None),
    dict(hotkey='5GrwvaEF\0'), dict(hotkey='５GrwvaEF'), dict(window=91), dict(window=-30), dict(window=10**400),
    dict(window='90'), dict(window=90.0), dict(window=120), dict(checkpoint='EF'*32), dict(checkpoint='ef'*31),
    dict(checkpoint='ef'*31+'\n\n'), dict(params='00'*32), dict(env='math'), dict(proof='grail-v0'), dict(env='x'*10_000),
    dict(open={}), dict(open=[]), dict(open=asdict(OPEN) | {'kind': 'audit', 'block_hash': ''}),
    dict(open=asdict(OPEN) | {'window': 120}), dict(open=asdict(OPEN) | {'extra': 1}), dict(open=asdict(OPEN) | {'round': -1}),
    dict(groups=-1), dict(groups=257), dict(groups=2**60), dict(groups=5), dict(rollouts=4097), dict(rollouts=63),
    dict(rollouts=10**30), dict(tokens=1), dict(tokens=10**9), dict(tokens=1e5), dict(body_bytes=0), dict(body_bytes=10**9),
    dict(body_sha256='00'*32), dict(body_sha256=[]), dict(extra=1), dict(rollouts=...), dict(version=...),
    dict(groups=[4]), dict(groups={'$gt': 0}), dict(hotkey={'a': 1}),
], ids=lambda d: str(d)[:50])
def test_every_wrong_field_of_a_header_is_refused_though_it_is_signed(changed):
    data, body = header(**changed)
    with pytest.raises(FormatError) as e: read_submission(data, body, TINY, hotkey=ALICE.ss58_address, window=90)
    assert 0 < len(str(e.value)) < 600


def test_a_header_signed_by_somebody_else_or_for_something_else_is_refused():
    h, body = json.loads(header()[0])['header'], header()[1]
    for signature in (sign(BOB, 'submission', canonical_json(h)), sign(ALICE, 'checkpoint', canonical_json(h)),
                      sign(ALICE, 'submission', canonical_json(h)+b' '), 'ab'*64, '', 'zz'*64, 'AB'*64, None, 5, ['a'],
                      'ab'*10**4):
        with pytest.raises(FormatError): read_header(json.dumps({'header': h, 'signature': signature}).encode(), TINY)


def test_a_header_of_another_window_miner_or_checkpoint_is_refused_where_it_is_expected():
    data, _ = header()
    for expected in (dict(window=120), dict(window=Window(60)), dict(hotkey=BOB.ss58_address), dict(checkpoint='00'*32),
                     dict(open=Randomness('open', 90, 'ac'*32, 1234, 'cd'*32))):
        with pytest.raises(FormatError, match='expected'): read_header(data, TINY, **expected)


def test_headers_that_are_not_our_json_are_refused():
    good = header()[0]
    d = json.loads(good)
    for data in (b'', b'null', b'[]', b'5', b'"x"', b'{}', b'\xff\xfe', good[:-1], good+b'x', good+good, b'['*100_000,
                 json.dumps(d | {'more': 1}).encode(), json.dumps({'header': d['header']}).encode(),
                 json.dumps({'header': None, 'signature': 'ab'*64}).encode(),
                 good.replace(b'"groups":4', b'"groups":4,"groups":4'), good.replace(b'"groups":4', b'"groups":NaN'),
                 good.replace(b'"groups":4', b'"groups":' + b'9'*5000),
                 good.replace(b'"groups":4', b'"groups":' + b'[' * 50 + b']'*50), good + b' '*20_000,
                 good.replace(b'sort6', b'\\ud800')):
        with pytest.raises(FormatError): read_header(data, TINY)


def test_a_body_that_was_changed_after_signing_is_refused():
    data, body = header()
    for other in (body[:-1], body+b'\0', b'', encode_body(ROLLOUTS[::-1]),
                  encode_body([replace(ROLLOUTS[0], reward=2.)] + ROLLOUTS[1:]), bytes(len(body))):
        with pytest.raises(FormatError, match='header'): read_submission(data, other, TINY)


def test_two_signatures_of_one_submission_have_one_digest():
    a, b = (read_header(header()[0], TINY) for _ in range(2))
    assert a.digest == b.digest and header()[0] != header()[0]
    assert read_header(header(tokens=1)[0], TINY).digest != a.digest


def test_a_body_over_the_limit_is_refused_before_it_is_looked_at():
    assert isinstance(refused(bytes(TINY.max_body_bytes+1)), LimitError)


# ---------------------------------------------------------------- size

def test_a_token_takes_at_most_ten_and_a_half_bytes():
    "Token ids as frequent as words are, one prompt for a group, random proofs, log-probs without structure"
    rng = np.random.default_rng(0)
    p = 1/(np.arange(49_152)+2.7)
    prompts, n = [rng.integers(0, 49_152, 120) for _ in range(20)], 512
    rollouts = [Rollout(g, i, np.r_[prompts[g], rng.choice(49_152, n, p=p/p.sum())], 120, -rng.gamma(.4, 3, n),
                        rng.integers(0, 2**32, n), float(i % 2), i % 2 == 1) for g in range(20) for i in range(16)]
    assert len(encode_body(rollouts))/(320*n) < 10.5


@pytest.mark.parametrize('text', ['\ud800', 'a\udfff', '\x1b[2J', '\u202e', 'x\ud800'*100, '\n'])
def test_what_a_refused_header_says_can_always_be_written_as_json(text):
    d = json.loads(header()[0])
    outers = [{**d, 'header': text}, {**d, 'header': [text]}, {**d, 'header': {text: 1}}, {**d, 'signature': text}, {text: 1}]
    outers += [{**d, 'header': d['header'] | {name: value}} for name in d['header'] for value in (text, [text], {text: text})]
    for outer in outers:
        with pytest.raises(FormatError) as e: read_header(json.dumps(outer).encode(), TINY, hotkey=ALICE.ss58_address)
        assert canonical_json(str(e.value)) and str(e.value).isprintable()
