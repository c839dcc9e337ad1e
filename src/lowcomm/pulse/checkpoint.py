"""safetensors files, single or sharded as Hugging Face writes them, read and written block by block.

With plain reads rather than a memory map: what is in memory is a few blocks, whatever the size of the file.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lowcomm.pulse.dtypes import LAYOUTS
from lowcomm.pulse.errors import Corrupt, Unsupported
from lowcomm.pulse.state import Entry

INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000  # as the safetensors library has it


class Place(NamedTuple):
    """Where the bytes of a tensor lie."""

    file: Path
    offset: int  # of the tensor's first byte in the file


class Checkpoint:
    """A `State` over a .safetensors file or a folder of them; ``writable`` to change it in place.

    Raises FileNotFoundError, Corrupt (a damaged file) or Unsupported (an element type we do not know).
    """

    def __init__(self, path: str | Path, writable: bool = False):
        self.path, self.aliases = Path(path), {}
        self._files: dict[Path, int] = {}
        found: dict[str, tuple[Entry, Place]] = {}
        shards = _shards(self.path)
        for file in shards:
            for name, value in _header(file).items():
                if name in found:
                    raise Corrupt(f"tensor {name!r} is in {found[name][1].file.name} and in {file.name}")
                found[name] = value
        for file in shards:
            self._files[file] = os.open(file, os.O_RDWR if writable else os.O_RDONLY)
        self.entries = {name: found[name][0] for name in sorted(found, key=str.encode)}
        self._places = {name: place for name, (_, place) in found.items()}

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, without headers."""
        return sum(e.numel * e.layout.width for e in self.entries.values())

    def _at(self, name: str, start: int) -> tuple[int, int]:
        place = self._places[name]
        return self._files[place.file], place.offset + start * self.entries[name].layout.width

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        words = np.empty(stop - start, self.entries[name].layout.word)
        descriptor, offset = self._at(name, start)
        view, done = memoryview(words).cast("B"), 0
        while done < len(view):
            n = os.preadv(descriptor, [view[done:]], offset + done)
            if n == 0:
                raise Corrupt(f"{self._places[name].file.name} ends inside tensor {name!r}")
            done += n
        return words

    def write(self, name: str, start: int, stop: int, position: np.ndarray | None, value: np.ndarray) -> None:
        if position is None:
            words = value
        else:
            words = self.read(name, start, stop)
            words[position] = value
        descriptor, offset = self._at(name, start)
        view, done = memoryview(np.ascontiguousarray(words)).cast("B"), 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset + done)

    def flush(self) -> None:
        """To the disk."""
        for descriptor in self._files.values():
            os.fsync(descriptor)


def _shards(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if (path / INDEX).is_file():
        try:
            names = sorted(set(json.loads((path / INDEX).read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Corrupt(f"{INDEX} has no list of files by tensor") from None
        if not all(type(name) is str for name in names) or any("/" in name for name in names):
            raise Corrupt(f"{INDEX} names files outside its folder")
        return [path / name for name in names]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{path}: no .safetensors file is there; give one, or a folder of shards")
    return files


def _header(file: Path) -> dict[str, tuple[Entry, Place]]:
    size = file.stat().st_size
    with file.open("rb") as f:
        length = int.from_bytes(f.read(8), "little")
        if length > min(size - 8, MAX_HEADER):
            raise Corrupt(f"{file.name} is not a safetensors file, or is cut off; save it again, as one")
        raw = f.read(length)
    try:
        items = {name: item for name, item in json.loads(raw).items() if name != "__metadata__"}
        fields = [(n, i["dtype"], tuple(map(int, i["shape"])), *map(int, i["data_offsets"])) for n, i in items.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Corrupt(f"{file.name}: the header is not that of a safetensors file") from None
    out = {}
    for name, dtype, shape, start, stop in fields:
        if dtype not in LAYOUTS:
            raise Unsupported(f"{file.name}: tensor {name!r} has element type {dtype}")
        entry = Entry(dtype, shape)
        if not 0 <= start <= stop <= size - 8 - length or stop - start != entry.numel * entry.layout.width:
            raise Corrupt(f"{file.name}: tensor {name!r} does not lie in the file")
        out[name] = (entry, Place(file, 8 + length + start))
    # one write would change two tensors
    end, last = 0, ""
    for start, stop, name in sorted((start, stop, name) for name, _, _, start, stop in fields if stop > start):
        if start < end:
            raise Corrupt(f"{file.name}: tensors {last!r} and {name!r} overlap")
        end, last = stop, name
    return out
