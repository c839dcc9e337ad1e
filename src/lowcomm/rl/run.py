"""One RL run, from nothing or from its last checkpoint, to its record. Every rank has a trainer; rank 0 also writes."""

import contextlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from omegaconf import DictConfig
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback
from transformers.utils import logging as hub_logging

from lowcomm import checkpoint, models
from lowcomm.blocks import ConfigError, as_config_error, build
from lowcomm.command import Stopped
from lowcomm.config import digest
from lowcomm.outer.workers import Wire
from lowcomm.pulse import Store
from lowcomm.results import record
from lowcomm.results.describe import weights_hash
from lowcomm.rl import evaluation
from lowcomm.rl.batch import grpo_config
from lowcomm.rl.config import checked
from lowcomm.rl.data import Prompts, build_tokenizer
from lowcomm.rl.describe import describe
from lowcomm.rl.generate import DirectEngine, Inline, Rollouts
from lowcomm.rl.ledger import Ledger
from lowcomm.rl.live import Live
from lowcomm.rl.meters import Meters, zeros
from lowcomm.rl.outer import Together, build_together
from lowcomm.rl.outer_ranks import SharedPublishing, SharedText, trainers
from lowcomm.rl.publishing import Publishing, TimedStore
from lowcomm.rl.served import alone, asked_of, end_tokens, save_skeleton, say_where, token_of
from lowcomm.rl.sft import SftTrainer
from lowcomm.rl.trainer import GrpoTrainer
from lowcomm.rollout.transformers_engine import TransformersEngine, skeleton
from lowcomm.run_dir import RunDir, run_dir_of
from lowcomm.session import check_machine, reset_peak_memory, stop_signals, threads
from lowcomm.tasks import Task
from lowcomm.tracking import Tracker
from lowcomm.training import check_weights, tensor_bytes

log = logging.getLogger(__name__)


def run(cfg: DictConfig, overrides: list[str], claim: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train one configuration to its end and return its record; resume if it was begun, return if it is finished.

    Raises ConfigError before any work, FloatingPointError when the loss is not finite, RolloutError when no worker
    answers, Stopped after `stop_after` steps or a signal. Checkpoints stay, and the same call goes on. On ranks other
    than 0 the record is empty.
    """
    cfg = checked(cfg)
    with trainers(cfg) as wire, threads(cfg.scale.threads), alone():
        if not (run_dir_of(cfg) / "record.json").exists():
            check_machine(cfg)
        with RunDir(run_dir_of(cfg), cfg, leader=wire.rank == 0) as folder:
            if (done := folder.finished()) is not None:
                return done
            if wire.rank:  # data is prepared once
                wire.barrier()
            task = build("workload", cfg.workload, seed=cfg.seed)
            if not wire.rank:
                wire.barrier()
            if not hasattr(task, "problems"):
                raise ConfigError(
                    f"workload.name={cfg.workload.name}: has no problems to answer; take workload=arithmetic"
                )
            try:
                return train(cfg, overrides, claim, folder, task, wire)
            finally:
                task.close()


def train(cfg: DictConfig, overrides: list[str], claim: dict | None, folder: RunDir, task: Task,
          wire: Wire) -> dict[str, Any]:  # fmt: skip
    """The run itself, from nothing or from its last checkpoint. Collective.

    Raises as `run` does: Stopped, ConfigError, FloatingPointError, RolloutError.
    """
    started, leads = datetime.now(UTC), wire.rank == 0
    reset_peak_memory()
    hub_logging.set_verbosity_error()  # TRL and transformers; their mistakes still raise
    tokenizer = build_tokenizer(cfg)
    prompts = as_config_error(Prompts, task.problems("train"), tokenizer, cfg, wire.rank)
    model = models.build(cfg.model, seed=cfg.seed)
    check_room(model, tokenizer, prompts.longest, cfg)
    params = models.parameters(model)
    first = weights_hash({n: p.detach() for n, p in params.items()}) if leads else ""
    began_zero = zeros(params) if leads and "density" in cfg.meters else {}
    # checkpoints with moments, and residuals where there are some; theta and its momentum; anchors
    parts = 3 * wire.ranks + 2 if cfg.algorithm.inner_steps else 3
    copies = 3 * parts + 2 * cfg.sync.keep_anchors * (cfg.sync.kind != "none")
    folder.need_space(copies * tensor_bytes(dict(params)))
    folder.begin(overrides)
    model.to(cfg.scale.device)
    together = as_config_error(build_together, cfg, model, params, wire)
    held = restore(cfg, folder, together)
    begun = held["step"]
    if leads:
        save_skeleton(model, tokenizer, folder.path / "served")
    wire.barrier()

    completions = cfg.scale.prompts_per_step * cfg.scale.group_size * wire.ranks
    tracker = Tracker(folder.path, cfg.logger, leads, "completions", completions, cfg.scale.steps)
    as_config_error(tracker.resume, begun, begun, held["metrics"])
    ledger = Ledger(folder.path, sum(p.numel() for p in params.values()), cfg.sync.codec) if leads else None
    if ledger:
        as_config_error(ledger.resume, held["ledger"])
    own = build_publishing(cfg, folder, params) if leads else None
    publishing = SharedPublishing(own, wire) if wire.ranks > 1 and cfg.sync.kind != "none" else own
    meters = Meters(cfg.meters if leads else [], cfg.horizons, betas_of(cfg), began_zero)
    meters.load_state_dict(held["windows"])
    rollouts = answers = None
    if leads or cfg.rollout.where == "inline":
        now = lambda: trainer.state.global_step  # noqa: E731
        rollouts = answers = build_rollouts(cfg, folder, own, params, now, model, tokenizer)
    if wire.ranks > 1 and cfg.rollout.where == "workers":
        rollouts = SharedText(answers, wire)

    with stop_signals() as signals, contextlib.closing(rollouts):
        live = Live(
            params, rollouts, publishing, ledger, meters, tracker,
            evaluate=lambda step: evaluation.run(cfg, task, tokenizer, live.at_version, step, folder.path),
            save=lambda step: save(step),
            stop=lambda step: bool(signals) or cfg.stop_after is not None and step - begun >= cfg.stop_after,
            steps=cfg.scale.steps, staleness=cfg.rollout.staleness, strict=cfg.rollout.strict,
            eval_every=cfg.scale.eval_every, checkpoint_every=cfg.scale.checkpoint_every,
            boundary=cfg.scale.updates_per_rollout, values=lambda: trainer.rollout_values,
            together=together, answers=answers,
        )  # fmt: skip
        where = {
            "tokenizer": tokenizer,
            "callbacks": [live],
            "begun": begun,
            "together": together,
            "state": held["optimizer"],
        }
        args = grpo_config(cfg, folder.path)
        if cfg.objective == "sft":
            trainer = SftTrainer(model, args, cfg, prompts, **where)
        else:
            trainer = GrpoTrainer(model, args, cfg, prompts, task, live.text, **where)
        trainer.remove_callback(PrinterCallback)
        save = partial(save_checkpoint, cfg, folder, params, together, tracker, ledger, meters)
        try:
            trainer.train()
        finally:
            tracker.close()
            if ledger:
                ledger.close()
    step = trainer.state.global_step
    if live.stopped:
        raise Stopped(f"stopped after step {step} of {cfg.scale.steps}; run the same command to go on")
    if step != cfg.scale.steps:
        raise AssertionError(f"TRL ended at step {step} of {cfg.scale.steps}")
    check_weights(params, step)
    result: dict[str, Any] = {}
    if leads:
        weights = {n: p.detach().cpu().contiguous().clone() for n, p in params.items()}
        save_file(weights, folder.path / "weights.safetensors")
        memory = {"parameters": tensor_bytes(dict(params)), **together.state_bytes()}
        result = describe(cfg, overrides, claim, task, prompts.left_out, folder.path, started, memory, weights,
                          first)  # fmt: skip
        record.write(folder.record, result)
    folder.finish()
    wire.barrier()
    return result


def check_room(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, longest: int, cfg: DictConfig) -> None:
    """Prompts are in the model's vocabulary, and an answer still fits behind the longest. Raises ConfigError."""
    text = model.config.get_text_config()
    if text.vocab_size < len(tokenizer):
        name, size = cfg.model.name, text.vocab_size
        raise ConfigError(f"model.name={name}: its vocabulary has {size} tokens, the tokenizer {len(tokenizer)}")
    if longest + cfg.scale.max_completion > text.max_position_embeddings:
        raise ConfigError(
            f"scale.max_completion={cfg.scale.max_completion}: behind the longest prompt ({longest} tokens) it exceeds "
            f"the model's {text.max_position_embeddings} positions; lower it, or prompt.max_tokens"
        )


def betas_of(cfg: DictConfig) -> tuple[float, float] | None:
    """Adam's, for the bounds; None for an optimizer of another kind."""
    inner = cfg.algorithm.inner
    return tuple(inner.betas) if inner["_target_"] == "torch.optim.AdamW" and "betas" in inner else None


def build_publishing(cfg: DictConfig, folder: RunDir, params: dict) -> Publishing | None:
    """What publishes to the run's store; None for `sync=none`. Raises ConfigError for a store it cannot go on with."""
    if cfg.sync.kind == "none":
        return None
    store = as_config_error(TimedStore, cfg.place.store or str(folder.path / "store"))
    return as_config_error(Publishing, store, params, cfg.sync, cfg.scale.threads)


def build_rollouts(cfg: DictConfig, folder: RunDir, publishing: Publishing | None, params: dict, now: Callable[[], int],
                   model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Rollouts:  # fmt: skip
    """The text's source: rollout workers, or an engine of this process."""
    if cfg.rollout.where == "workers":
        from lowcomm.rl.workers import Workers
        from lowcomm.rollout.local import LocalWorkers

        newest = cfg.rollout.staleness == 0 or not cfg.rollout.strict
        where = (cfg.place.listen, token_of(folder.path), cfg.rollout.wait_limit_s)
        made = as_config_error(Workers, *where, publishing, newest)
        asked = asked_of(cfg, folder.path, made.address)
        made.local = LocalWorkers(cfg.place.local_workers, asked, folder.path, cfg.scale.threads)
        log.info("rollout workers: %s", say_where(folder.path, asked))
        return made
    served = skeleton(folder.path / "served", cfg.scale.device)
    eos = end_tokens(model, tokenizer)
    if cfg.sync.kind == "none":
        return Inline(DirectEngine(served, params, now, eos))
    # a store of its own, so that its fetches are not counted among the reader's
    store = Store(cfg.place.store or str(folder.path / "store"))
    return Inline(TransformersEngine(served, store, sorted(eos), threads=cfg.scale.threads))


def restore(cfg: DictConfig, folder: RunDir, together: Together) -> dict[str, Any]:
    """Load the last whole checkpoint into the parameters and the outer loop; the rest of it."""
    together.wire.barrier()
    found = as_config_error(checkpoint.latest, folder.checkpoints, digest(cfg))
    if found is None:
        return {"step": 0, "metrics": 0, "ledger": 0, "optimizer": None, "windows": {}}
    _, state, own_state = checkpoint.load(found, cfg.scale.device)
    state["optimizer"] = together.load(state, own_state)
    log.info("resumed at step %d", state["step"])
    return state


def save_checkpoint(cfg: DictConfig, folder: RunDir, params: dict, together: Together, tracker: Tracker,
                    ledger: Ledger | None, meters: Meters, step: int) -> None:  # fmt: skip
    """Everything that a resumed run can't compute again. Randomness and data are functions of the step. Collective."""
    check_weights(params, step)
    state = together.shared_state() | {
        "step": step,
        "windows": meters.state_dict(),
        "metrics": tracker.position(),
        "ledger": ledger.position() if ledger else 0,
    }
    checkpoint.save(folder.checkpoints, digest(cfg), step, state, together.own_states(), together.wire)
