"""Logical workers and the wire between them. Workers are not processes: W workers live on P ranks, P divides W.

A rank holds a contiguous block of workers and steps them in turn on one model instance. What crosses the wire is
gathered in worker order, so every later reduction sees the same stack, bit for bit, for every P.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lowcomm.outer.shelf import Place, Shelf


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

    def total(self, parts: Iterator[Tensor]) -> Tensor:
        """Sum over all workers in worker order, on every rank, with one worker's part in memory at a time.

        The running sum travels from rank to rank: an all-reduce would add in another order for another P.
        """
        running: Tensor | None = None
        if self.rank:
            part = next(parts)
            running = torch.empty_like(part)
            dist.recv(running, src=self.rank - 1)
            running += part
        for part in parts:
            running = part.clone() if running is None else running.add_(part)
        if self.ranks > 1:
            if self.rank + 1 < self.ranks:
                dist.send(running, dst=self.rank + 1)
            dist.broadcast(running, src=self.ranks - 1)
        return running

    def gather_bytes(self, local: list[bytes]) -> list[bytes]:
        """One byte string of each local worker to those of all workers in their order, on every rank.

        Their lengths differ, so every rank sends its own to all others: the bytes themselves, no padding.
        """
        if self.ranks == 1:
            return local
        lengths = self.gather(torch.tensor([len(b) for b in local])).view(self.ranks, -1)
        parts = [torch.empty(int(n), dtype=torch.uint8) for n in lengths.sum(1)]
        parts[self.rank] = torch.frombuffer(bytearray(b"".join(local)), dtype=torch.uint8)
        for work in [dist.broadcast(part, src=rank, async_op=True) for rank, part in enumerate(parts)]:
            work.wait()
        found = []
        for part, sizes in zip(parts, lengths.tolist(), strict=True):
            found += [bytes(piece.numpy()) for piece in part.split(sizes)]
        return found

    def barrier(self) -> None:
        """Wait for all ranks; nothing where there is one."""
        if self.ranks > 1:
            dist.barrier()


class Worker:
    """One logical worker: its own weights, inner optimizer and step count, over a model that it shares.

    weights: name -> tensor of the parameter's shape and dtype; the model's own storage when the rank has one worker.
    An idle worker's weights and optimizer state rest in `place`: beside the model (device), in CPU memory, or
    memory-mapped in `folder` (disk). The values are the same, bit for bit.

    An optimizer that averages (GPA, Schedule-Free) is at its point x between rounds, so x is what an outer step sees.
    """

    def __init__(self, index: int, params: dict[str, nn.Parameter], inner: Callable[..., torch.optim.Optimizer],
                 alone: bool, place: Place = "device", folder: Path | None = None):  # fmt: skip
        self.index = index
        self.params = params
        self.optimizer = inner(list(params.values()))
        for group in self.optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.averages = callable(getattr(self.optimizer, "eval", None))
        self.alone = alone
        self.folder = folder if place == "disk" else None
        self.away = not alone and (place == "disk" or (place == "cpu" and self.device.type != "cpu"))
        self.moments: Shelf | None = None  # its layout is known after the first step
        self.shelf = Shelf(dict(params), self.folder) if self.away else None
        if self.shelf:
            self.shelf.put({n: p.detach() for n, p in params.items()})
            self.weights = self.shelf.tensors
        else:
            self.weights = {n: p.detach() if alone else p.detach().clone() for n, p in params.items()}
        self.step = 0  # inner steps done in the whole run

    @property
    def device(self) -> torch.device:
        """Where the shared model is, and so where this worker steps."""
        return next(iter(self.params.values())).device

    @torch.no_grad()
    def enter(self) -> None:
        """Put this worker's weights into the shared model, and its optimizer into the state in which it steps."""
        if not self.alone:
            torch._foreach_copy_(list(self.params.values()), list(self.weights.values()))
        if self.moments:
            self._replace({k: t.to(self.device, copy=True) for k, t in self.moments.tensors.items()})
            for name in self.moments.tensors:
                self.moments.let_go(name)
        for name in self.weights:
            self.let_go(name)
        if self.averages:
            self.optimizer.train()

    @torch.no_grad()
    def leave(self, end_of_round: bool = True) -> None:
        """Take the weights back out, in the middle of a round or ready for the outer step, and lay the state down."""
        if self.averages and end_of_round:
            self.optimizer.eval()
        if self.away:
            self.shelf.put({n: p.detach() for n, p in self.params.items()})
            self._lay_down()
        elif not self.alone:
            torch._foreach_copy_(list(self.weights.values()), list(self.params.values()))

    @torch.no_grad()
    def restart(self, theta: dict[str, Tensor]) -> None:
        """Stand at theta again. Of an averaging optimizer x goes to theta, and z moves along, so that z - x is kept."""
        for name, weight in self.weights.items():
            z = self.optimizer.state.get(self.params[name], {}).get("z") if self.averages else None
            if z is not None:
                z += (theta[name] - weight.to(theta[name].device)).to(z.device)
            weight.copy_(theta[name])
            self.let_go(name)
            if self.moments and f"{name}/z" in self.moments.tensors:
                self.moments.let_go(f"{name}/z")

    def let_go(self, name: str) -> None:
        """Keep no page of a weight in memory that rests on disk."""
        if self.shelf:
            self.shelf.let_go(name)

    def _lay_down(self) -> None:
        """Move the optimizer's tensors to where they rest; step counters stay with the optimizer."""
        now = self._state()
        if not now:  # before the first step
            return
        if self.moments is None or self.moments.tensors.keys() != now.keys():
            self.moments = Shelf(now, self.folder)
        self.moments.put(now)
        self._replace(self.moments.tensors)

    def _state(self) -> dict[str, Tensor]:
        """Tensors of the optimizer's state with more than one element, by parameter and key."""
        found = {}
        for name, p in self.params.items():
            for key, value in self.optimizer.state.get(p, {}).items():
                if isinstance(value, Tensor) and value.numel() > 1:
                    found[f"{name}/{key}"] = value
        return found

    def _replace(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            parameter, _, key = name.rpartition("/")
            self.optimizer.state[self.params[parameter]][key] = tensor

    def state_dict(self) -> dict:
        """Step count, weights by name, and the inner optimizer's state; tensors are not copied."""
        return {"step": self.step, "weights": dict(self.weights), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """In place, from `state_dict` of a worker of the same parameters; an idle one lies down again."""
        self.step = state["step"]
        self.optimizer.load_state_dict(state["optimizer"])
        for name, weight in self.weights.items():
            weight.copy_(state["weights"][name])
            self.let_go(name)
        if self.away:
            self._lay_down()
