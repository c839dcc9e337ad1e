"""GPA trains: 1,000 steps on three small problems, read at x."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from lowcomm.optim import GPAAdamW

STEPS = 1000


def quadratic():
    model = nn.ParameterList([nn.Parameter(torch.linspace(-2, 2, 10))])
    curvature = torch.logspace(-1, 1, 10)
    return model, lambda: 0.5 * (curvature * model[0] ** 2).sum()


def least_squares():
    a, target = torch.randn(100, 10), torch.randn(10)
    model = nn.Linear(10, 1, bias=False)
    return model, lambda: ((model(a).squeeze(1) - a @ target) ** 2).mean()


def mlp():
    inputs = torch.rand(128, 2) * 4 - 2
    targets = (inputs[:, :1] * inputs[:, 1:]).sin()
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    return model, lambda: ((model(inputs) - targets) ** 2).mean()


@pytest.mark.parametrize("problem", [quadratic, least_squares, mlp])
@pytest.mark.parametrize("averaging", ["gpa", "schedule-free"])
def test_converges(problem, averaging):
    """GPA with linear decay; its Schedule-Free case, an even average of all z, at a constant rate."""
    torch.manual_seed(0)
    model, loss = problem()
    start = loss().item()
    optimizer = GPAAdamW(model.parameters(), lr=0.03 if problem is mlp else 0.1, mu_x=0.99)
    group = optimizer.param_groups[0]
    decay = LambdaLR(optimizer, lambda step: 1 - step / STEPS if averaging == "gpa" else 1.0)
    optimizer.train()
    for k in range(1, STEPS + 1):
        if averaging == "schedule-free":
            group["mu_x"] = 1 - 1 / k
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        decay.step()
    optimizer.eval()
    assert loss().item() < 3e-2 * start


def test_x_is_smoother_than_z():
    """With gradient noise and a constant rate, the averaged point is nearer to the minimum than the fast iterate."""
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.ones(200))
    optimizer = GPAAdamW([p], lr=0.05, mu_x=0.99)
    optimizer.train()
    for _ in range(500):
        p.grad = p.detach() + torch.randn(200, generator=generator)
        optimizer.step()
    z = optimizer.state[p]["z"]
    optimizer.eval()
    assert p.detach().norm() < 0.5 * z.norm()
