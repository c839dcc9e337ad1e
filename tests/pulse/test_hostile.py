"""Patches made to harm: bombs, indices past the end, JSON that nests for ever, noise for the compiled decoder."""

import json
import struct
import tracemalloc

import numpy as np
import pytest
import torch
import zstandard

from lowcomm.pulse import Corrupt, PatchError, apply, decode, encode
from lowcomm.pulse.gaps import AGES
from lowcomm.pulse.packed import unpack
from lowcomm.pulse.patch import MAX_HEADER, PREFIX, TRAILER
from tests.pulse.cases import copy, gaussian, same
from tests.pulse.forge import raw_header, rebuild, seal


def test_index_equal_to_numel():
    """vllm-ascend#13682: an index past the end reached the device. Forge the published layout so."""
    old, new = {"w": torch.zeros(4, 8).bfloat16()}, {"w": torch.zeros(4, 8).bfloat16()}
    new["w"][3, 7] = 1.0
    patch = encode(old, new, "paper")
    blob = bytearray(zstandard.ZstdDecompressor().decompress(decode(patch).body))
    (length,) = struct.unpack("<I", blob[:4])
    for row, column in ((4, 0), (3, 8), (255, 0), (3, 65535)):
        blob[4 + length : 4 + length + 3] = struct.pack("<BH", row, column)
        here = copy(old)
        with pytest.raises(Corrupt, match="leave the tensor"):
            apply(here, rebuild(patch, body=zstandard.ZstdCompressor(level=1).compress(bytes(blob))))
        assert same(here, old)


def _peak(function) -> int:
    tracemalloc.start()
    with pytest.raises(PatchError):
        function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_bombs():
    """Frames and counts that promise gigabytes cost nothing."""
    old, new = gaussian(rows=4)
    zeros = zstandard.ZstdCompressor(level=19).compress(bytes(256 << 20))
    packed, dense, published = (encode(old, new, c) for c in ("packed", "full", "paper"))
    assert _peak(lambda: apply(copy(old), rebuild(published, body=zeros))) < 4 << 20
    first = decode(dense).records[0].length
    forged = zeros[: first - 1] if len(zeros) >= first - 1 else zeros + bytes(first - 1 - len(zeros))
    bad = b"\x02" + forged + bytes(decode(dense).body[first:])
    assert _peak(lambda: apply(copy(old), rebuild(dense, body=bad))) < 4 << 20
    head = seal(PREFIX.pack(b"LCPULSE", 1, 0, len(zeros), 256 << 20) + zeros + bytes(TRAILER))
    assert _peak(lambda: decode(head)) < 1 << 20
    lie = seal(PREFIX.pack(b"LCPULSE", 1, 0, len(zeros), MAX_HEADER) + zeros + bytes(TRAILER))
    assert _peak(lambda: decode(lie)) < 1 << 20
    header = raw_header(packed)
    at = header.index(b"a.weight") + 8 + 2
    header[at : at + 16] = struct.pack("<QQ", 2**40, 2**16)  # a shape of 2^56 elements, all changed
    header[at + 16 : at + 24] = struct.pack("<Q", 2**56)
    assert _peak(lambda: apply(copy(old), rebuild(packed, header=bytes(header)))) < 1 << 20


def test_hostile_json():
    old, new = gaussian(rows=4)
    for text in (
        b"[" * 60000,
        b'{"a":' * 9000,
        b"{" + b"9" * 6000 + b"}",
        b'{"a":' + b"9" * 6000 + b"}",
        b"[]",
        b'{"a":[]}',
        b"\xff",
    ):
        header = raw_header(encode(old, new))
        fixed = header[:49] + struct.pack("<I", len(text)) + header[53:61]
        with pytest.raises(Corrupt, match="metadata"):
            decode(rebuild(encode(old, new), header=bytes(fixed + text + header[63:])))
    published = encode(old, new, "paper")
    for text in (
        b"[" * 2000,
        b"[]",
        json.dumps({"tensors": [{"row_dtype": []}] * 3}).encode(),
        b'{"tensors":[1,2,3]}',
        b"\xff\xff",
    ):
        body = zstandard.ZstdCompressor().compress(struct.pack("<I", len(text)) + text + bytes(99))
        with pytest.raises(Corrupt):
            apply(copy(old), rebuild(published, body=body))


def test_floats_are_no_lengths():
    """2.0 equals 2 in Python: a header with such sizes must not reach a read()."""
    old, new = gaussian(rows=4)
    published = encode(old, new, "paper")
    blob = zstandard.ZstdDecompressor().decompress(decode(published).body)
    length = struct.unpack("<I", blob[:4])[0]
    header = json.loads(blob[4 : 4 + length])
    for item in header["tensors"]:
        item["sizes"] = [float(n) for n in item["sizes"]]
        item["offset"] = float(item["offset"])
    text = json.dumps(header).encode()
    body = zstandard.ZstdCompressor().compress(struct.pack("<I", len(text)) + text + blob[4 + length :])
    here = copy(old)
    apply(here, rebuild(published, body=body))
    assert same(here, new)


def test_duplicate_and_unsorted_names():
    old, new = gaussian(rows=4)
    header = raw_header(encode(old, new))
    for other in (b"b.weight", b"z.weight", b"a.\xff\xfe\xfd\xfc\xfb\xfa"):
        with pytest.raises(Corrupt):
            decode(rebuild(encode(old, new), header=bytes(header.replace(b"a.weight", other))))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_unpack_stays_inside(width):
    """Noise as the stream of the compiled decoder: it ends, and writes nothing outside its arrays."""
    rng = np.random.default_rng(width)
    layouts = {
        1: (3, 15, 1 << 7, 4, 3),
        2: (7, 255, 1 << 15, 8, 7),
        4: (23, 255, 1 << 31, 8, 23),
        8: (52, 255, np.int64(-(1 << 63)), 11, 52),
    }
    shift, mask, sign, exponent, fraction = layouts[width]
    old = rng.integers(0, 256, 300 * width, np.uint8).view(f"<u{width}")
    ages = rng.integers(0, AGES, 256)
    remembered = (rng.integers(0, 256, len(old), np.uint8), ages, 2 * ages + rng.integers(0, 2, 256))
    for trial in range(300):
        n = int(rng.integers(1, 300))
        data = (
            rng.integers(0, 256, int(rng.integers(0, 200)), np.uint8)
            if trial % 3
            else np.full(100, 255 * (trial % 2), np.uint8)
        )
        position, value = np.full(n + 8, 7, np.uint32), np.full(n + 8, 7, old.dtype)
        fits = unpack(
            old,
            data,
            n,
            rng.integers(-300, 300, AGES),
            AGES if trial % 2 else 1,
            mask + 1,
            shift,
            mask,
            *(remembered if trial % 2 else (None, None, None)),
            sign,
            exponent,
            fraction,
            position[:n],
            value[:n],
        )
        assert (position[n:] == 7).all()
        assert (value[n:] == 7).all()
        assert not fits or (np.diff(position[:n].astype(np.int64)) > 0).all()
