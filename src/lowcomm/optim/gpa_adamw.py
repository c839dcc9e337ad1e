"""GPA with AdamW inside, the common case."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lowcomm.optim.gpa import GPA, Work

BLOCK = 1 << 18  # weights per thread whose p, z, gradient and moments stay in a CPU's cache
SMALL = 1 << 15  # below it a call costs more than the memory traffic it saves


class GPAAdamW(GPA):
    """GPA around torch.optim.AdamW: `z -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * z)`; see `GPA`.

    State per float32 weight: exp_avg, exp_avg_sq, z. `foreach` and `fused` choose AdamW's implementation.
    GPA has unit gain where DiLoCo has outer_lr / (1 - mu): the best lr may be several times AdamW's.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        mu_x: float = 0.9967,
        mu_y: float = 0.7,
        decay_at: str = "z",
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        betas = tuple(float(beta) for beta in betas)  # a configuration's list type must not enter the state dict
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        adamw = partial(torch.optim.AdamW, **options, foreach=foreach, fused=fused)
        super().__init__(params, adamw, mu_x, mu_y, decay_at)

    def _move(self, work: list[Work]) -> None:
        """As GPA's, bit for bit; with fused AdamW on a CPU, large parameters go block by block.

        The step is bound by memory traffic: 28 bytes per weight for AdamW and 24 for the two lerps, unless these find
        p and z in the cache.
        """
        rest = []
        for group, wide, narrow in work:
            blocked: list[Tensor] = []
            others: list[Tensor] = []
            for p in wide:
                (blocked if self._in_blocks(group, p) else others).append(p)
            if blocked:
                self._move_in_blocks(group, blocked)
            rest.append((group, others, narrow))
        if any(wide or narrow for _, wide, narrow in rest):
            super()._move(rest)

    def _in_blocks(self, group: dict[str, Any], p: Tensor) -> bool:
        return (
            group["fused"]
            and p.numel() >= SMALL
            and p.device.type == "cpu"
            and type(p) in (Tensor, nn.Parameter)
            and p.is_contiguous()
            and p.grad.is_contiguous()
            and "exp_avg" in self.state[p]  # from the second step: AdamW lays out its own state
            and group["decay_at"] == "z"
            and not (group["amsgrad"] or group["maximize"])
        )

    def _move_in_blocks(self, group: dict[str, Any], ps: list[Tensor]) -> None:
        to_x, to_y, size = 1 - 1 / group["mu_y"], 1 - group["mu_x"] * group["mu_y"], BLOCK * torch.get_num_threads()
        options = {"lr": group["lr"], "beta1": group["betas"][0], "beta2": group["betas"][1], "eps": group["eps"]}
        options |= {"weight_decay": group["weight_decay"], "amsgrad": False, "maximize": False}
        torch._foreach_add_(self._state("step", ps), 1)
        for p in ps:
            state = self.state[p]
            whole = p, state["z"], p.grad, state["exp_avg"], state["exp_avg_sq"]
            blocks = [whole] if p.numel() <= size else zip(*(t.view(-1).split(size) for t in whole), strict=True)
            for y, z, g, m, v in blocks:
                y.lerp_(z, to_x)
                torch._fused_adamw_([z], [g], [m], [v], [], [state["step"]], **options)
                y.lerp_(z, to_y)
