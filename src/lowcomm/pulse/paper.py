"""The `paper` codec: the published layout and its cost (format 3.1 of the authors' code), for comparison and exchange.

Every tensor as rows x columns (first dimension x the rest; a vector is one column). For the changed entries, in order:
gaps between rows, gaps between columns (the column itself on a new row), absolute new values; each stream narrowed to
the smallest integer that holds it. A u32 header length, a JSON header, then the streams of all tensors, all in one zstd
frame of level 1. Our one extension: int64 gaps where 32 bits do not hold them (the published code raises).
"""

import json
import math
import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
import zstandard

from lowcomm.pulse.dtypes import LAYOUTS
from lowcomm.pulse.errors import Corrupt
from lowcomm.pulse.jit import compiled
from lowcomm.pulse.patch import Patch, Record
from lowcomm.pulse.state import BLOCK, Entry

INTEGERS = {"uint8": "<u1", "uint16": "<u2", "int32": "<i4", "int64": "<i8"}
CHUNK = 1 << 20


def differences(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Where two blocks of words differ (u32, ascending)."""
    position = np.empty(len(old), np.uint32)
    whole = len(old) * old.itemsize // 8 * 8 // old.itemsize
    eights = old[:whole].view(np.uint64), new[:whole].view(np.uint64)
    return position[: _differences(old, new, *eights, 8 // old.itemsize, position)].copy()


@compiled
def _differences(old, new, old8, new8, per, position):
    """Reads eight bytes at a time, and single words only where those differ."""
    n = 0
    for j in range(len(old8)):
        if old8[j] != new8[j]:
            for i in range(j * per, j * per + per):
                if old[i] != new[i]:
                    position[n] = i
                    n += 1
    for i in range(len(old8) * per, len(old)):
        if old[i] != new[i]:
            position[n] = i
            n += 1
    return n


@compiled
def split_gaps(position, start, columns, before, row, column):
    """Row and column gaps of ascending positions (``start`` added); ``before``: (row, column) of the entry before."""
    r0, c0 = before[0], before[1]
    for i in range(len(position)):
        flat = np.int64(position[i]) + start
        r = flat // columns
        c = flat - r * columns
        row[i] = r - r0
        column[i] = c - c0 if r == r0 else c
        r0, c0 = r, c
    before[0], before[1] = r0, c0


@compiled
def join_gaps(row, column, columns, numel, before, position):
    """Undo `split_gaps`; ``before``: (row, column, flat). False where positions do not ascend within the tensor."""
    rows = (numel + columns - 1) // columns
    r, c, flat = before[0], before[1], before[2]
    for i in range(len(row)):
        dr, dc = np.int64(row[i]), np.int64(column[i])
        if dr < 0 or dr >= rows - r or dc < 0 or dc >= columns:
            return False
        c = c + dc if dr == 0 else dc
        r += dr
        if c >= columns:
            return False
        p = r * columns + c
        if p <= flat or p >= numel:
            return False
        position[i] = p
        flat = p
    before[0], before[1], before[2] = r, c, flat
    return True


def columns_of(shape: Sequence[int]) -> int:
    """Columns of a tensor as a matrix: all dimensions but the first multiplied; 1 for vectors and scalars."""
    return math.prod(shape[1:]) if len(shape) > 1 else 1


def narrow(streams: list[np.ndarray], kinds: Sequence[str]) -> tuple[str, list[bytes]]:
    """Streams of integers >= 0 as bytes of one type: the first of ``kinds`` (ascending) that holds the largest number.

    Returns (name of the type, bytes of each stream).
    """
    top = max((int(s.max()) for s in streams if len(s)), default=0)
    kind = next(k for k in kinds if top <= np.iinfo(INTEGERS[k]).max)
    return kind, [s.astype(INTEGERS[kind]).tobytes() for s in streams]


class Writer:
    """Collects tensors in order, then writes the frame."""

    def __init__(self, streams: BinaryIO):
        self.streams = streams  # an empty scratch file for the raw streams
        self.tensors: list[dict] = []

    def add(self, name: str, entry: Entry, blocks: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """``blocks``: for every block of the tensor the changed positions in it (u32) and their new words."""
        columns, before = columns_of(entry.shape), np.zeros(2, np.int64)
        rows, cols, values = [], [], []
        for i, (position, value) in enumerate(blocks):
            row, column = np.empty(len(position), np.int64), np.empty(len(position), np.int64)
            split_gaps(position, i * BLOCK, columns, before, row, column)
            # held as small as each block allows until the whole tensor's type is known
            for held, stream in ((rows, row), (cols, column)):
                held.append(stream.astype(np.min_scalar_type(stream.max() if len(stream) else 0)))
            values.append(value)
        row_type, row_bytes = narrow(rows, ("uint8", "uint16", "int32", "int64"))
        col_type, col_bytes = narrow(cols, ("uint16", "int32", "int64"))
        offset, sizes = self.streams.tell(), []
        for part in (row_bytes, col_bytes, [v.tobytes() for v in values]):
            sizes.append(sum(len(p) for p in part))
            self.streams.writelines(part)
        nnz = sum(len(v) for v in values)
        self.tensors.append(
            {
                "name": name,
                "shape": list(entry.shape),
                "nnz": nnz,
                "value_dtype": entry.dtype,
                "row_dtype": row_type,
                "col_dtype": col_type,
                "offset": offset,
                "sizes": sizes,
            }
        )

    def finish(self, out: BinaryIO) -> None:
        """Write the frame: the length of the header, the header, then all streams in the order of the tensors."""
        text = json.dumps({"version": "3.1", "tensors": self.tensors}).encode()
        total = 4 + len(text) + self.streams.tell()
        packer = zstandard.ZstdCompressor(level=1).compressobj(size=total)
        out.write(packer.compress(struct.pack("<I", len(text)) + text))
        self.streams.seek(0)
        while chunk := self.streams.read(CHUNK):
            out.write(packer.compress(chunk))
        out.write(packer.flush())


def blob(patch: Patch) -> bytes:
    """The published bytes themselves, uncompressed."""
    return zstandard.ZstdDecompressor().decompress(patch.body)


def updates(patch: Patch) -> Iterator[tuple[Record, int, np.ndarray, np.ndarray]]:
    """(record, block, positions in the block, new words) in order. Only Corrupt is raised; one tensor in memory."""
    changing = [r for r in patch.records if r.changed]
    limit = 64 + sum(12 * len(r.name) + 24 * len(r.entry.shape) + 320 for r in changing)
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 23).stream_reader(patch.body) as stream:
            (length,) = struct.unpack("<I", _take(stream, 4))
            if length > limit:
                raise Corrupt(f"the list of tensors has {length} bytes, at most {limit} are possible")
            tensors = _header(_take(stream, length), changing)
            for record, item in zip(changing, tensors, strict=True):
                yield from _tensor(stream, record, item)
            if stream.read(1):
                raise Corrupt("there are bytes after the last tensor")
    except zstandard.ZstdError as e:
        raise Corrupt(f"the body does not unpack: {e}") from None


def _take(stream, n: int) -> bytes:
    out = stream.read(n)
    if len(out) != n:
        raise Corrupt("the body ends inside a tensor")
    return out


def _header(text: bytes, changing: list[Record]) -> list[dict]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise Corrupt("the list of tensors is not JSON") from None
    tensors = header.get("tensors") if isinstance(header, dict) else None
    if not isinstance(tensors, list) or len(tensors) != len(changing):
        raise Corrupt("the list of tensors does not fit the header")
    offset, checked = 0, []
    for record, item in zip(changing, tensors, strict=True):
        width = LAYOUTS[record.entry.dtype].width
        # the published types; wider ones only where the tensor needs them, as they cost memory
        kinds = tuple(INTEGERS) if record.entry.numel > 2**31 else ("uint8", "uint16", "int32")
        if not isinstance(item, dict) or not all(item.get(k) in kinds for k in ("row_dtype", "col_dtype")):
            raise Corrupt(f"tensor {record.name!r}: unknown integer type")
        widths = (np.dtype(INTEGERS[item["row_dtype"]]).itemsize, np.dtype(INTEGERS[item["col_dtype"]]).itemsize, width)
        expected = {
            "name": record.name,
            "shape": list(record.entry.shape),
            "nnz": record.changed,
            "value_dtype": record.entry.dtype,
            "row_dtype": item["row_dtype"],
            "col_dtype": item["col_dtype"],
            "offset": offset,
            "sizes": [record.changed * w for w in widths],
        }
        if item != expected:
            raise Corrupt(f"tensor {record.name!r}: the two headers contradict each other")
        offset += sum(expected["sizes"])
        checked.append(expected)  # not the item: 2.0 equals 2 but is no length
    return checked


def _tensor(stream, record: Record, item: dict) -> Iterator[tuple[Record, int, np.ndarray, np.ndarray]]:
    kinds = (INTEGERS[item["row_dtype"]], INTEGERS[item["col_dtype"]], record.entry.layout.word)
    row, column, value = (np.frombuffer(_take(stream, n), k) for n, k in zip(item["sizes"], kinds, strict=True))
    position = np.empty(record.changed, np.int64)
    before = np.array((0, 0, -1), np.int64)
    numel = record.entry.numel
    if not join_gaps(row, column, columns_of(record.entry.shape), numel, before, position):
        raise Corrupt(f"tensor {record.name!r}: positions leave the tensor or do not ascend")
    cuts = np.searchsorted(position, np.arange(0, numel + BLOCK, BLOCK)) if numel > BLOCK else [0, len(position)]
    for block in range(len(cuts) - 1):
        part = slice(cuts[block], cuts[block + 1])
        if part.start < part.stop:
            yield record, block, (position[part] - block * BLOCK).astype(np.uint32), value[part]
