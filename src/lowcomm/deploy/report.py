"""A deployment's record for people: a table of the ladder, a figure beside the formula. They only read the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcomm.deploy import formula

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {"dense": ("every weight", "#101010"), "pulsesync": ("PULSESync", "#FF3A3A")}


def table(record: dict[str, Any]) -> str:
    """Markdown, one line a rate: what was measured, and in brackets what T / (T + 8 S / B) gives."""
    curve, settings = record["outcome"]["curve"], record["code"]["config"]
    head = ["link, Mbit/s", "the paper's scale, Gbit/s"]
    for title, _ in METHODS.values():
        head += [f"{title}: payload, kB", "fetch, s", "sync, s", "utilisation (formula)"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    for i, rate in enumerate(curve["rate_mbit"]):
        cells = [f"{rate:g}", f"{curve['paper_gbit'][i]:.3g}"]
        for m in METHODS:
            cells += [f"{curve[f'{m}_bytes'][i] / 1e3:,.1f}", f"{curve[f'{m}_fetch_s'][i]:.2f}"]
            cells += [f"{curve[f'{m}_sync_s'][i]:.2f}"]
            cells += [f"{curve[f'{m}_utilisation'][i]:.3f} ({curve[f'{m}_formula'][i]:.3f})"]
        lines.append("| " + " | ".join(cells) + " |")
    metrics = record["outcome"]["metrics"]
    lines += ["", f"{record['data']['summary']}."]
    lines += [f"{metrics['bit_identical']} of {metrics['versions']} versions bit-identical at every receiver."]
    if "dense_cut_sync_s" in metrics:
        cuts = ", ".join(f"{METHODS[m][0]} {metrics[f'{m}_cut_sync_s']:.1f} s" for m in METHODS)
        lines += [f"A link cut for {settings['cut_s']:g} s in the middle of a transfer: identical again after {cuts}."]
    return "\n".join(lines) + "\n"


def figure(record: dict[str, Any]) -> Figure:
    """Utilisation over the rate: points measured, lines the formula, dotted 90 %; on top the rate for 14 GB."""
    from matplotlib import pyplot as plt

    from lowcomm.results.figures import STYLE

    curve, settings = record["outcome"]["curve"], record["code"]["config"]
    compute_s, rates = settings["compute_s"], np.array(curve["rate_mbit"])
    with plt.rc_context(STYLE):
        drawing, ax = plt.subplots(figsize=(6, 3.6))
        line = np.geomspace(rates.min() / 3, rates.max() * 3, 200)
        for method, (title, colour) in METHODS.items():
            payload = float(np.mean(curve[f"{method}_bytes"]))
            ax.plot(line, [formula.utilisation(compute_s, payload, 1e6 * r) for r in line], color=colour, linewidth=1)
            ax.plot(rates, curve[f"{method}_utilisation"], "o", color=colour, label=f"{title}, {payload / 1e3:,.0f} kB")
        ax.axhline(0.9, color="0.6", linestyle=":")
        ax.set(xscale="log", xlabel="link, Mbit/s", ylabel="utilisation", ylim=(0, 1.02))
        factor = curve["paper_gbit"][0] / curve["rate_mbit"][0]
        ax.secondary_xaxis("top", functions=(lambda x: x * factor, lambda x: x / factor)).set_xlabel(
            "Gbit/s for 14 GB every 50 s"
        )
        ax.legend(loc="lower right")
        plt.close(drawing)
    return drawing


def write(record: dict[str, Any], folder: Path) -> list[Path]:
    """table.md and figure.svg beside the record; the same bytes for the same record."""
    from matplotlib import rc_context

    (folder / "table.md").write_text(table(record), encoding="utf-8")
    drawing = figure(record)
    with rc_context({"svg.hashsalt": "lowcomm"}):
        drawing.savefig(folder / "figure.svg", format="svg", metadata={"Date": None, "Creator": None})
    return [folder / "table.md", folder / "figure.svg"]
