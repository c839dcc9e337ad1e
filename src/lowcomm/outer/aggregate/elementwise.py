"""Rules that treat every entry alike, whatever the tensor's shape: mean, TIES, DARE."""

import hashlib
import math
from typing import Literal

import torch
from torch import Tensor

from lowcomm.outer.aggregate.stack import average, declares, each_worker


@declares("sum")
def mean(deltas: Tensor) -> Tensor:
    """``(1/W) sum_w deltas[w]``, added in worker order, so that no split of the workers over ranks can change a bit.

    Source: IsoLoCo (arXiv 2607.03011) Algorithm 1 without the correction; task arithmetic with scale ``lr / W``.
    """
    return average(each_worker(deltas), len(deltas))


@declares("two sums")
def ties(deltas: Tensor, density: float = 0.9, rule: Literal["paper", "original"] = "paper") -> Tensor:
    """TIES: trim each worker, elect a sign per entry, average the entries that carry it.

    ``density``: share of entries that :func:`trim` keeps; 0 gives zeros. The elected sign is that of the sum of trimmed
    entries (added in float64, so that a tie is a tie in any worker order).

    ``rule``: ``paper`` is IsoLoCo's (arXiv 2607.03011): exact count, a tied entry is zero. ``original`` is that of
    arXiv 2306.01708: entries equal to the threshold all stay, a tied entry takes the sign that most entries of the
    tensor elected. The original also trims and elects over the whole model: pass it as one flat stack for that.

    Raises ValueError for a density outside [0, 1] or an unknown rule.
    """
    if rule not in ("paper", "original"):
        raise ValueError(f"rule={rule!r}: choose paper or original")
    masks = [_largest(delta, density, exact=rule == "paper") for delta in each_worker(deltas)]
    votes = torch.zeros_like(deltas[0], dtype=torch.float64)
    for delta, mask in zip(each_worker(deltas), masks, strict=True):
        votes += delta * mask
    elected = votes.sign()
    if rule == "original":
        elected = torch.where(elected == 0, elected.sum().sign(), elected)

    total = torch.zeros_like(deltas[0], dtype=torch.promote_types(deltas.dtype, torch.float32))
    count = torch.zeros_like(total)
    for delta, mask in zip(each_worker(deltas), masks, strict=True):
        agrees = mask & (delta.sign() == elected)
        total += delta * agrees
        count += agrees
    return total / count.clamp(min=1)


def trim(delta: Tensor, density: float) -> Tensor:
    """One worker's delta with all but its ``max(1, floor(density * N))`` largest magnitudes set to zero.

    Of equal magnitudes the first ones stay, on every device. ``density=0`` keeps nothing.
    Source: IsoLoCo (arXiv 2607.03011), TIES as applied there, ``density = 1 - p``.
    """
    return delta * _largest(delta, density, exact=True)


@declares("sum")
def dare(
    deltas: Tensor, drop: float = 0.1, mask: Literal["exact", "bernoulli"] = "exact", *, generator: torch.Generator
) -> Tensor:
    """DARE: the mean of every worker's :func:`sparsify`.

    ``generator`` advances by one draw; worker ``w``'s mask follows from that draw and ``w`` alone, not from the number
    of workers or the rank that draws it. For masks that a resumed run repeats, make the generator with
    ``keyed_generator(seed, round, name)``.

    Source: arXiv 2311.03099 as applied by IsoLoCo (arXiv 2607.03011). Raises ValueError as :func:`sparsify` does.
    """
    draw = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    kept = (
        sparsify(delta, drop, mask, generator=keyed_generator(draw, worker, like=generator))
        for worker, delta in enumerate(each_worker(deltas))
    )
    return average(kept, len(deltas))


def sparsify(
    delta: Tensor, drop: float, mask: Literal["exact", "bernoulli"] = "exact", *, generator: torch.Generator
) -> Tensor:
    """One worker's delta with a random share ``drop`` of its ``N`` entries zero and the rest over ``1 - drop``.

    ``mask``: ``exact`` keeps ``max(1, floor((1 - drop) * N))`` entries (IsoLoCo), ``bernoulli`` each with chance
    ``1 - drop`` (the original). ``drop=1`` gives zeros. Raises ValueError for ``drop`` outside [0, 1].
    """
    if not 0 <= drop <= 1:
        raise ValueError(f"drop={drop}: a share of entries, between 0 and 1")
    if mask not in ("exact", "bernoulli"):
        raise ValueError(f"mask={mask!r}: choose exact or bernoulli")
    if drop == 1:
        return torch.zeros_like(delta)
    if mask == "bernoulli":
        chance = torch.full(delta.shape, 1 - drop, device=generator.device)
        return delta * torch.bernoulli(chance, generator=generator).to(delta.device) / (1 - drop)
    order = torch.randperm(delta.numel(), generator=generator, device=generator.device).to(delta.device)
    kept = delta.flatten().clone()
    kept[order[_count(1 - drop, delta.numel()) :]] = 0
    return kept.view(delta.shape) / (1 - drop)


def keyed_generator(*key: int | str, like: torch.Generator | None = None) -> torch.Generator:
    """A generator seeded by a key such as ``(seed, round, name)``: equal keys, equal draws, in any process."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    generator = torch.Generator(device="cpu" if like is None else like.device)
    return generator.manual_seed(int.from_bytes(digest) >> 1)


def _count(share: float, size: int) -> int:
    """``max(1, floor(share * size))``, where 0.29 of 100 is 29 whatever the binary fraction says."""
    return max(1, math.floor(round(share * size, 6)))


def _largest(delta: Tensor, density: float, exact: bool) -> Tensor:
    """Mask of the largest magnitudes; ``exact``: of those equal to the threshold only the first ones."""
    if not 0 <= density <= 1:
        raise ValueError(f"density={density}: a share of entries, between 0 and 1")
    if density == 0:
        return torch.zeros_like(delta, dtype=torch.bool)
    size, magnitude = delta.numel(), delta.abs().flatten()
    count = _count(density, size)
    threshold = magnitude.kthvalue(size - count + 1).values
    keep = magnitude >= threshold
    surplus = int(keep.sum()) - count
    if exact and surplus > 0:
        equal = (magnitude == threshold).nonzero().squeeze(1)
        keep[equal[len(equal) - surplus :]] = False
    return keep.view(delta.shape)
