"""The record of a finished RL run, in the format of `lowcomm.results.record`.

`outcome.metrics.loss` and the curve's `loss` are the error rate, 1 - Pass@1 of the greedy answers, since RL has no
held-out loss; `outcome.bytes` are the ledger's totals, `outcome.bytes.trainers` those of what several trainers sent to
each other; `outcome.curve` has one entry an evaluation; `outcome.steps_of` one entry an optimizer step, or a round
between two outer steps (reward, densities, seconds ...); `outcome.paired` compares the first answers with the last.
"""

import importlib.metadata
import statistics
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from lowcomm.config import digest, identity, run_name
from lowcomm.results import provenance
from lowcomm.results.describe import local, weights_hash
from lowcomm.results.gated import gate_totals
from lowcomm.rl import evaluation, ledger
from lowcomm.session import peak_memory
from lowcomm.tasks import Task
from lowcomm.tracking import read_metrics

EVERY_STEP = ("train/", "rollout/", "grpo/", "sync/", "comm/", "outer/", "density/", "bounds/", "codecs/", "time/")
MEANS = {"train/reward": "reward", "train/loss": "train_loss", "time/step": "seconds_per_step",
         "time/publish": "publish_seconds", "time/generate": "generate_seconds"}  # fmt: skip
PACKAGES = ("trl", "accelerate", "math-verify")


def describe(cfg: DictConfig, overrides: list[str], claim: dict[str, Any] | None, task: Task, left_out: int,
             run_dir: Path, started: datetime, memory: dict[str, int],
             weights: dict[str, Tensor], first: str) -> dict[str, Any]:  # fmt: skip
    """All fields of the record.

    ``left_out``: training problems too long for the prompt's limit; ``memory``: bytes of parameters, optimizer and
    outer loop; ``weights``: the final ones, CPU tensors by name; ``first``: hash of those before the first step.
    """
    lines = read_metrics(run_dir)
    evals = [line for line in lines if "eval/loss" in line]
    steps = [line for line in lines if "train/loss" in line]
    names = sorted({k for line in evals for k in line if k.startswith("eval/")})
    environment = provenance.environment(processes=cfg.workers)
    environment["versions"] |= {p: importlib.metadata.version(p) for p in PACKAGES}
    completions = cfg.scale.steps * cfg.scale.prompts_per_step * cfg.scale.group_size * cfg.workers
    return {
        "schema": 1,
        "identity": provenance.session(run_name(cfg), cfg.seed, started),
        "claim": claim,
        "code": provenance.code(local(identity(cfg)), digest(cfg), [local(o) for o in overrides]),
        "environment": environment,
        "data": {
            "revision": None,
            **task.describe(),
            "units": completions,
            "order_seed": cfg.seed,
            "left_out": left_out,
        },
        "outcome": {
            "metrics": {k.removeprefix("eval/"): evals[-1][k] for k in names if k in evals[-1] and k != "eval/n"}
            | means(steps),
            "evaluation_n": evals[-1]["eval/n"],
            "steps": steps[-1]["step"],
            "curve": {"step": [e["step"] for e in evals]}
            | {k.removeprefix("eval/"): [e.get(k) for e in evals] for k in names},
            "paired": evaluation.paired(run_dir, evals[0]["step"], evals[-1]["step"]),
            "steps_of": columns(steps),
            "bytes": ledger.totals(ledger.read(run_dir)) | exchanged(steps),
            "memory": {**memory, "peak": peak_memory()},
            "weights": weights_hash(weights),
            "weights_first": first,
        },
    }


def exchanged(lines: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What the trainers sent to each other, one's bytes (mean over them); empty where there is one."""
    rounds = [line["comm/bytes"] for line in lines if "comm/bytes" in line]
    if not rounds:
        return {}
    sent = {"rounds": len(rounds), "per_worker": sum(rounds), "last_round": rounds[-1]}
    return {"trainers": sent | gate_totals(lines)}


def columns(lines: list[dict[str, Any]]) -> dict[str, list]:
    """One list a value, with None where a step has none; for curves over steps."""
    keys = sorted({k for line in lines for k in line if k.startswith(EVERY_STEP)})
    return {"step": [line["step"] for line in lines]} | {k: [line.get(k) for line in lines] for k in keys}


def means(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Over all optimizer steps; a sparsity is 1 - density, and `_min`, `_sd` are over the steps of BF16's."""
    values = {
        key: [line[key] for line in lines if key in line]
        for key in sorted(
            {k for line in lines for k in line if k.startswith(("density/", "bounds/", "codecs/", *MEANS))}
        )
    }
    mean = {key: statistics.fmean(column) for key, column in values.items()}
    out = {name: mean[key] for key, name in MEANS.items() if key in mean}
    for key in mean:
        part, _, name = key.partition("/")
        if part == "bounds":
            out[f"bounds_{name}"] = mean[key]
        elif part == "codecs":
            out[f"bytes_{name}"] = mean[key]
        elif part == "density":
            out["zeros" if name == "zeros" else f"sparsity_{name}"] = mean[key] if name == "zeros" else 1 - mean[key]
    if bf16 := values.get("density/bf16"):
        out |= {"sparsity_bf16_min": 1 - max(bf16), "sparsity_bf16_sd": statistics.pstdev(bf16)}
    return out
