"""The bound of lowcomm.results.convex: its equation (1), its Bregman terms, and the runs under it, in float64."""

from functools import partial

import pytest
import torch

from lowcomm.optim.gpa import GPA
from lowcomm.results import convex


def full_gradient(problem, w):
    """Mean over all samples at one point: (1, dim) -> (1, dim)."""
    n = len(problem.b)
    return problem.gradient(w.expand(n, -1), torch.arange(n)).mean(0, keepdim=True)


def test_the_minimizer_is_one():
    problem = convex.Problem()
    assert full_gradient(problem, problem.minimizer[None]).abs().max() < 1e-15
    near = problem.minimizer + 0.1 * torch.randn(50, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert (problem.value(near) > problem.least).all()
    gradients = problem.gradient(near, torch.arange(50))
    assert gradients.norm(dim=1).max() <= problem.G


@pytest.mark.parametrize(("mu_x", "mu_y"), [(0.0, 0.7), (0.9, 0.7), (0.95, 0.2), (0.8, 1.0)])
def test_the_claim_holds_term_by_term_on_a_run(mu_x, mu_y):
    """The summed equation (1) with f's own gradients is an identity; dropping terms only loosens it."""
    problem, steps = convex.Problem(seed=1), 60
    w = torch.nn.Parameter(torch.zeros(1, 5, dtype=torch.float64))
    optimizer = GPA([w], partial(torch.optim.SGD, lr=0.5), mu_x=mu_x, mu_y=mu_y)
    c = mu_x / (1 - mu_x)
    xs, gaps, regret, bregman, kept = [], [], 0.0, 0.0, 0.0
    for t in range(steps):
        x = w.detach().clone()
        optimizer.train()
        y, z = w.detach().clone(), optimizer.state[w].get("z", w).detach().clone()
        g = full_gradient(problem, y)
        B = lambda u, y=y, g=g: float(problem.value(u) - problem.value(y) - (g * (u - y)).sum())  # noqa: E731
        star = problem.minimizer[None]
        regret += float((g * (z - star)).sum())
        bregman -= B(star)
        if t:
            bregman += (1 + c) * B(x) - c * B(xs[-1])
            kept += c * mu_y / (1 + (1 - mu_y) * c) * B(xs[-1])
        kept += B(star)
        xs.append(x)
        gaps.append(float(problem.value(x)) - problem.least)
        w.grad = g
        optimizer.step()
        optimizer.eval()
    identity = regret + c * (gaps[0] - gaps[-1]) + bregman
    assert sum(gaps) == pytest.approx(identity, abs=1e-11)
    assert bregman <= -kept + 1e-12
    mean = float(problem.value(torch.stack(xs).mean(0))) - problem.least
    assert mean <= (regret + c * gaps[0] - kept) / steps + 1e-12


def test_no_averaging_is_plain_sgd():
    problem, steps, seeds = convex.Problem(), 40, 8
    generator = torch.Generator().manual_seed(steps)
    w = torch.zeros(seeds, 5, dtype=torch.float64)
    rate = float(problem.minimizer.norm()) / steps**0.5
    total = torch.zeros_like(w)
    for _ in range(steps):
        total += w
        w = w - rate * problem.gradient(w, torch.randint(len(problem.b), (seeds,), generator=generator))
    made = convex.run(problem, steps, mu_x=0.0, seeds=seeds)
    assert made["last"] == pytest.approx(float((problem.value(w) - problem.least).mean()), abs=1e-13)
    assert made["average"] == pytest.approx(float((problem.value(total / steps) - problem.least).mean()), abs=1e-13)


def test_runs_stay_under_the_bound_and_fall_with_it():
    frame = convex.rates(convex.Problem(), [30, 300], [0.0, 0.9], seeds=16)
    assert (frame.average + 3 * frame.error < frame.bound).all()
    for mu in (0.0, 0.9):
        first, last = frame[frame.mu_x == mu].average
        assert last < first / 10**0.5, "at least the rate 1/sqrt T over a factor of ten"
    assert len(convex.draw(frame).axes) == 2
