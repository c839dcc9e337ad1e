"""What all merging rules share: the checked view of a stack, and what a rule needs from the workers."""

import inspect
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

Needs = Literal["sum", "two sums", "all"]


def declares(what: Needs) -> Callable[[Callable], Callable]:
    """Mark a rule with what it must see of the workers, for :func:`needs`."""

    def mark(rule: Callable) -> Callable:
        rule.needs = what
        return rule

    return mark


def needs(rule: Callable) -> Needs:
    """What a rule, or a ``functools.partial`` of it, must see of the workers.

    ``sum``: one all-reduce will do, as ``rule(deltas) == rule(mean(deltas)[None])`` (DARE: of ``sparsify``-ed deltas).
    ``two sums``: a second one that depends on the first (TIES). ``all``: the whole stack; also said of unmarked rules.
    """
    return getattr(getattr(rule, "func", rule), "needs", "all")


def takes_generator(rule: Callable) -> bool:
    """Whether a rule, or a ``functools.partial`` of it, still wants a ``generator`` with every call."""
    parameter = inspect.signature(rule).parameters.get("generator")
    return parameter is not None and parameter.default is parameter.empty


def try_out(rule: Callable) -> None:
    """Call a rule on a small stack, (2, 2, 2): a function has no constructor to refuse options that are out of range.

    Raises what the rule raises, ValueError for the rules here.
    """
    stack = torch.arange(8.0).view(2, 2, 2)
    rule(stack, generator=torch.Generator()) if takes_generator(rule) else rule(stack)


def average(parts: Iterator[Tensor], workers: int) -> Tensor:
    """Mean of equal shapes in the given order, one part in memory at a time."""
    total = next(parts).clone()
    for part in parts:
        total += part
    return total / workers


def each_worker(deltas: Tensor) -> Iterator[Tensor]:
    """The workers' deltas in order and in the working precision, not copies where they have that already.

    Raises ValueError for anything but a non-empty floating-point stack, and when it comes to a non-finite delta.
    """
    if deltas.ndim == 0 or deltas.numel() == 0 or not deltas.is_floating_point():
        raise ValueError(f"deltas of {deltas.dtype} and shape {tuple(deltas.shape)}: need a non-empty float stack")
    for worker, delta in enumerate(deltas):
        low, high = torch.aminmax(delta)
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise ValueError(f"non-finite pseudo-gradient from worker {worker}: lower its learning rate or clip")
        yield delta if delta.dtype == torch.float64 else delta.float()
