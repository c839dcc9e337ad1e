"""What is read off a run of `lowcomm.rl`: what its steps left alone, what explains it, what its patches weighed.

From `outcome.metrics` (means over the optimizer steps) and `outcome.bytes` (totals of the ledger). None where a run did
not measure it, as with k steps when it has fewer.
"""

from collections.abc import Callable
from typing import Any

Outcome = dict[str, Any]
Reading = Callable[[Outcome, Outcome | None], float | None]


def metric(name: str, factor: float = 1.0) -> Reading:
    """A mean over the steps, as recorded, times a factor."""
    return lambda outcome, _: outcome["metrics"][name] * factor if name in outcome["metrics"] else None


def total(name: str, factor: float = 1.0) -> Reading:
    """A total of the ledger, times a factor."""
    return lambda outcome, _: outcome["bytes"][name] * factor if name in outcome["bytes"] else None


def density(outcome: Outcome, _: Outcome | None) -> float:
    """Per cent of the weights whose BF16 bits a step changes."""
    return 100 * (1 - outcome["metrics"]["sparsity_bf16"])


def without_zeros(outcome: Outcome, _: Outcome | None) -> float | None:
    """Per cent left bit-identical of the weights that were not zero when the run began; None where not counted."""
    metrics = outcome["metrics"]
    if "sparsity_without_zeros" not in metrics:
        return None if metrics.get("zeros") else 100 * metrics["sparsity_bf16"]
    return 100 * metrics["sparsity_without_zeros"]


def times_fewer(name: str) -> Reading:
    """Changes that a BF16 receiver sees over those that a receiver of another format sees, in the same steps."""

    def reading(outcome: Outcome, _: Outcome | None) -> float | None:
        metrics = outcome["metrics"]
        other = metrics.get(f"sparsity_{name}")
        return None if other is None or other == 1 else (1 - metrics["sparsity_bf16"]) / (1 - other)

    return reading


def prediction_error(outcome: Outcome, _: Outcome | None) -> float | None:
    """Per cent: |predicted density / measured - 1|, the mean of min(1, move / spacing) against what changed."""
    predicted, measured = outcome["metrics"].get("bounds_predicted"), 1 - outcome["metrics"]["sparsity_bf16"]
    return None if predicted is None or measured == 0 else 100 * abs(predicted / measured - 1)


def layout(outcome: Outcome) -> dict[str, float]:
    """Means of a step: bytes in the published layout, of all weights, weights changed; empty where not measured."""
    metrics, sent = outcome["metrics"], outcome["bytes"]
    if "bytes_paper" not in metrics:
        return {}
    numel = sent["dense_bf16"] / 2
    return {"bytes": metrics["bytes_paper"], "dense": sent["dense_bf16"], "changed": sent["density"] * numel}


def published(ratio: Callable[[dict[str, float]], float]) -> Reading:
    """A reading of the same steps' patches in the published layout, from what `layout` gives."""

    def reading(outcome: Outcome, _: Outcome | None) -> float | None:
        values = layout(outcome)
        return ratio(values) if values else None

    return reading


def of_published(outcome: Outcome, _: Outcome | None) -> float | None:
    """Bytes of the run's own patches over those of the published layout."""
    values = layout(outcome)
    return outcome["bytes"]["per_version"] / values["bytes"] if values else None


# name: title, unit, reading, lower is better, digits
FIELDS: dict[str, tuple[str, str, Reading, bool, int]] = {
    "unchanged_pct": ("Weights a step leaves bit-identical", "%", metric("sparsity_bf16", 100), False, 3),
    "unchanged_min_pct": ("The same at the worst step", "%", metric("sparsity_bf16_min", 100), False, 3),
    "unchanged_nonzero_pct": ("The same without weights that began as zeros", "%", without_zeros, False, 3),
    **{
        f"unchanged_k{k}_pct": (f"Left bit-identical by {k} steps", "%", metric(f"sparsity_k{k}", 100), False, 3)
        for k in (1, 2, 4, 8, 16, 32)
    },
    **{
        f"unchanged_{short}_pct": (f"Left bit-identical for {title}", "%", metric(f"sparsity_{name}", 100), False, 3)
        for short, name, title in (
            ("e4m3", "fp8-e4m3", "FP8 E4M3"),
            ("e5m2", "fp8-e5m2", "FP8 E5M2"),
            ("mxfp4", "mxfp4", "MXFP4"),
        )
    },
    "times_fewer_e4m3": ("Times fewer changes for FP8 E4M3 than for BF16", "x", times_fewer("fp8-e4m3"), False, 2),
    "times_fewer_e5m2": ("Times fewer changes for FP8 E5M2 than for BF16", "x", times_fewer("fp8-e5m2"), False, 2),
    "times_fewer_mxfp4": ("Times fewer changes for MXFP4 than for BF16", "x", times_fewer("mxfp4"), False, 2),
    "prediction_error_pct": ("Predicted density off the measured one", "%", prediction_error, True, 1),
    "density_step_pct": ("Weights a step changes, measured", "%", density, True, 3),
    "predicted_pct": (
        "Weights a step changes, predicted from its moves",
        "%",
        metric("bounds_predicted", 100),
        True,
        3,
    ),
    "below_effective_pct": ("Weights below 256 lr", "%", metric("bounds_below_effective", 100), True, 2),
    "below_exact_pct": ("Weights below 256 times the exact bound", "%", metric("bounds_below_exact", 100), True, 2),
    "below_conservative_pct": ("Weights below 2560 lr", "%", metric("bounds_below_conservative", 100), True, 2),
    "moved_over_lr": ("Mean move of a weight over lr", "1", metric("bounds_moved_over_lr"), True, 2),
    "step_mb": ("One version on its way", "MB", total("per_version", 1e-6), True, 3),
    "step_ratio": ("Times less than all weights in BF16", "x", total("ratio_vs_bf16"), False, 1),
    "step_ratio_anchors": ("The same, anchors shared out", "x", total("ratio_vs_bf16_with_anchors"), False, 1),
    "published_mb": ("One version in the published layout", "MB", published(lambda v: v["bytes"] / 1e6), True, 3),
    "published_ratio": (
        "Published layout, times less than all weights in BF16",
        "x",
        published(lambda v: v["dense"] / v["bytes"]),
        False,
        1,
    ),
    "published_bits": (
        "Published layout, bits for each changed weight",
        "1",
        published(lambda v: 8 * v["bytes"] / v["changed"]),
        True,
        2,
    ),
    "step_of_published": ("Ours over the published layout", "x", of_published, True, 3),
    "step_bits": ("Bits for each changed weight of a step", "1", total("bits_per_change"), True, 2),
}
