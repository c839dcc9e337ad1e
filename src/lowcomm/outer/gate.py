"""The bytes of gated messages: one object per worker and bucket of parameters, as it crosses the wire.

    head      magic "LCG1", codec, round, worker, body's length                  <4sBQII
    body      per parameter the number of entries sent (LEB128), then
              packed: per parameter its length (LEB128), then the payloads, see `gate_code`
              paper:  one zstd frame, the published patch layout (gap-coded narrowed COO) with FP32 values
    trailer   xxh3-128 of everything before

Receivers know the parameters' names, shapes and theta. Whatever arrives, only Corrupt is raised.
"""

import io
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from torch import Tensor

from lowcomm.outer.gate_code import GRIDS, pack, survey, unpack
from lowcomm.pulse import paper
from lowcomm.pulse.blocks import Coded, Mode, decode_block, encode_full, join, split
from lowcomm.pulse.dtypes import LAYOUTS, TORCH
from lowcomm.pulse.errors import Corrupt
from lowcomm.pulse.patch import Patch, Record
from lowcomm.pulse.state import Entry, ordered

HEAD = struct.Struct("<4sBQII")
CODECS = {"packed": 1, "paper": 2, "refused": 255}
BLOCK_HEAD = struct.Struct("<Hb")  # centre, grid
TRAILER = 16


class Refused(Exception):
    """A worker's own message says that it has none: its pseudo-gradient of `name` is not finite."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


class Format(NamedTuple):
    """Where the rounding cells of the gate's number format lie among FP32 numbers, for the contexts of the code."""

    shift: int  # FP32 fraction bits below the format's
    lowest: int  # FP32 exponent field of its smallest normal number
    least: int  # low bits that are zero in every value sent

    @classmethod
    def of(cls, dtype: torch.dtype, values: str) -> "Format":
        info = torch.finfo(dtype)
        lowest = 127 + int(np.log2(info.smallest_normal))
        return cls(23 - LAYOUTS[TORCH[dtype]].fraction, max(lowest, 1), 16 if values == "bf16" else 0)


class Item(NamedTuple):
    """One parameter's message: what is sent (zero elsewhere), and where."""

    name: str
    theta: Tensor
    values: Tensor
    fired: Tensor


def encode(items: Sequence[Item], form: Format, codec: str, round: int = 0, worker: int = 0) -> bytes:
    """The object of one worker. FP32 parameters are packed, float64 ones are sent whole (they are for tests)."""
    sent = [int(i.fired.sum()) for i in items]
    counts = b"".join(map(varint, sent))
    if codec == "paper":
        streams, body = io.BytesIO(), io.BytesIO()
        writer = paper.Writer(streams)
        for item, count in zip(items, sent, strict=True):
            if count:
                s, fired = words(item.values), item.fired.reshape(-1).cpu().numpy()
                entry = Entry(TORCH[item.values.dtype], tuple(item.values.shape))
                blocks = [(np.flatnonzero(fired[a:b]).astype(np.uint32), s[a:b][fired[a:b]]) for a, b in entry.blocks()]
                writer.add(item.name, entry, blocks)
        writer.finish(body)
        return sealed(codec, round, worker, counts + body.getvalue())
    payloads = [payload(i, form) if n else b"" for i, n in zip(items, sent, strict=True)]
    return sealed(codec, round, worker, counts + b"".join(varint(len(p)) for p in payloads) + b"".join(payloads))


def refusal(name: str, round: int, worker: int) -> bytes:
    """In place of a message, so that all ranks refuse the round together."""
    return sealed("refused", round, worker, name.encode())


def sealed(codec: str, round: int, worker: int, body: bytes) -> bytes:
    data = HEAD.pack(b"LCG1", CODECS[codec], round, worker, len(body)) + body
    return data + xxhash.xxh3_128_digest(data)


def opened(data: bytes, codec: str, round: int, worker: int) -> memoryview:
    """The body, if this is that worker's whole message of this round. Raises Corrupt, or Refused."""
    what = f"round {round}, worker {worker}"
    view = memoryview(data)
    if len(view) < HEAD.size + TRAILER or xxhash.xxh3_128_digest(view[:-TRAILER]) != view[-TRAILER:]:
        raise Corrupt(f"{what}: the message of {len(view)} bytes was damaged on the way")
    magic, code, of, sender, length = HEAD.unpack(view[: HEAD.size])
    body = view[HEAD.size : -TRAILER]
    if magic != b"LCG1" or length != len(body):
        raise Corrupt(f"{what}: this is no gated message")
    if (of, sender) != (round, worker):
        raise Corrupt(f"{what}: this is the message of round {of}, worker {sender}")
    if code == CODECS["refused"]:
        raise Refused(bytes(body).decode(errors="replace"))
    if code != CODECS[codec]:
        raise Corrupt(f"{what}: codec number {code}, but here it is {codec}: configure all ranks alike")
    return body


def decode(body: memoryview, thetas: dict[str, Tensor], form: Format, codec: str, what: str) -> Iterator[Tensor]:
    """For each parameter in order what was sent of it: its shape, dtype of theta, zero where nothing came."""
    sent, at = [], 0
    for name, theta in thetas.items():
        count, at = unvarint(body, at, what)
        if count > theta.numel():
            raise Corrupt(f"{what}: {count} entries of '{name}', which has {theta.numel()}")
        sent.append(count)
    entries = [Entry(TORCH[t.dtype], tuple(t.shape)) for t in thetas.values()]
    if codec == "paper":
        yield from unpublished(body[at:], thetas, entries, sent)
        return
    lengths = []
    for _ in thetas:
        length, at = unvarint(body, at, what)
        lengths.append(length)
    if sum(lengths) != len(body) - at:
        raise Corrupt(f"{what}: the lengths do not add up")
    for (name, theta), entry, count, length in zip(thetas.items(), entries, sent, lengths, strict=True):
        out = unpayload(body[at : at + length], theta, entry, count, form, f"{what}, '{name}'")
        at += length
        yield as_tensor(out, theta)


def unpublished(frame: memoryview, thetas: dict[str, Tensor], entries: list, sent: list[int]) -> Iterator[Tensor]:
    records = tuple(Record(n, e, c, 0) for n, e, c in zip(thetas, entries, sent, strict=True))
    blocks = paper.updates(Patch("paper", 0, 1, b"", b"", records, body=frame))
    update = next(blocks, None)
    for record, theta in zip(records, thetas.values(), strict=True):
        out = np.zeros(theta.numel(), record.entry.layout.word)
        while update is not None and update[0] is record:
            start, _ = record.entry.blocks()[update[1]]
            out[start + update[2].astype(np.int64)] = update[3]
            update = next(blocks, None)
        check_values(out, record.changed, f"'{record.name}'")
        yield as_tensor(out, theta)


def payload(item: Item, form: Format) -> bytes:
    theta, s, fired = words(item.theta), words(item.values), item.fired.reshape(-1).cpu().numpy()
    entry = Entry(TORCH[item.values.dtype], tuple(item.values.shape))
    spans = entry.blocks()
    return join(list(ordered(lambda span: encode_block(*(x[slice(*span)] for x in (theta, s, fired)), form), spans)))


def encode_block(theta: np.ndarray, s: np.ndarray, fired: np.ndarray, form: Format) -> Coded:
    """The packed code, or every entry where that is shorter (zero: not sent)."""
    position, grids = np.empty(len(s), np.uint32), np.zeros(GRIDS, np.int64)
    if s.itemsize != 4:
        n = int(fired.sum())
        return encode_full(s, n) if n else Coded(Mode.SAME, 0, b"")
    n, total = survey(theta, s, fired, position, grids)
    if n == 0:
        return Coded(Mode.SAME, 0, b"")
    centre, grid = total // n, best_grid(grids)
    out = np.empty(min(8 * n, 4 * len(s)) + 2048, np.uint8)
    length = pack(theta, s, position, n, form.shift, form.lowest, centre, grid, form.least, out)
    if length < 0 or length > 4 * len(s):
        return encode_full(s, n)
    return Coded(Mode.PACKED, n, BLOCK_HEAD.pack(centre, grid) + out[:length].tobytes().rstrip(b"\0"))


def best_grid(grids: np.ndarray) -> int:
    """The grid on which the values cost least: a coarser one saves a bit of each, and costs three of each finer."""
    last = np.arange(GRIDS) - 80
    costs = [(3 * float((grids * np.clip(g - last, 0, None)).sum()) - g * grids.sum(), g) for g in range(-40, 41)]
    return min(costs)[1]


def unpayload(data: memoryview, theta: Tensor, entry: Entry, sent: int, form: Format, what: str) -> np.ndarray:
    out = np.zeros(entry.numel, entry.layout.word)
    if not sent:
        if len(data):
            raise Corrupt(f"{what}: a payload without entries")
        return out
    spans, known = entry.blocks(), words(theta)
    for (a, b), (mode, count, part) in zip(spans, split(data, len(spans), sent, what), strict=True):
        decode_into(out[a:b], known[a:b], mode, count, part, entry, form, what)
    return out


def decode_into(out, theta, mode, sent, data, entry: Entry, form: Format, what: str) -> None:
    if mode != Mode.PACKED:
        if mode != Mode.SAME or sent or len(data):
            out[:] = decode_block(mode, sent, data, out, entry.layout, what).value
        check_values(out, sent, what)
        return
    if out.itemsize != 4 or len(data) < BLOCK_HEAD.size or not 1 <= sent <= len(out):
        raise Corrupt(f"{what}: {sent} packed entries among {len(out)} in {len(data)} bytes")
    centre, grid = BLOCK_HEAD.unpack(data[: BLOCK_HEAD.size])
    if centre >> 2 > 254:
        raise Corrupt(f"{what}: entries of infinite size")
    stream = np.frombuffer(data[BLOCK_HEAD.size :], np.uint8)
    if not unpack(theta, stream, sent, form.shift, form.lowest, centre, grid, form.least, out):
        raise Corrupt(f"{what}: the stream does not hold {sent} entries")


def check_values(out: np.ndarray, sent: int, what: str) -> None:
    real = out.view(f"<f{out.itemsize}")
    if np.count_nonzero(real) != sent or not np.isfinite(real).all():
        raise Corrupt(f"{what}: not {sent} finite entries")


def words(tensor: Tensor) -> np.ndarray:
    """Bits of a float tensor in its order, on the CPU."""
    flat = tensor.detach().reshape(-1).cpu().numpy()
    return flat.view(f"<u{flat.itemsize}")


def as_tensor(out: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(out.view(f"<f{out.itemsize}")).view(like.shape).to(like.device)


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes([n])


def unvarint(data: memoryview, at: int, what: str) -> tuple[int, int]:
    n = shift = 0
    while at < len(data) and shift < 63:
        n |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return n, at
    raise Corrupt(f"{what}: a number does not end")
