"""Grade-school word problems (Cobbe et al., arXiv 2110.14168; MIT): 7,473 to train on, 1,319 to test."""

import re
from collections.abc import Sequence
from typing import Any

from lowcomm.tasks import rows
from lowcomm.tasks.grading import Grader
from lowcomm.tasks.problem import Problem, Score, check_split

FINAL = re.compile(r"####\s*(-?[\d,.]*\d)")


class Gsm8k:
    """Rows with `question` and `answer`; the number after `####` is the answer. Rows without one are left out, counted.

    Args:
        name: what the record calls it.
        path: folder with `train` and `test` files (JSON lines as published, JSON, or Parquet).
        hub: instead of `path`, a dataset on the hub (openai/gsm8k).
        revision: commit of `hub`, 40 hexadecimal digits.
        accept: "boxed", or "number": where a completion has no box, its last number is its answer.
        verify_workers, verify_limit_s: of the grader, see `lowcomm.tasks.grading`.
        seed: not used, the problems are those of the files.
    """

    def __init__(
        self,
        *,
        name: str,
        seed: int,
        path: str | None = None,
        hub: str | None = None,
        revision: str | None = None,
        accept: str = "boxed",
        verify_workers: int = 1,
        verify_limit_s: float = 30.0,
    ):
        self.name, self._about, self._problems = name, {}, {}
        for split in ("train", "test"):
            found, about = rows.read(path, hub, revision, split)
            skipped: dict[str, int] = {}
            self._problems[split] = rows.kept(found, lambda i, row, split=split: problem(split, i, row), skipped)
            self._about[split] = about | {"skipped": skipped, "problems": len(self._problems[split])}
        self._grader = Grader(accept=accept, workers=verify_workers, limit_s=verify_limit_s)

    def problems(self, split: str) -> Sequence[Problem]:
        return self._problems[check_split(split)]

    def reward(self, problem: Problem, completion: str) -> Score:
        return self._grader.grade(problem.answer, completion)

    def metrics(self) -> dict[str, int]:
        return self._grader.metrics()

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "licence": "MIT", **self._about, **self._grader.describe()}

    def close(self) -> None:
        self._grader.close()


def problem(split: str, index: int, row: rows.Row) -> Problem | str:
    """The problem of a row, or why there is none."""
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not question.strip():
        return "no question"
    final = FINAL.search(answer) if isinstance(answer, str) else None
    if final is None:
        return "no answer"
    return Problem(f"{split}/{index}", question.strip(), final[1].replace(",", ""), 1, "word problem")
