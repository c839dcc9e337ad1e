"""What is read off a run whose workers synchronise in rounds: what they sent, and how it compares with sending all.

Traffic stands in `outcome.bytes`, as serialised, of one worker: `per_worker` (whole run), `rounds`; behind a gate also
`sent` (entries of the whole run) and `sparsity`, `sparsity_min`, `sparsity_max`. In RL, where weights also go to
rollout workers, it stands in `outcome.bytes.trainers`.
"""

from typing import Any

Outcome = dict[str, Any]
MODEL_GB = 30.46  # FP32 bytes of Qwen2.5-7B's 7.616 G parameters


def gate_totals(lines: list[dict[str, float]]) -> dict[str, float]:
    """From the lines of metrics.jsonl: entries sent, mean sparsity over rounds, least and most of any worker and round;
    empty where nothing was gated."""
    rounds = [line for line in lines if "comm/sent" in line]
    if not rounds:
        return {}
    return {
        "sent": sum(line["comm/sent"] for line in rounds),
        "sparsity": sum(line["comm/sparsity"] for line in rounds) / len(rounds),
        "sparsity_min": min(line["comm/sparsity_min"] for line in rounds),
        "sparsity_max": max(line["comm/sparsity_max"] for line in rounds),
    }


def traffic(outcome: Outcome) -> dict[str, float]:
    """What a worker sent to the others."""
    return outcome["bytes"].get("trainers", outcome["bytes"])


def sparsity(outcome: Outcome, _: Outcome | None) -> float:
    """Share of entries not sent, mean over rounds and workers; 0 where everything is sent."""
    return traffic(outcome).get("sparsity", 0.0)


def round_gb(outcome: Outcome, _: Outcome | None) -> float | None:
    """GB of one worker and round; None where nothing was sent."""
    sent = traffic(outcome)
    return sent["per_worker"] / sent["rounds"] / 1e9 if sent["rounds"] else None


def entry_bytes(outcome: Outcome, _: Outcome | None) -> float | None:
    """Bytes for each entry sent, all told; None where nothing was gated or sent."""
    sent = traffic(outcome).get("sent")
    return traffic(outcome)["per_worker"] / sent if sent else None


def times_less_than_dense(outcome: Outcome, _: Outcome | None) -> float | None:
    """FP32 parameters over the bytes of a round; None where nothing was sent."""
    sent = round_gb(outcome, None)
    return outcome["memory"]["parameters"] / 1e9 / sent if sent else None


def times_less_than_ddp(outcome: Outcome, _: Outcome | None) -> float | None:
    """FP32 gradients of every step over the bytes of the run; None where nothing was sent."""
    sent = traffic(outcome)["per_worker"]
    return outcome["memory"]["parameters"] * outcome["steps"] / sent if sent else None


def model_gb(outcome: Outcome, _: Outcome | None) -> float | None:
    """Derived: GB of a round of Qwen2.5-7B at this ratio to dense; None where nothing was sent."""
    ratio = times_less_than_dense(outcome, None)
    return MODEL_GB / ratio if ratio else None


def early_gap_pct(outcome: Outcome, baseline: Outcome) -> float:
    """100 (loss / baseline's loss - 1) at the evaluation nearest a quarter of the run."""
    steps = outcome["curve"]["step"]
    at = min(range(len(steps)), key=lambda i: abs(steps[i] - steps[-1] / 4))
    return 100 * (outcome["curve"]["loss"][at] / baseline["curve"]["loss"][at] - 1)
