"""A stand-in for a model: BF16 matrices with the statistics of fine-tuning, and their next versions."""

import numpy as np
import torch
from torch import Tensor

from lowcomm.pulse import synthetic

TENSORS = 8


def sizes(parameters: int) -> list[int]:
    """Elements of each tensor, as equal as can be."""
    return [parameters // TENSORS + (i < parameters % TENSORS) for i in range(TENSORS)]


def blank(parameters: int) -> dict[str, Tensor]:
    """BF16 zeros of shapes (n,)."""
    return {f"layer{i}": torch.zeros(n, dtype=torch.bfloat16) for i, n in enumerate(sizes(parameters))}


def start(parameters: int, seed: int) -> dict[str, Tensor]:
    """Version 0: normal BF16 weights of shapes (n,)."""
    return {f"layer{i}": _tensor(synthetic.weights(n, seed + i)) for i, n in enumerate(sizes(parameters))}


def step(weights: dict[str, Tensor], delta: float, seed: int) -> dict[str, Tensor]:
    """The next version, same (n,) BF16 tensors; about 0.8 % of the entries change at a ``delta`` of 3.4e-7."""
    moved = {}
    for i, (name, tensor) in enumerate(weights.items()):
        moved[name] = _tensor(synthetic.update(_words(tensor), delta, seed * TENSORS + i))
    return moved


def changes(old: dict[str, Tensor], new: dict[str, Tensor]) -> int:
    """Entries whose bits differ."""
    return sum(int((_words(old[n]) != _words(new[n])).sum()) for n in old)


def to_bytes(weights: dict[str, Tensor]) -> bytes:
    """All (n,) BF16 tensors in order, 2 bytes an entry: what a trainer without patches would send."""
    return b"".join(_words(t).tobytes() for t in weights.values())


def take(weights: dict[str, Tensor], data: bytes) -> None:
    """The inverse of `to_bytes`, into (n,) BF16 tensors in place. Raises ValueError for another size."""
    if len(data) != sum(2 * t.numel() for t in weights.values()):
        raise ValueError(f"{len(data)} bytes are not the weights' size: a transfer was cut off")
    at = 0
    for tensor in weights.values():
        _words(tensor)[:] = np.frombuffer(data, np.uint16, tensor.numel(), at)
        at += 2 * tensor.numel()


def _words(tensor: Tensor) -> np.ndarray:
    return tensor.view(torch.int16).numpy().view(np.uint16)


def _tensor(words: np.ndarray) -> Tensor:
    return torch.from_numpy(words.view(np.int16)).view(torch.bfloat16)
