"""Drawings of PULSELoCo: what a gate lets through, what it keeps, how runs of several trainers go by round."""

import statistics
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lowcomm.results.experiment import load
from lowcomm.results.figures import COLORS, STYLE, band
from lowcomm.results.record import RECORDS, read
from lowcomm.results.summary import finished_runs


def share_fired(theta: Tensor, fired: dict[str, Tensor], bins: int = 40) -> Figure:
    """Per label, the share of entries that fire among the weights of like magnitude: ``theta`` and, per label, a bool
    tensor of its shape. Grey: where the weights are."""
    magnitude = theta.abs().flatten()
    edges = torch.logspace(-5, float(magnitude.max().log10()), bins + 1)
    place = torch.bucketize(magnitude, edges)
    count = torch.bincount(place, minlength=bins + 2)[1 : bins + 1]
    middle = (edges[1:] * edges[:-1]).sqrt()
    full = count >= 20
    with plt.rc_context(STYLE):
        drawing, ax = plt.subplots(figsize=(6.4, 3.4))
        ax.fill_between(middle, 100 * count / count.max(), color="#dddddd", linewidth=0, label="weights (relative)")
        for label, which in fired.items():
            hits = torch.bincount(place, weights=which.flatten().double(), minlength=bins + 2)[1 : bins + 1]
            ax.plot(
                middle[full], 100 * (hits / count)[full], label=f"{label}: {100 * which.double().mean():.1f} % of all"
            )
        ax.set(xscale="log", xlabel="magnitude of the weight", ylabel="entries sent (%)", ylim=(0, 102))
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        plt.close(drawing)
    return drawing


def pushes(kept: dict[str, list[float]], sent: dict[str, list[float]], push: float) -> Figure:
    """Residual after every round, and the sum of what was sent less what came in, under a constant ``push``."""
    with plt.rc_context(STYLE):
        drawing, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.3))
        for label in kept:
            rounds = range(1, len(kept[label]) + 1)
            total = torch.tensor(sent[label], dtype=torch.float64).cumsum(0)
            left.plot(rounds, kept[label], label=label, linewidth=1.1)
            right.plot(rounds, total - push * torch.arange(1, len(total) + 1), label=label, linewidth=1.1)
        left.set(xlabel="rounds", ylabel="residual $e_r$")
        right.set(xlabel="rounds", ylabel="sent so far, less what came in")
        left.legend()
        plt.close(drawing)
    return drawing


def by_round(runs: list[dict[str, Any]], column: str, rounds: list[int]) -> list[list[float]]:
    """(rounds, runs) means of a column of `outcome.steps_of` over the steps up to each round's last."""
    out = []
    for first, last in zip([0, *rounds], rounds, strict=False):
        inside = [[v for s, v in zip(r["step"], r[column], strict=True) if first < s <= last] for r in runs]
        out.append([statistics.fmean(values) for values in inside])
    return out


def rounds(name: str, scale: str = "cpu", records: Path = RECORDS) -> Figure | None:
    """An experiment of several GRPO trainers, seen at the end of every round: reward of the sampled answers, the same
    less the baseline's of the same seed, and the share of entries not sent. Means over seeds, bands one deviation.

    None where there are no records of the baseline.
    """
    experiment = load(name)
    found = {}
    for row in experiment.rows:
        done, _, _ = finished_runs(experiment, row, scale, records)
        if done:
            outcomes = [read(records / run.path)["outcome"]["steps_of"] for run in done]
            found[row.row] = (row, {run.seed: steps for run, steps in zip(done, outcomes, strict=True)})
    if experiment.baseline not in found:
        return None
    base = found[experiment.baseline][1]
    ends = next(iter(base.values()))["step"]
    with plt.rc_context(STYLE):
        drawing, axes = plt.subplots(1, 3, figsize=(12, 3.3))
        for row, runs in found.values():
            color, seeds = COLORS[row.series], [seed for seed in runs if seed in base]
            reward = by_round(list(runs.values()), "train/reward", ends)
            mine, theirs = (by_round([r[s] for s in seeds], "train/reward", ends) for r in (runs, base))
            gap = [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(mine, theirs, strict=True)]
            drawn = [(axes[0], reward)] + [(axes[1], gap)] * (row.row != experiment.baseline)
            if all("comm/sparsity" in r for r in runs.values()):
                held = by_round(list(runs.values()), "comm/sparsity", ends)
                drawn.append((axes[2], [[100 * v for v in values] for values in held]))
            for ax, values in drawn:
                middle = [statistics.fmean(v) for v in values]
                ax.plot(ends, middle, color=color, marker=".", label=row.method)
                band(ax, ends, values, middle, color)
        axes[1].axhline(0, color=COLORS["DiLoCo"], linewidth=0.9, linestyle=":")
        for ax, label in zip(
            axes,
            (
                "reward, mean of the round",
                f"reward less {experiment.get(experiment.baseline).method}'s",
                "entries not sent (%)",
            ),
            strict=True,
        ):
            ax.set(xlabel="optimizer steps", ylabel=label)
        axes[0].legend(fontsize=7)
        drawing.suptitle(f"{experiment.title} · scale {scale}", fontsize=10, x=0.01, ha="left")
        plt.close(drawing)
    return drawing
