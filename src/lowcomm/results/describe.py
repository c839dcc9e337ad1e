"""The record of a finished run, from what really happened in it: its metrics file, its state, its weights."""

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from lowcomm.config import digest, identity, run_name
from lowcomm.results import provenance
from lowcomm.results.gated import gate_totals
from lowcomm.session import peak_memory
from lowcomm.tracking import read_metrics
from lowcomm.workloads import Workload


def describe(
    cfg: DictConfig,
    overrides: list[str],
    claim: dict[str, Any] | None,
    workload: Workload,
    run_dir: Path,
    started: datetime,
    ranks: int,
    memory: dict[str, int],
    weights: dict[str, Tensor],
) -> dict[str, Any]:
    """All fields of `lowcomm.results.record`; `memory`: bytes by kind of state; `weights`: what was evaluated."""
    lines = read_metrics(run_dir)
    evals = [line for line in lines if "eval/loss" in line]
    rounds = [line["comm/bytes"] for line in lines if "comm/bytes" in line]
    steps = lines[-1]["step"]
    samples = steps * cfg.scale.batch * (cfg.workers if cfg.budget == "per_worker" else 1)
    curve = {k: [line[f"eval/{k}"] for line in evals] for k in ("loss", "accuracy") if f"eval/{k}" in evals[0]}
    curve["train_loss"] = train_losses(lines)
    return {
        "schema": 1,
        "identity": provenance.session(run_name(cfg), cfg.seed, started),
        "claim": claim,
        "code": provenance.code(local(identity(cfg)), digest(cfg), [local(o) for o in overrides]),
        "environment": provenance.environment(processes=ranks),
        "data": workload.describe() | {"units": samples * workload.units_per_sample, "order_seed": cfg.seed},
        "outcome": {
            "metrics": {k.removeprefix("eval/"): v for k, v in evals[-1].items() if k in ("eval/loss", "eval/accuracy")}
            | {"train_loss": curve["train_loss"][-1]},
            "evaluation_n": evals[-1]["eval/n"],
            "steps": steps,
            "curve": {"step": [line["step"] for line in evals], **curve},
            "bytes": {"rounds": len(rounds), "per_worker": sum(rounds), "last_round": rounds[-1] if rounds else 0}
            | gate_totals(lines),
            "memory": {**memory, "peak": peak_memory()},
            "weights": weights_hash(weights),
        },
    }


def train_losses(lines: list[dict[str, Any]]) -> list[float]:
    """For every evaluation the mean training loss of the steps since the last one; at the start, of the first step."""
    means, total, begin, last = [], 0.0, 0, 0
    for line in lines:
        if "train/loss" in line:
            total += line["train/loss"] * (line["step"] - last)
            last = line["step"]
        if "eval/loss" in line and last > begin:
            means.append(total / (last - begin))
            total, begin = 0.0, last
        elif "eval/loss" in line:
            means.append(next(n["train/loss"] for n in lines if "train/loss" in n))
    return means


def local(node: Any) -> Any:
    """Paths of this machine mean nothing elsewhere: keep the last part of an absolute one."""
    if isinstance(node, dict):
        return {k: local(v) for k, v in node.items()}
    if isinstance(node, list):
        return [local(v) for v in node]
    if isinstance(node, str):
        key, equals, value = node.partition("=")
        if value.startswith(("/", "~")):
            return f"{key}{equals}{Path(value).name}"
        return Path(node).name if node.startswith(("/", "~")) else node
    return node


def weights_hash(weights: dict[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bits, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(weights):
        w = weights[name].contiguous()
        total.update(f"{name}\0{w.dtype}\0{tuple(w.shape)}\0".encode())
        total.update(w.view(torch.uint8).numpy() if w.numel() else b"")
    return total.hexdigest()
