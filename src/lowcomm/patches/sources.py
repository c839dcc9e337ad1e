"""Where versions of weights come from: made up, trained here, or published by a run.

A source is made with its own numbers and the run's seed; `chain()` yields BF16 weights by name, version after version,
and `describe()` says what they are, for the record.
"""

import fcntl
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lowcomm.pulse import Missing, PatchError, Store, Subscriber, cast, decode, measure, synthetic
from lowcomm.pulse.dtypes import TORCH

Weights = dict[str, Tensor]


def need(ok: bool, name: str, value: object, why: str) -> None:
    """Raises ValueError `name=value: why` unless `ok`."""
    if not ok:
        raise ValueError(f"{name}={value}: {why}")


class Gaussian:
    """Two versions: normal weights in matrices of 4096 columns, and the same after an update of scale ``delta``."""

    def __init__(self, megabytes: int, delta: float = 3.4e-7, seed: int = 0):
        need(megabytes > 0, "megabytes", megabytes, "must be positive")
        need(delta >= 0, "delta", delta, "must not be negative")
        self.megabytes, self.delta, self.seed = megabytes, delta, seed

    def chain(self) -> Iterator[Weights]:
        """The two versions."""
        yield from measure.gaussian(self.megabytes, self.delta, self.seed)

    def describe(self) -> dict[str, Any]:
        """For the record; the numbers are those of NumPy's generator, hence its version."""
        text = f"Normal weights, {self.megabytes} MB of BF16, one update of scale {self.delta:g}"
        return {"name": "gaussian", "revision": f"numpy {np.__version__}", "summary": text}


class Adam:
    """``steps`` AdamW steps on normal weights, see `lowcomm.pulse.synthetic.chain`."""

    def __init__(self, weights: int, steps: int, lr: float = 3e-6, signal: float = 0.4, seed: int = 0):
        need(weights > 0 and weights % 64 == 0, "weights", weights, "must be a positive multiple of 64")
        need(steps > 0, "steps", steps, "must be at least 1")
        self.weights, self.steps, self.lr, self.signal, self.seed = weights, steps, lr, signal, seed

    def chain(self) -> Iterator[Weights]:
        """One matrix of 64 columns, at the start and after every step."""
        for bits in synthetic.chain(self.weights, self.steps, self.lr, self.signal, self.seed):
            yield {"weight": torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).reshape(-1, 64)}

    def describe(self) -> dict[str, Any]:
        """For the record; the numbers are those of NumPy's generator, hence its version."""
        text = f"{self.weights:,} normal weights, {self.steps} AdamW steps at {self.lr:g}, steady part {self.signal:g}"
        return {"name": "adam", "revision": f"numpy {np.__version__}", "summary": text}


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

    def chain(self) -> Iterator[Weights]:
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


def copied(params: dict[str, Tensor]) -> Weights:
    """BF16 casts of parameters of any shape, as tensors of their own."""
    return {n: t.clone() for n, t in cast(params).items()}


class Published:
    """The newest ``versions`` patches of a store, or its ``first``, and the version that they start from.

    ``zeros=False`` leaves out the weights that are exactly zero in the first of them. Raises Missing where the store
    does not hold so many versions.
    """

    def __init__(self, url: str, versions: int = 10, zeros: bool = True, first: bool = False, seed: int = 0):
        need(versions > 0, "versions", versions, "must be at least 1")
        self.store, self.versions, self.zeros, self.first = Store(url), versions, zeros, first

    def chain(self) -> Iterator[Weights]:
        """The weights of each version, walked as a reader would; tensors are vectors where zeros are left out.

        Raises Missing.
        """
        known = sorted({*self.store.versions("anchor"), *self.store.versions("patch")})
        known = known[: self.versions + 1] if self.first else known[-self.versions - 1 :]
        if len(known) <= self.versions:
            raise Missing(f"the store holds {len(known)} versions, {self.versions + 1} are needed: lower versions")
        reader = Subscriber(self.store, self._blank())
        mask = None
        for version in known:
            reader.advance(version)
            now = {n: t.clone() for n, t in reader.tensors.items()}
            if mask is None:
                mask = {n: t.reshape(-1) != 0 for n, t in now.items()}
            yield now if self.zeros else {n: t.reshape(-1)[mask[n]] for n, t in now.items()}

    def _blank(self) -> Weights:
        """Tensors of the names, shapes and dtypes of the store's first anchor."""
        dtypes = {name: dtype for dtype, name in TORCH.items()}
        first = self.store.versions("anchor")
        if not first:
            raise Missing("the store holds no anchor")
        patch = decode(self.store.fetch(self.store.marker("anchor", first[0])))
        return {r.name: torch.zeros(r.entry.shape, dtype=dtypes[r.entry.dtype]) for r in patch.records}

    def describe(self) -> dict[str, Any]:
        """For the record: the digest of the newest version, and what its publisher said of it."""
        last = self.store.latest()
        kind = "patch" if last in self.store.versions("patch") else "anchor"
        marker = self.store.marker(kind, last)
        try:
            meta = dict(decode(self.store.fetch(marker)).meta)
        except PatchError:
            meta = {}
        said = ", ".join(
            f"{k} {v}" for k, v in itertools.islice(sorted(meta.items()), 6) if not k.startswith("history")
        )
        text = f"{self.versions} published versions up to {last}{f' ({said})' if said else ''}"
        text += "" if self.zeros else ", without the weights that are zero at the start"
        return {"name": "store", "revision": marker.target_digest, "summary": text, "meta": meta}


class Reinforcement:
    """The first ``versions`` patches of a run of `lowcomm.rl`, kept in runs/ and shared with other tables.

    ``overrides``: of the run; it is made, or finished, when it is not there. ``zeros``: as for `Published`. Raises
    Missing where the run publishes fewer versions, or its store holds them no more.
    """

    def __init__(self, overrides: list[str], versions: int = 10, zeros: bool = True, seed: int = 0):
        need(versions > 0, "versions", versions, "must be at least 1")
        self.overrides, self.versions, self.zeros = [*overrides, f"seed={seed}"], versions, zeros

    def chain(self) -> Iterator[Weights]:
        """The weights of the first version, then of each one after it.

        Raises Missing where the store no longer has the first, or has too few.
        """
        from lowcomm.rl import run_overrides
        from lowcomm.rl.config import checked, load_config
        from lowcomm.run_dir import ROOT, run_dir_of

        ROOT.mkdir(parents=True, exist_ok=True)
        with (ROOT / ".patches-rl").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several rows read the same run: one makes it, the others wait
            run_overrides(self.overrides)
        cfg = checked(load_config(self.overrides))
        store = cfg.place.store or run_dir_of(cfg) / "store"
        if 0 not in Store(str(store)).versions("anchor"):
            raise Missing("the run's store has dropped its first version: raise sync.keep_anchors among the overrides")
        yield from Published(store, self.versions, self.zeros, first=True).chain()

    def describe(self) -> dict[str, Any]:
        """The record's entries; the revision is that of the overrides, 16 hexadecimal digits."""
        text = f"{self.versions} steps of lowcomm.rl {' '.join(self.overrides)}"
        text += "" if self.zeros else ", without the weights that are zero at the start"
        revision = hashlib.sha256("\n".join(self.overrides).encode()).hexdigest()[:16]
        return {"name": "rl", "revision": revision, "summary": text}
