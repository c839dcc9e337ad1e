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

from collections.abc import Callable

import torch
from torch import Tensor

from lowcomm.outer.workers import Wire, Worker


class OuterLoop:
    """Holds theta (FP32 or wider), one compressor per local worker, the aggregator and the outer optimizer.

    theta:      name -> FP32 tensor, canonical names, tied weights once
    compressor: () -> compressor, called once per local worker (it may keep a residual)
    aggregator: (W, *shape) -> (*shape), pure
    outer:      (parameters) -> torch optimizer
    """

    def __init__(
        self,
        theta: dict[str, Tensor],
        compressor: Callable[[], Callable],
        aggregator: Callable[[Tensor], Tensor],
        outer: Callable[..., torch.optim.Optimizer],
        wire: Wire,
    ):
        self.theta = {n: torch.nn.Parameter(widened(t).clone()) for n, t in theta.items()}
        self.compressors = {index: compressor() for index in wire.local}
        self.aggregator = aggregator
        self.outer = outer(list(self.theta.values()))
        self.wire = wire
        self.round = 0

    @torch.no_grad()
    def sync(self, workers: list[Worker]) -> dict[str, float]:
        """One outer step from the local workers' weights; afterwards every worker stands at theta again.

        Returns `outer/delta_norm` (norm of the aggregate), `outer/cosine` (mean over pairs of workers of the cosine
        of their messages, norm-weighted), `comm/bytes` (as serialised, per worker and round).
        Raises FloatingPointError naming the parameter when a message is not finite; theta is then untouched.
        """
        sent, norms, alike, aggregate = 0, 0.0, 0.0, {}
        for name, theta in self.theta.items():
            # A low-precision worker started from the cast of theta, so the difference is taken to that value:
            # zero local steps then give a zero pseudo-gradient.
            start = widened(theta.to(workers[0].weights[name].dtype))
            messages = [self.compressors[w.index](name, theta, start - widened(w.weights[name])) for w in workers]
            sent += sum(m.nbytes for m in messages)
            stack = self.wire.gather(torch.stack([m.dense() for m in messages]))
            if not torch.isfinite(stack.sum()):
                raise FloatingPointError(f"round {self.round}: pseudo-gradient of '{name}' is not finite")
            norms += float(torch.linalg.vector_norm(stack)) ** 2
            alike += float(torch.linalg.vector_norm(stack.sum(0))) ** 2
            aggregate[name] = self.aggregator(stack)
        for name, theta in self.theta.items():
            theta.grad = aggregate[name]
        delta_norm = float(torch.nn.utils.get_total_norm(aggregate.values()))
        self.outer.step()
        self.outer.zero_grad(set_to_none=True)
        for worker in workers:
            for name, theta in self.theta.items():
                worker.weights[name].copy_(theta)
        self.round += 1
        pairs = self.wire.workers - 1
        return {
            "outer/delta_norm": delta_norm,
            "outer/cosine": (alike - norms) / (pairs * norms) if pairs and norms else 1.0,
            "comm/bytes": sent / len(workers),
        }

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
