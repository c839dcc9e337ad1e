"""Rules that look at a 2-D parameter as a matrix, by its singular vectors: Iso-C, its halves, TSV-M, Iso-CTS."""

from typing import Literal

import torch
from torch import Tensor

from lowcomm.outer import isotropy
from lowcomm.outer.aggregate.elementwise import mean
from lowcomm.outer.aggregate.stack import declares, each_worker

Triplets = tuple[Tensor, Tensor, Tensor]


@declares("sum")
def iso_c(
    deltas: Tensor,
    method: isotropy.Method = "gram",
    scale: isotropy.Scale = "mean",
    total: Literal["mean", "sum"] = "mean",
    flatten: bool = False,
) -> Tensor:
    """Iso-C: the mean over workers with all its singular values made equal.

    ``method``, ``scale``: of :func:`lowcomm.outer.isotropy.isotropize`, whose errors it raises.
    ``total``: ``mean`` is IsoLoCo's (arXiv 2607.03011, Algorithm 1); ``sum`` is Iso-C's own (arXiv 2502.04959) for
    matrices, W times as much, and the mean for the rest.

    Raises ValueError.
    """
    if total not in ("mean", "sum"):
        raise ValueError(f"total={total!r}: choose mean or sum")
    average = mean(deltas)  # G = mean of Delta_r
    matrix = _as_matrix(average, flatten)
    if matrix is None:
        return average
    level = isotropy.isotropize(matrix, method, scale).view(average.shape)  # G = U S V^T -> mean(S) U V^T
    return level if total == "mean" else level * len(deltas)


@declares("sum")
def clip(
    deltas: Tensor, side: Literal["high", "low"], method: Literal["svd", "gram"] = "gram", flatten: bool = False
) -> Tensor:
    """CLIP_HIGH and CLIP_LOW: the mean over workers with only the singular values on one side of their mean set to it.

    Source: IsoLoCo (arXiv 2607.03011), ablation of which half of the correction helps.
    """
    average = mean(deltas)
    matrix = _as_matrix(average, flatten)
    return average if matrix is None else isotropy.clip(matrix, side, method).view(average.shape)


@declares("all")
def tsv(deltas: Tensor, method: Literal["svd", "gram"] = "gram", flatten: bool = False) -> Tensor:
    """TSV-M: every worker's ``k = max(1, r // W)`` leading singular triplets, made orthogonal across workers, summed.

    ``r = min(n, m)``. The stacked ``U`` ``(n, W k)`` and ``V`` are replaced by their polar factors (Procrustes). It is
    a sum and not a mean over workers, hence the small outer rate it wants. One worker: the input itself.

    Source: arXiv 2412.00081 as applied by IsoLoCo (arXiv 2607.03011). Null triplets take no part, so equal or
    rank-deficient deltas have one result.
    """
    first = next(each_worker(deltas))
    if len(deltas) == 1 or _as_matrix(first, flatten) is None:
        return mean(deltas)
    parts = []
    for delta in each_worker(deltas):
        matrix = _as_matrix(delta, flatten)
        parts.append(_leading(isotropy.triplets(matrix, method), max(1, min(matrix.shape) // len(deltas))))
    u, sigma, vh = _stacked(parts)
    merged = (isotropy.polar(u, method) * sigma) @ isotropy.polar(vh, method)
    return merged.to(first.dtype).view(first.shape)


@declares("all")
def iso_cts(
    deltas: Tensor, common: float = 0.8, method: Literal["svd", "gram"] = "gram", flatten: bool = False
) -> Tensor:
    """Iso-CTS: the leading directions of the mean, and each worker's own beyond them, all at one singular value.

    ``common``: share of the ``r = min(n, m)`` directions taken from the mean; the rest, rounded to a multiple of W, is
    split evenly among the workers' residuals. The singular value is the mean of the ``r`` collected. With
    ``common=1``, and with one worker, this is :func:`iso_c`.

    Source: arXiv 2502.04959 with deltas divided by W, as applied by IsoLoCo (arXiv 2607.03011). Null triplets take no
    part. Raises ValueError for ``common`` outside [0, 1].
    """
    if not 0 <= common <= 1:
        raise ValueError(f"common={common}: a share of directions, between 0 and 1")
    average, workers = mean(deltas), len(deltas)
    matrix = _as_matrix(average, flatten)
    if matrix is None:
        return average
    rank = min(matrix.shape)
    # Rounding up must not ask for more directions than there are (W > r with a small common share).
    own = min(round((rank - int(common * rank)) / workers), rank // workers)
    shared = rank - own * workers
    whole = isotropy.triplets(matrix, method)
    # What is left of a worker after projection may be rounding noise; it is null beside the mean's own scale.
    floor = isotropy.null_below(matrix, whole[1])
    parts = [_leading(whole, shared)]
    basis = parts[0][0]
    for delta in each_worker(deltas) if own else ():
        delta = _as_matrix(delta, flatten).double() / workers
        parts.append(_leading(isotropy.triplets(delta - basis @ (basis.T @ delta), method, floor), own))
    u, sigma, vh = _stacked(parts)
    level = sigma.mean() * (isotropy.polar(u, method) @ isotropy.polar(vh, method))
    return level.to(average.dtype).view(average.shape)


def _as_matrix(tensor: Tensor, flatten: bool) -> Tensor | None:
    """The tensor as ``(out, prod(rest))``, or None where the rule averages it."""
    if tensor.ndim == 2:
        return tensor
    return tensor.flatten(1) if flatten and tensor.ndim > 2 else None


def _leading(triplets: Triplets, count: int) -> Triplets:
    u, sigma, vh = triplets
    return u[:, :count], sigma[:count], vh[:count]


def _stacked(parts: list[Triplets]) -> Triplets:
    u, sigma, vh = zip(*parts, strict=True)
    return torch.cat(u, dim=1), torch.cat(sigma), torch.cat(vh)
