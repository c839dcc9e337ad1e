"""One inner step: batch, loss, gradient, clipping, learning rate, optimizer. And the point at which one evaluates."""

import contextlib
import hashlib
import math
from collections.abc import Iterator

import torch
from torch import nn

from lowcomm.schema import AlgorithmConfig, ScaleConfig, ScheduleConfig
from lowcomm.workloads import Workload


def rate(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """Factor of the peak learning rate at inner step `step` of `steps`, counted from 0.

    Linear from `start` to 1 over the warm-up, then cosine or linear to `final` at the last step, or constant.
    """
    warmup = round(schedule.warmup * steps)
    if step < warmup:
        return schedule.start + (1 - schedule.start) * step / warmup
    if schedule.shape == "constant":
        return 1.0
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    fall = (1 + math.cos(math.pi * progress)) / 2 if schedule.shape == "cosine" else 1 - progress
    return schedule.final + (1 - schedule.final) * fall


def step_seed(seed: int, worker: int, step: int) -> int:
    """Seed of the randomness inside one inner step (dropout): a function of the step, so there is no state to save."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{worker}/{step}".encode()).digest()[:8], "little") >> 1


class InnerStep:
    """Gradients and updates of one model for any worker; holds no state between steps."""

    def __init__(self, model: nn.Module, params: dict[str, nn.Parameter], workload: Workload,
                 algorithm: AlgorithmConfig, scale: ScaleConfig, steps: int, seed: int):  # fmt: skip
        self.model, self.params, self.workload = model, params, workload
        self.schedule, self.clip = algorithm.schedule, algorithm.clip
        self.device, self.autocast = torch.device(scale.device), scale.precision == "bf16"
        self.steps, self.seed = steps, seed

    def gradient(self, worker: int, workers: int, step: int, size: int) -> float:
        """Leave the gradient of one batch in the parameters; return its loss (nats, mean over the batch)."""
        torch.manual_seed(step_seed(self.seed, worker, step))
        batch = {
            k: v.to(self.device, non_blocking=True) for k, v in self.workload.batch(worker, workers, step, size).items()
        }
        self.model.train()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            loss = self.workload.loss(self.model, batch)
        loss.backward()
        return loss.item()

    def update(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Clip, set the scheduled rate, step, clear the gradients; return the rate of the first group."""
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.params.values(), self.clip)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate(self.schedule, step, self.steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return optimizer.param_groups[0]["lr"]


@contextlib.contextmanager
def evaluation_point(optimizer: torch.optim.Optimizer, params: dict[str, nn.Parameter]) -> Iterator[None]:
    """The averaged point x of GPA and Schedule-Free inside the block; every bit of the training state after it."""
    if not callable(getattr(optimizer, "eval", None)):
        yield
        return
    kept = [p.detach().clone() for p in params.values()]
    optimizer.eval()
    try:
        yield
    finally:
        optimizer.train()
        with torch.no_grad():
            torch._foreach_copy_(list(params.values()), kept)
