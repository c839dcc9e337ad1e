"""Figures from records: curves over steps, lines over H, learning rates, bars. Seeds are bands, colors are methods."""

import statistics
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lowcomm.results.cell import Cell
from lowcomm.results.experiment import Experiment, home, load, tune_of
from lowcomm.results.grid import tuning_runs
from lowcomm.results.measures import MEASURES, Measure, small
from lowcomm.results.record import RECORDS, read
from lowcomm.results.summary import summarise
from lowcomm.results.wire_figures import DRAW as WIRE

STYLE = {
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.7,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.6,  # a legend may lie over lines, which stay visible
    "legend.fontsize": 8,
    "svg.hashsalt": "lowcomm",
}
COLORS = {"AdamW": "#6b6b6b", "Schedule-Free": "#aa4499", "DiLoCo": "#d55e00", "GPA": "#0072b2", "coupled": "#009e73",
          "DiLoCo-SGD": "#aa4499", "Iso-C": "#e6a000", "IsoLoCo": "#0072b2", "MuLoCo": "#009e73",
          "IsoLoCo + Muon": "#56b4e9", "DiLoCo, momentum 0.5": "#f4a261", "GPA, mu_y 0.4": "#56b4e9",
          "PULSELoCo": "#117733", "PULSELoCo FP8": "#7ac77a", "Iso-PULSELoCo": "#882288", "BF16 values": "#0072b2",
          "rounded jumps": "#cc3355"}  # fmt: skip
NAMES = {"loss": "validation loss (nats)", "train_loss": "training loss (nats)", "accuracy": "validation accuracy (%)"}


def figure(name: str, scale: str = "cpu", records: Path = RECORDS) -> Figure | None:
    """The figure of the experiment `name` at one scale, or None where it has no panels or no records.

    Lines are means over seeds, bands one sample standard deviation.
    """
    experiment = load(name)
    cells, _ = summarise(experiment, scale, records)
    tuned = scale in experiment.scales and experiment.scales[scale].tune is not None
    panels = [(DRAW[p["kind"]], p) for p in experiment.panels if tuned or p["kind"] != "tuning"]
    if not panels or not any(cell.values for cell in cells):
        return None
    with plt.rc_context(STYLE):
        width = sum(p.get("width", 4.4) for _, p in panels)
        drawing, axes = plt.subplots(1, len(panels), figsize=(width, 3.6), squeeze=False)
        for ax, (draw, panel) in zip(axes[0], panels, strict=True):
            draw(ax, experiment, panel, cells, scale, records)
        ran = ", ".join(models(cells, records))
        title = f"{experiment.title} · scale {scale}" + (f": {ran}" if ran else "")
        drawing.suptitle(fill(title, int(13 * width), break_on_hyphens=False), fontsize=10, x=0.01, ha="left")
        plt.close(drawing)
    return drawing


def models(cells: list[Cell], records: Path) -> list[str]:
    """`model on workload` of all runs that the cells come from: at a small scale it is not the one of the title."""
    configs = [read(records / path)["code"]["config"] for path in sorted({p for c in cells for p in c.paths})]
    names = [[config[part]["name"] for part in ("model", "workload") if part in config] for config in configs]
    return sorted({" on ".join(parts) for parts in names if parts})


def save(drawing: Figure, path: Path) -> Path:
    """SVG, the same bytes for the same records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        drawing.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path


def pick(cells: list[Cell], row: str, measure: str) -> Cell | None:
    """The cell of a row, if it was run."""
    return next((c for c in cells if c.row.row == row and c.measure == measure and c.values), None)


def curves(
    ax: Axes, experiment: Experiment, panel: dict[str, Any], cells: list[Cell], scale: str, records: Path
) -> None:
    """A column of the curve over steps; the first sixth of the run, where all fall alike, is cut off."""
    column = panel["measure"]
    kind, tops = MEASURES[column], []
    for name in panel["rows"]:
        cell = pick(cells, name, experiment.measures[0])
        if cell is None:
            continue
        runs = [read(records / p)["outcome"]["curve"] for p in cell.paths]
        steps = runs[0]["step"]
        values = [[kind.scale * v for v in points] for points in zip(*(r[column] for r in runs), strict=True)]
        middle = [statistics.fmean(v) for v in values]
        label = cell.of.method if cell.of else cell.row.method
        (line,) = ax.plot(steps, middle, label=label, color=COLORS.get(cell.row.series))
        band(ax, steps, values, middle, line.get_color())
        tops.append((middle[next(i for i, s in enumerate(steps) if s >= steps[-1] / 6)], middle[-1]))
        if name == experiment.baseline:
            ax.axhline(middle[-1], color=line.get_color(), linewidth=0.9, linestyle=":")
    zoom(ax, kind, tops)
    if kind.unit == "%":  # a deviation may lead out of what a share can be
        low, high = ax.get_ylim()
        ax.set_ylim(max(low, -2), min(high, 102))
    ax.set(xlabel="optimizer steps", ylabel=NAMES[column])
    ax.legend()


def axis(kind: Measure) -> str:
    """The measure's label as an axis has it, in lines that fit its height."""
    return fill(small(kind.label), 36)


def zoom(ax: Axes, kind: Measure, ends: list[tuple[float, float]]) -> None:
    """Limits that show the ends of the curves: from the best end to the worst sixth."""
    early, late = [e for e, _ in ends], [last for _, last in ends]
    low, high = (min(late), max(early)) if kind.lower else (min(early), max(late))
    if high > low:
        ax.set_ylim(low - 0.05 * (high - low), high + 0.03 * (high - low))


def band(ax: Axes, x: list[float], values: list[list[float]], middle: list[float], color: str) -> None:
    """Mean plus and minus one sample standard deviation; nothing for one seed. `values`: (points, seeds)."""
    if len(values[0]) > 1:
        spread = [statistics.stdev(v) for v in values]
        low, high = ([m + sign * s for m, s in zip(middle, spread, strict=True)] for sign in (-1, 1))
        ax.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)


def lines(
    ax: Axes, experiment: Experiment, panel: dict[str, Any], cells: list[Cell], scale: str, records: Path
) -> None:
    """A measure over the rows' `x`, a line per series; one without x is horizontal; rows of no series are left out."""
    measure = panel["measure"]
    kind = MEASURES[measure]
    shown = [c for c in cells if c.measure == measure and c.mean is not None and c.row.series and not c.row.best_of]
    for series in dict.fromkeys(c.row.series for c in shown):
        group = sorted((c for c in shown if c.row.series == series), key=lambda c: c.row.x or 0)
        color = COLORS.get(series)
        if group[0].row.x is None:
            ax.axhline(kind.scale * group[0].mean, color=color, linestyle="--", linewidth=1.2, label=series)
            continue
        spread = [kind.scale * (c.spread or 0) for c in group]
        middle = [kind.scale * c.mean for c in group]
        ax.errorbar(
            [c.row.x for c in group], middle, spread, color=color, marker="o", markersize=4, capsize=3, label=series
        )
    ticks = sorted({c.row.x for c in shown if c.row.x is not None})
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.set(xlabel=panel["x"], ylabel=axis(kind))
    ax.legend()


def tuning(
    ax: Axes, experiment: Experiment, panel: dict[str, Any], cells: list[Cell], scale: str, records: Path
) -> None:
    """The first measure at every tuned value with the first seed: how sharp each method's optimum is."""
    measure = experiment.measures[0]
    for name in panel["rows"]:
        cell = pick(cells, name, measure)
        if cell is None:
            continue
        owner, row = home(experiment, cell.of or cell.row)
        grid = owner.scales[scale]
        runs = [r for r in tuning_runs(owner, row, scale) if (records / r.path).is_file() and r.tuned is not None]
        ends = [MEASURES[measure].of(read(records / r.path)["outcome"], None) for r in runs]
        ax.plot([r.tuned for r in runs], ends, marker="o", markersize=4, label=row.method, color=COLORS.get(row.series))
    kind, key = MEASURES[measure], tune_of(owner, row, scale).key.rpartition(".")[2]
    ax.set_xscale("log")
    ax.set(xlabel=f"peak {key}, seed {grid.seeds[0]}", ylabel=axis(kind))
    ax.legend()


def bars(ax: Axes, experiment: Experiment, panel: dict[str, Any], cells: list[Cell], scale: str, records: Path) -> None:
    """One bar a row, lying, in the order of the table; a stroke is one sample standard deviation to both sides."""
    shown = [c for n in panel["rows"] if (c := pick(cells, n, panel["measure"]))]
    kind = MEASURES[panel["measure"]]
    drawn = ax.barh(
        [c.row.method for c in shown],
        [kind.scale * c.mean for c in shown],
        0.6,
        xerr=[kind.scale * (c.spread or 0) for c in shown],
        error_kw={"linewidth": 1},
        color=[COLORS.get(c.row.series, "#999999") for c in shown],
    )
    ax.bar_label(drawn, [f"{kind.scale * c.mean:.{kind.digits}f}" for c in shown], padding=3, fontsize=8)
    ax.invert_yaxis()
    ax.margins(x=0.16)
    ax.grid(axis="y", visible=False)
    ax.set(xlabel=axis(kind))


DRAW = {"curves": curves, "lines": lines, "tuning": tuning, "bars": bars, **WIRE}
