"""Small sets of weights for the patch tests."""

import numpy as np
import torch

from lowcomm.pulse import synthetic
from lowcomm.pulse.dtypes import TORCH


def words(shape, dtype: torch.dtype, rng: np.random.Generator) -> torch.Tensor:
    """Any bits at all: NaNs, infinities, subnormals."""
    raw = rng.integers(0, 256, (int(np.prod(shape)), dtype.itemsize), np.uint8)
    if dtype is torch.bool:
        raw &= 1
    return torch.from_numpy(raw.reshape(-1)).view(dtype).reshape(shape).clone()


def flip(tensor: torch.Tensor, share: float, rng: np.random.Generator) -> torch.Tensor:
    """Other bits at about ``share`` of the elements (at least one, unless 0)."""
    out = tensor.clone()
    n = tensor.numel()
    if share and n:
        hit = torch.from_numpy(rng.permutation(n)[: max(1, int(share * n))])
        flat = out.reshape(-1).view(torch.uint8).view(n, -1)
        flat[hit, 0] ^= 1
        if share > 0.5:
            flat[hit, -1] ^= 1
        out = flat.reshape(-1).view(tensor.dtype).reshape(tensor.shape)
    return out


def gaussian(seed: int = 0, delta: float = 4e-7, rows: int = 60, columns: int = 500):
    """(old, new) with the statistics of fine-tuning, BF16, two matrices and a vector."""
    shapes = {"a.weight": (rows, columns), "b.weight": (columns, rows), "norm": (columns,)}
    old, new = {}, {}
    for i, (name, shape) in enumerate(shapes.items()):
        before = synthetic.weights(int(np.prod(shape)), seed + i)
        after = synthetic.update(before, delta, seed + 100 + i)
        old[name], new[name] = (
            torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).reshape(shape) for x in (before, after)
        )
    return old, new


def copy(tensors):
    return {name: tensor.clone() for name, tensor in tensors.items()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[n].contiguous().reshape(-1).view(torch.uint8), b[n].contiguous().reshape(-1).view(torch.uint8))
        for n in a
    )


DTYPES = list(TORCH)
