"""A convex stochastic problem on which the averaged iterate of GPA is held against a bound that is proved here.

The paper's Theorem 1 is known to us only in words: for convex f and a base optimizer with O(sqrt T) regret, the average
of the x_t converges at O(1/sqrt T), with negative Bregman terms that can help. This is what we prove and plot.

**Claim.** Let f be convex with minimiser x*, x_0 = y_0 = z_0, and for t = 0 .. T-1 let g_t be a subgradient of f at
y_t, z_{t+1} any update of the base optimizer, x_{t+1} = mu_x x_t + (1 - mu_x) z_{t+1} and
y_t = mu_y x_t + (1 - mu_y) z_t, with mu_x, mu_y in [0, 1) x [0, 1]. Write c = mu_x / (1 - mu_x),
B_t(u) = f(u) - f(y_t) - <g_t, u - y_t> >= 0, and xbar for the mean of x_0 .. x_{T-1}. Then

    f(xbar) - f(x*) <= R_T / T + c (f(x_0) - f(x*)) / T - (1/T) sum_t B_t(x*) - (b/T) sum_{t>=1} B_t(x_{t-1}),

with the linearised regret R_T = sum_t <g_t, z_t - x*> and b = c mu_y / (1 + (1 - mu_y) c).

**Proof.** By the definition of B_t, <g_t, u - v> = f(u) - f(v) - B_t(u) + B_t(v). The x update gives
z_t - x* = (x_t - x*) + c (x_t - x_{t-1}) for t >= 1. So

    f(x_t) - f(x*) = <g_t, z_t - x*> - c (f(x_t) - f(x_{t-1})) - B_t(x*) + (1 + c) B_t(x_t) - c B_t(x_{t-1}).    (1)

From y_t - x_t = (1 - mu_y)(z_t - x_t) = (1 - mu_y) c (x_t - x_{t-1}), the points x_t and x_{t-1} lie on one ray from
y_t, at distances in the ratio r = (1 - mu_y) c / (1 + (1 - mu_y) c) <= 1. B_t is convex with B_t(y_t) = 0, so
B_t(x_t) <= r B_t(x_{t-1}), and (1 + c) r - c = -b. For t = 0 all points agree and (1) holds with c = 0. Sum over t; the
differences of f telescope to c (f(x_0) - f(x_{T-1})) <= c (f(x_0) - f(x*)); divide by T; Jensen gives f(xbar). QED

**Stochastic SGD as the base.** With unbiased gradients of norm at most G and a constant rate gamma,
E R_T <= D^2 / (2 gamma) + gamma G^2 T / 2, where D = |z_0 - x*|: expand |z_{t+1} - x*|^2 and sum. At
gamma = D / (G sqrt T) this is D G sqrt T. Dropping the Bregman terms, which are not positive:

    E f(xbar) - f(x*) <= D G / sqrt T + mu_x / (1 - mu_x) (f(x_0) - f(x*)) / T.                                   (2)

(2) is the plotted bound. mu_x = 0 is the base optimizer, for which it is the classical one. Training returns the last
x_T, of which (2) says nothing; it is drawn beside the average.
"""

from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lowcomm.optim.gpa import GPA
from lowcomm.results.figures import STYLE


class Problem:
    """f(w) = mean_i h(a_i . w - b_i) with h(r) = sqrt(1 + r^2) - 1, |a_i| = 1, in `dim` dimensions, float64.

    Samples come in pairs with b = a . x* + e and b = a . x* - e, so x* is the minimiser by symmetry: nothing is solved
    numerically. Gradients of single samples have norm at most G = 1.
    """

    def __init__(self, dim: int = 5, pairs: int = 200, noise: float = 1.0, seed: int = 0):
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        a = torch.nn.functional.normalize(draw(pairs, dim), dim=1)
        self.minimizer, e = 3 * draw(dim), noise * draw(pairs)
        self.a = torch.cat([a, a])  # (2 pairs, dim)
        self.b = torch.cat([a @ self.minimizer + e, a @ self.minimizer - e])
        self.G = 1.0
        self.least = float(self.value(self.minimizer[None])[0])

    def value(self, w: Tensor) -> Tensor:
        """f of every row: (S, dim) -> (S,)."""
        return ((1 + (w @ self.a.T - self.b) ** 2).sqrt() - 1).mean(1)

    def gradient(self, w: Tensor, sample: Tensor) -> Tensor:
        """Gradient of one sample per row: (S, dim), (S,) -> (S, dim)."""
        a, b = self.a[sample], self.b[sample]
        r = (w * a).sum(1) - b
        return (r / (1 + r**2).sqrt())[:, None] * a


def bound(problem: Problem, steps: int, mu_x: float) -> float:
    """Right side of (2) for a start at zero."""
    start = torch.zeros_like(problem.minimizer)
    distance = float(torch.linalg.vector_norm(start - problem.minimizer))
    gap = float(problem.value(start[None])[0]) - problem.least
    return distance * problem.G / steps**0.5 + mu_x / (1 - mu_x) * gap / steps


def run(problem: Problem, steps: int, mu_x: float, mu_y: float = 0.7, seeds: int = 64) -> dict[str, float]:
    """GPA over SGD at the rate of (2) from zero, all seeds at once as the rows of one parameter.

    Returns gaps to f(x*), means over seeds: `average` (of x_0 .. x_{T-1}), its standard error `error`, `last` (x_T),
    and the `bound`. mu_x = 0 is plain SGD, whatever mu_y.
    """
    generator = torch.Generator().manual_seed(steps)
    distance = float(torch.linalg.vector_norm(problem.minimizer))
    w = torch.nn.Parameter(torch.zeros(seeds, len(problem.minimizer), dtype=torch.float64))
    optimizer = GPA([w], partial(torch.optim.SGD, lr=distance / (problem.G * steps**0.5)), mu_x=mu_x, mu_y=mu_y)
    total = torch.zeros_like(w)
    for _ in range(steps):
        total += w.detach()  # in eval mode the parameter holds x
        optimizer.train()
        w.grad = problem.gradient(w.detach(), torch.randint(len(problem.b), (seeds,), generator=generator))
        optimizer.step()
        optimizer.eval()
    gaps = problem.value(total / steps) - problem.least
    last = float((problem.value(w.detach()) - problem.least).mean())
    error = float(gaps.std() / seeds**0.5)
    return {"average": float(gaps.mean()), "error": error, "last": last, "bound": bound(problem, steps, mu_x)}


def rates(problem: Problem, lengths: list[int], mu_xs: list[float], seeds: int = 64) -> pd.DataFrame:
    """`run` for every number of steps T and every mu_x: columns steps, mu_x, average, error, last, bound."""
    return pd.DataFrame([{"steps": t, "mu_x": mu, **run(problem, t, mu, seeds=seeds)} for mu in mu_xs for t in lengths])


def draw(frame: pd.DataFrame) -> Figure:
    """The gaps of `rates` over T, one panel per mu_x, on one pair of logarithmic axes."""
    with plt.rc_context(STYLE):
        values = frame.mu_x.unique()
        drawing, axes = plt.subplots(1, len(values), figsize=(3.3 * len(values), 3.2), sharey=True, squeeze=False)
        for ax, mu in zip(axes[0], values, strict=True):
            part = frame[frame.mu_x == mu]
            ax.plot(part.steps, part.bound, "k--", linewidth=1.2, label="bound (2)")
            ax.errorbar(
                part.steps, part.average, part.error, color="#0072b2", marker="o", markersize=4, label="average of x"
            )
            ax.plot(part.steps, part["last"], color="#d55e00", marker="s", markersize=4, label="last x")
            ax.set(xscale="log", yscale="log", xlabel="steps T")
            ax.set_title(f"mu_x = {mu:g}" + (" (SGD, the base)" if mu == 0 else ""))
        axes[0][0].set_ylabel("E f - f(x*)")
        axes[0][0].legend()
        plt.close(drawing)
    return drawing
