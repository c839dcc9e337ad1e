"""The outer loop: what happens at the end of a round, in the order of the papers' pseudo-code.

    for round:
        each worker r: w_r = theta;  H inner steps on its own data, own moments        (lowcomm.training)
        Delta_r  = theta - w_r                                   FP32, old minus new: a descent direction
        s_r      = Delta_r + e_r
        m_r, e_r = compress(theta, s_r)                          all of s_r | what a cast of theta - s_r shows of it
        all agree on theta; every m_r goes to every rank         lowcomm.outer.exchange: as tensors | as packed bytes
        g        = aggregate({m_r})                              per parameter; mean: sum / R, what was not sent is zero
        theta    = outer(theta, g)                               SGD or Nesterov, torch.optim on theta

DiLoCo (2311.08105, Algorithm 1): identity, mean, Nesterov.
IsoLoCo (2607.03011, Algorithm 1): identity, Iso-C, Nesterov.
PULSELoCo (2602.03839 v2, Algorithm 2): visibility gate with error feedback, mean, Nesterov.

Residuals e_r move and theta steps only when every message of the round has arrived and is sound, on all ranks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowcomm.outer.aggregate import keyed_generator, needs, takes_generator
from lowcomm.outer.exchange import AGREEMENT, DenseExchange, GatedExchange, Tally, agree
from lowcomm.outer.workers import Wire, Worker


class OuterLoop:
    """Holds theta (FP32 or wider), one compressor per local worker, the aggregator and the outer optimizer.

    theta:      name -> FP32 tensor, canonical names, tied weights once
    compressor: () -> compressor, called once per local worker (it may keep a residual)
    aggregator: (W, *shape) -> (*shape), pure; one that draws masks gets a generator keyed by seed, round and name,
                from which it makes one for every worker: the masks of a run depend on no rank and survive a resume
    outer:      (parameters) -> torch optimizer
    """

    def __init__(
        self,
        theta: dict[str, Tensor],
        compressor: Callable[[], Callable],
        aggregator: Callable[[Tensor], Tensor],
        outer: Callable[..., torch.optim.Optimizer],
        wire: Wire,
        seed: int = 0,
    ):
        self.theta = {n: torch.nn.Parameter(widened(t).clone()) for n, t in theta.items()}
        self.compressors = {index: compressor() for index in wire.local}
        self.aggregator = aggregator
        self.outer = outer(list(self.theta.values()))
        self.wire = wire
        self.seed = seed
        self.draws = takes_generator(aggregator)
        self.only_mean = needs_only_mean(aggregator)
        self.round = 0
        first = next(iter(self.compressors.values()))
        self.gated = first.gated
        self.exchange = GatedExchange(wire, first.form, first.codec) if self.gated else DenseExchange(wire)

    @torch.no_grad()
    def sync(self, workers: list[Worker]) -> dict[str, float]:
        """One outer step from the local workers' weights; afterwards every worker stands at theta again.

        Returns `outer/delta_norm` (norm of the aggregate), `outer/cosine` (mean over pairs of workers of the cosine
        of their messages, norm-weighted), `comm/bytes` (as serialised, per worker and round); behind a gate also
        `comm/sent` (entries, mean over workers), `comm/sparsity` with `_min` and `_max` over workers (share of entries
        not sent), `outer/residual_norm` (root mean square over workers).
        Raises FloatingPointError naming the parameter when a message is not finite, ConsensusError when ranks differ in
        theta, Corrupt when bytes from another rank are damaged; theta and residuals are then untouched.
        """
        agree(self.wire, self.round, self.theta_tensors())  # all hold the same theta
        tally = Tally(workers)
        alike, aggregate = 0.0, {}
        for names in self.exchange.buckets(self.theta):
            # Delta_r, s_r = Delta_r + e_r, m_r: see `message`
            self.exchange.begin(self.round, {n: self.theta[n] for n in names}, workers, self.message, tally)
            for name in names:
                # g = aggregate({m_r})
                if self.only_mean:  # a stack of all workers need not be in memory
                    total = self.exchange.total(name)
                    stack = (total / self.wire.workers)[None]
                else:
                    stack = self.exchange.stack(name)
                    total = stack.sum(0)
                if not torch.isfinite(total.sum()):
                    raise FloatingPointError(f"round {self.round}: pseudo-gradient of '{name}' is not finite")
                alike += float(torch.linalg.vector_norm(total)) ** 2
                key = {"generator": keyed_generator(self.seed, self.round, name)} if self.draws else {}
                aggregate[name] = self.aggregator(stack, **key)
        report = {"outer/delta_norm": float(torch.nn.utils.get_total_norm(aggregate.values()))}
        report |= self.described(tally, alike) | self.settle(workers)  # e_r = s_r - m_r
        for name, theta in self.theta.items():
            theta.grad = aggregate[name]
        self.outer.step()  # theta = outer(theta, g)
        self.outer.zero_grad(set_to_none=True)
        for worker in workers:
            worker.restart(self.theta)  # w_r = theta
        self.round += 1
        return report

    def message(self, name: str, worker: Worker) -> Any:
        """What a local worker sends of one parameter; its residual is not touched."""
        return self.compressors[worker.index](name, self.theta[name], self.delta(name, worker))

    def delta(self, name: str, worker: Worker) -> Tensor:
        """FP32, theta minus the worker's weight. A low-precision worker started from the cast of theta, so the
        difference is taken to that value: zero local steps then give a zero pseudo-gradient."""
        weight = worker.weights[name]
        start = widened(self.theta[name].to(weight.dtype))
        difference = start - widened(weight).to(start.device)
        worker.let_go(name)
        return difference

    def settle(self, workers: list[Worker]) -> dict[str, float]:
        """The round stands: residuals move, before theta does, since the gate compares with the theta of the round."""
        if not self.gated:
            return {}
        squares = []
        for worker in workers:
            compressor = self.compressors[worker.index]
            for name, theta in self.theta.items():
                compressor.settle(name, theta, self.delta(name, worker))
            squares.append(sum(float(torch.linalg.vector_norm(e)) ** 2 for e in compressor.residual.values()))
        mean_square = float(self.wire.gather(torch.tensor(squares, dtype=torch.float64)).mean())
        return {"outer/residual_norm": mean_square**0.5}

    def described(self, tally: Tally, alike: float) -> dict[str, float]:
        """The part of the report that says what was sent; `alike` is the squared norm of the sum of all messages."""
        pairs, device = self.wire.workers - 1, next(iter(self.theta.values())).device
        squares = torch.tensor(tally.squares, dtype=torch.float64, device=device)
        norms = float(self.wire.gather(squares.view(-1, len(tally.sent)).sum(0)).sum())
        cosine = (alike - norms) / (pairs * norms) if pairs and norms else 1.0
        if not self.gated:
            return {"outer/cosine": cosine, "comm/bytes": sum(tally.nbytes) / len(tally.nbytes)}
        nbytes, sent = self.wire.gather(torch.tensor([*zip(tally.nbytes, tally.sent, strict=True)])).double().T
        sparsity = 1 - sent / sum(t.numel() for t in self.theta.values())
        return {
            "outer/cosine": cosine,
            "comm/bytes": float(nbytes.mean()) + AGREEMENT,
            "comm/sent": float(sent.mean()),
            "comm/sparsity": float(sparsity.mean()),
            "comm/sparsity_min": float(sparsity.min()),
            "comm/sparsity_max": float(sparsity.max()),
        }

    def state_dict(self) -> dict:
        """Shared by all ranks: theta, outer optimizer, round. Residuals belong to the workers."""
        return {"round": self.round, "theta": self.theta_tensors(), "outer": self.outer.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """In place: `theta` keeps its tensors. The state must have its names and shapes."""
        self.round = state["round"]
        with torch.no_grad():
            for name, theta in self.theta.items():
                theta.copy_(state["theta"][name])
        self.outer.load_state_dict(state["outer"])

    def theta_tensors(self) -> dict[str, Tensor]:
        """Name -> theta, detached but not copied: of the parameter's shape, FP32 or wider."""
        return {n: t.detach() for n, t in self.theta.items()}


def widened(tensor: Tensor) -> Tensor:
    """The same shape, detached, in FP32 or wider: theta, differences and residuals never live in a low precision."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def needs_only_mean(rule: Callable) -> bool:
    """Whether `rule(deltas)` is `rule(mean(deltas)[None])`: no masks per worker, no sum in place of the mean."""
    options = getattr(rule, "keywords", {})
    return needs(rule) == "sum" and not takes_generator(rule) and options.get("total", "mean") == "mean"
