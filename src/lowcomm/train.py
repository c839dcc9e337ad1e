"""Pretraining and vision.

    python -m lowcomm.train model=llama-1m algorithm=gpa workload=pycode scale=cpu seed=1
    torchrun --nproc-per-node 2 -m lowcomm.train algorithm=diloco workers=4
    python -m lowcomm.train --help

Start it again after any interruption: it resumes from its last checkpoint, bit for bit. Importable as
`run_overrides([...])`, which returns the record of the run.
"""

import logging
from datetime import UTC, datetime
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from safetensors import SafetensorError
from safetensors.torch import save_file

from lowcomm import checkpoint, models
from lowcomm.assembly import (
    Trainer,
    build_trainer,
    build_workload,
    swapped_under_tuned,
    total_steps,
    try_inner,
    worker_batch,
)
from lowcomm.blocks import as_config_error
from lowcomm.command import Stopped, explain_first, final_loss, one_line
from lowcomm.config import CONF, checked, digest, load_config
from lowcomm.outer.exchange import ConsensusError
from lowcomm.outer.workers import Wire
from lowcomm.pulse.errors import PatchError
from lowcomm.results import record
from lowcomm.results.describe import describe
from lowcomm.run_dir import RunDir, run_dir_of
from lowcomm.session import check_machine, name_ranks, process_group, reset_peak_memory, stop_signals, threads
from lowcomm.tracking import Tracker
from lowcomm.training import Rounds, check_finite, check_weights, tensor_bytes
from lowcomm.workloads import Workload

log = logging.getLogger(__name__)


def run(cfg: DictConfig, overrides: list[str], claim: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train one configuration to its end and return its record; resume if it was begun, return if it is finished.

    Raises ConfigError before any work, FloatingPointError when the loss or a pseudo-gradient is not finite (the last
    good checkpoint stays), Stopped after `stop_after` steps or a signal.
    """
    cfg = checked(cfg)
    if note := swapped_under_tuned(cfg, overrides):
        log.warning(note)
    if not (run_dir_of(cfg) / "record.json").exists():
        check_machine(cfg)
        try_inner(cfg)
    with process_group(cfg.scale.device), threads(cfg.scale.threads):
        wire = as_config_error(Wire, cfg.workers)
        with RunDir(run_dir_of(cfg), cfg, leader=wire.rank == 0) as folder:
            done = folder.finished()
            return train(cfg, overrides, claim, wire, folder) if done is None else done


def train(cfg: DictConfig, overrides: list[str], claim: dict | None, wire: Wire, folder: RunDir) -> dict[str, Any]:
    """The run itself, from nothing or from its last checkpoint.

    Raises as `run` does: Stopped, FloatingPointError, ConfigError.
    """
    started = datetime.now(UTC)
    reset_peak_memory()
    workload = build_workload(cfg, wire)
    model = models.build(cfg.model, seed=cfg.seed).to(cfg.scale.device)
    params = models.parameters(model)
    steps = total_steps(cfg, params, workload)
    batch = worker_batch(cfg)
    trainer = build_trainer(cfg, model, params, workload, wire, steps, batch, folder.path)
    copies = 3 + (cfg.state == "disk")  # checkpoints, and where idle workers rest
    folder.need_space(copies * (tensor_bytes(dict(params)) * 4 * len(wire.local)))
    folder.begin(overrides)
    units_per_step = batch * cfg.workers * workload.units_per_sample
    ticks_of_a_step = len(wire.local) if isinstance(trainer, Rounds) else 1
    tracker = Tracker(folder.path, cfg.logger, wire.rank == 0, workload.unit, units_per_step, steps * ticks_of_a_step)
    ticks, abreast = restore(cfg, trainer, tracker, folder, wire)
    begun, begun_step = ticks, trainer.step

    with stop_signals() as stop:
        if trainer.step == 0 and ticks == 0:
            evaluate(trainer, model, workload, tracker, cfg)
        while not trainer.done:
            before = trainer.step
            report = trainer.advance()
            ticks += 1
            tracker.tick()
            if report:
                if not abreast:  # now the ranks are; any count does on which they agree, above those on the disk
                    ticks, abreast = begun + (trainer.step - begun_step) * ticks_of_a_step, True
                tracker.log(trainer.step, report)
                if trainer.done or trainer.step // cfg.scale.eval_every > before // cfg.scale.eval_every:
                    evaluate(trainer, model, workload, tracker, cfg)
            # A signal reaches the ranks at different steps: only a lone process can stop between its checkpoints.
            asked = cfg.stop_after is not None and ticks - begun >= cfg.stop_after or (stop and wire.ranks == 1)
            due = asked or ticks % (cfg.scale.checkpoint_every * ticks_of_a_step) == 0
            if due and abreast and not trainer.done:
                check_weights(params, trainer.step)
                shared = {"ticks": ticks, "ranks": wire.ranks, "metrics": tracker.position()}
                shared |= {"trainer": trainer.shared_state()}
                checkpoint.save(folder.checkpoints, digest(cfg), ticks, shared, trainer.worker_states(), wire)
                if asked:
                    tracker.close()
                    raise Stopped(f"stopped after step {trainer.step} of {steps}; run the same command to go on")

    memory = {"parameters": tensor_bytes(dict(params)), **trainer.state_bytes()}
    with trainer.evaluation():
        weights = {n: p.detach().cpu().contiguous().clone() for n, p in params.items()}
    tracker.close()
    result: dict[str, Any] = {}
    if wire.rank == 0:
        save_file(weights, folder.path / "weights.safetensors")
        result = describe(cfg, overrides, claim, workload, folder.path, started, wire.ranks, memory, weights)
        record.write(folder.record, result)
    folder.finish()
    wire.barrier()
    return result


def restore(cfg: DictConfig, trainer: Trainer, tracker: Tracker, folder: RunDir, wire: Wire) -> tuple[int, bool]:
    """Load the last whole checkpoint; return the ticks done so far, and whether the ranks stand abreast.

    They may not within a round that other ranks began: some of its workers were done, and the ranks hold others now.
    Until its end no checkpoint is written, since the ranks would come to it at different times.
    """
    wire.barrier()
    found = as_config_error(checkpoint.latest, folder.checkpoints, digest(cfg))
    if found is None:
        tracker.resume(0, 0, 0)
        return 0, True
    _, shared, worker_state = checkpoint.load(found, cfg.scale.device)
    trainer.load(shared["trainer"], worker_state)
    as_config_error(tracker.resume, trainer.step, shared["ticks"], shared["metrics"])
    log.info("resumed at step %d", trainer.step)
    return shared["ticks"], wire.ranks in (1, shared.get("ranks", wire.ranks))


def evaluate(trainer: Trainer, model: torch.nn.Module, workload: Workload, tracker: Tracker, cfg: DictConfig) -> None:
    """Rank 0 evaluates the point of the algorithm; nothing of the training state changes."""
    with trainer.evaluation():
        if tracker.active:
            values = workload.evaluate(model, cfg.scale.eval_samples, cfg.scale.eval_batch)
            check_finite(values["loss"], trainer.step)
            tracker.log(trainer.step, {f"eval/{k}": v for k, v in values.items()})


def run_overrides(overrides: list[str], claim: dict[str, Any] | None = None) -> dict[str, Any]:
    """Compose `conf/train.yaml` with overrides and run it in this process."""
    return run(load_config(overrides), overrides, claim)


def digest_of(overrides: list[str]) -> str:
    """Digest of the configuration that `run_overrides` would run, composed and checked. Raises ConfigError."""
    return digest(checked(load_config(overrides)))


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def main(cfg: DictConfig) -> float:
    """The command: one configuration, trained; mistakes and interruptions end in one line. Returns the loss for
    sweeps.
    """
    name_ranks()
    with one_line(OSError, SafetensorError, ConsensusError, PatchError):
        result = run(cfg, list(HydraConfig.get().overrides.task))
    return final_loss(result, run_dir_of(cfg))


if __name__ == "__main__":
    explain_first(load_config)
    main()
