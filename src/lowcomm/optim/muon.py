"""Muon on the hidden matrices, AdamW on everything else, as one optimizer: the inner optimizer of MuLoCo.

Both are torch's own (`torch.optim.Muon`, `torch.optim.AdamW`); this class only decides who gets what. Conventions:

- Momentum is torch's moving average `B <- mu B + (1 - mu) g`. MuLoCo and IsoLoCo's Algorithm 3 take the sum `mu B + g`:
  1 / (1 - mu) times as large, the same direction, and only that is used. Nesterov is off there; torch's default is on.
- Orthogonalisation is torch's: 5 Newton-Schulz steps (3.4445, -4.7750, 2.0315) in bfloat16. MuLoCo takes Dion's steps.
- Scale of the rate by the weight's `(out, in)`: "shape" is sqrt(out / in), of MuLoCo and Algorithm 3; torch has
  "original", sqrt(max(1, out / in)), and "match_rms_adamw", 0.2 sqrt(max(out, in)).
- Weight decay is decoupled, by the plain rate and not the scaled one, on matrices and rest alike (MuLoCo, torch).

Sources: arXiv 2607.03011 v1, Algorithm 3; 2505.23725 (MuLoCo); `torch.optim.Muon`.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer


class MuonAdamW(Optimizer):
    """`MuonAdamW(model.named_parameters(), matrices=hidden_matrices(model), lr=0.02)`.

    Args:
        params: (name, tensor) pairs, tied weights once.
        matrices: names of the 2-D weights that Muon takes; the rest goes to AdamW.
        lr: of AdamW, and of Muon before `scale`.
        momentum, nesterov, ns_steps: of Muon.
        betas, eps: of AdamW.
        scale: factor of Muon's rate by the weight's shape, see above.

    The first group is AdamW's, whose `lr` is the plain one; then one of Muon for each factor. Schedulers act on every
    group's `lr`, so they keep the factors. The state dict is torch's: plain tensors and numbers.

    Raises:
        ValueError: no matrices, an unknown or twice-given name, a matrix that is not 2-D, options outside their range.
    """

    def __init__(
        self,
        params: Iterable[tuple[str, Tensor]],
        matrices: list[str],
        lr: float = 0.02,
        momentum: float = 0.9,
        nesterov: bool = False,
        ns_steps: int = 5,
        scale: Literal["shape", "original", "match_rms_adamw"] = "shape",
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        named = dict(params)
        if scale not in ("shape", "original", "match_rms_adamw"):
            raise ValueError(f"scale={scale!r}: choose shape, original or match_rms_adamw")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum}: must lie in [0, 1)")
        if not matrices or len(set(matrices)) < len(matrices):
            raise ValueError(f"matrices={matrices}: Muon needs hidden matrices, each once; without any take AdamW")
        for name in matrices:
            if name not in named or named[name].ndim != 2:
                shape = tuple(named[name].shape) if name in named else "no parameter of that name"
                raise ValueError(f"matrices: '{name}' must name a 2-D parameter ({shape})")
        groups: dict[float, list[Tensor]] = {}
        for name in matrices:
            groups.setdefault(factor(named[name].shape, scale), []).append(named[name])
        muon = [
            # torch decays by its scaled rate: divided out, the decay is that of the plain rate.
            {"params": group, "lr": lr * f, "weight_decay": weight_decay / f}
            for f, group in groups.items()
        ]
        rest = [p for name, p in named.items() if name not in matrices]
        self.parts: list[tuple[Optimizer, bool]] = [
            (torch.optim.Muon(muon, momentum=momentum, nesterov=nesterov, ns_steps=ns_steps,
                              adjust_lr_fn=None if scale == "shape" else scale), True)
        ]  # fmt: skip
        if rest:
            adamw = torch.optim.AdamW(rest, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)
            self.parts.insert(0, (adamw, False))
        super().__init__([g for part, hidden in self.parts for g in part.param_groups], {"lr": lr})
        for group in self.param_groups:
            group["hidden"] = "ns_steps" in group

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of both; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part, hidden in self.parts:
            # Groups and state are this optimizer's; loading a state dict replaces them, so they are lent anew.
            part.param_groups = [group for group in self.param_groups if group["hidden"] == hidden]
            part.state = self.state
            part.step()
        return loss


def factor(shape: torch.Size, scale: str) -> float:
    """What the rate is multiplied by before torch's own factor for an `(out, in)` weight."""
    fan_out, fan_in = shape
    if scale != "shape":
        return 1.0
    return math.sqrt(fan_out / fan_in) / math.sqrt(max(1.0, fan_out / fan_in))
