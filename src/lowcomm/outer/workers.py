"""Logical workers and the wire between them. Workers are not processes: W workers live on P ranks, P divides W.

A rank holds a contiguous block of workers and steps them in turn on one model instance. What crosses the wire is
gathered in worker order, so every later reduction sees the same stack, bit for bit, for every P.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Wire:
    """The W logical workers' share of this rank, and the only place where ranks exchange data."""

    def __init__(self, workers: int):
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        if workers % self.ranks:
            raise ValueError(
                f"workers={workers} is not divisible by {self.ranks} ranks; "
                f"choose workers={self.ranks * max(1, workers // self.ranks)}, or another --nproc-per-node"
            )
        self.workers = workers
        share = workers // self.ranks
        self.local = range(self.rank * share, (self.rank + 1) * share)

    def gather(self, local: Tensor) -> Tensor:
        """`(W / P, *shape)` of this rank's workers to `(W, *shape)` in worker order, on every rank."""
        if self.ranks == 1:
            return local
        out = local.new_empty((self.workers, *local.shape[1:]))
        dist.all_gather_into_tensor(out, local.contiguous())
        return out

    def barrier(self) -> None:
        if self.ranks > 1:
            dist.barrier()


class Worker:
    """One logical worker: its own weights, inner optimizer and step count, over a model that it shares.

    weights: name -> tensor of the parameter's shape and dtype; the model's own storage when the rank has one worker.
    """

    def __init__(
        self, index: int, params: dict[str, nn.Parameter], inner: Callable[..., torch.optim.Optimizer], alone: bool
    ):
        self.index = index
        self.params = params
        self.optimizer = inner(list(params.values()))
        for group in self.optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.train_mode()
        self.weights = {n: p.detach() if alone else p.detach().clone() for n, p in params.items()}
        self.alone = alone
        self.step = 0  # inner steps done in the whole run

    def train_mode(self) -> None:
        """Optimizers with two views of the weights (GPA, Schedule-Free) step in the one that holds y."""
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()

    @torch.no_grad()
    def enter(self) -> None:
        """Put this worker's weights into the shared model."""
        if not self.alone:
            torch._foreach_copy_(list(self.params.values()), list(self.weights.values()))

    @torch.no_grad()
    def leave(self) -> None:
        """Take them back out."""
        if not self.alone:
            torch._foreach_copy_(list(self.weights.values()), list(self.params.values()))

    def state_dict(self) -> dict:
        return {"step": self.step, "weights": self.weights, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.step = state["step"]
        for name, weight in self.weights.items():
            weight.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
