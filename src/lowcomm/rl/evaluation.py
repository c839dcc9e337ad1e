"""Greedy answers to the first test problems, by the published weights of one step."""

from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase

from lowcomm.rollout import Completion, Job, Sampling, seed_of
from lowcomm.tasks import Task
from lowcomm.tasks.prompts import rendered

AtVersion = Callable[[list[Job], int], list[list[Completion]]]


def run(
    cfg: DictConfig, task: Task, tokenizer: PreTrainedTokenizerBase, text: AtVersion, step: int, folder: Path
) -> dict:
    problems = task.problems("test")[: cfg.scale.eval_problems]
    kept, _ = rendered(problems, cfg.prompt.style, tokenizer, cfg.prompt.max_tokens)
    sampling = Sampling(cfg.scale.max_completion, 0.0)
    jobs = [Job(ids, [seed_of(cfg.seed, "eval", step, i)], sampling) for i, (_, ids) in enumerate(kept)]
    answers = [group[0] for group in text(jobs, step)]
    texts = [tokenizer.decode(a.tokens, skip_special_tokens=True) for a in answers]
    right = [task.reward(p, t).correct for (p, _), t in zip(kept, texts, strict=True)]
    accuracy = sum(right) / len(right)
    return {"eval/loss": 1 - accuracy, "eval/accuracy": accuracy, "eval/n": len(right)}
