"""Documents from JSON-lines and Parquet shards, read as a stream: memory is bounded by the longest line allowed."""

import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

EXTENSIONS = (".jsonl", ".jsonl.zst", ".jsonl.zstd", ".parquet")
CHUNK = 1024  # compressed bytes given to the decoder at once; a hostile shard turns each into 32 MiB at most
DRAIN = 1 << 20


def find_shards(folder: Path) -> list[tuple[str, Path]]:
    """(name relative to the folder, path) of every shard in or under `folder`, sorted by name. Raises ValueError."""
    if not folder.is_dir():
        raise ValueError(f"workload.path={folder}: no such folder; give the folder that holds the shards")
    files = sorted((p.relative_to(folder).as_posix(), p) for p in folder.rglob("*") if p.is_file())
    shards = [(name, path) for name, path in files if name.endswith(EXTENSIONS)]
    if not shards:
        seen = f"there are {len(files)} other files, such as {files[0][0]}" if files else "the folder is empty"
        kinds = ", ".join(EXTENSIONS)
        raise ValueError(f"workload.path={folder}: no shard ({kinds}) there, {seen}; give the folder that holds some")
    return shards


class Skips:
    """What to do with a document that cannot be used: raise, or count and go on."""

    def __init__(self, on_error: str):
        self.counts: Counter[str] = Counter()
        self._raise = on_error == "raise"

    def bad(self, kind: str, where: str, why: str, cause: Exception | None = None) -> None:
        """Count a document of this kind and go on, or raise ValueError with its place and the remedy."""
        if self._raise:
            raise ValueError(f"{where}: {why}; mend it or set workload.on_error=skip") from cause
        self.counts[kind] += 1


def text_of(row: Any, field: str, where: str, skips: Skips) -> str | None:
    """The text of a parsed row; None if it is skipped. Empty texts are dropped and counted, never an error."""
    if not isinstance(row, dict):
        skips.bad("not_an_object", where, f"a JSON {type(row).__name__}, not an object")
    elif field not in row:
        skips.bad("missing_field", where, f"no field {field!r} (workload.field), only {', '.join(sorted(row)[:8])}")
    elif not isinstance(row[field], str):
        skips.bad("not_text", where, f"field {field!r} is {type(row[field]).__name__}, not text")
    elif not row[field]:
        skips.counts["empty"] += 1
    elif not _encodable(row[field]):
        skips.bad("not_utf8", where, f"field {field!r} holds half a surrogate pair, which UTF-8 cannot express")
    else:
        return row[field]
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def documents(path: Path, name: str, field: str, max_line_bytes: int, skips: Skips) -> Iterator[str]:
    """The texts of one shard, in order. `max_line_bytes` bounds a line of JSON."""
    if name.endswith(".parquet"):
        yield from _parquet(path, name, field, skips)
        return
    number = 0
    with path.open("rb") as file:
        raw = file if name.endswith(".jsonl") else ZstdStream(file)
        stream = io.BufferedReader(raw, DRAIN)
        try:
            for number, line in _lines(stream, max_line_bytes):
                text = _parse(line, field, f"{name}, line {number}", max_line_bytes, skips)
                if text is not None:
                    yield text
        except CorruptShard as error:
            skips.bad("corrupt_shard", f"{name}, after line {number}", str(error), error)


def _lines(stream: io.BufferedReader, limit: int) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line without its end); of a line that is too long, the first `limit` + 1 bytes."""
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        yield number, line.removesuffix(b"\n")
        while line and not line.endswith(b"\n"):  # the rest of a line that is too long
            line = stream.readline(DRAIN)


def _parse(line: bytes, field: str, where: str, limit: int, skips: Skips) -> str | None:
    if len(line) > limit:
        skips.bad("line_too_long", where, f"longer than workload.max_line_bytes={limit}")
        return None
    if not line.strip():
        return None
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        skips.bad("not_utf8", where, f"not UTF-8 at byte {error.start}", error)
    except (ValueError, RecursionError) as error:
        skips.bad("invalid_json", where, f"not JSON ({error})", error)
    else:
        return text_of(row, field, where, skips)
    return None


def _parquet(path: Path, name: str, field: str, skips: Skips) -> Iterator[str]:
    import pyarrow.parquet as pq  # slow to import, and of no use to JSON
    from pyarrow import ArrowInvalid

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            columns = [field] if field in file.schema_arrow.names else None  # all: to say which there are
            for batch in file.iter_batches(batch_size=256, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    text = text_of(row, field, f"{name}, row {number}", skips)
                    if text is not None:
                        yield text
    except (ArrowInvalid, OSError) as error:
        skips.bad("corrupt_shard", f"{name}, after row {number}", f"the file is cut or corrupt ({error})", error)


class CorruptShard(Exception):
    """A compressed shard is cut or damaged; what was read before is whole."""


class ZstdStream(io.RawIOBase):
    """The decompressed bytes of all frames of a file. Unlike zstandard's own reader it tells a cut file from an end."""

    def __init__(self, file: io.BufferedReader):
        self._file, self._frame, self._rest, self._ready = file, None, b"", memoryview(b"")
        self._frames = 0

    def readable(self) -> bool:
        """As `io.RawIOBase` asks."""
        return True

    def readinto(self, buffer) -> int:
        """Fill the buffer as far as one decoded chunk goes; 0 at the end. Raises CorruptShard."""
        while not self._ready:
            chunk = self._rest or self._file.read(CHUNK)
            self._rest = b""
            if not chunk:
                if self._frame is not None or not self._frames:
                    raise CorruptShard("the compressed shard ends in the middle, as after an interrupted download")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
                self._frames += 1
            try:
                self._ready = memoryview(self._frame.decompress(chunk))
            except zstandard.ZstdError as error:
                raise CorruptShard(f"the compressed shard is corrupt ({error})") from error
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
