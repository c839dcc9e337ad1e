"""Sparsity of weight updates, counted from snapshots: per step, over k steps, per tensor, per weight magnitude."""

from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lowcomm.pulse.visibility import FORMATS, changed

EDGES = tuple(10.0**e for e in (-6, -5, -4, -3.5, -3, -2.5, -2, -1.5, -1, 0))


def sparsity(old: Mapping[str, Tensor], new: Mapping[str, Tensor], dtype: torch.dtype | str = "bf16") -> dict:
    """Share of entries whose cast did not change (PULSE, Def. A.2), from two snapshots of the FP32 masters.

    Returns ``{"sparsity", "changed", "numel", "tensors": {name: (changed, numel)}}``. Compare snapshots, never sums of
    differences: a weight that moved and returned has not changed. Tied weights must be listed once.
    """
    tensors = {n: (int(changed(old[n], t, dtype).sum()), t.numel()) for n, t in new.items()}
    count, numel = (sum(v[i] for v in tensors.values()) for i in (0, 1))
    return {"sparsity": 1 - count / max(numel, 1), "changed": count, "numel": numel, "tensors": tensors}


def by_magnitude(
    old: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
    dtype: torch.dtype | str = "bf16",
    edges: Sequence[float] = EDGES,
) -> list[dict]:
    """The same count, of tensors of equal names and shapes, split by |old|: bins [low, high), one row a bin,
    ``{"low", "high", "changed", "numel"}``.

    The first row holds exact zeros alone (low = high = 0), the last everything from the last edge on.
    """
    cuts = torch.tensor(edges, dtype=torch.float32)
    rows = torch.zeros(len(edges) + 2, 2, dtype=torch.int64)
    for name, before in old.items():
        magnitude = before.detach().float().abs().flatten()
        index = torch.where(magnitude == 0, 0, torch.bucketize(magnitude, cuts.to(magnitude.device), right=True) + 1)
        hit = changed(before, new[name], dtype).flatten()
        rows[:, 0] += torch.bincount(index[hit], minlength=len(rows)).cpu()
        rows[:, 1] += torch.bincount(index, minlength=len(rows)).cpu()
    lows, highs = [0.0, 0.0, *edges], [0.0, *edges, float("inf")]
    return [
        {"low": a, "high": b, "changed": int(c), "numel": int(n)}
        for a, b, (c, n) in zip(lows, highs, rows, strict=True)
    ]


class Meter:
    """Feed it the weights after every step; it answers the k-step sparsity for each k that is old enough.

    Keeps ``max(horizons)`` snapshots on the CPU, in ``dtype`` (in FP32 for mxfp4, whose blocks need it).
    """

    def __init__(self, horizons: Sequence[int] = (1, 2, 4, 8, 16, 32), dtype: torch.dtype | str = "bf16"):
        if not horizons or min(horizons) < 1:
            raise ValueError(f"horizons={horizons}: each k must be 1 or more")
        self.horizons, self.dtype = tuple(horizons), FORMATS.get(dtype, dtype)
        self.snapshots: deque[dict[str, Tensor]] = deque(maxlen=max(horizons))

    def update(self, tensors: Mapping[str, Tensor]) -> dict[int, float]:
        """Sparsity against the snapshot k updates ago, ``{k: sparsity}``; the first call answers {}."""
        keep = torch.float32 if isinstance(self.dtype, str) else self.dtype
        now = {n: t.detach().to("cpu", keep, copy=True) for n, t in tensors.items()}
        past = self.snapshots
        out = {k: sparsity(past[-k], now, self.dtype)["sparsity"] for k in self.horizons if k <= len(past)}
        past.append(now)
        return out
