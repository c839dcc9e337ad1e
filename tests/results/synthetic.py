"""Records that no run made, for tests of what reads them; they live in temporary folders and are never committed."""

import copy
from pathlib import Path

from lowcomm.results import record
from lowcomm.results.experiment import load
from lowcomm.results.grid import Run, at_scale, tuning_runs
from lowcomm.results.grid import run as one_run

RECORD = {
    "schema": 1,
    "identity": {"name": "x/seed0", "seed": 0, "started": "2026-01-01T00:00:00+00:00",
                 "finished": "2026-01-01T00:01:00+00:00", "wall_seconds": 60.0},
    "claim": {"paper": "gpa", "table": "table2", "experiment": "gpa/table2", "row": "adamw", "scale": "cpu",
              "tuned": None},
    "code": {"commit": "a" * 40, "dirty": None, "sources": "b" * 64, "overrides": ["seed=0"], "digest": "c" * 64,
             "config": {"model": {"name": "llama-nano", "family": "llama", "dtype": "float32"},
                        "workload": {"name": "pycode"}}},
    "environment": {"versions": {"torch": "2"}, "lock": "d" * 64,
                    "device": {"kind": "cpu", "capability": "AVX2", "count": 1},
                    "threads": 1, "processes": 1, "deterministic": False},
    "data": {"name": "pycode", "revision": "r", "units": 1000, "order_seed": 0},
    "outcome": {"metrics": {"loss": 3.0, "train_loss": 3.1}, "evaluation_n": 100, "steps": 20,
                "curve": {"step": [0, 10, 20], "loss": [5.0, 4.0, 3.0], "train_loss": [5.0, 4.1, 3.1]},
                "bytes": {"rounds": 0, "per_worker": 0, "last_round": 0},
                "memory": {"parameters": 4000, "optimizer": 8000, "peak": 9000}, "weights": "e" * 64},
}  # fmt: skip


def make(**outcome) -> dict:
    """A valid record of evidence, with parts of its outcome replaced."""
    made = copy.deepcopy(RECORD)
    made["outcome"] |= outcome
    return made


def ending(loss: float, copies: int = 2) -> dict:
    """A run of 20 steps that falls from 5 to `loss` in a straight line, with so many copies of state."""
    curve = {"step": [0, 10, 20], "loss": [5.0, (5 + loss) / 2, loss], "accuracy": [0.1, 0.5, 1 - loss / 10]}
    curve["train_loss"] = curve["loss"]
    metrics = {"loss": loss, "train_loss": loss, "accuracy": 1 - loss / 10, "sparsity_bf16": 1 - loss / 1000}
    return make(curve=curve, metrics=metrics, memory={"parameters": 4000, "optimizer": copies * 4000, "peak": 1})


def patches(bits: float) -> dict:
    """A measurement of two patches of a million weights, 1 % changed, at so many bits a change."""
    size = bits * 20_000 / 8
    metrics = {"bytes": size, "changed": 20_000, "dense_bytes": 4_000_000, "coo_bytes": 200_000, "raw_bytes": 100_000,
               "published_bytes": 60_000, "entropy_bits": 130_000.0, "entropy_history_bits": 100_000.0,
               **{f"{what}_seconds": 0.001 * bits for what in ("encode", "apply", "encode_cpu", "apply_cpu", "pack",
                                                               "unpack")}}  # fmt: skip
    curve = {"step": [1, 2], "bytes": [size / 2, size / 2], "changed": [10_000, 10_000]}
    memory = {"parameters": 2_000_000, "encode": 1, "apply": 1, "peak": 1}
    made = make(metrics=metrics, curve=curve, memory=memory, evaluation_n=2, steps=2)
    made["data"]["summary"] = "Invented"
    return made


def put(root: Path, run: Run, made: dict) -> None:
    made["identity"]["seed"] = run.seed
    made["claim"] = run.claim
    record.write(root / run.path, made)


def fill(root: Path, name: str, losses: dict[str, float], scale: str = "cpu", best: int = 1) -> None:
    """Records for rows of an experiment: the `best`-th tuned value ends at the loss, the others 0.5 above."""
    experiment = load(name)
    for row in at_scale(experiment, scale):
        if row.row not in losses:
            continue
        tuning = tuning_runs(experiment, row, scale)
        best = min(best, len(tuning) - 1)
        for place, run in enumerate(tuning):
            put(root, run, ending(losses[row.row] + 0.5 * (place != best)))
        for seed in experiment.scales[scale].seeds[1:]:
            run = one_run(experiment, row, scale, tuning[best].tuned, seed)
            put(root, run, ending(losses[row.row] + 0.01 * seed))
