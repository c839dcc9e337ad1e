"""What happens around an optimizer step, in this order: outer step, publish, measure, evaluate, write, checkpoint."""

import logging
import time
from collections.abc import Callable

from torch import nn
from transformers import TrainerCallback

from lowcomm.rl.generate import Rollouts
from lowcomm.rl.ledger import Ledger
from lowcomm.rl.meters import Meters
from lowcomm.rl.publishing import Publishing
from lowcomm.rollout import Completion, Job
from lowcomm.tracking import Tracker
from lowcomm.training import check_finite, check_weights

log = logging.getLogger(__name__)
Values = dict[str, float]
NAMES = {  # of TRL's metrics, as ours
    "loss": "train/loss", "learning_rate": "train/lr", "grad_norm": "train/grad_norm", "reward": "train/reward",
    "entropy": "train/entropy", "logp_gap": "rollout/logp_gap", "frac_reward_zero_std": "grpo/zero_std_share",
    "clip_ratio/region_mean": "grpo/clip_region",
}  # fmt: skip


class Live(TrainerCallback):
    """The run around TRL's loop.

    ``publishing`` is None where nothing is published; ``outer``, if given, is called after every optimizer step with
    the number of steps done and may write the parameters (an outer step after every H of them): what is published is
    what it leaves. ``evaluate`` and ``save`` are called with the step; ``stop`` says whether to end early, at a step
    where ``save`` can be called.
    """

    def __init__(self, params: dict[str, nn.Parameter], rollouts: Rollouts, publishing: Publishing | None,
                 ledger: Ledger, meters: Meters, tracker: Tracker, evaluate: Callable[[int], Values],
                 save: Callable[[int], None],
                 stop: Callable[[int], bool], *, steps: int, staleness: int, strict: bool, eval_every: int,
                 checkpoint_every: int, boundary: int, values: Callable[[], Values],
                 outer: Callable[[int], Values] | None = None):  # fmt: skip
        self.params, self.rollouts, self.publishing, self.ledger, self.meters = (
            params,
            rollouts,
            publishing,
            ledger,
            meters,
        )
        self.tracker, self.evaluate, self.save, self.stop, self.outer = tracker, evaluate, save, stop, outer
        self.steps, self.staleness, self.strict, self.boundary = steps, staleness, strict, boundary
        self.eval_every, self.checkpoint_every, self.rollout_values = eval_every, checkpoint_every, values
        self.stopped = False
        self.lag, self.seconds, self.begun = 0, {"generate": 0.0}, 0.0
        self.pending: Values = {}

    def text(self, jobs: list[Job], step: int) -> list[list[Completion]]:
        """Completions for `step`, by the weights of `step - staleness`; newer ones may serve where not strict."""
        begun = time.perf_counter()
        at_most = self.publishing.version(step) if self.publishing else step
        at_least = self.publishing.for_text(step, self.staleness) if self.publishing else step
        groups = self.rollouts.generate(jobs, at_least, at_least if self.strict else at_most)
        self.lag = max(at_most - c.version for group in groups for c in group)
        self.seconds["generate"] = time.perf_counter() - begun
        return groups

    def at_version(self, jobs: list[Job], step: int) -> list[list[Completion]]:
        """Completions by exactly the weights of `step`, for evaluation."""
        version = self.publishing.version(step) if self.publishing else step
        return self.rollouts.generate(jobs, version, version)

    def on_train_begin(self, args, state, control, **_) -> None:
        step = state.global_step
        if self.publishing:
            before = self.publishing.epoch
            sent = self.publishing.publish(step)
            if step == 0 or self.publishing.epoch != before:
                self.ledger.write(step, sent, 0)
        self.meters.start(step, self.params)
        if step == 0:
            self.tracker.log(0, self.evaluate(0))
        self.begun = time.perf_counter()

    def on_step_end(self, args, state, control, **_) -> None:
        step, values = state.global_step, {}
        if self.outer:
            values |= self.outer(step)
        check_weights(self.params, step)  # before they reach a worker
        published = time.perf_counter()
        if self.publishing:
            values |= self.ledger.write(step, self.publishing.publish(step), self.lag)
        measured = time.perf_counter()
        self.pending = values | {"time/publish": measured - published, "rollout/version_lag": self.lag}

    def on_log(self, args, state, control, logs=None, **_) -> None:
        if "train_runtime" in logs:  # TRL's summary at the end
            return
        step, begun = state.global_step, time.perf_counter()
        check_finite(logs["loss"], step)
        values = {ours: logs[name] for name, ours in NAMES.items() if logs.get(name) is not None}
        values |= self.rollout_values() | self.pending | self.meters.update(step, self.params, logs["learning_rate"])
        now = time.perf_counter()
        total, meters = now - self.begun, now - begun
        values |= {"time/generate": self.seconds["generate"], "time/meters": meters, "time/step": total - meters}
        values["time/publish_share"] = values["time/publish"] / (total - meters)
        values = {k: round(v, 4) if k.startswith("time/") else v for k, v in values.items()}
        if step % self.eval_every == 0 or step == self.steps:
            values |= self.evaluate(step)
        self.tracker.tick()
        self.tracker.log(step, values)
        self.show(step, values)
        asked = self.stop(step)
        if (asked or step % self.checkpoint_every == 0) and step % self.boundary == 0 and step < self.steps:
            self.save(step)
            if asked:
                self.stopped = control.should_training_stop = True
        self.seconds["generate"] = 0.0
        self.begun = time.perf_counter()

    def show(self, step: int, values: Values) -> None:
        """The state of the run in one line."""
        words = [f"step {step}/{self.steps}"]
        if "train/reward" in values:
            words.append(f"reward {values['train/reward']:.2f}")
        if "sync/bytes" in values:
            words.append(f"{values['sync/bytes'] / 1e6:.3f} MB, {values['sync/ratio_vs_bf16']:.0f}x below dense BF16")
        if "density/bf16" in values:
            words.append(f"{100 * values['density/bf16']:.3f} % changed")
        words.append(
            f"{values['time/step']:.1f} s, of it text {values['time/generate']:.1f}, sync {values['time/publish']:.2f}"
        )
        line = " · ".join(words)
        if self.tracker.bar.disable:
            log.info(line)
        else:
            self.tracker.bar.set_postfix_str(line)
