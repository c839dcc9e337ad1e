"""No patch, however mangled, writes a wrong weight, raises anything but PatchError, or takes much memory."""

import json
import random
import struct
import tracemalloc

import numpy as np
import pytest
import torch
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.pulse import Corrupt, Missing, Patch, PatchError, StaleBase, Unsupported, apply, decode, encode
from lowcomm.pulse.patch import MAX_HEADER, PREFIX, TRAILER
from tests.pulse.cases import copy, gaussian, same

CODECS = ["packed", "paper"]


def seal(data: bytes) -> bytes:
    """A forger's object: length and trailer made to fit."""
    data = data[:8] + struct.pack("<Q", len(data)) + data[16:]
    return data[:-TRAILER] + xxhash.xxh3_128_digest(data[:-TRAILER])


def rebuild(patch: bytes, header: bytes | None = None, body: bytes | None = None) -> bytes:
    """The same object with another raw header or body, sealed."""
    _, version, _, stored, raw = PREFIX.unpack(patch[: PREFIX.size])
    old = zstandard.ZstdDecompressor().decompress(patch[PREFIX.size : PREFIX.size + stored])
    header = old if header is None else header
    body = patch[PREFIX.size + stored : -TRAILER] if body is None else body
    frame = zstandard.ZstdCompressor().compress(header)
    return seal(PREFIX.pack(b"LCPULSE", version, 0, len(frame), len(header)) + frame + body + b"\0" * TRAILER)


def raw_header(patch: bytes) -> bytearray:
    _, _, _, stored, _ = PREFIX.unpack(patch[: PREFIX.size])
    return bytearray(zstandard.ZstdDecompressor().decompress(patch[PREFIX.size : PREFIX.size + stored]))


def mutate(patch: bytes, rng: random.Random) -> bytes:
    """Truncated, extended, spliced or flipped: the container, the raw header or the raw body; mostly sealed again."""
    where = rng.random()
    if where < 0.4:
        data = bytearray(patch)
    elif where < 0.7:
        data = raw_header(patch)
    else:
        _, _, _, stored, _ = PREFIX.unpack(patch[: PREFIX.size])
        data = bytearray(patch[PREFIX.size + stored : -TRAILER])
        if decode(patch).codec == "paper" and rng.random() < 0.7:
            data = bytearray(zstandard.ZstdDecompressor().decompress(data))
    kind = rng.randrange(6)
    at = rng.randrange(len(data)) if data else 0
    if kind == 0:
        del data[at:]
    elif kind == 1:
        data[at:at] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 2:
        data[at : at + rng.randrange(1, 9)] = b""
    elif kind == 3:
        data[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**16, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
    elif kind == 4:
        n = rng.randrange(1, 64)
        data[at : at + n] = data[: len(data[at : at + n])]
    else:
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    if where < 0.4:
        return seal(bytes(data)) if rng.random() < 0.5 and len(data) > PREFIX.size + TRAILER else bytes(data)
    if where < 0.7:
        return rebuild(patch, header=bytes(data))
    if decode(patch).codec == "paper" and data[:4] != patch[:4] and bytes(data[4:5]) == b"{":
        data = bytearray(zstandard.ZstdCompressor(level=1).compress(bytes(data)))
    return rebuild(patch, body=bytes(data))


def fuzz(count: int, seed: int) -> int:
    """Returns how many mutants were accepted, which they may be only when they lead to the true weights."""
    rng, accepted = random.Random(seed), 0
    old, new = gaussian(seed, delta=4e-6, rows=6, columns=24)
    old["f"], new["f"] = torch.zeros(9), torch.arange(9.0)
    old["tied"], new["tied"] = old["norm"], new["norm"]
    patches = [encode(old, new, c, model="m", lr=3e-6) for c in (*CODECS, "full")]
    here = {**copy({n: t for n, t in old.items() if n != "tied"})}
    here["tied"] = here["norm"]
    for _ in range(count):
        bad = mutate(rng.choice(patches), rng)
        try:
            apply(here, bad)
        except PatchError:
            continue
        accepted += 1
        assert same(here, new), "accepted, but with other weights"
        for name, tensor in old.items():
            here[name].copy_(tensor)
    assert same(here, old), "a refused patch left a trace"
    return accepted


def test_mutants():
    accepted = fuzz(3000, 0)
    # metadata and versions are not part of the weights, and a forger may seal what he likes there
    assert accepted < 600


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 5))
def test_two_hundred_thousand_mutants(seed):
    tracemalloc.start()
    fuzz(50_000, seed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_noise(data):
    for start in (b"", b"LCPULSE\x01"):
        with pytest.raises(PatchError):
            decode(start + data)


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_and_flip(codec):
    old, new = gaussian(delta=4e-6, rows=3, columns=10)
    patch = encode(old, new, codec)
    for n in range(len(patch)):
        with pytest.raises(PatchError):
            decode(patch[:n])
        bad = bytearray(patch)
        bad[n] ^= 1 << (n % 8)
        with pytest.raises(PatchError):
            decode(bytes(bad))
    with pytest.raises(Corrupt):
        decode(patch + b"\0")


@pytest.mark.parametrize("codec", CODECS)
def test_wrong_base(codec):
    """SkyRL#1902: a chain replayed on the wrong base. Here: version 2 onto version 0, and twice in a row."""
    old, new = gaussian()
    last = copy(new)
    last["norm"][0] = 9.0
    patch = encode(new, last, codec, base_version=1)
    here = copy(old)
    with pytest.raises(StaleBase, match="version 1"):
        apply(here, patch)
    assert same(here, old)
    apply(here, encode(old, new, codec))
    apply(here, patch)
    with pytest.raises(StaleBase, match="already"):
        apply(here, patch)
    assert same(here, last)


def test_one_bit_of_the_base():
    """A base that differs anywhere, in a tensor the patch does not touch either, is another base."""
    old, new = gaussian()
    new["a.weight"] = old["a.weight"]
    here = copy(old)
    here["a.weight"].view(torch.int16)[0, 0] ^= 1
    with pytest.raises(StaleBase):
        apply(here, encode(old, new))


@pytest.mark.parametrize("codec", CODECS)
def test_another_model(codec):
    old, new = gaussian()
    patch = encode(old, new, codec)
    less = {n: t.clone() for n, t in old.items() if n != "norm"}
    with pytest.raises(Missing, match="'norm'"):
        apply(less, patch)
    with pytest.raises(Unsupported, match="'lora'"):
        apply({**copy(old), "lora": torch.zeros(3)}, patch)
    with pytest.raises(Unsupported, match="'norm'"):
        apply({**copy(old), "norm": torch.zeros(501).bfloat16()}, patch)
    with pytest.raises(Unsupported, match=r"norm.*F16"):
        apply({**copy(old), "norm": torch.zeros(500).half()}, patch)
    tied = copy(old)
    tied["b.weight"] = tied["a.weight"].reshape(500, 60)
    with pytest.raises(PatchError):
        apply(tied, patch)
    with pytest.raises(Unsupported, match="complex128"):
        apply({"w": torch.zeros(2, dtype=torch.complex128)}, patch)


def test_last_tensor_bad_first_untouched():
    """vllm#53751: half-applied patches. The last record is broken, nothing at all is written."""
    old, new = gaussian()
    patch = encode(old, new)
    body = bytearray(decode(patch).body)
    body[-40] ^= 0x55
    here = copy(old)
    with pytest.raises(Corrupt):
        apply(here, rebuild(patch, body=bytes(body)))
    assert same(here, old)


def test_versions_and_codecs_to_come():
    old, new = gaussian(rows=2)
    patch = encode(old, new)
    with pytest.raises(Unsupported, match="format 9"):
        decode(seal(patch[:7] + b"\x09" + patch[8:]))
    header = raw_header(patch)
    header[0] = 77
    with pytest.raises(Unsupported, match="77"):
        decode(rebuild(patch, header=bytes(header)))


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


def test_duplicate_and_unsorted_names():
    old, new = gaussian(rows=4)
    header = raw_header(encode(old, new))
    for other in (b"b.weight", b"z.weight", b"a.\xff\xfe\xfd\xfc\xfb\xfa"):
        with pytest.raises(Corrupt):
            decode(rebuild(encode(old, new), header=bytes(header.replace(b"a.weight", other))))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_unpack_stays_inside(width):
    """Noise as the stream of the compiled decoder: it ends, and writes nothing outside its arrays."""
    from lowcomm.pulse.packed import unpack

    rng = np.random.default_rng(width)
    layouts = {
        1: (3, 15, 1 << 7, 4, 3),
        2: (7, 255, 1 << 15, 8, 7),
        4: (23, 255, 1 << 31, 8, 23),
        8: (52, 255, np.int64(-(1 << 63)), 11, 52),
    }
    shift, mask, sign, exponent, fraction = layouts[width]
    old = rng.integers(0, 256, 300 * width, np.uint8).view(f"<u{width}")
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
            int(rng.integers(-300, 300)),
            mask + 1,
            shift,
            mask,
            sign,
            exponent,
            fraction,
            position[:n],
            value[:n],
        )
        assert (position[n:] == 7).all()
        assert (value[n:] == 7).all()
        assert not fits or (np.diff(position[:n].astype(np.int64)) > 0).all()


def test_patch_is_described():
    patch = decode(encode(*gaussian(), model="m", step=3, base_version=4))
    assert isinstance(patch, Patch)
    assert (patch.base_version, patch.version, patch.meta) == (4, 5, {"model": "m", "step": 3})
    assert "body" not in repr(patch)
