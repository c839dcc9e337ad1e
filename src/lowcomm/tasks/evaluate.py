"""Evaluation on held-out problems: Pass@1, mean@k and pass@k with errors, and every completion kept."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from lowcomm.rollout.generation import seed_of
from lowcomm.tasks.problem import Problem, Task
from lowcomm.tasks.prompts import rendered
from lowcomm.tasks.statistics import mcnemar, mean_and_error, pass_at_k

# (prompt, one seed a sample) of each problem, temperature -> as many completions with `tokens` and `finished`, in order
Generate = Callable[[list[tuple[list[int], list[int]]], float], Sequence[Sequence[Any]]]


@dataclass(frozen=True)
class Evaluation:
    """`rows`: one a completion (problem, sample, text, truncated, and the fields of its score); the rest: `summary`."""

    summary: dict[str, Any]
    rows: list[dict[str, Any]] = field(repr=False)

    def write(self, path: Path) -> None:
        """The completions as JSON lines compressed with zstd, after a line with the summary; whole or not at all."""
        lines = "".join(json.dumps(row) + "\n" for row in [{"summary": self.summary}, *self.rows])
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_bytes(zstandard.ZstdCompressor(level=9).compress(lines.encode()))
        aside.replace(path)

    @staticmethod
    def read(path: Path) -> "Evaluation":
        """What `write` wrote."""
        text = zstandard.ZstdDecompressor().decompress(path.read_bytes()).decode()
        summary, *rows = (json.loads(line) for line in text.splitlines())
        return Evaluation(summary["summary"], rows)


def evaluate(
    task: Task,
    generate: Generate,
    tokenizer: Any,
    *,
    style: str,
    max_prompt_tokens: int,
    problems: int | None = None,
    samples: int = 1,
    k: Sequence[int] = (),
    temperature: float = 0.0,
    seed: int = 0,
    split: str = "test",
) -> Evaluation:
    """Score `samples` completions of each of the first `problems` problems of `split` (None: all).

    Temperature 0 is greedy: one sample, Pass@1. Otherwise mean@samples estimates Pass@1, and pass@k is estimated
    without bias for each of `k`. Seeds are a function of (seed, problem, sample).

    Raises ValueError for samples that would all be the same, or k above samples.
    """
    if samples < 1 or temperature < 0:
        raise ValueError(f"samples={samples}, temperature={temperature}: at least 1, and at least 0")
    if temperature == 0 and samples > 1:
        raise ValueError(f"samples={samples}: greedy samples are all the same; take samples=1 or a temperature above 0")
    if bad := [one for one in k if not 1 <= one <= samples]:
        raise ValueError(f"k={bad[0]}: pass@k needs 1 <= k <= samples={samples}")
    if problems is not None and problems < 1:
        raise ValueError(f"problems={problems}: at least 1, or null for all")
    pairs, left_out = rendered(task.problems(split)[:problems], style, tokenizer, max_prompt_tokens)
    jobs = [(ids, [seed_of(seed, "evaluate", p.id, i) for i in range(samples)]) for p, ids in pairs]
    groups = generate(jobs, temperature)
    rows = [
        scored(task, problem, sample, completion, tokenizer)
        for (problem, _), group in zip(pairs, groups, strict=True)
        for sample, completion in enumerate(group)
    ]
    return Evaluation(summarised(rows, samples, k, temperature, style, left_out), rows)


def scored(task: Task, problem: Problem, sample: int, completion: Any, tokenizer: Any) -> dict[str, Any]:
    """One row: the completion's text without special tokens, what it is an answer to, and the fields of its score."""
    text = tokenizer.decode(completion.tokens, skip_special_tokens=True)
    about = {"id": problem.id, "level": problem.level, "answer": problem.answer, "sample": sample, "text": text}
    about |= {"tokens": len(completion.tokens), "truncated": not completion.finished}
    return about | asdict(task.reward(problem, text))


def summarised(
    rows: list[dict[str, Any]], samples: int, k: Sequence[int], temperature: float, style: str, left_out: int
) -> dict[str, Any]:
    """Means over problems, with standard errors (None for a single problem), and accuracy by level."""
    by_problem: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_problem.setdefault(row["id"], []).append(row)
    right = {id: sum(row["correct"] for row in group) for id, group in by_problem.items()}
    accuracy, error = mean_and_error([c / samples for c in right.values()])
    summary = {
        "metric": "pass@1, greedy" if temperature == 0 else f"mean@{samples}",
        "accuracy": accuracy,
        "standard_error": error if len(right) > 1 else None,
        "reward": mean_and_error([row["value"] for row in rows])[0],
        "truncated": sum(row["truncated"] for row in rows) / len(rows),
        "boxless": sum(not row["boxed"] for row in rows) / len(rows),
        "problems": len(right),
        "samples": samples,
        "left_out": left_out,
        "temperature": temperature,
        "prompt": style,
        "mean_tokens": sum(row["tokens"] for row in rows) / len(rows),
    }
    for one in k:
        value, error = mean_and_error([pass_at_k(samples, c, one) for c in right.values()])
        summary[f"pass@{one}"], summary[f"pass@{one}_standard_error"] = value, error if len(right) > 1 else None
    levels: dict[int, list[bool]] = {}
    for row in rows:
        levels.setdefault(row["level"], []).append(row["correct"])
    summary["by_level"] = {str(level): sum(found) / len(found) for level, found in sorted(levels.items())}
    return summary


def compare(before: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Paired test of two evaluations of the same problems by their first samples: McNemar's, exact, two-sided.

    Raises ValueError when the problems are not the same.
    """
    first = [{row["id"]: row["correct"] for row in e.rows if row["sample"] == 0} for e in (before, after)]
    if first[0].keys() != first[1].keys():
        differ = sorted(first[0].keys() ^ first[1].keys())
        raise ValueError(f"the evaluations are not of the same problems: {len(differ)} differ, such as {differ[0]}")
    ids = sorted(first[0])
    lost, won, p = mcnemar([first[0][i] for i in ids], [first[1][i] for i in ids])
    accuracies = [sum(f.values()) / len(ids) for f in first]
    return {"problems": len(ids), "before": accuracies[0], "after": accuracies[1], "lost": lost, "won": won, "p": p}
