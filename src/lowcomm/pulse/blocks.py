"""One block of one tensor: compared, coded in the cheapest way, decoded again."""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import zstandard

from lowcomm.pulse.dtypes import Layout
from lowcomm.pulse.errors import Corrupt
from lowcomm.pulse.gaps import AGES, EXPONENTS, GROUPS
from lowcomm.pulse.history import Marks
from lowcomm.pulse.packed import pack, scan, unpack
from lowcomm.pulse.patch import inflate
from lowcomm.pulse.state import BLOCK

DENSE = 1 / 8  # share of changes from which sending every element is tried as well


class Mode(IntEnum):
    """How a block is coded. The numbers stand in patches."""

    SAME = 0  # nothing changed; no bytes
    RAW = 1  # every element
    PLANES = 2  # every element, first bytes together, then second bytes, ...; zstd
    PACKED = 3  # see packed.py; the offset (i16), then the stream


class Coded(NamedTuple):
    """One block, coded: how, how many of its elements differ, and the bytes (without the mode)."""

    mode: Mode
    changed: int
    data: bytes


class Update(NamedTuple):
    """``position`` in the block (u32, ascending) or None for all of it, and the new words."""

    position: np.ndarray | None
    value: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""
        return self.value.nbytes + (0 if self.position is None else self.position.nbytes)

    def on(self, old: np.ndarray) -> np.ndarray:
        """The new block."""
        if self.position is None:
            return self.value
        new = old.copy()
        new[self.position] = self.value
        return new


def grouping(layout: Layout) -> tuple[int, int, int]:
    """(shift, mask, sign bit) that take the exponent out of a word: a float's group. Integers form one group."""
    if not layout.exponent:
        return 0, 0, 0
    return (
        layout.fraction,
        min((1 << layout.exponent) - 1, EXPONENTS - 1),
        np.int64(-(1 << 63)) if layout.width == 8 else 1 << (8 * layout.width - 1),
    )


def encode_packed(old: np.ndarray, new: np.ndarray, layout: Layout, known: Marks | None = None) -> Coded:
    """The cheapest of the modes, measured by size. ``known``: what the receiver remembers of these elements."""
    n = len(old)
    shift, mask, sign = grouping(layout)
    marks, age, turn = known or (None, None, None)
    position, rank = np.empty(n, np.uint32), np.empty(n, np.uint32)
    group, sizes = np.empty(n, np.uint16), np.zeros(GROUPS, np.uint32)
    changed = scan(old, new, shift, mask, marks, age, position, group, rank, sizes)
    if changed == 0:
        return Coded(Mode.SAME, 0, b"")
    if (
        changed > n / 2 and layout.width > 2
    ):  # the fraction bits of such a tensor are noise: not worth coding one by one
        return encode_full(new, changed)
    ages = AGES if known else 1
    offset = _offsets(np.bincount(group[:changed], minlength=GROUPS), sizes, ages)
    out = np.empty(min(n * layout.width, 32 * changed) + 2048, np.uint8)
    found = (position, group, rank, sizes, changed, offset, ages, mask + 1, marks, turn)
    length = pack(old, new, *found, sign, layout.exponent, layout.fraction, out)
    if length < 0:
        return encode_full(new, changed)
    head = np.array(offset[0], "<i2").tobytes() + (offset[1:] - offset[0])[: ages - 1].astype(np.int8).tobytes()
    data = head + out[:length].tobytes().rstrip(b"\0")
    best = Coded(Mode.PACKED, changed, data)
    if changed > n * DENSE or len(data) > n * layout.width / 2:
        best = min(best, encode_full(new, changed), key=lambda coded: len(coded.data))
    return best


def _offsets(counts: np.ndarray, sizes: np.ndarray, ages: int) -> np.ndarray:
    """For each age the exponent at which the mean gap would be one (i64): the mean over changes of exponent minus
    log2(mean gap). Later ages lie within 127 of the first."""
    out = np.full(AGES, EXPONENTS, np.int64)
    for a in range(ages):
        part = slice(a * EXPONENTS, (a + 1) * EXPONENTS)
        count, size = counts[part], sizes[part].astype(np.int64)
        groups = np.flatnonzero((count > 0) & (2 * size > 3 * count))
        if len(groups):
            mean = np.log2(size[groups] / count[groups])
            out[a] = round(float(np.average(groups - mean, weights=count[groups])))
        elif a:
            out[a] = out[0]
    return np.clip(out, out[0] - 127, out[0] + 127)


def encode_full(new: np.ndarray, changed: int) -> Coded:
    """Every element of ``new`` (words, (n)), as planes where zstd makes them smaller. ``changed`` is only noted."""
    planes = np.ascontiguousarray(new.view(np.uint8).reshape(-1, new.itemsize).T)
    packed = zstandard.ZstdCompressor(level=1).compress(planes)
    if len(packed) < new.nbytes:
        return Coded(Mode.PLANES, changed, packed)
    return Coded(Mode.RAW, changed, new.tobytes())


def decode_block(
    mode: int, changed: int, data: memoryview, old: np.ndarray, layout: Layout, what: str, known: Marks | None = None
) -> Update:
    """What the block becomes; ``old`` holds its elements now. Raises Corrupt; allocates a few blocks at most."""
    n = len(old)
    if mode == Mode.SAME:
        if changed or len(data):
            raise Corrupt(f"{what}: an unchanged block with contents")
        return Update(np.empty(0, np.uint32), np.empty(0, layout.word))
    if not 1 <= changed <= n:
        raise Corrupt(f"{what}: {changed} changes among {n} elements")
    if mode == Mode.RAW:
        if len(data) != old.nbytes:
            raise Corrupt(f"{what}: {len(data)} bytes for {old.nbytes}")
        return Update(None, np.frombuffer(data, layout.word).copy())
    if mode == Mode.PLANES:
        planes = np.frombuffer(inflate(data, old.nbytes, what), np.uint8).reshape(layout.width, n)
        return Update(None, np.ascontiguousarray(planes.T).reshape(-1).view(layout.word))
    if mode != Mode.PACKED:
        raise Corrupt(f"{what}: unknown mode {mode}")
    ages = AGES if known else 1
    if len(data) < 1 + ages:
        raise Corrupt(f"{what}: an empty stream")
    offset = np.full(AGES, int.from_bytes(data[:2], "little", signed=True), np.int64)
    offset[1:ages] += np.frombuffer(data[2 : 1 + ages], np.int8)
    shift, mask, sign = grouping(layout)
    marks, age, turn = known or (None, None, None)
    position, value = np.empty(changed, np.uint32), np.empty(changed, layout.word)
    stream = np.frombuffer(data[1 + ages :], np.uint8)
    read = (old, stream, changed, offset, ages, mask + 1, shift, mask, marks, age, turn)
    if not unpack(*read, sign, layout.exponent, layout.fraction, position, value):
        raise Corrupt(f"{what}: the stream does not hold {changed} changes")
    return Update(position, value)


def join(blocks: list[Coded]) -> bytes:
    """A tensor's payload: the mode, with several blocks also changes (u32) and bytes (u32) of each; then the data."""
    if all(b.mode == Mode.SAME for b in blocks):
        return b""
    if len(blocks) == 1:
        return bytes([blocks[0].mode]) + blocks[0].data
    table = np.array([(b.mode, b.changed, len(b.data)) for b in blocks], TABLE)
    return table.tobytes() + b"".join(b.data for b in blocks)


TABLE = np.dtype([("mode", "u1"), ("changed", "<u4"), ("length", "<u4")])


def split(payload: memoryview, blocks: int, changed: int, what: str) -> list[tuple[int, int, memoryview]]:
    """(mode, changed, data) of each block; the sums must agree with the record. Raises Corrupt."""
    if not len(payload):
        if changed:
            raise Corrupt(f"{what}: {changed} changes without a payload")
        return [(Mode.SAME, 0, payload)] * blocks
    if blocks == 1:
        return [(payload[0], changed, payload[1:])]
    table = (
        np.frombuffer(payload[: blocks * TABLE.itemsize], TABLE) if len(payload) >= blocks * TABLE.itemsize else None
    )
    if blocks == 0 or table is None:
        raise Corrupt(f"{what}: the payload does not fit its {blocks} blocks")
    ends = blocks * TABLE.itemsize + np.cumsum(table["length"], dtype=np.int64)
    if ends[-1] != len(payload) or np.sum(table["changed"], dtype=np.int64) != changed:
        raise Corrupt(f"{what}: the blocks do not add up to the tensor")
    starts = ends - table["length"]
    return [
        (int(m), int(c), payload[a:b]) for m, c, a, b in zip(table["mode"], table["changed"], starts, ends, strict=True)
    ]


assert BLOCK <= 1 << 22, "packed.py counts gaps in 23 bits"
