"""Trained here: a run of `lowcomm.train`, continued with a constant rate."""

import fcntl
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lowcomm.patches.sources.need import need
from lowcomm.pulse import cast


class Training:
    """A model trained from scratch (`lowcomm.train`, kept in runs/ like any run), then continued with a constant rate.

    FP32 masters, AdamW (0.9, 0.999) without decay, no warm-up: every step, or every round of ``inner_steps``, is one
    version. The moments start from nothing, as in an RL run that starts from a checkpoint.
    """

    def __init__(self, model: str, workload: str, start_lr: float, lr: float, start_scale: str = "smoke",
                 algorithm: str = "adamw", inner_steps: int = 1, workers: int = 1, versions: int = 10,
                 seed: int = 0):  # fmt: skip
        need(versions > 0, "versions", versions, "must be at least 1")
        need(inner_steps > 0, "inner_steps", inner_steps, "must be at least 1")
        need(lr > 0, "lr", lr, "must be positive")
        self.versions, self.lr, self.every = versions, lr, inner_steps
        common = [f"model={model}", f"workload={workload}", f"seed={seed}"]
        self.start = [*common, f"scale={start_scale}", "algorithm=adamw", f"algorithm.inner.lr={start_lr}"]
        rounds = [] if algorithm == "adamw" else [f"algorithm.inner_steps={inner_steps}"]
        self.go_on = [*common, "scale=smoke", f"algorithm={algorithm}", "algorithm/schedule=constant",
                      "algorithm.schedule.warmup=0", f"algorithm.inner.lr={lr}", "algorithm.inner.betas=[0.9,0.999]",
                      "algorithm.inner.weight_decay=0", f"scale.steps={versions * inner_steps}",
                      f"workers={workers}", *rounds]  # fmt: skip
        self.text = f"{model} on {workload}, trained at {start_lr:g} (scale {start_scale}), then {algorithm}"

    def chain(self) -> Iterator[dict[str, Tensor]]:
        """BF16 casts of the parameters: before the first step, then after each step or round.

        Trains the start first if its run is not there.
        """
        from safetensors.torch import load_file

        from lowcomm import models
        from lowcomm.config import checked, load_config
        from lowcomm.outer.workers import Wire
        from lowcomm.run_dir import ROOT, run_dir_of
        from lowcomm.train import build_trainer, build_workload, run_overrides, worker_batch

        start, cfg = checked(load_config(self.start)), checked(load_config(self.go_on))
        ROOT.mkdir(parents=True, exist_ok=True)
        with (ROOT / ".patches-start").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several rows start from the same weights: one trains, the others wait
            run_overrides(self.start)
        weights = load_file(run_dir_of(start) / "weights.safetensors")
        wire = Wire(cfg.workers)
        workload, model = build_workload(cfg, wire), models.build(cfg.model, seed=cfg.seed)
        params = models.parameters(model)
        with torch.no_grad():
            for name, p in params.items():
                p.copy_(weights[name])
        trainer = build_trainer(cfg, model, params, workload, wire, cfg.scale.steps, worker_batch(cfg))
        yield copied(params)
        while not trainer.done:
            if trainer.advance() and trainer.step % self.every == 0:
                with trainer.evaluation():
                    yield copied(params)

    def describe(self) -> dict[str, Any]:
        """For the record; `revision` is a hash of both runs' overrides."""
        step = "step" if self.every == 1 else f"round of {self.every} steps"
        text = f"{self.text} at {self.lr:g}, {self.versions} versions, one a {step}"
        revision = hashlib.sha256("\n".join(self.start + self.go_on).encode()).hexdigest()[:16]
        return {"name": "training", "revision": revision, "summary": text}


def copied(params: dict[str, Tensor]) -> dict[str, Tensor]:
    """BF16 casts of parameters of any shape, as tensors of their own."""
    return {n: t.clone() for n, t in cast(params).items()}
