"""Forged and mangled patches."""

import json
import random
import struct

import xxhash
import zstandard

from lowcomm.pulse import decode
from lowcomm.pulse.patch import PREFIX, TRAILER


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


STRANGE = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2**31,
    2**63,
    1.0,
    2.5,
    1e308,
    "",
    "uint8",
    "int32",
    "int64",
    "float",
    [],
    {},
    [0],
)


def mutate_json(patch: bytes, rng: random.Random) -> bytes:
    """A patch of the published layout whose inner list of tensors is well-formed JSON that says something else."""
    blob = zstandard.ZstdDecompressor().decompress(decode(patch).body)
    (length,) = struct.unpack("<I", blob[:4])
    header = json.loads(blob[4 : 4 + length])
    tensors = header["tensors"]
    for _ in range(rng.randrange(1, 4)):
        item = rng.choice(tensors) if tensors else {}
        key = rng.choice([*item, "more"]) if item else "more"
        kind = rng.randrange(9)
        if kind == 0:
            item[key] = rng.choice(STRANGE)
        elif kind == 1:
            item.pop(key, None)
        elif kind == 2 and tensors:
            tensors.append(dict(item))
        elif kind == 3 and tensors:
            tensors.remove(item)
        elif kind == 4:
            rng.shuffle(tensors)
        elif kind == 5 and isinstance(item.get("sizes"), list):  # not what kind 0 has put there
            at = rng.randrange(3)
            item["sizes"] = [
                n + rng.choice((-1, 1, 2**32)) if i == at and isinstance(n, int) else n
                for i, n in enumerate(item["sizes"])
            ]
        elif kind == 6 and isinstance(item.get("nnz"), int):
            item["nnz"] += rng.choice((-1, 1, 2**40))
        elif kind == 7 and item:
            item["row_dtype"], item["col_dtype"] = item.get("col_dtype"), item.get("row_dtype")
        else:
            header[rng.choice(("version", "tensors", "more"))] = rng.choice(STRANGE)
            tensors = header["tensors"] if isinstance(header.get("tensors"), list) else []
            tensors = tensors if all(isinstance(t, dict) for t in tensors) else []
    text = json.dumps(header).encode()
    body = struct.pack("<I", len(text)) + text + blob[4 + length :]
    return rebuild(patch, body=zstandard.ZstdCompressor(level=1).compress(body))


def mutate(patch: bytes, rng: random.Random) -> bytes:
    """Truncated, extended, spliced or flipped: the container, the raw header or the raw body; mostly sealed again. Of
    the published layout also the inner list of tensors."""
    where = rng.random()
    if where > 0.8 and decode(patch).codec == "paper":
        return mutate_json(patch, rng)
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
