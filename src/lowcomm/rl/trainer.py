"""TRL's GRPO with our optimizer, rates, data order and text; stale text gets the right ratio.

The trainer itself holds nothing that a resumed run would miss: weights, optimizer state and step are given to it.
"""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from lowcomm.inner import rate, step_seed
from lowcomm.rl.data import Prompts
from lowcomm.rl.outer import Together
from lowcomm.rollout import Completion, Job, Sampling, seed_of
from lowcomm.tasks import Task

Text = Callable[[list[Job], int], list[list[Completion]]]  # (jobs, optimizer step) -> groups of completions


class Begun:
    """A trainer that starts at optimizer step `begun` of `steps`, with the optimizer and rates of our configuration.

    Mixed into TRL's trainers: `model`, `steps` and so on come from them.
    """

    def begin(self, begun: int, together: Together, state: dict | None, cfg: DictConfig) -> None:
        """Keep what TRL's methods below ask for; ``state``: the optimizer's from a checkpoint, None at the start."""
        self.begun, self.together, self.inner_state, self.cfg = begun, together, state, cfg
        self.weight = 1.0  # of this trainer's gradient in a mean over all

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Ours, with the state of the checkpoint and the configuration's peak rates."""
        if self.optimizer is None:
            self.optimizer = self.together.optimizer
            own = {id(p) for p in self.model.parameters() if p.requires_grad}
            held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
            if own != held:
                raise AssertionError(
                    "the optimizer does not hold exactly the model's parameters: it would train others"
                )
            peaks = [group["lr"] for group in self.optimizer.param_groups]
            if self.inner_state is not None:
                self.optimizer.load_state_dict(self.inner_state)
            for group, peak in zip(self.optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak  # the schedule's factor is on top
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        """The configuration's schedule, as a factor of the peak rates, from step `begun` on."""
        if self.lr_scheduler is None:
            factor = functools.partial(rate, self.cfg.algorithm.schedule, steps=self.cfg.scale.steps)
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda k: factor(step=self.begun + k))
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """TRL's last look at a step's gradients: they are averaged first."""
        self.together.average(self.weight)
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> float:
        if grad_norm is None:  # nothing was clipped
            self.together.average(self.weight)
        return super()._get_grad_norm(model, grad_norm)

    def _init_training_state(self, *args: Any) -> tuple[int, int]:
        epochs = super()._init_training_state(*args)
        self.state.global_step = self.begun
        return epochs


class StepSeeds(TrainerCallback):
    """The global randomness of a step (shuffling into micro batches, dropout) is a function of the step alone."""

    def __init__(self, seed: int, worker: int):
        self.seed, self.worker = seed, worker

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        """Seed torch for the step that begins."""
        torch.manual_seed(step_seed(self.seed, self.worker, state.global_step))


def check_alone(trainer: Trainer, cfg: DictConfig) -> None:
    """The parameters have the dtype that was asked for, and nobody averages gradients. Raises AssertionError."""
    wanted = getattr(torch, cfg.model.dtype)
    for name, p in trainer.model.named_parameters():
        if p.dtype != wanted:
            raise AssertionError(f"'{name}' is {p.dtype}, model.dtype={cfg.model.dtype}: the masters would be lost")
    if trainer.accelerator.num_processes != 1:
        raise AssertionError("accelerate sees several processes and would average gradients at every step")


class GrpoTrainer(Begun, GRPOTrainer):
    """One GRPO trainer. ``text`` answers the jobs of a step; ``task`` scores them. Raises as `check_alone`."""

    def __init__(self, model: nn.Module, args: GRPOConfig, cfg: DictConfig, prompts: Prompts, task: Task, text: Text,
                 tokenizer: PreTrainedTokenizerBase, callbacks: list[TrainerCallback], begun: int,
                 together: Together, state: dict | None):  # fmt: skip
        self.prompts, self.task, self.text = prompts, task, text
        self.begin(begun, together, state, cfg)
        s, g = cfg.scale, cfg.sampling
        self.sampling = Sampling(s.max_completion, g.temperature, g.top_p, g.top_k)
        super().__init__(
            model=model, reward_funcs=self.reward, args=args, train_dataset=prompts.dataset(begun, s.steps),
            processing_class=tokenizer, rollout_func=lambda asked, _: self.rollout(asked),
            callbacks=[StepSeeds(cfg.seed, prompts.worker), *callbacks],
        )  # fmt: skip
        check_alone(self, cfg)
        self._step = begun * args.gradient_accumulation_steps
        self.rollout_values: dict[str, float] = {}
        self._logps: Tensor | None = None

    def rollout(self, asked: list[str]) -> dict[str, list]:
        """TRL's `rollout_func`: problem ids, each repeated for its group, to prompts, answers, log-probabilities."""
        size, step = self.num_generations, self.state.global_step
        ids = [self.prompts.ids[name] for name in asked[::size]]
        if asked != [name for name in asked[::size] for _ in range(size)]:
            raise AssertionError("TRL no longer hands over prompts in whole groups, in order")
        first = self.prompts.worker * len(ids)  # places count through all trainers, as if one had them all
        jobs = [
            Job(tokens, [seed_of(self.cfg.seed, step, place, repeat) for repeat in range(size)], self.sampling)
            for place, tokens in enumerate(ids, first)
        ]
        answers = [completion for group in self.text(jobs, step) for completion in group]
        self.rollout_values = {
            "rollout/truncated": sum(not a.finished for a in answers) / len(answers),
            "rollout/tokens": sum(len(a.tokens) for a in answers) / len(answers),
        }
        return {
            "prompt_ids": [tokens for tokens in ids for _ in range(size)],
            "completion_ids": [a.tokens for a in answers],
            "logprobs": [a.logprobs for a in answers],
        }

    def reward(self, prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        """One function for training and evaluation: the task's. Its counts are logged as those of this batch."""
        before = self.task.metrics()
        scores = [self.task.reward(self.prompts.problems[p], c) for p, c in zip(prompts, completions, strict=True)]
        self.rollout_values |= {
            "rollout/correct": sum(s.correct for s in scores) / len(scores),
            "rollout/boxed": sum(s.boxed for s in scores) / len(scores),
            **{f"grade/{verdict}": float(n) for verdict, n in sorted(Counter(s.verdict for s in scores).items())},
            **{name: float(n - before.get(name, 0)) for name, n in self.task.metrics().items()},
        }
        return [s.value for s in scores]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """The sampler's log-probabilities are the old ones of the ratio: TRL ignores them without vLLM."""
        out = super()._generate_and_score_completions(inputs)
        out["old_per_token_logps"] = out["sampling_per_token_logps"]
        return out

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple:
        out = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._logps = out[0].detach()
        return out

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        loss = super()._compute_loss(model, inputs)
        if self.loss_type == "dapo":  # a mean over the tokens of the step
            self.weight = float(inputs["num_items_in_batch"].clamp(min=1))
        mask = inputs["completion_mask"]
        gap = ((self._logps - inputs["old_per_token_logps"]).abs() * mask).sum() / mask.sum().clamp(min=1)
        self._metrics["train"]["logp_gap"].append(gap.item())
        return loss
