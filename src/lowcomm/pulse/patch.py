"""The patch as an object: one self-describing run of bytes. All numbers little-endian.

    magic "LCPULSE" and format version        8
    length of the whole object                u64
    length of the header, stored and raw      u64 u64
    header                                    one zstd frame, see `_pack_header`
    body                                      the records' payloads in order (codec `paper`: one zstd frame)
    trailer                                   xxh3-128 of everything before

`decode` checks all of this and allocates nothing that the limits below do not cover; payloads are left as they are.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import xxhash
import zstandard

from lowcomm.pulse.dtypes import LAYOUTS, NAMES
from lowcomm.pulse.errors import Corrupt, Unsupported
from lowcomm.pulse.state import Entry

MAGIC = b"LCPULSE"
FORMAT = 1
CODECS = {"paper": 1, "packed": 2, "full": 3, "history": 4}
TRAILER = 16
PREFIX = struct.Struct("<7sBQQQ")
FIXED = struct.Struct("<BQQ16s16sIII")
MAX_HEADER = 16 << 20
MAX_RECORDS = 1 << 17
MAX_META = 1 << 16
MAX_NUMEL = 1 << 56
NO_BASE = 2**64 - 1


@dataclass(frozen=True)
class Record:
    """One tensor: what it is, how many elements change, how many bytes of the body are its own."""

    name: str
    entry: Entry
    changed: int
    length: int


@dataclass(frozen=True)
class Patch:
    """A parsed patch. ``base_version`` is None for an anchor, which holds every weight and needs no base."""

    codec: str
    base_version: int | None
    version: int
    base_digest: bytes
    target_digest: bytes
    records: tuple[Record, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    body: memoryview = field(default=memoryview(b""), repr=False)

    @property
    def changed(self) -> int:
        """Elements that change, of all tensors."""
        return sum(r.changed for r in self.records)

    @property
    def numel(self) -> int:
        """Elements of all tensors, tied ones once."""
        return sum(r.entry.numel for r in self.records)

    @property
    def dense_nbytes(self) -> int:
        """Bytes of all weights, uncompressed."""
        return sum(r.entry.numel * r.entry.layout.width for r in self.records)

    def head(self, body: int) -> bytes:
        """The object up to its body, which will have ``body`` bytes."""
        raw = _pack_header(self)
        stored = zstandard.ZstdCompressor(level=9).compress(raw)
        total = PREFIX.size + len(stored) + body + TRAILER
        return PREFIX.pack(MAGIC, FORMAT, total, len(stored), len(raw)) + stored


def _pack_header(patch: Patch) -> bytes:
    meta = json.dumps(dict(patch.meta), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    if len(meta) > MAX_META or len(patch.records) > MAX_RECORDS:
        raise ValueError(f"{len(patch.records)} tensors, {len(meta)} bytes of metadata: more than a patch may hold")
    base = NO_BASE if patch.base_version is None else patch.base_version
    parts = [
        FIXED.pack(
            CODECS[patch.codec],
            base,
            patch.version,
            patch.base_digest,
            patch.target_digest,
            len(meta),
            len(patch.records),
            len(patch.aliases),
        ),
        meta,
    ]
    for r in patch.records:
        parts += [_text(r.name), bytes((r.entry.layout.code, len(r.entry.shape)))]
        parts.append(struct.pack(f"<{len(r.entry.shape)}QQQ", *r.entry.shape, r.changed, r.length))
    for alias, owner in patch.aliases.items():
        parts += [_text(alias), _text(owner)]
    raw = b"".join(parts)
    if len(raw) > MAX_HEADER:
        raise ValueError(f"the patch header has {len(raw)} bytes, more than {MAX_HEADER}")
    return raw


def _text(s: str) -> bytes:
    encoded = s.encode()
    return struct.pack("<H", len(encoded)) + encoded


def decode(data: bytes | bytearray | memoryview) -> Patch:
    """Parse and check an object. Raises Corrupt or Unsupported (PatchError), never anything else.

    Memory: the object itself, at most MAX_HEADER for the header and some hundred bytes for each record.
    """
    data = memoryview(data).cast("B")
    if len(data) < PREFIX.size + TRAILER:
        raise Corrupt(f"{len(data)} bytes are too few for a patch: fetch it again")
    magic, version, total, stored, raw_length = PREFIX.unpack(data[: PREFIX.size])
    if magic != MAGIC:
        raise Corrupt("not a patch: it does not start with LCPULSE")
    if version != FORMAT:
        raise Unsupported(f"patch format {version}; this receiver knows {FORMAT}: upgrade lowcomm")
    if total != len(data):
        raise Corrupt(f"the patch says it has {total} bytes but {len(data)} are here: fetch it again")
    if xxhash.xxh3_128_digest(data[:-TRAILER]) != data[-TRAILER:]:
        raise Corrupt("the trailer hash does not match: bytes were damaged, fetch the patch again")
    body = PREFIX.size + stored
    if raw_length > MAX_HEADER or body > len(data) - TRAILER:
        raise Corrupt("impossible header length")
    return _parse(inflate(data[PREFIX.size : body], raw_length, "the header"), data[body:-TRAILER])


def inflate(data: memoryview, length: int, what: str) -> bytes:
    """Exactly ``length`` bytes from one zstd frame that says so, or Corrupt; never allocates more."""
    try:
        if zstandard.get_frame_parameters(data).content_size != length:
            raise Corrupt(f"{what} would not unpack to its stated {length} bytes")
        out = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise Corrupt(f"{what} does not unpack: {e}") from None
    if len(out) != length:
        raise Corrupt(f"{what} would not unpack to its stated {length} bytes")
    return out


class _Reader:
    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        out = self.data[self.at : self.at + n]
        if len(out) != n:
            raise Corrupt("the header ends inside a field")
        self.at += n
        return out

    def unpack(self, form: str) -> tuple:
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def text(self) -> str:
        (n,) = self.unpack("<H")
        try:
            return self.take(n).decode()
        except UnicodeDecodeError:
            raise Corrupt("a tensor name is not UTF-8") from None


def _parse(raw: bytes, body: memoryview) -> Patch:
    r = _Reader(raw)
    codec, base, version, base_digest, target_digest, meta_length, count, ties = FIXED.unpack(r.take(FIXED.size))
    codecs = {v: k for k, v in CODECS.items()}
    if codec not in codecs:
        raise Unsupported(f"codec number {codec}; this receiver knows {', '.join(CODECS)}: upgrade lowcomm")
    if meta_length > MAX_META or count > MAX_RECORDS or ties > MAX_RECORDS:
        raise Corrupt("the header states more than a patch may hold")
    meta = _meta(r.take(meta_length))
    records = tuple(_record(r) for _ in range(count))
    aliases = {r.text(): r.text() for _ in range(ties)}
    names = [x.name.encode() for x in records]
    if names != sorted(set(names)):
        raise Corrupt("tensor names are not unique and sorted")
    known = {x.name for x in records}
    if len(aliases) != ties or not known.issuperset(aliases.values()) or known.intersection(aliases):
        raise Corrupt("tied names do not fit the tensors")
    lengths = sum(x.length for x in records)
    name = codecs[codec]
    if r.at != len(raw) or lengths != (0 if name == "paper" else len(body)):
        raise Corrupt("the lengths in the header do not add up")
    if (base == NO_BASE) != (name == "full"):
        raise Corrupt("an anchor has no base and every other patch has one")
    return Patch(
        name,
        None if base == NO_BASE else base,
        version,
        base_digest,
        target_digest,
        records,
        aliases,
        meta,
        body,
    )


def _record(r: _Reader) -> Record:
    name = r.text()
    code, ndim = r.unpack("<BB")
    *shape, changed, length = r.unpack(f"<{ndim}QQQ")
    if code not in NAMES:
        raise Unsupported(f"tensor {name!r} has element type number {code}: upgrade lowcomm")
    entry = Entry(NAMES[code], tuple(shape))
    if math.prod(shape) > MAX_NUMEL or max(shape, default=0) > MAX_NUMEL or changed > entry.numel:
        raise Corrupt(f"tensor {name!r}: {changed} changes in shape {shape} are impossible")
    return Record(name, entry, changed, length)


def _meta(raw: bytes) -> dict:
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError):
        raise Corrupt("the metadata is not JSON") from None
    if not isinstance(meta, dict) or not all(isinstance(v, str | int | float | bool | None) for v in meta.values()):
        raise Corrupt("the metadata is not a flat object")
    return meta


assert len(NAMES) == len(LAYOUTS)
