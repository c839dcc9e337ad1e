"""What is read off a measurement of patches (door `lowcomm.patches`): sizes, speeds, and what follows for a link.

Sums over the chain stand in `outcome.metrics`. Speeds are None where no time was taken.
"""

from collections.abc import Callable
from typing import Any

Outcome = dict[str, Any]
Read = Callable[[Outcome, Outcome | None], float | None]
MODEL_GB, STEP_SECONDS = 14.0, 50.0  # 2602.03839: dense BF16 bytes of the 7B model, compute between two broadcasts


def share(above: str, below: str, factor: float = 1.0) -> Read:
    """factor * sum of ``above`` / sum of ``below``; None where either was not measured."""

    def measure(outcome: Outcome, _: Outcome | None) -> float | None:
        m = outcome["metrics"]
        return factor * m[above] / m[below] if m.get(above) is not None and m.get(below) else None

    return measure


def each(column: str) -> Read:
    """Mean over the patches, in millions."""
    return lambda outcome, _: outcome["metrics"][column] / outcome["evaluation_n"] / 1e6


def density(outcome: Outcome, _: Outcome | None) -> float:
    """Changed weights in per cent of all, of BF16 weights."""
    m = outcome["metrics"]
    return 100 * m["changed"] * 2 / m["dense_bytes"]


def above_entropy(column: str) -> Read:
    """Bytes over what is left to tell, in per cent above it."""

    def measure(outcome: Outcome, _: Outcome | None) -> float | None:
        m = outcome["metrics"]
        return 100 * (8 * m["bytes"] / m[column] - 1) if m.get(column) else None

    return measure


def megabytes(part: str) -> Read:
    """A part of the measured memory in MB; None where it was not measured."""
    return lambda outcome, _: outcome["memory"][part] / 1e6 if part in outcome["memory"] else None


def link_seconds(metrics: dict[str, float], gbits: float) -> float:
    """Encode + transfer + decode, apply and verify, nothing overlapped, for one GB of dense weights."""
    seconds = metrics["encode_seconds"] + metrics["apply_seconds"] + 8 * metrics["bytes"] / (gbits * 1e9)
    return seconds / (metrics["dense_bytes"] / 1e9)


def sync(gbits: float) -> Read:
    """`link_seconds` of a run over a link of so many Gbit/s."""
    return lambda outcome, _: link_seconds(outcome["metrics"], gbits)


def gbits_for_90(gigabytes: float) -> float:
    """Gbit/s at which a transfer of so many GB after every 50 s of computing leaves 90 % utilisation.

    U = T / (T + 8 S / B), so B = 72 S / T (derived from the paper's numbers, which it reproduces).
    """
    return 72 * gigabytes / STEP_SECONDS


def gbits_at_this_ratio(outcome: Outcome, _: Outcome | None) -> float:
    """`gbits_for_90` of the paper's 7B model if its patches were as much smaller than dense as these."""
    m = outcome["metrics"]
    return gbits_for_90(MODEL_GB * m["bytes"] / m["dense_bytes"])
