"""What one parameter's message holds, as bytes: blocks of entries, each in the shorter of two codes.

block     mode, entries and length (`lowcomm.pulse.blocks`), then
          packed: centre, grid (<Hb), and the stream of `gate_code`
          full:   every entry, zero where nothing is sent, where that is shorter
"""

import struct
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lowcomm.outer.gate_code import GRIDS, pack, survey, unpack
from lowcomm.pulse.blocks import Coded, Mode, decode_block, encode_full, join, split
from lowcomm.pulse.dtypes import LAYOUTS, TORCH
from lowcomm.pulse.errors import Corrupt
from lowcomm.pulse.state import Entry, ordered

BLOCK_HEAD = struct.Struct("<Hb")  # centre, grid


class Format(NamedTuple):
    """Where the rounding cells of the gate's number format lie among FP32 numbers, for the contexts of the code."""

    shift: int  # FP32 fraction bits below the format's
    lowest: int  # FP32 exponent field of its smallest normal number
    least: int  # low bits that are zero in every value sent

    @classmethod
    def of(cls, dtype: torch.dtype, values: str) -> "Format":
        """For a gate that casts to ``dtype`` and sends ``values``: exact, bf16 or jump."""
        info = torch.finfo(dtype)
        lowest = 127 + int(np.log2(info.smallest_normal))
        return cls(23 - LAYOUTS[TORCH[dtype]].fraction, max(lowest, 1), 16 if values == "bf16" else 0)


class Item(NamedTuple):
    """One parameter's message: what is sent (zero elsewhere), and where. Tensors of one shape, ``fired`` bool."""

    name: str
    theta: Tensor
    values: Tensor
    fired: Tensor


def payload(item: Item, form: Format) -> bytes:
    """All blocks of one parameter, FP32 ones packed."""
    theta, s, fired = words(item.theta), words(item.values), item.fired.reshape(-1).cpu().numpy()
    entry = Entry(TORCH[item.values.dtype], tuple(item.values.shape))
    spans = entry.blocks()
    return join(list(ordered(lambda span: encode_block(*(x[slice(*span)] for x in (theta, s, fired)), form), spans)))


def encode_block(theta: np.ndarray, s: np.ndarray, fired: np.ndarray, form: Format) -> Coded:
    """The packed code, or every entry where that is shorter (zero: not sent). Words of theta and of what is sent, and a
    bool each."""
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
    """Words of the ``sent`` entries in theta's flat order, zero elsewhere; ``theta`` has the shape of ``entry``.

    Raises Corrupt, which begins with ``what``, for bytes that `payload` does not make.
    """
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
    """Write the entries of one block into ``out``, words that are zero before. Raises Corrupt as `unpayload`."""
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
    """Raises Corrupt unless the words are ``sent`` finite numbers and zeros."""
    real = out.view(f"<f{out.itemsize}")
    if np.count_nonzero(real) != sent or not np.isfinite(real).all():
        raise Corrupt(f"{what}: not {sent} finite entries")


def words(tensor: Tensor) -> np.ndarray:
    """Bits of a float tensor of any shape in its flat order, on the CPU; not a copy where it is contiguous there."""
    flat = tensor.detach().reshape(-1).cpu().numpy()
    return flat.view(f"<u{flat.itemsize}")


def as_tensor(out: np.ndarray, like: Tensor) -> Tensor:
    """The opposite of `words`, with shape and device of ``like``."""
    return torch.from_numpy(out.view(f"<f{out.itemsize}")).view(like.shape).to(like.device)
