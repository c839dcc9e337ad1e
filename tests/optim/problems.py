"""Drivers of the optimizer tests: the quadratic of the golden numbers, in any dtype, and reading x, y and z."""

import io

import torch
from torch import Tensor, nn

from lowcomm.optim import GPAAdamW
from tests.toys import CURVATURE

START = torch.linspace(-1, 1, 6, dtype=torch.float64)
OPTIONS = {"lr": 0.02, "mu_x": 0.9, "weight_decay": 0.1}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


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


def trained(count=7, dtype=torch.float32, **options):
    p = point(START.to(dtype))
    optimizer = GPAAdamW([p], **OPTIONS | options)
    optimizer.train()
    steps(optimizer, p, count)
    return optimizer, p


def saved(state):
    """Through a file and torch's safe loader."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def equal(a, b):
    """Bit for bit, types and dtypes included."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            equal(left, right)
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    else:
        assert a == b
