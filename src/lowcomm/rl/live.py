"""What happens around an optimizer step, in this order: outer step, publish, measure, evaluate, write, checkpoint."""

import logging
import time
from collections.abc import Callable

from torch import nn
from tqdm import tqdm
from transformers import TrainerCallback

from lowcomm.rl.generate import Rollouts
from lowcomm.rl.ledger import Ledger
from lowcomm.rl.meters import Meters
from lowcomm.rl.outer import Together
from lowcomm.rl.outer_ranks import SharedPublishing, any_of, means
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

    ``publishing`` is None where nothing is published. ``together`` says at which steps the trainers join:
    what is published, evaluated and saved is what they then have in common, and one line of metrics is written,
    with means over the trainers and the steps since the last. ``ledger`` is None and ``tracker`` silent on ranks other
    than 0. ``evaluate`` and ``save`` are called with the step; ``stop`` says whether to end early, at a step where
    ``save`` can be called. ``answers``: where evaluation's text comes from, if not from ``rollouts``.
    """

    def __init__(self, params: dict[str, nn.Parameter], rollouts: Rollouts,
                 publishing: Publishing | SharedPublishing | None, ledger: Ledger | None, meters: Meters,
                 tracker: Tracker, evaluate: Callable[[int], Values], save: Callable[[int], None],
                 stop: Callable[[int], bool], *, steps: int, staleness: int, strict: bool, eval_every: int,
                 checkpoint_every: int, boundary: int, values: Callable[[], Values], together: Together,
                 answers: Rollouts | None = None):  # fmt: skip
        self.params, self.rollouts, self.publishing, self.ledger = params, rollouts, publishing, ledger
        self.meters, self.tracker, self.together, self.answers = meters, tracker, together, answers or rollouts
        self.evaluate, self.save, self.stop = evaluate, save, stop
        self.steps, self.staleness, self.strict, self.boundary = steps, staleness, strict, boundary
        self.eval_every, self.checkpoint_every, self.rollout_values = eval_every, checkpoint_every, values
        self.stopped = False
        self.lag, self.seconds, self.begun = 0, {"generate": 0.0}, 0.0
        self.pending: Values = {}
        self.joined: Values = {}  # what is said of the step at which the trainers join
        self.round: list[Values] = []  # of the steps since the last such

    def text(self, jobs: list[Job], step: int) -> list[list[Completion]]:
        """Completions for `step`, by the weights that were joined last, `staleness` steps before; newer ones may serve
        where not strict."""
        begun = time.perf_counter()
        at_most = at_least = now = step
        if self.publishing:
            last, now = self.together.last(step), self.publishing.version(step)
            at_most = self.publishing.version(last)
            at_least = self.publishing.for_text(last, self.staleness)
        groups = self.rollouts.generate(jobs, at_least, at_least if self.strict else at_most)
        self.lag = max(now - c.version for group in groups for c in group)
        self.seconds["generate"] = time.perf_counter() - begun
        return groups

    def at_version(self, jobs: list[Job], step: int) -> list[list[Completion]]:
        """Completions by exactly the weights of `step`, for evaluation."""
        version = self.publishing.version(step) if self.publishing else step
        return self.answers.generate(jobs, version, version)

    def on_train_begin(self, args, state, control, **_) -> None:
        """Publish the weights that training starts from, if they are not there yet, and evaluate them at step 0."""
        step = state.global_step
        if self.publishing:
            before = self.publishing.epoch
            sent = self.publishing.publish(step)
            if sent and (step == 0 or self.publishing.epoch != before):
                self.ledger.write(step, sent, 0)
        self.meters.start(step, self.params)
        if step == 0 and self.tracker.active:
            self.tracker.log(0, self.evaluate(0))
        self.begun = time.perf_counter()

    def on_step_end(self, args, state, control, **_) -> None:
        """Outer step and publishing, where they are due. Raises FloatingPointError before bad weights get out."""
        step, begun = state.global_step, time.perf_counter()
        sent_to_others = self.together.after_step(step)
        self.joined = dict(sent_to_others)
        check_weights(self.params, step)  # before they reach a worker
        published = time.perf_counter()
        if self.publishing and self.together.joins(step):
            sent = self.publishing.publish(step)
            if sent:
                self.joined |= self.ledger.write(step, sent, self.lag, sent_to_others)
        measured = time.perf_counter()
        self.pending = {"time/publish": measured - published, "rollout/version_lag": self.lag}
        if sent_to_others:
            self.pending["time/outer"] = published - begun

    def on_log(self, args, state, control, logs=None, **_) -> None:
        """TRL has this step's numbers: measure, and where the trainers join write, evaluate and save.

        Raises FloatingPointError for a loss that is not finite.
        """
        if "train_runtime" in logs:  # TRL's summary at the end
            return
        step, begun = state.global_step, time.perf_counter()
        check_finite(logs["loss"], step)
        joins = self.together.joins(step)
        if joins:
            self.joined |= self.meters.update(step, self.params, logs["learning_rate"])
        now = time.perf_counter()
        total, meters = now - self.begun, now - begun
        values = {ours: logs[name] for name, ours in NAMES.items() if logs.get(name) is not None}
        values |= self.rollout_values() | self.pending
        values |= {"time/generate": self.seconds["generate"], "time/meters": meters, "time/step": total - meters}
        self.tracker.tick()
        self.show(step, values | self.joined)
        self.round.append(values)
        if joins:
            self.write(step, control)
        self.seconds["generate"] = 0.0
        self.begun = time.perf_counter()

    def write(self, step: int, control) -> None:
        """The trainers have joined: a line of metrics, evaluation and checkpoint where they are due."""
        values = means(self.together.wire, self.round) | self.joined
        values["time/publish_share"] = values["time/publish"] / values["time/step"]
        values = {k: round(v, 4) if k.startswith("time/") else v for k, v in values.items()}
        self.round = []
        if (self.due(step, self.eval_every) or step == self.steps) and self.tracker.active:
            values |= self.evaluate(step)
        self.tracker.log(step, values)
        asked = any_of(self.together.wire, self.stop(step))
        if (asked or self.due(step, self.checkpoint_every)) and step % self.boundary == 0 and step < self.steps:
            self.save(step)
            if asked:
                self.stopped = control.should_training_stop = True

    def due(self, step: int, every: int) -> bool:
        """Whether a multiple of `every` lies in the steps since the trainers joined before."""
        return step // every > self.together.last(step - 1) // every

    def show(self, step: int, values: Values) -> None:
        """The state of the run in one line."""
        if not self.tracker.active:
            return
        words = [f"step {step}/{self.steps}"]
        if "train/reward" in values:
            words.append(f"reward {values['train/reward']:.2f}")
        if "sync/bytes" in values:
            words.append(f"{values['sync/bytes'] / 1e6:.3f} MB, {values['sync/ratio_vs_bf16']:.0f}x below dense BF16")
        if "comm/bytes" in values:
            words.append(f"{values['comm/bytes'] / 1e6:.3f} MB a trainer")
        if "comm/sparsity" in values:
            words.append(f"{100 * values['comm/sparsity']:.1f} % held back")
        if "density/bf16" in values:
            words.append(f"{100 * values['density/bf16']:.3f} % changed")
        words.append(
            f"{values['time/step']:.1f} s, of it text {values['time/generate']:.1f}, sync {values['time/publish']:.2f}"
        )
        if self.tracker.bar.disable:  # a bar says by itself how long still
            left = tqdm.format_interval((self.steps - step) * values["time/step"])
            log.info(" · ".join([*words, f"{left} left"] if step < self.steps else words))
        else:
            self.tracker.bar.set_postfix_str(" · ".join(words))
