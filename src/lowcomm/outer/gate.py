"""The bytes of gated messages: one object per worker and bucket of parameters, as it crosses the wire.

    head      magic "LCG2", codec, round, worker, body's length                  <4sBIIQ
    body      per parameter the number of entries sent (LEB128), then
              packed: per parameter its length (LEB128), then the payloads, see `gate_payload`
              paper:  one zstd frame, the published patch layout (gap-coded narrowed COO) with FP32 values
    trailer   xxh3-128 of everything before

Receivers know the parameters' names, shapes and theta. Whatever arrives, only Corrupt is raised.
"""

import io
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import xxhash
from torch import Tensor

from lowcomm.outer.gate_payload import Format, Item, as_tensor, check_values, payload, unpayload, words
from lowcomm.pulse import paper
from lowcomm.pulse.dtypes import TORCH
from lowcomm.pulse.errors import Corrupt
from lowcomm.pulse.patch import Patch, Record
from lowcomm.pulse.state import Entry

HEAD = struct.Struct("<4sBIIQ")
CODECS = {"packed": 1, "paper": 2, "refused": 255}
TRAILER = 16


class Refused(Exception):
    """A worker's own message says that it has none: its pseudo-gradient of `name` is not finite."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


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
    """``body`` with head and trailer; ``codec`` is one of CODECS."""
    data = HEAD.pack(b"LCG2", CODECS[codec], round, worker, len(body)) + body
    return data + xxhash.xxh3_128_digest(data)


def opened(data: bytes, codec: str, round: int, worker: int) -> memoryview:
    """The body, if this is that worker's whole message of this round. Raises Corrupt, or Refused."""
    what = f"round {round}, worker {worker}"
    view = memoryview(data)
    if len(view) < HEAD.size + TRAILER or xxhash.xxh3_128_digest(view[:-TRAILER]) != view[-TRAILER:]:
        raise Corrupt(f"{what}: the message of {len(view)} bytes was damaged on the way")
    magic, code, of, sender, length = HEAD.unpack(view[: HEAD.size])
    body = view[HEAD.size : -TRAILER]
    if magic != b"LCG2" or length != len(body):
        raise Corrupt(f"{what}: this is no gated message")
    if (of, sender) != (round, worker):
        raise Corrupt(f"{what}: this is the message of round {of}, worker {sender}")
    if code == CODECS["refused"]:
        raise Refused(bytes(body).decode(errors="replace"))
    if code != CODECS[codec]:
        raise Corrupt(f"{what}: codec number {code}, but here it is {codec}: configure all ranks alike")
    return body


def decode(body: memoryview, thetas: dict[str, Tensor], form: Format, codec: str, what: str) -> Iterator[Tensor]:
    """For each parameter in order what was sent of it: its shape, dtype of theta, zero where nothing came.

    ``what`` begins the message of Corrupt, which is raised where the bytes are not those of `encode`; parameters that
    were whole may have been given by then.
    """
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
    """`decode` of the published layout: ``entries`` and ``sent`` of each parameter, tensors of its shape."""
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


def varint(n: int) -> bytes:
    """LEB128 of n, which is not negative."""
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes([n])


def unvarint(data: memoryview, at: int, what: str) -> tuple[int, int]:
    """(number, place behind it) of the LEB128 number at ``at``. Raises Corrupt where it does not end."""
    n = shift = 0
    while at < len(data) and shift < 63:
        n |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return n, at
    raise Corrupt(f"{what}: a number does not end")
