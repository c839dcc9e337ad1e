"""What is measured: the codecs of `lowcomm.pulse`, and for comparison sparse layouts with general compressors.

    paper, packed, history, full    patches as they are published, checked on arrival
    dense                           the weights as they are; encoding is their hash, applying a copy
    <layout>+<compressor>           one blob a tensor: how the authors chose their layout (2602.03839, App. C)

Layouts: `flat` (int32 index), `coo` (int32 row and column), the same with gaps (`flat-gap`, `coo-gap`), and `published`
(gaps of rows and columns, narrowed); each with the new BF16 bits. A blob can be decoded from itself and its tensor's
shape.
"""

import struct
import time
from collections.abc import Mapping

import numpy as np
import xxhash
from torch import Tensor

from lowcomm.patches.compressors import COMPRESSORS
from lowcomm.pulse import History, apply, encode
from lowcomm.pulse.paper import columns_of, differences, join_gaps, narrow, split_gaps
from lowcomm.pulse.state import Tensors

LAYOUTS = ("flat", "flat-gap", "coo", "coo-gap", "published")
PATCHES = ("paper", "packed", "history", "full")
HEAD = struct.Struct("<QQBB")  # changes, bytes before compression, log2 of the row's and of the column's width
Weights = Mapping[str, Tensor]


def names() -> list[str]:
    """What `codec=` may be."""
    return [*PATCHES, "dense", *(f"{layout}+{c}" for layout in LAYOUTS for c in COMPRESSORS)]


class Patches:
    """A codec of the library, both ends of a chain that starts at ``first``."""

    def __init__(self, name: str, first: Weights, threads: int):
        self.name, self.threads = name, threads
        remembers = name == "history"
        self.ours, self.theirs = (History(first, 0) if remembers else None for _ in range(2))

    def encode(self, old: Weights, new: Weights, version: int) -> bytes:
        """The patch to ``version``, which ``new`` is, from the version before."""
        base = {} if self.name == "full" else {"base_version": version - 1}
        return encode(old, new, self.name, version=version, threads=self.threads, history=self.ours, **base)

    def committed(self, old: Weights, new: Weights) -> None:
        """The patch has gone out: what the codec remembers of it from now on."""
        if self.ours is not None:
            self.ours.commit(old, new)

    def apply(self, here: Weights, data: bytes, memory: History | None) -> None:
        """``memory``: the receiver's, see `theirs`; a copy of it may be given to apply a patch twice."""
        apply(here, data, self.threads, memory)


class Dense:
    """No patch at all: what a plain hash and a plain copy of the weights cost."""

    ours = theirs = None

    def encode(self, old: Weights, new: Weights, version: int) -> list[np.ndarray]:
        """The words of each tensor, as they are; their hashes stay in `digests`."""
        state = Tensors(new)
        words = [state.read(n, 0, e.numel) for n, e in state.entries.items()]
        self.digests = [xxhash.xxh3_128_digest(w) for w in words]
        return words

    def committed(self, old: Weights, new: Weights) -> None:
        """Nothing is remembered."""
        pass

    def apply(self, here: Weights, data: list[np.ndarray], memory: None) -> None:
        """Copy the words over ``here``."""
        state = Tensors(here)
        for (name, entry), words in zip(state.entries.items(), data, strict=True):
            state.write(name, 0, entry.numel, None, words)


class Blobs:
    """A layout and a compressor, tensor by tensor. `seconds` holds the compressor's own time of the last call."""

    ours = theirs = None

    def __init__(self, layout: str, compressor: str):
        self.layout = layout
        self.compress, self.decompress = COMPRESSORS[compressor]
        self.raw_bytes, self.seconds = 0, {"pack": 0.0, "unpack": 0.0}

    def encode(self, old: Weights, new: Weights, version: int) -> list[bytes]:
        """One blob a tensor: HEAD, then the compressed layout. `raw_bytes` is their sum before compression."""
        a, b = Tensors(old), Tensors(new)
        out, self.raw_bytes, self.seconds["pack"] = [], 0, 0.0
        for name, entry in b.entries.items():
            before, after = (s.read(name, 0, entry.numel) for s in (a, b))
            at = differences(before, after)
            raw, widths = lay_out(self.layout, at, after[at], entry.shape)
            begun = time.perf_counter()
            body = self.compress(raw)
            self.seconds["pack"] += time.perf_counter() - begun
            self.raw_bytes += len(raw)
            out.append(HEAD.pack(len(at), len(raw), *(w.bit_length() - 1 for w in widths)) + body)
        return out

    def committed(self, old: Weights, new: Weights) -> None:
        """Nothing is remembered."""
        pass

    def apply(self, here: Weights, data: list[bytes], memory: None) -> None:
        """Write the changed elements into ``here``."""
        state = Tensors(here)
        self.seconds["unpack"] = 0.0
        for (name, entry), blob in zip(state.entries.items(), data, strict=True):
            count, length, row, column = HEAD.unpack(blob[: HEAD.size])
            begun = time.perf_counter()
            raw = self.decompress(blob[HEAD.size :], length)
            self.seconds["unpack"] += time.perf_counter() - begun
            where, value = read_back(self.layout, raw, count, (1 << row, 1 << column), entry)
            state.write(name, 0, entry.numel, where, value)


def make(name: str, first: Weights, threads: int) -> Patches | Dense | Blobs:
    """A codec by its name, at both ends of a chain whose first version is ``first``; threads are for patches alone."""
    if name in PATCHES:
        return Patches(name, first, threads)
    return Dense() if name == "dense" else Blobs(*name.split("+"))


def lay_out(layout: str, at: np.ndarray, value: np.ndarray, shape: tuple[int, ...]) -> tuple[bytes, tuple[int, int]]:
    """The bytes before compression, and the widths of row and column numbers (flat: the row is the index)."""
    flat = at.astype(np.int64)
    if layout.startswith("flat"):
        index = np.diff(flat, prepend=0) if layout == "flat-gap" else flat
        return index.astype("<i4").tobytes() + value.tobytes(), (4, 4)
    columns = columns_of(shape)
    if layout == "coo":
        row, column = flat // columns, flat % columns
    else:
        row, column = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
        split_gaps(at, 0, columns, np.zeros(2, np.int64), row, column)
    if layout != "published":
        return row.astype("<i4").tobytes() + column.astype("<i4").tobytes() + value.tobytes(), (4, 4)
    streams = narrow([row], ("uint8", "uint16", "int32")), narrow([column], ("uint16", "int32"))
    widths = tuple({"uint8": 1, "uint16": 2, "int32": 4}[kind] for kind, _ in streams)
    return b"".join([streams[0][1][0], streams[1][1][0], value.tobytes()]), widths


def read_back(layout: str, raw: bytes, count: int, widths: tuple[int, int], entry) -> tuple[np.ndarray, np.ndarray]:
    """Positions (i64, (count)) and new words (count) out of what `lay_out` wrote.

    Raises ValueError for positions that leave the tensor, in the layouts of gaps between rows and columns.
    """
    kinds = {1: "<u1", 2: "<u2", 4: "<i4"}
    first = np.frombuffer(raw, kinds[widths[0]], count)
    at = count * widths[0]
    if layout.startswith("flat"):
        where = np.cumsum(first, dtype=np.int64) if layout == "flat-gap" else first.astype(np.int64)
        return where, np.frombuffer(raw, entry.layout.word, count, at)
    second = np.frombuffer(raw, kinds[widths[1]], count, at)
    value = np.frombuffer(raw, entry.layout.word, count, at + count * widths[1])
    columns = columns_of(entry.shape)
    if layout == "coo":
        return first.astype(np.int64) * columns + second, value
    where = np.empty(count, np.int64)
    if not join_gaps(first, second, columns, entry.numel, np.array((0, 0, -1), np.int64), where):
        raise ValueError(f"{layout}: positions leave the tensor")
    return where, value


Codec = Patches | Dense | Blobs
