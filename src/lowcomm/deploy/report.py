"""A deployment's record for people: a table of the ladder, a figure beside the formula. They only read the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcomm.deploy import formula
from lowcomm.results.record import ROOT, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = ROOT / "paper_figures" / "deployment"
METHODS = {"dense": ("every weight", "#101010"), "pulsesync": ("PULSESync", "#FF3A3A")}


def table(record: dict[str, Any]) -> str:
    """Markdown, one line a rate: what was measured, and in brackets what 8 S / B and T / (T + 8 S / B) give."""
    curve, settings = record["outcome"]["curve"], record["code"]["config"]
    head = ["link, Mbit/s", "the paper's scale, Gbit/s"]
    for title, _ in METHODS.values():
        head += [f"{title}: payload, kB", "fetch, s (8 S / B)", "sync, s", "utilisation (formula)"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    for i, rate in enumerate(curve["rate_mbit"]):
        cells = [f"{rate:g}", f"{curve['paper_gbit'][i]:.3g}"]
        for m in METHODS:
            nbytes = curve[f"{m}_bytes"][i]
            wire = formula.transfer(nbytes, 1e6 * rate)
            cells += [f"{nbytes / 1e3:,.1f}", f"{curve[f'{m}_fetch_s'][i]:.2f} ({wire:.2f})"]
            cells += [f"{curve[f'{m}_sync_s'][i]:.2f}"]
            cells += [f"{curve[f'{m}_utilisation'][i]:.3f} ({curve[f'{m}_formula'][i]:.3f})"]
        lines.append("| " + " | ".join(cells) + " |")
    metrics = record["outcome"]["metrics"]
    lines += ["", f"{record['data']['summary']}."]
    lines += [f"{metrics['bit_identical']} of {metrics['versions']} versions bit-identical at every receiver."]
    if "dense_cut_sync_s" in metrics:
        cuts = ", ".join(f"{METHODS[m][0]} {metrics[f'{m}_cut_sync_s']:.1f} s" for m in METHODS)
        lines += [f"A link cut for {settings['cut_s']:g} s in the middle of a transfer: identical again after {cuts}."]
    lines += ["", *notes(record)]
    return "\n".join(lines) + "\n"


def notes(record: dict[str, Any]) -> list[str]:
    """Lines of Markdown: what the columns are, and what else the machine did meanwhile."""
    curve, metrics = record["outcome"]["curve"], record["outcome"]["metrics"]
    low, high = min(curve["load"]), max(curve["load"])
    return [
        "*fetch*: until the last receiver has the bytes; *sync*: from the end of the computation until all have",
        "acknowledged the digest of these weights, which includes encoding, verifying and applying. The formula knows",
        "bytes and the link alone: headers, round trips and the work at both ends are not in it. Load of the machine's",
        f"{metrics['cores']} cores meanwhile, this measurement included: {low:.1f} to {high:.1f}; it ran at",
        f"{'real-time' if metrics['real_time'] else 'ordinary'} priority. What it does late counts as sync time.",
    ]


def hundredth(record: dict[str, Any]) -> list[tuple[float, float, float]]:
    """(rate in Mbit/s, utilisation of PULSESync there, of every weight at 100 times that rate), where both are."""
    curve = record["outcome"]["curve"]
    dense = {float(f"{rate:.6g}"): u for rate, u in zip(curve["rate_mbit"], curve["dense_utilisation"], strict=True)}
    thin = zip(curve["rate_mbit"], curve["pulsesync_utilisation"], strict=True)
    return [(r, u, dense[float(f"{100 * r:.6g}")]) for r, u in thin if float(f"{100 * r:.6g}") in dense]


def said(folder: Path = FOLDER) -> tuple[bool, str] | None:
    """Whether PULSESync keeps up with whole weights over links a hundred times as fast, and the numbers; None before
    anything was recorded.
    """
    if not (folder / "record.json").is_file():
        return None
    record = read(folder / "record.json")
    pairs, metrics = hundredth(record), record["outcome"]["metrics"]
    words = "; ".join(
        f"PULSESync at {r:g} Mbit/s {100 * thin:.1f} %, every weight at {100 * r:g} Mbit/s {100 * fast:.1f} %"
        for r, thin, fast in pairs
    )
    return (
        all(thin >= fast for _, thin, fast in pairs),
        f"{words}; {metrics['bit_identical']} of {metrics['versions']} versions bit-identical",
    )


def show(folder: Path = FOLDER) -> list[Any]:
    """Figure and table for a notebook; before anything was recorded, the command that does it."""
    from IPython.display import SVG, Markdown

    if not (folder / "record.json").is_file():
        return [Markdown("Nothing was recorded yet: `sudo make reproduce-deploy` (about 10 minutes).")]
    return [SVG(filename=str(folder / "figure.svg")), Markdown(table(read(folder / "record.json")))]


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
