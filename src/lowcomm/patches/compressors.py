"""General compressors by name: (compress, decompress to a known length), one thread each."""

from collections.abc import Callable

import pyarrow
import zstandard

Pair = tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]


def _zstd(level: int) -> Pair:
    packer, unpacker = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    return packer.compress, lambda data, length: unpacker.decompress(data, max_output_size=length)


def _arrow(codec: str, level: int | None = None) -> Pair:
    made = pyarrow.Codec(codec, compression_level=level)
    return (
        lambda data: made.compress(data, asbytes=True),
        lambda data, length: made.decompress(data, decompressed_size=length, asbytes=True) if length else b"",
    )


COMPRESSORS: dict[str, Pair] = {
    "none": (bytes, lambda data, length: data),
    "lz4": _arrow("lz4"),
    "snappy": _arrow("snappy"),
    "zstd-1": _zstd(1),
    "zstd-3": _zstd(3),
    "zstd-9": _zstd(9),
    "gzip-6": _arrow("gzip", 6),
    "brotli-1": _arrow("brotli", 1),
}
