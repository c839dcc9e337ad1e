"""Weights, what moved them, and comparison bit for bit, for the tests of the gate."""

import torch

INT = {torch.float32: torch.int32, torch.float64: torch.int64}


def vector(*values):
    return torch.tensor(values, dtype=torch.float32)


def same(a, b):
    """Bit for bit."""
    return a.dtype == b.dtype and torch.equal(a.view(INT[a.dtype]), b.view(INT[b.dtype]))


def example(size=300, spread=0.03, step=3e-4, seed=0):
    """Weights near zero and what some steps moved them, with the special ones in front."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(size, generator=generator) * spread
    theta[:6] = vector(0.0, -0.0, 1.0, -2.0, 1e-40, 3e38)
    return theta, theta - (theta - step * torch.randn(size, generator=generator))
