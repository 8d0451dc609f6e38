"""A Parquet writer of a hundred lines that can lie: every number in the footer and in the page headers can be replaced.

It makes the files that a hostile miner could send. `honest()` is a good one; tests show that it decodes before they break it."""
import struct

import pyarrow as pa

I32, I64, BIN, LIST, STRUCT, TRUE = 5, 6, 8, 9, 12, 1


def varint(n):
    n, out = n & 2**64-1, bytearray()
    while True:
        out.append(n & 127 | (128 if n > 127 else 0))
        n >>= 7
        if not n: return bytes(out)

def zigzag(n): return varint((n << 1) ^ (n >> 63) if n >= 0 else ((-n) << 1) - 1)

def value(kind, v):
    if kind in (I32, I64): return zigzag(v)
    if kind == BIN: return varint(len(v)) + v
    if kind == LIST:
        inner, items = v
        head = bytes([len(items) << 4 | inner]) if len(items) < 15 else bytes([0xf0 | inner]) + varint(len(items))
        return head + b''.join(value(inner, i) for i in items)
    if kind == STRUCT: return thrift(v)
    raise ValueError(kind)

def thrift(fields):
    "Bytes of a struct {field number: (type, value)}"
    out, last = b'', 0
    for number,(kind,v) in sorted(fields.items()):
        out += bytes([(number-last) << 4 | kind]) if 0 < number-last < 16 else bytes([kind]) + zigzag(number)
        out += b'' if kind == TRUE else value(kind, v)
        last = number
    return out + b'\0'


def run(*runs):
    "Levels of one bit in run-length form, with their length in front"
    body = b''.join(varint(n << 1) + bytes([v]) for n,v in runs if n)
    return struct.pack('<I', len(body)) + body

def zstd_zeros(n, first=b''):
    "A zstd frame of `first` and n zeros; each 128 kB of zeros take 4 bytes"
    full, rest = divmod(n, 128*1024)
    raw, repeated = 0, 1                                # types of blocks
    blocks = [(raw, len(first), first)]*bool(first) + [(repeated, 128*1024, b'\0')]*full + [(repeated, rest, b'\0')]*bool(rest)
    frame = b''.join((size << 3 | kind << 1 | (i == len(blocks)-1)).to_bytes(3, 'little') + data for i,
                     (kind,size,data) in enumerate(blocks))
    return b'\x28\xb5\x2f\xfd' + b'\xe0' + (n+len(first)).to_bytes(8, 'little') + frame    # single segment, size in eight bytes

def zstd(raw): return pa.compress(raw, codec='zstd', asbytes=True)


def page(n, raw, packed=None, encoding=0, size=None, packed_size=None, kind=0, extra=None):
    "A data page of `n` values; `size` is what its header says it decodes to"
    packed = zstd(raw) if packed is None else packed
    inner = {1: (I32, n), 2: (I32, encoding), 3: (I32, 3), 4: (I32, 3)}
    header = {1: (I32, kind), 2: (I32, len(raw) if size is None else size),
              3: (I32, len(packed) if packed_size is None else packed_size), 5: (STRUCT, inner)}
    return thrift(header | (extra or {})) + packed


def zeros(n, width, levels=b''):
    "A data page of n values, all zero, as long as it takes"
    return page(n, b'', packed=zstd_zeros(n*width, levels), size=len(levels) + n*width)


LEAVES = [('group', 1, '<i'), ('index', 1, '<i'), ('prompt_length', 1, '<i'), ('tokens', 1, '<i'), ('logprobs', 4, '<f'),
          ('proof', 1, '<I'), ('reward', 5, '<d'), ('success', 0, None)]
LISTS = ('tokens', 'logprobs', 'proof')
ROW = dict(group=[0], index=[0], prompt_length=[2], tokens=[7, 8, 9, 10, 11], logprobs=[-1., -.5, -.25], proof=[1, 2, 2**32-1],
           reward=[1.], success=[True])

def schema():
    nodes = [{4: (BIN, b'schema'), 5: (I32, 8)}]
    for name,kind,_ in LEAVES:
        leaf = {1: (I32, kind), 3: (I32, 0), 4: (BIN, name.encode())} | ({6: (I32, 13)} if name == 'proof' else {})
        if name in LISTS: nodes += [{3: (I32, 0), 4: (BIN, name.encode()), 5: (I32, 1), 6: (I32, 3)},
                                    {3: (I32, 2), 4: (BIN, b'list'), 5: (I32, 1)}, leaf | {4: (BIN, b'element')}]
        else: nodes.append(leaf)
    return nodes

def raw_values(name, values):
    code = dict((n, c) for n,_,c in LEAVES)[name]
    return bytes([sum(v << i for i,v in enumerate(values))]) if code is None else b''.join(struct.pack(code, v) for v in values)

def raw_page(name, values):
    "Levels (one row) and values, before compression"
    return (run((1, 0), (len(values)-1, 1)) + run((len(values), 1)) if name in LISTS else b'') + raw_values(name, values)


def build(pages=None, counts=None, rows=1, chunk=None, footer=None, row_group=None, nodes=None, gap=b'', tail=None):
    """A file of one row group. `pages` replaces the bytes of a column's pages, `counts` what the footer says of its values,
    `chunk` fields of its metadata ({name: {number: (type, value)}}), `footer` and `row_group` fields of these, `nodes` the
    schema; `gap` stands between last column and footer, `tail` replaces the length of the footer."""
    out, columns = b'PAR1', []
    for name,kind,_ in LEAVES:
        data = (pages or {}).get(name) or page(len(ROW[name]), raw_page(name, ROW[name]))
        path = [name.encode()] + ([b'list', b'element'] if name in LISTS else [])
        meta = {1: (I32, kind), 2: (LIST, (I32, [0, 3])), 3: (LIST, (BIN, path)), 4: (I32, 6),
                5: (I64, (counts or {}).get(name, len(ROW[name]))), 6: (I64, 100), 7: (I64, len(data)), 9: (I64, len(out))}
        columns.append({2: (I64, 0), 3: (STRUCT, meta | (chunk or {}).get(name, {}))})
        out += data
    out += gap
    group = {1: (LIST, (STRUCT, columns)), 2: (I64, 1000), 3: (I64, rows)} | (row_group or {})
    foot = {1: (I32, 1), 2: (LIST, (STRUCT, nodes or schema())), 3: (I64, rows), 4: (LIST, (STRUCT, [group]))} | (footer or {})
    foot = thrift({k: v for k,v in foot.items() if v is not None})
    return out + foot + (struct.pack('<I', len(foot)) if tail is None else tail) + b'PAR1'

def honest(): return build()
