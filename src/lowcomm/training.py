"""The two ways to train: synchronous (gradients averaged at every step) and in rounds (weights synchronised every H).

Both advance by the smallest unit of work, one *tick*, so that a run can stop anywhere: one step of all workers when
synchronous, one inner step of one local worker in rounds. `advance` reports when a step of the whole run is complete.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from lowcomm.inner import InnerStep, evaluation_point
from lowcomm.outer.loop import OuterLoop
from lowcomm.outer.shelf import Place
from lowcomm.outer.workers import Wire, Worker

Inner = Callable[..., torch.optim.Optimizer]
Report = dict[str, float]


def mean_loss(wire: Wire, losses: list[list[float]]) -> float:
    """Mean over all workers and steps, in worker order; `losses` is (local workers, steps)."""
    return float(wire.gather(torch.tensor(losses, dtype=torch.float64)).mean())


class Synchronous:
    """AdamW, GPA, Schedule-Free: one optimizer, replicated on the ranks; W workers share every step's gradient."""

    def __init__(self, inner_step: InnerStep, params: dict[str, nn.Parameter], inner: Inner, wire: Wire, batch: int):
        self.inner_step, self.params, self.wire, self.batch = inner_step, params, wire, batch
        self.worker = Worker(0, params, inner, alone=True)
        self.worker.enter()

    @property
    def step(self) -> int:
        """Inner steps done; every one of them is shared by all workers."""
        return self.worker.step

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.inner_step.steps

    def advance(self) -> Report:
        """One step: gradients of all workers averaged in worker order, then the optimizer's update.

        Raises FloatingPointError when the loss is not finite; the weights are then those before the step.
        """
        step, workers = self.worker.step, self.wire.workers
        losses, gradients = [], []
        for index in self.wire.local:
            losses.append([self.inner_step.gradient(index, workers, step, self.batch)])
            if workers > 1:
                gradients.append([p.grad for p in self.params.values()])
                for p in self.params.values():
                    p.grad = None
        report = {"train/loss": mean_loss(self.wire, losses)}
        check_finite(report["train/loss"], step)
        if workers > 1:
            for p, local in zip(self.params.values(), zip(*gradients, strict=True), strict=True):
                if local[0] is not None:
                    p.grad = self.wire.gather(torch.stack(local)).mean(0)
            report["comm/bytes"] = sum(p.grad.nbytes for p in self.params.values() if p.grad is not None)
        report["train/lr"] = self.inner_step.update(self.worker.optimizer, step)
        self.worker.step += 1
        return report

    def evaluation(self) -> contextlib.AbstractContextManager:
        """Within it the parameters hold the point that is evaluated and saved: x of an averaging optimizer."""
        return evaluation_point(self.worker.optimizer, self.params)

    def state_bytes(self) -> dict[str, int]:
        """Measured bytes of what training keeps beside the model."""
        return {"optimizer": tensor_bytes(self.worker.optimizer.state_dict())}

    def shared_state(self) -> dict:
        """What every rank has alike: step, weights, optimizer."""
        return self.worker.state_dict()

    def worker_states(self) -> dict[int, dict]:
        """Nothing belongs to one worker alone."""
        return {}

    def load(self, shared: dict, worker_state: Callable[[int], dict]) -> None:
        """Go on from `shared_state` of an earlier session."""
        self.worker.load_state_dict(shared)


class Rounds:
    """DiLoCo and its kin: every worker takes H inner steps from theta, then one outer step joins them.

    The local workers run one after another, each for its whole round, so a rank with L of them swaps weights L times
    a round. A last round may be shorter than H.
    """

    def __init__(self, inner_step: InnerStep, params: dict[str, nn.Parameter], inner: Inner, wire: Wire, batch: int,
                 inner_steps: int, loop: OuterLoop, place: Place = "device",
                 folder: Path | None = None):  # fmt: skip
        self.inner_step, self.params, self.wire, self.batch = inner_step, params, wire, batch
        self.inner_steps, self.loop = inner_steps, loop
        self.workers = [Worker(i, params, inner, len(wire.local) == 1, place, folder) for i in wire.local]
        if self.workers[0].averages and any(p.dtype.itemsize < 4 for p in params.values()):
            raise ValueError("model.dtype: an optimizer that averages restarts from theta in float32 weights only")
        self.losses: list[list[float]] = [[] for _ in self.workers]  # of this round
        self.inside: Worker | None = None  # whose weights the model holds

    @property
    def step(self) -> int:
        """Inner steps of every worker that an outer step has joined."""
        return min(self.loop.round * self.inner_steps, self.inner_step.steps)

    @property
    def done(self) -> bool:
        """Whether the outer step that ends the run is done."""
        return self.step >= self.inner_step.steps

    def advance(self) -> Report | None:
        """One inner step of one local worker; after the last of a round the outer step, and its report, else None.

        Raises FloatingPointError when a loss or a pseudo-gradient is not finite; theta is then as before the round.
        """
        end = min(self.step + self.inner_steps, self.inner_step.steps)
        # None is left where a checkpoint from within the round came from fewer ranks, which were at other workers.
        left = [(place, worker) for place, worker in enumerate(self.workers) if worker.step < end]
        if left:
            place, worker = left[0]
            if self.inside is not worker:
                worker.enter()
                self.inside = worker
            loss = self.inner_step.gradient(worker.index, self.wire.workers, worker.step, self.batch)
            check_finite(loss, worker.step, worker.index)
            self.inner_step.update(worker.optimizer, worker.step)
            self.losses[place].append(loss)
            worker.step += 1
            if worker.step < end:
                return None
            worker.leave(end_of_round=True)
            self.inside = None
            if len(left) > 1:
                return None
        lr = self.workers[-1].optimizer.param_groups[0]["lr"]
        report = {"train/loss": mean_loss(self.wire, self.losses), "train/lr": lr, **self.loop.sync(self.workers)}
        self.losses = [[] for _ in self.workers]
        return report

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Theta right after an outer step; between rounds the shared model is scratch space."""
        if not self.workers[0].alone:
            with torch.no_grad():
                torch._foreach_copy_(list(self.params.values()), list(self.loop.theta.values()))
        yield

    def state_bytes(self) -> dict[str, int]:
        """Measured bytes of what one worker and the outer loop keep beside the model; `optimizer` is all of it."""
        worker = self.workers[0]
        parts = {
            "moments": tensor_bytes(worker.optimizer.state_dict()),
            "residual": tensor_bytes(self.loop.compressors[worker.index].state_dict()),
            "theta": tensor_bytes(self.loop.theta_tensors()),
            "outer": tensor_bytes(self.loop.outer.state_dict()),
        }
        return {"optimizer": sum(parts.values()), **parts}

    def shared_state(self) -> dict:
        """What every rank has alike: theta, outer optimizer, round."""
        return self.loop.state_dict()

    def worker_states(self) -> dict[int, dict]:
        """By worker index: weights, moments, residual, losses of this round. May be taken within a round."""
        if self.inside:
            self.inside.leave(end_of_round=False)
            self.inside = None  # it comes in again
        return {
            w.index: w.state_dict() | {"residual": self.loop.compressors[w.index].state_dict(), "losses": losses}
            for w, losses in zip(self.workers, self.losses, strict=True)
        }

    def load(self, shared: dict, worker_state: Callable[[int], dict]) -> None:
        """Go on from `shared_state` and, asked for by index, the local workers' states."""
        self.loop.load_state_dict(shared)
        self.losses = []
        for worker in self.workers:
            state = worker_state(worker.index)
            worker.load_state_dict(state)
            self.loop.compressors[worker.index].load_state_dict(state["residual"])
            self.losses.append(list(state["losses"]))
        self.inside = None


def check_finite(loss: float, step: int, worker: int | None = None) -> None:
    """Raises FloatingPointError with step, worker and remedy for a loss that is infinite or not a number."""
    if not abs(loss) < float("inf"):
        where = f"step {step}" + ("" if worker is None else f", worker {worker}")
        raise FloatingPointError(f"the loss is {loss} at {where}; lower the learning rate or set algorithm.clip")


def check_weights(params: dict[str, nn.Parameter], step: int) -> None:
    """A checkpoint is a good one. Raises FloatingPointError, where the loss would only at the next step."""
    for name, p in params.items():
        if not torch.isfinite(p).all():
            raise FloatingPointError(f"'{name}' is not finite after step {step}; lower the learning rate")


def tensor_bytes(state: object) -> int:
    """Bytes of all tensors in a nested state with more than one element (step counters are not counted)."""
    if isinstance(state, Tensor):
        return state.nbytes if state.numel() > 1 else 0
    if isinstance(state, dict):
        return sum(tensor_bytes(v) for v in state.values())
    if isinstance(state, list | tuple):
        return sum(tensor_bytes(v) for v in state)
    return 0
