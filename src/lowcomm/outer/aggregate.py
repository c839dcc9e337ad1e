"""Merging rules for pseudo-gradients: one tensor per worker in, one tensor out.

Every rule is a pure function of a stack ``deltas`` of shape ``(W, *shape)``, the pseudo-gradients
``theta - theta_w`` of one parameter in worker order, and returns ``(*shape)`` in float32 (float64 for float64 input).
Rules know no parameter names: a non-finite entry raises ``ValueError`` with the worker's index, and the caller adds
the name.
"""

import torch
from torch import Tensor


def mean(deltas: Tensor) -> Tensor:
    """``(1/W) sum_w deltas[w]``, added in worker order, so that no split of the workers over ranks can change a bit.

    Source: IsoLoCo (arXiv 2607.03011) Algorithm 1, the DiLoCo average; task arithmetic with scale ``lr / W``.
    """
    total = _checked(deltas, 0).clone()
    for worker in range(1, len(deltas)):
        total += _checked(deltas, worker)
    return total / len(deltas)


def _checked(deltas: Tensor, worker: int) -> Tensor:
    """One worker's delta in the working precision; refused when it is not finite."""
    if not deltas.is_floating_point() or deltas.numel() == 0:
        raise ValueError(f"deltas of dtype {deltas.dtype}, shape {tuple(deltas.shape)}: need a non-empty float stack")
    low, high = torch.aminmax(deltas[worker])
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise ValueError(f"non-finite pseudo-gradient from worker {worker}: lower its learning rate or clip")
    return deltas[worker] if deltas.dtype == torch.float64 else deltas[worker].float()
