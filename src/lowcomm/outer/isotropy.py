"""Isotropic correction of a matrix: keep the singular vectors, make the singular values equal.

Source: IsoLoCo (arXiv 2607.03011) Algorithm 1 (SVD, mean singular value) and its fast variant (Newton-Schulz, RMS).

Rank policy: singular values up to ``8 eps`` of the largest (``eps`` of the input's precision, float32 for half
precision) count as zero, and their directions stay zero in every result. An SVD would fill them with arbitrary vectors,
different on each device and for the transpose; Newton-Schulz leaves them near zero as well. ``r * eps``, the usual
choice, would drop true directions of full-rank Gaussian matrices from about 1000 x 1000 on.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Method = Literal["svd", "gram", "newton-schulz", "newton-schulz-converged"]
Scale = Literal["mean", "rms", "spectral"]

RANK_TOLERANCE = 8

# (a, b, c) of X <- aX + (bA + cA^2)X with A = XX^T.
# The five steps published with Dion and cited by the paper: singular values from 2% of the norm land in [0.978, 1.032].
DION_STEPS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
# Polar Express (arXiv 2505.16932), recomputed for singular values from 1e-5 of the norm with cushion 0.02 and a safety
# factor of 1.01 in every step but the last: all of them land on 1 to 2e-6. Without the safety factor a rank-one matrix,
# whose singular value sits on the edge of the range, diverges by rounding.
CONVERGED_STEPS = (
    (8.271376, -23.253511, 16.749547),
    (4.135317, -2.906669, 0.523463),
    (4.133615, -2.906226, 0.523519),
    (4.126592, -2.904401, 0.523752),
    (4.097879, -2.896994, 0.524735),
    (3.984603, -2.868678, 0.529154),
    (3.509963, -2.577393, 0.503320),
    (2.521619, -1.826862, 0.420654),
    (1.913007, -1.273530, 0.362760),
    (1.875098, -1.250108, 0.375011),
)


def polar(matrix: Tensor, method: Method = "gram") -> Tensor:
    """The partial isometry ``U V^T`` of an ``(n, m)`` matrix ``U diag(sigma) V^T``; float32, or float64 for float64.

    Methods: ``svd``, the reference, in float64; ``gram``, the float64 eigenproblem of the short side's Gram matrix,
    which resolves singular values down to ``sqrt(r * 2.2e-16)`` of the largest; ``newton-schulz``, the paper's five
    steps, approximate on purpose; ``newton-schulz-converged``, ten steps, right from 1e-5 of the norm on. Newton-Schulz
    runs in float32 and follows ``torch.set_float32_matmul_precision``: with TF32 it is less exact than said here.

    Raises ValueError for an unknown method and for anything but a finite, non-empty floating-point matrix.
    """
    if method in ("svd", "gram"):
        return map_spectrum(matrix, torch.ones_like, method)
    unit, _ = _unit(matrix)
    return _newton_schulz(unit, _steps(method), _working_dtype(matrix))


def isotropize(matrix: Tensor, method: Method = "gram", scale: Scale = "mean") -> Tensor:
    """``s * polar(matrix)`` for an ``(n, m)`` matrix with ``r = min(n, m)``; float32, or float64 for float64.

    Scales: ``mean``, ``sum(sigma) / r`` as in Algorithm 1, which keeps the nuclear norm at full rank (Newton-Schulz
    takes it from ``sum(sigma) = <matrix, polar>``, one product); ``rms``, ``||matrix||_F / sqrt(r)``, the paper's fast
    variant, never below the mean; ``spectral``, ``sqrt(n / m)`` for a ``(fan_out, fan_in)`` weight, the Muon-as-outer
    ablation of Table 9, which forgets the norm of the input.

    Raises ValueError as :func:`polar` does, and for an unknown scale.
    """
    if scale not in ("mean", "rms", "spectral"):
        raise ValueError(f"scale={scale!r}: choose mean, rms or spectral")
    if scale == "mean" and method in ("svd", "gram"):
        return map_spectrum(matrix, lambda sigma: sigma.mean().expand_as(sigma), method)
    direction, rank = polar(matrix, method), min(matrix.shape)
    if scale == "spectral":
        return direction * math.sqrt(matrix.shape[0] / matrix.shape[1])
    unit, power = _unit(matrix)
    size = unit.norm() / math.sqrt(rank) if scale == "rms" else (unit * direction).sum() / rank
    return direction * (size * power)


def clip(matrix: Tensor, side: Literal["high", "low"], method: Literal["svd", "gram"] = "gram") -> Tensor:
    """Half of the isotropic correction: singular values above (``high``) or below (``low``) the mean are set to it.

    ``(n, m)`` to ``(n, m)``. Source: the CLIP_HIGH and CLIP_LOW ablations. Null directions stay null.
    Raises ValueError as :func:`polar` does.
    """
    if side not in ("high", "low"):
        raise ValueError(f"side={side!r}: choose high or low")
    bound = torch.minimum if side == "high" else torch.maximum
    return map_spectrum(matrix, lambda sigma: bound(sigma, sigma.mean()), method)


def map_spectrum(matrix: Tensor, transform: Callable[[Tensor], Tensor], method: Literal["svd", "gram"]) -> Tensor:
    """``U diag(transform(sigma)) V^T``; ``transform`` sees the ``r`` float64 singular values, null ones as zero.

    Raises ValueError.
    """
    unit, power = _unit(matrix)
    if method == "svd":
        u, sigma, vh = torch.linalg.svd(unit, full_matrices=False)
        sigma = _without_null(sigma, _cutoff(matrix))
        wanted = torch.where(sigma > 0, transform(sigma * power), 0)
        return ((u * wanted) @ vh).to(_working_dtype(matrix))
    if method != "gram":
        raise ValueError(f"method={method!r} knows no singular values: choose svd or gram")
    wide = unit.shape[0] <= unit.shape[1]
    sigma, u = _gram_eigen(unit if wide else unit.T, _cutoff(matrix))
    wanted = transform(sigma * power)
    gain = torch.where(sigma > 0, wanted / sigma, 0)
    filtered, dtype = (u * gain) @ u.T, _working_dtype(matrix)
    if dtype == torch.float32 and _float32_suffices(filtered, gain.max() * sigma[0], wanted.max()):
        filtered, unit = filtered.to(dtype), unit.to(dtype)
    return (filtered @ unit if wide else unit @ filtered).to(dtype)


def triplets(
    matrix: Tensor, method: Literal["svd", "gram"] = "gram", floor: Tensor | float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Thin SVD in float64, ``(n, r)``, ``(r,)`` descending, ``(r, m)``, whose null triplets are all zero.

    Null are those of the rank policy and any whose singular value is not above ``floor``.
    Raises ValueError as :func:`polar` does.
    """
    unit, power = _unit(matrix)
    if method == "svd":
        u, sigma, vh = torch.linalg.svd(unit, full_matrices=False)
        sigma = _without_null(sigma, _cutoff(matrix))
    elif method == "gram":
        short = unit if unit.shape[0] <= unit.shape[1] else unit.T
        sigma, u = _gram_eigen(short, _cutoff(matrix))
        vh = torch.where(sigma > 0, 1 / sigma, 0)[:, None] * (u.T @ short)
        if short is not unit:
            u, vh = vh.T, u.T
    else:
        raise ValueError(f"method={method!r} knows no singular values: choose svd or gram")
    sigma = sigma * power
    alive = sigma > floor
    return u * alive, sigma * alive, vh * alive[:, None]


def spectrum(matrix: Tensor) -> Tensor:
    """The ``(r,)`` singular values, descending, float64, null ones as zero: ``count_nonzero`` is the numerical rank.

    Raises ValueError as :func:`polar` does.
    """
    unit, power = _unit(matrix)
    return _without_null(torch.linalg.svdvals(unit), _cutoff(matrix)) * power


def null_below(matrix: Tensor, sigma: Tensor) -> Tensor:
    """The size under which a singular value is nothing beside those, descending, of ``matrix``."""
    return sigma[0] * _cutoff(matrix)


def _gram_eigen(short: Tensor, cutoff: float) -> tuple[Tensor, Tensor]:
    """Singular values (descending) and left vectors of a wide matrix, from the eigenproblem of ``short @ short.T``."""
    gram, step = short.new_zeros(len(short), len(short)), -(-len(short) // 8)
    for start in range(0, len(short), step):  # eigh reads the lower triangle only, so half the product will do
        rows = slice(start, start + step)
        gram[rows, : start + step] = short[rows] @ short[: start + step].T
    squares, u = torch.linalg.eigh(gram)
    # Forming the Gram matrix squares the condition: below this no float64 eigenvalue means anything.
    resolution = math.sqrt(len(short) * torch.finfo(torch.float64).eps)
    return _without_null(squares.flip(0).clamp(min=0).sqrt(), max(cutoff, resolution)), u.flip(1)


def _float32_suffices(filtered: Tensor, amplified: Tensor, largest: Tensor) -> bool:
    """Whether the long product, half of a CPU's time on wide matrices, may run in float32.

    Its relative error is about ``eps * amplified / largest / sqrt(r)``: 2e-6 at most here. Small matrices gain nothing.
    """
    exact = filtered.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    return exact and len(filtered) >= 512 and bool(amplified < 1000 * largest)


def _newton_schulz(unit: Tensor, steps: tuple[tuple[float, float, float], ...], dtype: torch.dtype) -> Tensor:
    """Polar factor by quintic steps on the short side, from a matrix whose largest entry is about one."""
    x = (unit / unit.norm().clamp(min=torch.finfo(torch.float64).tiny)).to(dtype)
    x = x if x.shape[0] <= x.shape[1] else x.T
    for a, b, c in steps:
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if x.shape == unit.shape else x.T.contiguous()


def _steps(method: str) -> tuple[tuple[float, float, float], ...]:
    if method == "newton-schulz":
        return DION_STEPS
    if method == "newton-schulz-converged":
        return CONVERGED_STEPS
    raise ValueError(f"method={method!r}: choose svd, gram, newton-schulz or newton-schulz-converged")


def _unit(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix in float64 over a power of two that brings its largest entry into [1/2, 1), and that power.

    The division costs no rounding, and squares of tiny or huge entries stay in range.
    """
    if matrix.ndim != 2 or matrix.numel() == 0 or not matrix.is_floating_point():
        raise ValueError(f"{matrix.dtype} tensor of shape {tuple(matrix.shape)}: need a non-empty float matrix")
    low, high = torch.aminmax(matrix)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise ValueError("non-finite entry in a matrix: look for the worker that diverged")
    exponent = torch.frexp(torch.maximum(-low, high).double()).exponent.clamp(-1000, 1000)
    power = torch.pow(2.0, exponent.double())
    return matrix.double() / power, power


def _working_dtype(matrix: Tensor) -> torch.dtype:
    return torch.float64 if matrix.dtype == torch.float64 else torch.float32


def _cutoff(matrix: Tensor) -> float:
    return RANK_TOLERANCE * torch.finfo(_working_dtype(matrix)).eps


def _without_null(sigma: Tensor, cutoff: float) -> Tensor:
    return torch.where(sigma > cutoff * sigma[0], sigma, 0)
