"""What is read off a finished run: final values, steps to a target, saved steps, memory.

A measure is a function of the record's `outcome` and, where it is relative, of the baseline's with the same seed. It
returns None when the target was never reached, or when the run did not take what it is made of.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lowcomm.results import gated, learning, sparsity, wire

Outcome = dict[str, Any]


def crossing(steps: list[float], values: list[float], target: float, lower: bool) -> float | None:
    """First step at which `values` is at the target or better, linear between evaluations; None if it never is."""
    sign = 1 if lower else -1
    before = None
    for step, value in zip(steps, values, strict=True):
        gap = sign * (value - target)
        if gap <= 0:
            return step if before is None else before[0] + (step - before[0]) * before[1] / (before[1] - gap)
        before = (step, gap)
    return None


def steps_needed(outcome: Outcome, baseline: Outcome, column: str) -> tuple[float, float] | None:
    """(t, T): steps at which a run reaches the baseline's final value, and the steps the baseline took for it."""
    lower = column != "accuracy"
    target, total = baseline["curve"][column][-1], baseline["curve"]["step"][-1]
    reached = crossing(outcome["curve"]["step"], outcome["curve"][column], target, lower)
    return None if reached is None else (reached, total)


def fewer_steps(column: str) -> Callable[[Outcome, Outcome], float | None]:
    """100 (1 - t/T): the papers' number, as it is commonly read."""

    def measure(outcome: Outcome, baseline: Outcome) -> float | None:
        needed = steps_needed(outcome, baseline, column)
        return None if needed is None else 100 * (1 - needed[0] / needed[1])

    return measure


def step_ratio(column: str) -> Callable[[Outcome, Outcome], float | None]:
    """100 (T/t - 1): the other reading."""

    def measure(outcome: Outcome, baseline: Outcome) -> float | None:
        needed = steps_needed(outcome, baseline, column)
        return None if needed is None or needed[0] == 0 else 100 * (needed[1] / needed[0] - 1)

    return measure


def final(name: str) -> Callable[[Outcome, Outcome | None], float]:
    """A metric at the end of the run, as it was recorded (loss in nats, accuracy as a fraction)."""
    return lambda outcome, _: outcome["metrics"][name]


def steps_to_90(outcome: Outcome, _: Outcome | None) -> float | None:
    """Steps at which the validation accuracy first reaches 90 %; None if it never does."""
    return crossing(outcome["curve"]["step"], outcome["curve"]["accuracy"], 0.9, lower=False)


def gap_pct(outcome: Outcome, baseline: Outcome) -> float:
    """100 (loss / baseline's loss - 1)."""
    return 100 * (outcome["metrics"]["loss"] / baseline["metrics"]["loss"] - 1)


def setting(block: str, key: str) -> Callable[[Outcome, Outcome | None], float]:
    """A number of the run's configuration; 0 where the block has none (momentum of plain SGD)."""
    return lambda outcome, _: float((outcome["config"]["algorithm"][block] or {}).get(key) or 0.0)


def state_copies(outcome: Outcome, _: Outcome | None) -> float:
    """Moments, z, theta, outer momentum, residuals: measured, in units of the parameters' bytes."""
    return outcome["memory"]["optimizer"] / outcome["memory"]["parameters"]


@dataclass(frozen=True)
class Measure:
    """How a number is read off a run, and how it is written."""

    title: str
    unit: str  # "1": a number without one
    of: Callable[[Outcome, Outcome | None], float | None]
    lower: bool = True  # lower is better
    relative: bool = False  # needs the baseline's run
    target: bool = False  # None: a target was never reached; of the others, the run did not measure it
    digits: int = 3
    scale: float = 1.0  # factor when shown
    ratio: str | None = None  # the column whose T/t - 1 is shown beside this 1 - t/T

    @property
    def label(self) -> str:
        """Title and unit, for headings and axes."""
        return with_unit(self.title, self.unit)

    @property
    def phrase(self) -> str:
        """The title to stand in a sentence: without what follows a colon, the first letter small."""
        return small(self.title.partition(":")[0])


def with_unit(title: str, unit: str) -> str:
    """Title and unit in brackets; a number has none, a title that says its unit needs none."""
    if unit == "1" or unit in title.lower().split() or (unit == "x" and "times" in title.lower().split()):
        return title
    return f"{title[:-1]}, {unit})" if title.endswith(")") else f"{title} ({unit})"


def small(title: str) -> str:
    """A title to stand inside a sentence or on an axis: its first letter small, unless the word is a name (`FP32`)."""
    word = title.partition(" ")[0]
    return title if word[1:] != word[1:].lower() else title[:1].lower() + title[1:]


def saved(name: str, column: str) -> Measure:
    """Both readings of the papers' step speedup."""
    title = f"Fewer steps to the baseline's {name}: 1 - t/T, and T/t - 1 in brackets"
    return Measure(title, "%", fewer_steps(column), lower=False, relative=True, target=True, digits=2, ratio=column)


MEASURES = {
    "loss": Measure("Final validation loss", "nats", final("loss"), digits=4),
    "train_loss": Measure("Final training loss", "nats", final("train_loss"), digits=4),
    "accuracy": Measure("Final validation accuracy", "%", final("accuracy"), lower=False, digits=2, scale=100),
    "steps_to_90": Measure("Steps to 90 % validation accuracy", "steps", steps_to_90, target=True, digits=0),
    "fewer_steps_pct": saved("validation loss", "loss"),
    "fewer_steps_accuracy_pct": saved("validation accuracy", "accuracy"),
    "fewer_steps_train_pct": saved("training loss", "train_loss"),
    "gap_pct": Measure("Final validation loss above the baseline's", "%", gap_pct, relative=True, digits=2),
    "inner_lr": Measure("Best inner learning rate", "1", setting("inner", "lr"), digits=6),
    "outer_lr": Measure("Outer learning rate", "1", setting("outer", "lr"), digits=2),
    "outer_momentum": Measure("Outer momentum", "1", setting("outer", "momentum"), digits=1),
    "state_copies": Measure("State beside the model and its gradients", "copies of the model", state_copies, digits=2),
    "early_gap_pct": Measure(
        "Validation loss above the baseline's after a quarter of the run",
        "%",
        gated.early_gap_pct,
        relative=True,
        digits=2,
    ),
    "sparsity_pct": Measure("Entries not sent", "%", gated.sparsity, lower=False, digits=2, scale=100),
    "entry_bytes": Measure("Bytes for each entry sent", "bytes", gated.entry_bytes, digits=2),
    "round_gb": Measure("Payload of one worker and round", "GB", gated.round_gb, digits=6),
    "less_than_dense": Measure("Times less than FP32 DiLoCo", "x", gated.times_less_than_dense, lower=False, digits=2),
    "less_than_ddp": Measure(
        "Times less than FP32 gradients at every step", "x", gated.times_less_than_ddp, lower=False, digits=1
    ),
    "model_7b_gb": Measure("Payload of Qwen2.5-7B at this ratio (derived)", "GB", gated.model_gb, digits=2),
    "bits_per_change": Measure("Bits for each changed weight", "1", wire.share("bytes", "changed", 8), digits=2),
    "ratio": Measure("Times less than dense", "x", wire.share("dense_bytes", "bytes"), lower=False, digits=1),
    "ratio_coo": Measure(
        "Times less than int32 rows and columns and new bits, uncompressed",
        "x",
        wire.share("coo_bytes", "bytes"),
        lower=False,
        digits=2,
    ),
    "of_published": Measure("Bytes over those of the published layout", "1", wire.share("bytes", "published_bytes")),
    "density_pct": Measure("Changed weights", "%", wire.density),
    "entropy": Measure(
        "Entropy of positions and steps given the old exponent",
        "bits a change",
        wire.share("entropy_bits", "changed"),
        digits=2,
    ),
    "entropy_history": Measure(
        "Entropy given also age and direction of the last change",
        "bits a change",
        wire.share("entropy_history_bits", "changed"),
        digits=2,
    ),
    "above_entropy_pct": Measure(
        "Bytes above the entropy given the exponent", "%", wire.above_entropy("entropy_bits"), digits=1
    ),
    "above_entropy_history_pct": Measure(
        "Bytes above the entropy given exponent, age and direction",
        "%",
        wire.above_entropy("entropy_history_bits"),
        digits=1,
    ),
    "patch_mb": Measure("One patch", "MB", wire.each("bytes"), digits=3),
    "dense_mb": Measure("All weights", "MB", wire.each("dense_bytes"), digits=1),
    "changed_m": Measure("Changed weights", "millions", wire.each("changed"), digits=3),
    "gbits_90": Measure(
        "Link for 90 % utilisation of the paper's 7B model at this ratio (derived)",
        "Gbit/s",
        wire.gbits_at_this_ratio,
        digits=4,
    ),
    "encode_mb_s": Measure(
        "Diff and encode, of dense weights",
        "MB/s",
        wire.share("dense_bytes", "encode_seconds", 1e-6),
        lower=False,
        digits=0,
    ),
    "apply_mb_s": Measure(
        "Decode, apply and verify, of dense weights",
        "MB/s",
        wire.share("dense_bytes", "apply_seconds", 1e-6),
        lower=False,
        digits=0,
    ),
    "encode_cpu_s": Measure(
        "CPU time of diff and encode for a GB of dense weights",
        "s",
        wire.share("encode_cpu_seconds", "dense_bytes", 1e9),
        digits=2,
    ),
    "apply_cpu_s": Measure(
        "CPU time of decode, apply and verify for a GB of dense weights",
        "s",
        wire.share("apply_cpu_seconds", "dense_bytes", 1e9),
        digits=2,
    ),
    "apply_memory_mb": Measure("Memory of applying beside weights and patch", "MB", wire.megabytes("apply"), digits=0),
    "pack_mb_s": Measure(
        "Compressor alone, of the layout's bytes",
        "MB/s",
        wire.share("raw_bytes", "pack_seconds", 1e-6),
        lower=False,
        digits=0,
    ),
    "unpack_mb_s": Measure(
        "Decompressor alone, of the layout's bytes",
        "MB/s",
        wire.share("raw_bytes", "unpack_seconds", 1e-6),
        lower=False,
        digits=0,
    ),
    "sync_01": Measure("One GB of weights over 0.1 Gbit/s", "s", wire.sync(0.1), digits=2),
    "sync_1": Measure("One GB of weights over 1 Gbit/s", "s", wire.sync(1), digits=2),
    "sync_10": Measure("One GB of weights over 10 Gbit/s", "s", wire.sync(10), digits=2),
    "sync_100": Measure("One GB of weights over 100 Gbit/s", "s", wire.sync(100), digits=2),
}
MEASURES |= {
    name: Measure(title, unit, of, lower, digits=digits)
    for name, (title, unit, of, lower, digits) in (sparsity.FIELDS | learning.FIELDS).items()
}
