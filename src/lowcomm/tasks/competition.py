"""MATH, competition problems (Hendrycks et al., arXiv 2103.03874), in the three splits that papers call by that name.

Nothing of it is in this repository: the rights in the problems are disputed. Load it from the hub or from your disk.
"""

import hashlib
import logging
import re
from collections.abc import Sequence
from typing import Any

from lowcomm.tasks import rows
from lowcomm.tasks.answers import last_boxed
from lowcomm.tasks.grading import Grader
from lowcomm.tasks.problem import Problem, Score

log = logging.getLogger(__name__)
# rows of train and test; grail holds 500 of the training rows out to validate
CONVENTIONS = {"original": (7500, 5000), "prm800k": (12000, 500), "grail": (7500, 5000)}
VALIDATION = 500


class Math:
    r"""Problems whose answer is the content of the last box of their solution.

    Rows have `problem` and `solution` (`level` as "Level 3", `type`), or the fields of MATH-500 (`answer`, `level` as
    3, `subject`, `unique_id`). Rows without problem, answer or level are left out and counted, and so are training
    problems whose text is also a test problem's.

    Args:
        name: what the record calls it.
        convention: "original", 7,500 to train and 5,000 to test; "prm800k", 12,000 and 500 (MATH-500; 4,500 of the
            original test problems are then trained on); "grail", 7,000 to train, 500 to validate, 5,000 to test.
        path: folder with `train` and `test` files (JSON, JSON lines, Parquet; also a file a problem).
        hub: instead of `path`, a dataset on the hub; its seven configurations are joined.
        revision: commit of `hub`, 40 hexadecimal digits.
        test_hub, test_revision: where the test split comes from another dataset (HuggingFaceH4/MATH-500).
        levels: of difficulty to keep, 1 to 5; SimpleRL-Zoo trains on 3 to 5. Both splits.
        accept, verify_workers, verify_limit_s: of the grader, see `lowcomm.tasks.grading`.
        seed: not used, the problems are those of the files, in their order.
    """

    def __init__(
        self,
        *,
        name: str,
        seed: int,
        convention: str = "original",
        path: str | None = None,
        hub: str | None = None,
        revision: str | None = None,
        test_hub: str | None = None,
        test_revision: str | None = None,
        levels: Sequence[int] = (1, 2, 3, 4, 5),
        accept: str = "boxed",
        verify_workers: int = 1,
        verify_limit_s: float = 30.0,
    ):
        if convention not in CONVENTIONS:
            raise ValueError(f"convention={convention}: one of {', '.join(CONVENTIONS)}")
        if not levels or not set(levels) <= set(range(1, 6)):
            raise ValueError(f"levels={list(levels)}: one or more of 1 to 5")
        if test_hub is not None and hub is None:
            raise ValueError(f"test_hub={test_hub}: needs hub, where the training rows are")
        self.name, self._convention, self._levels = name, convention, tuple(levels)
        sources = {"train": (hub, revision, ""), "test": (hub, revision, "")}
        if test_hub is not None:
            sources["test"] = (test_hub, test_revision, "test_")
        self._problems, self._about = {}, {}
        for (split, (where, commit, prefix)), rule in zip(sources.items(), CONVENTIONS[convention], strict=True):
            found, about = rows.read(path, where, commit, split, f"workload.{prefix}")
            if len(found) != rule:
                log.warning("workload.convention=%s: %d rows to %s, not %d", convention, len(found), split, rule)
            skipped: dict[str, int] = {}
            kept = rows.kept(found, lambda i, row, split=split: problem(split, i, row), skipped)
            self._problems[split] = [p for p in kept if p.level in self._levels]
            self._about[split] = about | {"skipped": skipped, "complete": len(found) == rule}
        tested = {text_key(p) for p in self._problems["test"]}
        train = [p for p in self._problems["train"] if text_key(p) not in tested]
        self._about["train"]["also_tested"] = len(self._problems["train"]) - len(train)
        self._problems["train"] = train
        if convention == "grail":
            self._problems["train"], self._problems["validation"] = stratified(train, VALIDATION)
        for split, problems in self._problems.items():
            if not problems:
                raise ValueError(f"{split}: no problem is left of levels={list(levels)}; see the fields of its rows")
        self._grader = Grader(accept=accept, workers=verify_workers, limit_s=verify_limit_s)

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self._problems:
            raise ValueError(f"split={split}: one of {', '.join(self._problems)} (convention={self._convention})")
        return self._problems[split]

    def reward(self, problem: Problem, completion: str) -> Score:
        return self._grader.grade(problem.answer, completion)

    def metrics(self) -> dict[str, int]:
        return self._grader.metrics()

    def describe(self) -> dict[str, Any]:
        sizes = {f"{split}_problems": len(problems) for split, problems in self._problems.items()}
        about = {"name": self.name, "convention": self._convention, "levels": list(self._levels)}
        return about | {"licence": "disputed"} | sizes | self._about | self._grader.describe()

    def close(self) -> None:
        self._grader.close()


def problem(split: str, index: int, row: rows.Row) -> Problem | str:
    """The problem of a row, or why there is none."""
    question, solution = rows.first(row, "problem", "question"), row.get("solution")
    answer = row.get("answer")
    if answer is None and isinstance(solution, str):
        answer = last_boxed(solution)
    if not isinstance(question, str) or not question.strip():
        return "no problem"
    if answer is None or not str(answer).strip():
        return "no answer"
    level = re.fullmatch(r"(?:Level\s*)?([1-5])", str(rows.first(row, "level", "difficulty")).strip())
    if level is None:
        return "no level"
    name = str(rows.first(row, "unique_id") or f"{split}/{index}")
    subject = str(rows.first(row, "subject", "type") or "")
    return Problem(name, question.strip(), str(answer).strip(), int(level[1]), subject)


def text_key(problem: Problem) -> str:
    """SHA-256 (hex) of the question with its white space made even: equal for the same problem in two files."""
    return hashlib.sha256(" ".join(problem.question.split()).encode()).hexdigest()


def stratified(problems: list[Problem], count: int) -> tuple[list[Problem], list[Problem]]:
    """Training and validation problems: of each subject and level its share, the ones whose text has the least hash.

    Which 500 grail's own environment holds out is not published; these are ours. Raises ValueError where there are
    not more than `count` problems.
    """
    if len(problems) <= count:
        raise ValueError(f"convention=grail: {len(problems)} training problems, {count} of which are to be held out")
    strata: dict[tuple[str, int], list[Problem]] = {}
    for one in sorted(problems, key=text_key):
        strata.setdefault((one.subject, one.level), []).append(one)
    exact = {key: count * len(group) / len(problems) for key, group in strata.items()}
    share = {key: int(value) for key, value in exact.items()}
    for key in sorted(exact, key=lambda key: (share[key] - exact[key], key))[: count - sum(share.values())]:
        share[key] += 1
    out = {text_key(one) for key, group in strata.items() for one in group[: share[key]]}
    return [p for p in problems if text_key(p) not in out], [p for p in problems if text_key(p) in out]
