"""Panels of patches: layouts ranked, payload over density, codecs on the same chains, time over the link."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from lowcomm.results.cell import Cell
from lowcomm.results.experiment import Experiment
from lowcomm.results.measures import MEASURES, small
from lowcomm.results.record import read
from lowcomm.results.wire import link_seconds

CODECS = {"dense": "#111111", "full": "#aa4499", "paper": "#d55e00", "packed": "#0072b2", "history": "#009e73"}
GBITS = np.logspace(-2, 2, 161)


def found(cells: list[Cell], row: str, measure: str) -> Cell | None:
    """The cell of a row, if it was run."""
    return next((c for c in cells if (c.row.row, c.measure) == (row, measure) and c.mean is not None), None)


def ranked(
    ax: Axes, experiment: Experiment, panel: dict[str, Any], cells: list[Cell], scale: str, records: Path
) -> None:
    """Horizontal bars with their numbers; the library's codecs in color."""
    kind = MEASURES[panel["measure"]]
    shown = [c for n in panel["rows"] if (c := found(cells, n, panel["measure"]))]
    shown.sort(key=lambda c: -c.mean)
    colors = [CODECS.get(c.row.row, "#b8b8b8") for c in shown]
    bars = ax.barh([c.row.method for c in shown], [kind.scale * c.mean for c in shown], 0.7, color=colors)
    ax.bar_label(bars, [f"{kind.scale * c.mean:.{kind.digits}f}" for c in shown], padding=2, fontsize=8)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", labelsize=8)
    ax.margins(x=0.12)
    ax.set(xlabel=small(kind.label))


def density(
    ax: Axes, experiment: Experiment, panel: dict[str, Any], cells: list[Cell], scale: str, records: Path
) -> None:
    """Bits a change over the measured density: codecs, the entropy, and the authors' patches (derived)."""
    kind = MEASURES[panel["measure"]]
    bound: dict[float, float] = {}
    for codec in panel["codecs"]:
        points = []
        for cell in (
            c for c in cells if c.row.series == codec and c.measure == panel["measure"] and c.mean is not None
        ):
            share = found(cells, cell.row.row, "density_pct").mean
            points.append((share, kind.scale * cell.mean))
            bound[share] = found(cells, cell.row.row, "entropy").mean
        if points:
            ax.plot(*zip(*sorted(points), strict=True), marker="o", markersize=4, color=CODECS[codec], label=codec)
    ax.plot(*zip(*sorted(bound.items()), strict=True), color="#888888", linestyle="--", label="entropy given exponent")
    of = {(r, m): [v.value for c in cells if (c.row.row, c.measure) == (r, m) for v in c.paper]
          for r in panel["literature"] for m in ("patch_mb", "changed_m")}  # fmt: skip
    pairs = [(of[r, "changed_m"][0], of[r, "patch_mb"][0]) for r in panel["literature"] if of[r, "changed_m"]]
    ax.scatter([100 * n / 7615.6 for n, _ in pairs], [8 * mb / n for n, mb in pairs], marker="x", color="#111111",
               zorder=3, label="authors, 7B (derived)")  # fmt: skip
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ticks = [t for t in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if low <= t <= high]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.set_xticks([], minor=True)
    ax.set_ylim(bottom=0)
    ax.set(xlabel="changed weights (%)", ylabel=small(kind.label))
    ax.legend()


def grouped(
    ax: Axes, experiment: Experiment, panel: dict[str, Any], cells: list[Cell], scale: str, records: Path
) -> None:
    """A group of bars a chain, one a codec; the two entropies as strokes over each group."""
    kind, width = MEASURES[panel["measure"]], 0.8 / len(panel["codecs"])
    groups = [g for g in panel["groups"] if found(cells, f"{g}-{panel['codecs'][0]}", panel["measure"])]
    for i, codec in enumerate(panel["codecs"]):
        values = [found(cells, f"{g}-{codec}", panel["measure"]) for g in groups]
        places = [x + (i + 0.5) * width - 0.4 for x in range(len(groups))]
        heights = [kind.scale * c.mean if c else 0 for c in values]
        bars = ax.bar(places, heights, width * 0.92, color=CODECS[codec], label=codec)
        ax.bar_label(bars, [f"{h:.1f}" for h in heights], padding=1, fontsize=7)
    for measure, style, label in (("entropy", "-", "entropy given exponent"), ("entropy_history", ":", "and history")):
        for x, g in enumerate(groups):
            cell = found(cells, f"{g}-{panel['codecs'][0]}", measure)
            ax.hlines(cell.mean, x - 0.42, x + 0.42, color="#111111", linestyle=style, linewidth=1.1,
                      label=label if x == 0 else None)  # fmt: skip
    names = [found(cells, f"{g}-{panel['codecs'][0]}", panel["measure"]).row.method.rpartition(":")[0] for g in groups]
    ax.set_xticks(range(len(groups)), [n.replace(", ", "\n", 1) for n in names], fontsize=7.5)
    ax.grid(axis="x", visible=False)
    ax.set_ylim(top=1.16 * ax.get_ylim()[1])
    ax.set(ylabel=small(kind.label))
    ax.legend(loc="upper right", ncols=5)


def links(
    ax: Axes, experiment: Experiment, panel: dict[str, Any], cells: list[Cell], scale: str, records: Path
) -> None:
    """Seconds for one GB of weights over the speed of the link, and which way is the fastest where."""
    times = {}
    for cell in (c for n in panel["rows"] if (c := found(cells, n, experiment.measures[0]))):
        runs = [read(records / p)["outcome"]["metrics"] for p in cell.paths]
        times[cell.row.row] = np.mean([link_seconds(m, GBITS) for m in runs], 0)
        ax.plot(GBITS, times[cell.row.row], color=CODECS[cell.row.row], label=cell.row.method)
    for start, stop, name in best(times):
        ax.axvspan(start, stop, ymax=0.05, color=CODECS[name], alpha=0.9, linewidth=0)
    ax.set(
        xscale="log", yscale="log", xlabel="link (Gbit/s); bar below: the fastest", ylabel="seconds for 1 GB of weights"
    )
    ax.legend()


def best(times: dict[str, np.ndarray]) -> list[tuple[float, float, str]]:
    """(from, to, name) of the fastest way on each stretch of GBITS."""
    names = list(times)
    winner = np.argmin(np.stack([times[n] for n in names]), 0)
    cuts = [0, *(np.flatnonzero(np.diff(winner)) + 1), len(GBITS)]
    ends = zip(cuts, cuts[1:], strict=False)
    return [(float(GBITS[a]), float(GBITS[min(b, len(GBITS) - 1)]), names[winner[a]]) for a, b in ends]


DRAW = {"ranked": ranked, "density": density, "grouped": grouped, "links": links}
