"""A landscape in the plane for the tour: each worker sees its own bowl, together they make one; and its drawings."""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lowcomm.results.figures import STYLE

WORKERS = ["#4477aa", "#ee6677", "#228833", "#aa3377"]
Path = list[Tensor]  # points (2,)


class Bowls:
    """Worker r minimises f_r(w) = 0.5 (w - c_r)' A (w - c_r) with noisy gradients, the run their mean; float64."""

    def __init__(self, workers: int = 4, spread: float = 0.9, noise: float = 0.4, seed: int = 0):
        self.generator = torch.Generator().manual_seed(seed)
        angles = torch.arange(workers, dtype=torch.float64) * (2 * torch.pi / workers)
        self.centers = spread * torch.stack([angles.cos(), angles.sin()], 1)  # (workers, 2)
        self.A = torch.tensor([[1.0, 0.6], [0.6, 3.0]], dtype=torch.float64)
        self.noise = noise

    def gradient(self, worker: int, w: Tensor) -> Tensor:
        """Of one noisy batch of one worker: (2,) -> (2,)."""
        noise = torch.randn(2, generator=self.generator, dtype=torch.float64)
        return self.A @ (w.detach() - self.centers[worker]) + self.noise * noise

    def loss(self, w: Tensor) -> Tensor:
        """Mean over the workers, without noise: (..., 2) -> (...)."""
        d = w.detach()[..., None, :] - self.centers
        return 0.5 * torch.einsum("...ri,ij,...rj->...r", d, self.A, d).mean(-1)


def landscape(ax: Axes, bowls: Bowls, box: tuple[float, float, float, float]) -> None:
    """Contours of the mean loss and the workers' centers in (left, right, bottom, top)."""
    x, y = (torch.linspace(lo, hi, 120, dtype=torch.float64) for lo, hi in (box[:2], box[2:]))
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
    ax.contour(x, y, bowls.loss(grid).log(), 14, colors="#cccccc", linewidths=0.7, linestyles="solid")
    for center, color in zip(bowls.centers, WORKERS, strict=False):
        ax.plot(*center, "x", color=color, markersize=7)
    ax.set(xlim=box[:2], ylim=box[2:], aspect="equal", xlabel="$w_1$", ylabel="$w_2$")
    ax.grid(False)


def trace(ax: Axes, path: Path, **style) -> None:
    """A path through the plane; `style` is matplotlib's."""
    points = torch.stack(path).numpy()
    ax.plot(points[:, 0], points[:, 1], **style)


def draw_round(bowls: Bowls, theta: Tensor, paths: list[Path], new: Tensor | None = None) -> Figure:
    """One round: local steps from theta, pseudo-gradients as arrows, and, once known, the new theta."""
    with plt.rc_context(STYLE):
        drawing, ax = plt.subplots(figsize=(5.2, 4.2))
        landscape(ax, bowls, (-2.6, 1.4, -1.4, 2.2))
        for worker, (path, color) in enumerate(zip(paths, WORKERS, strict=False)):
            trace(ax, path, color=color, marker=".", markersize=4, linewidth=1.0, label=f"worker {worker}")
            ax.annotate(
                "", path[-1], theta, arrowprops={"arrowstyle": "->", "color": color, "linestyle": ":", "alpha": 0.7}
            )
        ax.plot(*theta, "o", color="black", label="theta")
        if new is not None:
            ax.annotate("", new, theta, arrowprops={"arrowstyle": "-|>", "color": "black", "linewidth": 1.6})
            ax.plot(*new, "*", color="black", markersize=12, label="theta after the outer step")
        ax.legend(loc="lower left")
        plt.close(drawing)
    return drawing


def draw_paths(bowls: Bowls, paths: dict[str, Path]) -> Figure:
    """Whole runs: where they went, and their mean loss above the minimum over the points of the path."""
    with plt.rc_context(STYLE):
        drawing, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.8))
        landscape(left, bowls, (-2.6, 1.4, -1.4, 2.2))
        least = bowls.loss(bowls.centers.mean(0))
        for name, path in paths.items():
            trace(left, path, marker=".", markersize=4, linewidth=1.0, label=name)
            gaps = bowls.loss(torch.stack(path)) - least
            right.semilogy(torch.linspace(0, 1, len(path)), gaps, label=name)
        left.legend(loc="lower left")
        right.set(xlabel="share of the run", ylabel="mean loss above the minimum")
        right.legend()
        plt.close(drawing)
    return drawing
