"""Small problems whose every value can be checked: the quadratic of the golden numbers, and a net that learns."""

import torch
from torch import Tensor, nn

CURVATURE = torch.tensor([0.1, 0.5, 1.0, 2.0, 5.0, 10.0], dtype=torch.float64)


class Point(nn.Module):
    """One parameter vector w, float64 unless said otherwise."""

    def __init__(self, start: Tensor):
        super().__init__()
        self.w = nn.Parameter(start.clone())


class Quadratic:
    """f(w) = 0.5 sum(a w^2), the same for every worker and step: the recipe of the golden numbers."""

    name, unit, units_per_sample = "quadratic", "samples", 1

    def batch(self, worker: int, workers: int, step: int, size: int) -> dict[str, Tensor]:
        return {}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return 0.5 * (CURVATURE.to(model.w.dtype) * model.w**2).sum()


class Regression:
    """Noisy linear regression with a batch that is a function of (worker, workers, step, size) alone."""

    name, unit, units_per_sample = "regression", "samples", 1

    def batch(self, worker: int, workers: int, step: int, size: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1 + worker + workers * step)
        x = torch.randn(size, 5, generator=generator)
        y = x.sum(1, keepdim=True) + 0.1 * torch.randn(size, 1, generator=generator)
        return {"x": x, "y": y}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        dtype = next(model.parameters()).dtype
        return nn.functional.mse_loss(model(batch["x"].to(dtype)).float(), batch["y"])


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
