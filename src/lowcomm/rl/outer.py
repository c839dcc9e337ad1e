"""How what several trainers learn comes together: one TRL trainer on each rank, with its own data and text.

    adamw, pulsesync, ddp    the gradients of all trainers are averaged at every optimizer step         Averaged
    diloco, pulseloco        after every H optimizer steps an outer step joins the trainers' weights     Joined

Only joined weights are published: between two outer steps every trainer stands elsewhere. After an outer step all stand
at theta again; moments and what a gate holds back stay with their trainer (PULSE 2602.03839 v2, Algorithm 2).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from omegaconf import DictConfig
from torch import nn

from lowcomm.assembly import inner_factory
from lowcomm.blocks import build
from lowcomm.outer.exchange import agree
from lowcomm.outer.loop import OuterLoop
from lowcomm.outer.workers import Wire, Worker
from lowcomm.training import tensor_bytes

Values = dict[str, float]
Inner = Callable[..., torch.optim.Optimizer]


class Together(Protocol):
    """``optimizer``: this trainer's own. ``wire``: to the others. Tensors of a state are not copied."""

    wire: Wire
    optimizer: torch.optim.Optimizer

    def joins(self, step: int) -> bool:
        """Whether after optimizer step `step` all trainers have the same weights."""

    def last(self, step: int) -> int:
        """The last such step up to `step`."""

    def average(self, weight: float) -> None:
        """Before the optimizer's step, gradients complete: `weight` is this trainer's in a mean over all."""

    def after_step(self, step: int) -> Values:
        """After it; what was sent to the other trainers."""

    def shared_state(self) -> dict:
        """What all ranks have alike."""

    def own_states(self) -> dict[int, dict]:
        """What this trainer alone has, by worker; asked for where the trainers join."""

    def load(self, shared: dict, own_state: Callable[[int], dict]) -> dict:
        """Go on from the states; the state of the optimizer, which is loaded by who steps it."""

    def state_bytes(self) -> dict[str, int]:
        """Measured bytes of what one trainer keeps beside model and gradients; `optimizer` is all of it."""


class Averaged:
    """Every step is shared; one trainer alone is a mean of one. All ranks hold the same weights and moments."""

    def __init__(self, params: dict[str, nn.Parameter], inner: Inner, wire: Wire):
        self.params, self.wire = params, wire
        self.optimizer = inner(list(params.values()))

    def joins(self, step: int) -> bool:
        return True

    def last(self, step: int) -> int:
        return step

    def average(self, weight: float) -> None:
        """In worker order. With TRL's `dapo` the weight is the number of tokens, so that the mean is over all tokens of
        the step, as if one trainer had them all."""
        if self.wire.ranks == 1:
            return
        total = float(self.wire.gather(torch.tensor([weight], dtype=torch.float64)).sum())
        share = weight * self.wire.ranks / total
        for p in self.params.values():
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = self.wire.gather((grad * share)[None]).mean(0)

    def after_step(self, step: int) -> Values:
        """Raises ConsensusError when the trainers have drifted apart."""
        if self.wire.ranks == 1:
            return {}
        agree(self.wire, step, {n: p.detach() for n, p in self.params.items()})
        return {"comm/bytes": tensor_bytes(dict(self.params))}

    def shared_state(self) -> dict:
        return {"weights": {n: p.detach() for n, p in self.params.items()}, "optimizer": self.optimizer.state_dict()}

    def own_states(self) -> dict[int, dict]:
        return {}

    def load(self, shared: dict, own_state: Callable[[int], dict]) -> dict:
        with torch.no_grad():
            for name, p in self.params.items():
                p.copy_(shared["weights"][name])
        return shared["optimizer"]

    def state_bytes(self) -> dict[str, int]:
        return {"optimizer": tensor_bytes(self.optimizer.state_dict())}


class Joined:
    """``loop`` steps theta after every ``inner_steps`` optimizer steps and after the last of ``steps``.

    Raises ValueError for an optimizer that averages: its point would not be the one that writes text.
    """

    def __init__(self, params: dict[str, nn.Parameter], inner: Inner, loop: OuterLoop, inner_steps: int, steps: int):
        self.wire, self.loop, self.inner_steps, self.steps = loop.wire, loop, inner_steps, steps
        self.worker = Worker(self.wire.rank, params, inner, alone=True)
        if self.worker.averages:
            raise ValueError(f"{type(self.worker.optimizer).__name__} averages its weights: take inner AdamW or Muon")
        self.optimizer = self.worker.optimizer

    def joins(self, step: int) -> bool:
        return step % self.inner_steps == 0 or step == self.steps

    def last(self, step: int) -> int:
        return step if self.joins(step) else step - step % self.inner_steps

    def average(self, weight: float) -> None:
        pass

    def after_step(self, step: int) -> Values:
        """Raises as `OuterLoop.sync`: FloatingPointError, ConsensusError, Corrupt; theta is then what it was."""
        if not self.joins(step):
            return {}
        return self.loop.sync([self.worker])

    def shared_state(self) -> dict:
        return {"loop": self.loop.state_dict()}

    def own_states(self) -> dict[int, dict]:
        """Moments and residual; the weights are theta's where the trainers join, and states are taken only there."""
        residual = self.loop.compressors[self.worker.index].state_dict()
        return {self.worker.index: {"optimizer": self.optimizer.state_dict(), "residual": residual}}

    def load(self, shared: dict, own_state: Callable[[int], dict]) -> dict:
        self.loop.load_state_dict(shared["loop"])
        self.worker.restart(self.loop.theta)
        own = own_state(self.worker.index)
        self.loop.compressors[self.worker.index].load_state_dict(own["residual"])
        return own["optimizer"]

    def state_bytes(self) -> dict[str, int]:
        parts = {
            "moments": tensor_bytes(self.optimizer.state_dict()),
            "residual": tensor_bytes(self.loop.compressors[self.worker.index].state_dict()),
            "theta": tensor_bytes(self.loop.theta_tensors()),
            "outer": tensor_bytes(self.loop.outer.state_dict()),
        }
        return {"optimizer": sum(parts.values()), **parts}


def build_together(cfg: DictConfig, model: nn.Module, params: dict[str, Any], wire: Wire) -> Together:
    """As the configuration's algorithm says. Raises ConfigError for a block, ValueError as `Joined`."""
    a = cfg.algorithm
    inner = inner_factory(a.inner, model, params)
    if a.inner_steps is None:
        return Averaged(params, inner, wire)
    loop = OuterLoop(params, partial(build, "algorithm.compressor", a.compressor),
                     build("algorithm.aggregator", a.aggregator), partial(build, "algorithm.outer", a.outer),
                     wire, cfg.seed)  # fmt: skip
    return Joined(params, inner, loop, a.inner_steps, cfg.scale.steps)
