"""Weights as words: named tensors read and written block by block, and their digest."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
import torch
import xxhash
from torch import Tensor

from lowcomm.pulse.dtypes import INTEGER, LAYOUTS, TORCH, Layout
from lowcomm.pulse.errors import Unsupported

BLOCK = 1 << 22  # elements; part of the format: digests and codes are made block by block


class Entry(NamedTuple):
    """What a tensor is, without its elements."""

    dtype: str  # as in LAYOUTS
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"

    @property
    def numel(self) -> int:
        """Number of elements; 1 for a scalar."""
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def layout(self) -> Layout:
        """Width and bit fields of the element type."""
        return LAYOUTS[self.dtype]

    def blocks(self) -> list[tuple[int, int]]:
        """(start, stop) of each block, in elements."""
        n = self.numel
        return [(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK)]


class State(Protocol):
    """A set of named tensors. ``entries`` is sorted by name (as UTF-8); tied tensors are in it once."""

    entries: dict[str, Entry]
    aliases: dict[str, str]  # other names of an entry: alias -> name

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Elements as unsigned words of their width; not to be written to."""
        ...


class Tensors:
    """A mapping name -> torch tensor, any device or stride. Tied tensors have one owner, the first name."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.entries: dict[str, Entry] = {}
        self.aliases: dict[str, str] = {}
        self._tensors: dict[str, Tensor] = {}
        self._flat: dict[str, np.ndarray] = {}
        owners: dict[tuple, str] = {}
        for name in sorted(tensors, key=str.encode):
            tensor = tensors[name].detach()
            if tensor.dtype not in TORCH or tensor.layout is not torch.strided:
                raise Unsupported(f"tensor {name!r} is {tensor.layout} {tensor.dtype}: convert it before publishing")
            key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if tensor.numel() and key in owners:
                self.aliases[name] = owners[key]
                continue
            owners[key] = name
            self.entries[name] = Entry(TORCH[tensor.dtype], tuple(tensor.shape))
            self._tensors[name] = tensor
            if tensor.device.type == "cpu" and tensor.is_contiguous():
                self._flat[name] = self._words(tensor)

    @staticmethod
    def _words(tensor: Tensor) -> np.ndarray:
        words = tensor.reshape(-1).view(INTEGER[tensor.element_size()]).numpy()
        return words.view(f"<u{tensor.element_size()}")

    @staticmethod
    def _torch(words: np.ndarray) -> Tensor:
        return torch.from_numpy(words if words.itemsize == 1 else words.view(f"<i{words.itemsize}"))

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        if name in self._flat:
            return self._flat[name][start:stop]
        return self._words(self._tensors[name].reshape(-1)[start:stop].cpu())

    def write(self, name: str, start: int, stop: int, position: np.ndarray | None, value: np.ndarray) -> None:
        """Set elements ``start + position`` (None: all of the range) to ``value``, words of the element's width."""
        if name in self._flat:
            self._flat[name][start:stop][slice(None) if position is None else position] = value
            return
        tensor = self._tensors[name]
        dense = tensor.contiguous()
        flat = dense.view(-1).view(INTEGER[dense.element_size()])[start:stop]
        new = self._torch(value.copy()).to(flat.device)
        if position is None:
            flat.copy_(new)
        else:
            flat[torch.from_numpy(position.astype(np.int64)).to(flat.device)] = new
        if dense is not tensor:
            tensor.copy_(dense)


def block_digest(words: np.ndarray) -> bytes:
    """xxh3-128 (16 bytes) of a block's words."""
    return xxhash.xxh3_128_digest(words)


def tensor_digest(name: str, entry: Entry, blocks: Iterable[bytes]) -> bytes:
    """xxh3-128 of name, type, shape and the digests of the blocks."""
    encoded = name.encode()
    head = len(encoded).to_bytes(2, "little") + encoded + bytes((entry.layout.code, len(entry.shape)))
    shape = b"".join(n.to_bytes(8, "little") for n in entry.shape)
    return xxhash.xxh3_128_digest(head + shape + b"".join(blocks))


def state_digest(tensors: Mapping[str, bytes]) -> bytes:
    """xxh3-128 of the tensors' digests in the order of their names: one number for all bits of all weights.

    Guards against accidents, not against forgers, who are the signature's business.
    """
    return xxhash.xxh3_128_digest(b"".join(tensors[name] for name in sorted(tensors, key=str.encode)))


def block_digests(state: State, threads: int | None = None) -> dict[str, list[bytes]]:
    """The digests of all blocks of all tensors."""
    tasks = [(name, *span) for name, entry in state.entries.items() for span in entry.blocks()]
    out: dict[str, list[bytes]] = {name: [] for name in state.entries}
    for (name, _, _), value in zip(tasks, ordered(lambda t: block_digest(state.read(*t)), tasks, threads), strict=True):
        out[name].append(value)
    return out


def digest(tensors: Mapping[str, Tensor] | State, threads: int | None = None) -> bytes:
    """16 bytes that name these weights: the digest that patches carry for their base and their target."""
    state = as_state(tensors)
    blocks = block_digests(state, threads)
    return state_digest({n: tensor_digest(n, e, blocks[n]) for n, e in state.entries.items()})


def as_state(tensors: Mapping[str, Tensor] | State) -> State:
    """Named tensors as a `State`, a view of them; a state as it is. Raises Unsupported for a sparse tensor."""
    return Tensors(tensors) if isinstance(tensors, Mapping) else tensors


def ordered(function, tasks: Iterable, threads: int | None = None) -> Iterator:
    """Results of ``function`` in the order of the tasks, a few tasks ahead at a time.

    ``threads`` None: as many as torch uses (OMP_NUM_THREADS). The work is numba, zstd and xxhash, which drop the GIL.
    """
    threads = threads or torch.get_num_threads()
    if threads == 1:
        yield from map(function, tasks)
        return
    tasks = iter(tasks)
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(function, task) for task in islice(tasks, threads + 1)]
        while running:
            result = running.pop(0).result()
            running += [pool.submit(function, task) for task in islice(tasks, 1)]
            yield result
