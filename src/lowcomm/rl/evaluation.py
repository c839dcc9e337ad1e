"""Held-out problems answered by the published weights of one step: Pass@1 by greedy answers, and mean@k if asked.

Every answer is kept, in `evaluations/` of the run's folder.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase

from lowcomm.rollout import Completion, Job, Sampling
from lowcomm.tasks import Task
from lowcomm.tasks.evaluate import Evaluation, compare, evaluate

AtVersion = Callable[[list[Job], int], list[list[Completion]]]  # (jobs, step) -> groups, by the weights of that step


def run(cfg: DictConfig, task: Task, tokenizer: PreTrainedTokenizerBase, text: AtVersion, step: int,
        folder: Path) -> dict[str, float]:  # fmt: skip
    """`eval/*` values of `step`. `eval/loss` is the error rate, 1 - Pass@1; `eval/n` counts problems."""
    s = cfg.scale

    def generate(jobs: list[tuple[list[int], list[int]]], temperature: float) -> list[list[Completion]]:
        sampling = Sampling(s.max_completion, temperature)
        return text([Job(prompt, seeds, sampling) for prompt, seeds in jobs], step)

    common = {"style": cfg.prompt.style, "max_prompt_tokens": cfg.prompt.max_tokens, "problems": s.eval_problems}
    greedy = evaluate(task, generate, tokenizer, **common)
    keep(greedy, folder, step, "greedy")
    found = greedy.summary
    names = ("accuracy", "standard_error", "reward", "truncated", "boxless", "mean_tokens")
    values = {"loss": 1 - found["accuracy"], "n": found["problems"], **{k: found[k] for k in names}}
    if s.eval_samples > 1:
        k = sorted({1, s.eval_samples})
        sampled = evaluate(task, generate, tokenizer, samples=s.eval_samples, k=k, seed=cfg.seed,
                           temperature=cfg.sampling.temperature, **common)  # fmt: skip
        keep(sampled, folder, step, "sampled")
        found = sampled.summary
        values |= {found["metric"]: found["accuracy"], f"{found['metric']}_standard_error": found["standard_error"]}
        values |= {f"pass@{s.eval_samples}": found[f"pass@{s.eval_samples}"]}
    return {f"eval/{k}": v for k, v in values.items() if v is not None}


def keep(evaluation: Evaluation, folder: Path, step: int, kind: str) -> None:
    """Write the completions and their scores to `place`."""
    (folder / "evaluations").mkdir(exist_ok=True)
    evaluation.write(place(folder, step, kind))


def place(folder: Path, step: int, kind: str) -> Path:
    """Where the answers of a step are kept; ``kind``: "greedy" or "sampled"."""
    return folder / "evaluations" / f"step-{step:06d}-{kind}.jsonl.zst"


def paired(folder: Path, first: int, last: int) -> dict[str, Any]:
    """McNemar's exact test of the greedy answers at two steps: did the model get better?"""
    return compare(*(Evaluation.read(place(folder, step, "greedy")) for step in (first, last)))
