"""Drivers of the optimizer tests: the quadratic of the golden numbers, in any dtype, and reading x, y and z."""

import torch
from tests.toys import CURVATURE
from torch import Tensor, nn

START = torch.linspace(-1, 1, 6, dtype=torch.float64)


def point(start: Tensor = START) -> nn.Parameter:
    return nn.Parameter(start.clone())


def steps(optimizer, p: nn.Parameter, count: int) -> None:
    for _ in range(count):
        p.grad = (CURVATURE.to(p.dtype) * p).detach()
        optimizer.step()


def gradient(y: list[float]) -> list[float]:
    """The same, for the loops of tests.reference."""
    return [a * w for a, w in zip(CURVATURE.tolist(), y, strict=True)]


def sequences(optimizer, p: nn.Parameter) -> dict[str, Tensor]:
    """x, y, z of one parameter; leaves the optimizer in train mode."""
    y, z = p.detach().clone(), optimizer.state[p]["z"].clone()
    optimizer.eval()
    x = p.detach().clone()
    optimizer.train()
    return {"x": x, "y": y, "z": z}


def close(actual: Tensor, expected, atol: float = 1e-12) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.detach().double(), expected, rtol=0, atol=atol)
