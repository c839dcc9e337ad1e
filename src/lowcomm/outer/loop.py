"""The outer loop: what happens at the end of a round, in the order of the papers' pseudo-code.

    for round:
        each worker r: w_r = theta;  H inner steps on its own data, own moments        (lowcomm.training)
        Delta_r  = theta - w_r                                   FP32, old minus new: a descent direction
        m_r, e_r = compress(Delta_r + e_r)
        g        = aggregate({m_r})                              per parameter
        theta    = outer(theta, g)                               SGD or Nesterov, torch.optim on theta

DiLoCo (2311.08105, Algorithm 1): identity, mean, Nesterov.
IsoLoCo (2607.03011, Algorithm 1): identity, Iso-C, Nesterov.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lowcomm.outer.aggregate import keyed_generator, needs, takes_generator
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

    @torch.no_grad()
    def sync(self, workers: list[Worker]) -> dict[str, float]:
        """One outer step from the local workers' weights; afterwards every worker stands at theta again.

        Returns `outer/delta_norm` (norm of the aggregate), `outer/cosine` (mean over pairs of workers of the cosine
        of their messages, norm-weighted), `comm/bytes` (as serialised, per worker and round).
        Raises FloatingPointError naming the parameter when a message is not finite; theta is then untouched.
        """
        sent: list[tuple[int, float]] = []
        alike, aggregate = 0.0, {}
        for name, theta in self.theta.items():
            messages = self.messages(name, theta, workers, sent)
            if self.only_mean:  # a stack of all workers need not be in memory
                total = self.wire.total(messages)
                stack = (total / self.wire.workers)[None]
            else:
                stack = self.wire.gather(torch.stack(list(messages)))
                total = stack.sum(0)
            if not torch.isfinite(total.sum()):
                raise FloatingPointError(f"round {self.round}: pseudo-gradient of '{name}' is not finite")
            alike += float(torch.linalg.vector_norm(total)) ** 2
            key = {"generator": keyed_generator(self.seed, self.round, name)} if self.draws else {}
            aggregate[name] = self.aggregator(stack, **key)
        for name, theta in self.theta.items():
            theta.grad = aggregate[name]
        delta_norm = float(torch.nn.utils.get_total_norm(aggregate.values()))
        self.outer.step()
        self.outer.zero_grad(set_to_none=True)
        for worker in workers:
            worker.restart(self.theta)
        self.round += 1
        pairs = self.wire.workers - 1
        squares = torch.tensor([square for _, square in sent], dtype=torch.float64, device=theta.device)
        norms = float(self.wire.gather(squares.view(-1, len(workers)).sum(0)).sum())
        return {
            "outer/delta_norm": delta_norm,
            "outer/cosine": (alike - norms) / (pairs * norms) if pairs and norms else 1.0,
            "comm/bytes": sum(nbytes for nbytes, _ in sent) / len(workers),
        }

    def messages(self, name: str, theta: Tensor, workers: list[Worker], sent: list[tuple[int, float]]
                 ) -> Iterator[Tensor]:  # fmt: skip
        """What the local workers send of one parameter, in their order; `sent` takes bytes and squared norm of each."""
        # A low-precision worker started from the cast of theta, so the difference is taken to that value:
        # zero local steps then give a zero pseudo-gradient.
        start = widened(theta.to(workers[0].weights[name].dtype))
        for worker in workers:
            weight = widened(worker.weights[name]).to(start.device)
            message = self.compressors[worker.index](name, theta, start - weight)
            worker.let_go(name)
            dense = message.dense()
            sent.append((message.nbytes, float(torch.linalg.vector_norm(dense)) ** 2))
            yield dense

    def state_dict(self) -> dict:
        """Shared by all ranks: theta, outer optimizer, round. Residuals belong to the workers."""
        return {"round": self.round, "theta": self.theta_tensors(), "outer": self.outer.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.round = state["round"]
        with torch.no_grad():
            for name, theta in self.theta.items():
                theta.copy_(state["theta"][name])
        self.outer.load_state_dict(state["outer"])

    def theta_tensors(self) -> dict[str, Tensor]:
        return {n: t.detach() for n, t in self.theta.items()}


def widened(tensor: Tensor) -> Tensor:
    """Detached, in FP32 or wider: theta, differences and residuals never live in a low precision."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def needs_only_mean(rule: Callable) -> bool:
    """Whether `rule(deltas)` is `rule(mean(deltas)[None])`: no masks per worker, no sum in place of the mean."""
    options = getattr(rule, "keywords", {})
    return needs(rule) == "sum" and not takes_generator(rule) and options.get("total", "mean") == "mean"
