"""Metadata of a small Subtensor runtime, written by hand, so that the SDK's own codec encodes, signs and decodes real extrinsics.

Only the calls that grail makes are in it, with the argument types of the real runtime. The bytes are Substrate's metadata,
version 14."""
import struct


def compact(n):
    "SCALE's compact integer"
    if n < 1 << 6: return bytes([n << 2])
    if n < 1 << 14: return struct.pack('<H', n << 2 | 1)
    return struct.pack('<I', n << 2 | 2)

def text(s): return compact(len(s.encode())) + s.encode()
def vec(items): return compact(len(items)) + b''.join(items)
def option(x): return b'\0' if x is None else b'\1' + x
def field(name, ty, label=None): return option(name and text(name)) + compact(ty) + option(label and text(label)) + vec([])


class Registry:
    "The types of a runtime, by number"
    PRIMITIVES = dict(bool=0, str=2, u8=3, u16=4, u32=5, u64=6, u128=7)
    def __init__(self): self.types, self.known = [], {}

    def add(self, definition, path=(), params=()):
        key = definition, tuple(path), tuple(params)
        if key not in self.known:
            self.known[key] = len(self.types)
            parameters = vec([text(name) + option(compact(ty)) for name, ty in params])
            self.types.append(vec([text(p) for p in path]) + parameters + definition + vec([]))
        return self.known[key]

    def primitive(self, name): return self.add(b'\5' + bytes([self.PRIMITIVES[name]]))
    def composite(self, fields, path=(), params=()): return self.add(b'\0' + vec([field(*f) for f in fields]), path, params)
    def variant(self, variants, path=(), params=()):
        "`variants`: of (name, fields, index)"
        return self.add(b'\1' + vec([text(n) + vec([field(*f) for f in fs]) + bytes([i]) + vec([]) for n, fs, i in variants]),
                        path, params)
    def sequence(self, ty): return self.add(b'\2' + compact(ty))
    def array(self, n, ty): return self.add(b'\3' + struct.pack('<I', n) + compact(ty))
    def tuple(self, types): return self.add(b'\4' + vec([compact(t) for t in types]))
    def compacted(self, ty): return self.add(b'\6' + compact(ty))
    def bounded(self, ty):
        return self.composite([(None, self.sequence(ty))], ('bounded_collections', 'bounded_vec', 'BoundedVec'), [('T', ty)])
    def encode(self): return vec([compact(i) + t for i, t in enumerate(self.types)])


def metadata():
    "The metadata, as a node would send it"
    r = Registry()
    u8, u16, u32, u64, unit = *(r.primitive(n) for n in ('u8', 'u16', 'u32', 'u64')), r.tuple([])
    bytes32  = r.array(32, u8)
    account  = r.composite([(None, bytes32)], ('sp_core', 'crypto', 'AccountId32'))
    address  = r.variant([('Id', [(None, account)], 0)], ('sp_runtime', 'multiaddress', 'MultiAddress'), [('AccountId', account)])
    bytes64  = r.array(64, u8)
    signature = r.variant([('Ed25519', [(None, bytes64)], 0), ('Sr25519', [(None, bytes64)], 1)],
                          ('sp_runtime', 'MultiSignature'))
    netuid   = r.composite([(None, u16)], ('subtensor_runtime_common', 'NetUid'))
    mechid   = r.composite([(None, u8)], ('subtensor_runtime_common', 'MechId'))
    raws     = [(f'Raw{n}', [(None, r.array(n, u8))], n+1) for n in range(129)]
    locked   = [('encrypted', r.bounded(u8)), ('reveal_round', u64)]
    data     = r.variant([('None', [], 0), *raws, ('BlakeTwo256', [(None, bytes32)], 130), ('Sha256', [(None, bytes32)], 131),
                          ('TimelockEncrypted', locked, 134)], ('pallet_commitments', 'types', 'Data'))
    info     = r.composite([('fields', r.bounded(data))], ('pallet_commitments', 'types', 'CommitmentInfo'))
    u16s     = r.sequence(u16)
    calls    = {'SubtensorModule': (7, [('burned_register', [('netuid', netuid), ('hotkey', account)], 7),
                                        ('commit_timelocked_mechanism_weights', [('netuid', netuid), ('mecid', mechid),
                                                                                 ('commit', r.bounded(u8)),
                                                                                 ('reveal_round', u64), ('commit_reveal_version',
                                                                                                         u16)], 118),
                                        ('set_mechanism_weights', [('netuid', netuid), ('mecid', mechid), ('dests', u16s),
                                                                   ('weights', u16s),
                                                                   ('version_key', u64)], 119)]),
                'Commitments': (18, [('set_commitment', [('netuid', netuid), ('info', info)], 0)])}
    types    = {name: r.variant(cs, (f'pallet_{name.lower()}', 'pallet', 'Call')) for name, (_, cs) in calls.items()}
    call     = r.variant([(name, [(None, types[name])], index) for name, (index, _) in calls.items()], ('node_subtensor_runtime',
                                                                                                        'RuntimeCall'))
    era      = r.variant([('Immortal', [], 0), *((f'Mortal{i}', [(None, u8)], i) for i in range(1, 256))],
                         ('sp_runtime', 'generic', 'era', 'Era'))
    nonce    = r.composite([(None, r.compacted(u32))], ('frame_system', 'extensions', 'check_nonce', 'CheckNonce'))
    mortal   = r.composite([(None, era)], ('frame_system', 'extensions', 'check_mortality', 'CheckMortality'))
    empty    = lambda name: r.composite([], ('frame_system', 'extensions', name))
    extra    = [('CheckSpecVersion', empty('CheckSpecVersion'), u32), ('CheckTxVersion', empty('CheckTxVersion'), u32),
                ('CheckGenesis', empty('CheckGenesis'), bytes32), ('CheckMortality', mortal, bytes32), ('CheckNonce', nonce,
                                                                                                        unit)]
    extrinsic = r.composite([(None, r.sequence(u8))], ('sp_runtime', 'generic', 'unchecked_extrinsic', 'UncheckedExtrinsic'),
                            [('Address', address), ('Call', call), ('Signature', signature),
                             ('Extra', r.tuple([e[1] for e in extra]))])
    runtime  = r.composite([], ('node_subtensor_runtime', 'Runtime'))
    pallets  = [text(name) + option(None) + option(compact(types[name])) + option(None) + vec([]) + option(None) + bytes([index])
                for name, (index, _) in calls.items()]
    signed   = [text(name) + compact(ty) + compact(more) for name, ty, more in extra]
    return b'meta\x0e' + r.encode() + vec(pallets) + compact(extrinsic) + b'\4' + vec(signed) + compact(runtime)
