"""From a checked configuration to the parts of a run: workload, number of steps, trainer. Nothing is trained here."""

import inspect
import pkgutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from omegaconf import DictConfig

from lowcomm import models
from lowcomm.blocks import ConfigError, as_config_error, build
from lowcomm.config import CONF
from lowcomm.inner import InnerStep
from lowcomm.outer.loop import OuterLoop
from lowcomm.outer.workers import Wire
from lowcomm.training import Rounds, Synchronous
from lowcomm.workloads import Workload

Trainer = Synchronous | Rounds


def swapped_under_tuned(cfg: DictConfig, overrides: list[str]) -> str | None:
    """A note when a block of a preset was swapped while its numbers stay those tuned for the preset."""
    blocks = [o for o in overrides if o.startswith("algorithm/")]
    tuned = f"tuned/{cfg.model.name}_{cfg.algorithm.name}.yaml"
    if not blocks or not (CONF / tuned).is_file():
        return None
    return f"{' '.join(blocks)}: the rates in conf/{tuned} were tuned without it; tune algorithm.inner.lr and outer.lr"


def worker_batch(cfg: DictConfig) -> int:
    """Samples of one inner step of one worker."""
    return cfg.scale.batch // cfg.workers if cfg.budget == "shared" else cfg.scale.batch


def build_workload(cfg: DictConfig, wire: Wire) -> Workload:
    """Rank 0 first, so that a corpus is prepared once; too little data for a batch is an error here."""
    if wire.rank:
        wire.barrier()
    workload = build("workload", cfg.workload, seed=cfg.seed)
    if not wire.rank:
        wire.barrier()
    batch = worker_batch(cfg)
    as_config_error(workload.check, cfg.workers, batch, cfg.scale.eval_samples)
    return workload


def total_steps(cfg: DictConfig, params: dict, workload: Workload) -> int:
    """Inner steps of each worker; 20 tokens a parameter, say, become floor(20 N / tokens of one step of all workers).

    Raises ConfigError when that is no step at all.
    """
    if cfg.scale.steps is not None:
        return cfg.scale.steps
    count = sum(p.numel() for p in params.values())
    per_step = cfg.scale.batch * workload.units_per_sample * (cfg.workers if cfg.budget == "per_worker" else 1)
    steps = int(cfg.scale.tokens_per_parameter * count // per_step)
    if steps < 1:
        why = f"{count} parameters make less than one step of {per_step} {workload.unit}; raise it or set scale.steps"
        raise ConfigError(f"scale.tokens_per_parameter={cfg.scale.tokens_per_parameter}: {why}")
    return steps


def build_trainer(cfg: DictConfig, model: torch.nn.Module, params: dict, workload: Workload, wire: Wire, steps: int,
                  batch: int, disk: Path | None = None) -> Trainer:  # fmt: skip
    """Join the blocks: the inner step, and the outer loop if there is one."""
    a = cfg.algorithm
    inner_step = InnerStep(model, params, workload, a, cfg.scale, steps, cfg.seed)
    inner = inner_factory(a.inner, model, params)
    if a.inner_steps is None:
        return Synchronous(inner_step, params, inner, wire, batch)
    aggregator = build("algorithm.aggregator", a.aggregator)
    loop = OuterLoop(params, partial(build, "algorithm.compressor", a.compressor), aggregator,
                     partial(build, "algorithm.outer", a.outer), wire, cfg.seed)  # fmt: skip
    return as_config_error(Rounds, inner_step, params, inner, wire, batch, a.inner_steps, loop, cfg.state, disk)


def try_inner(cfg: DictConfig) -> None:
    """Ranges that only the inner optimizer knows, tried on a toy: a corpus takes minutes. Raises ConfigError."""
    with torch.random.fork_rng(devices=[]):
        toy = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)))  # 0.0.weight is a matrix
    params = models.parameters(toy)
    inner_factory(cfg.algorithm.inner, toy, params)(list(params.values()))


def inner_factory(block: DictConfig, model: torch.nn.Module, params: dict) -> Callable[..., torch.optim.Optimizer]:
    """Makes inner optimizers of the parameters; a target with an argument `matrices` gets names and hidden matrices."""
    if "matrices" not in inspect.signature(pkgutil.resolve_name(block["_target_"])).parameters:
        return partial(build, "algorithm.inner", block)
    named, matrices = list(params.items()), models.hidden_matrices(model)
    return lambda _: build("algorithm.inner", block, named, matrices=matrices)
