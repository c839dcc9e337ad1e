"""Mostly basic Python problems (Austin et al., arXiv 2108.07732; CC-BY-4.0): 374 to train on, 90 to validate, 500 to
test.

A completion is right when its code passes the asserts of the problem, in a process of its own (`sandbox`).
"""

import re
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lowcomm.tasks import rows
from lowcomm.tasks.problem import Problem, Score
from lowcomm.tasks.sandbox import Sandbox

# task_id of the first and the last problem (section 2.1 of the paper); 1 to 10 are examples for prompts
SPLITS = {"train": (601, 974), "validation": (511, 600), "test": (11, 510)}
BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


class Mbpp:
    """Rows with `text` (or `prompt`), `test_list`, `test_setup_code` and `task_id`, which decides the split.

    `answer` of a problem holds its asserts; `boxed` of a score says whether there was a block of code.

    Args:
        name: what the record calls it.
        path: the published file of JSON lines, or a folder with it, or with one file a split.
        hub: instead of `path`, a dataset on the hub (google-research-datasets/mbpp).
        revision: commit of `hub`, 40 hexadecimal digits.
        tests_shown: asserts that the question shows; they fix the name of the function. The paper shows all three.
        limit_s, cpu_s, memory_mb: of one run, see `lowcomm.tasks.sandbox`.
        seed: not used, the problems are those of the file.
    """

    def __init__(
        self,
        *,
        name: str,
        seed: int,
        path: str | None = None,
        hub: str | None = None,
        revision: str | None = None,
        tests_shown: int = 3,
        limit_s: float = 10.0,
        cpu_s: int = 5,
        memory_mb: int = 1024,
    ):
        if tests_shown < 1:
            raise ValueError(f"tests_shown={tests_shown}: at least 1, or nothing says how the function is called")
        self.name, self._shown = name, tests_shown
        found, self._about = all_rows(path, hub, revision)
        skipped: dict[str, int] = {}
        problems = rows.kept(found, lambda index, row: problem(row, tests_shown), skipped)
        self._problems = {
            split: [p for p in problems if first <= int(p.id.partition("/")[2]) <= last]
            for split, (first, last) in SPLITS.items()
        }
        for split in ("train", "test"):
            if not self._problems[split]:
                raise ValueError(f"{split}: no row has a task_id from {SPLITS[split][0]} to {SPLITS[split][1]}")
        self._about |= {"skipped": skipped}
        self._sandbox = Sandbox(limit_s=limit_s, cpu_s=cpu_s, memory_mb=memory_mb)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in SPLITS:
            raise ValueError(f"split={split}: one of {', '.join(SPLITS)}")
        return self._problems[split]

    def reward(self, problem: Problem, completion: str) -> Score:
        """`verdict`: "passed", "failed", "timeout", "crashed" or "no code". Only "passed" is correct."""
        code = last_block(completion)
        verdict = "no code" if code is None else self._sandbox.run(code, problem.answer)
        with self._lock:
            self._counts[verdict] += 1
        return Score(float(verdict == "passed"), verdict == "passed", code is not None, verdict)

    def metrics(self) -> dict[str, int]:
        return {f"grade/{verdict.replace(' ', '_')}": count for verdict, count in sorted(self._counts.items())}

    def describe(self) -> dict[str, Any]:
        sizes = {f"{split}_problems": len(problems) for split, problems in self._problems.items()}
        about = {
            "name": self.name,
            "licence": "CC-BY-4.0",
            "tests_shown": self._shown,
            "grader": "asserts of the problem",
        }
        return about | sizes | self._about | {"guard": self._sandbox.guard()}

    def close(self) -> None:
        """Each answer's process has ended with its answer."""


def all_rows(path: str | None, hub: str | None, revision: str | None) -> tuple[list[rows.Row], dict[str, Any]]:
    """Of all splits: the published file has them together, the hub apart."""
    if path is not None:
        return rows.read(path, hub, revision, "")
    parts = [rows.read(path, hub, revision, split)[0] for split in SPLITS]
    found = [row for part in parts for row in part]
    return found, {"hub": hub, "revision": revision, "rows": len(found), "rows_sha256": rows.sha256_of(found)}


def problem(row: rows.Row, shown: int) -> Problem | str:
    """The problem of a row, or why there is none."""
    text, tests, number = rows.first(row, "text", "prompt"), row.get("test_list"), row.get("task_id")
    if not isinstance(text, str) or not text.strip():
        return "no text"
    if not isinstance(number, int):
        return "no task_id"
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        return "no tests"
    setup = row.get("test_setup_code") or "\n".join(row.get("test_imports") or [])
    question = f"{text.strip()}\nYour code should pass these tests:\n" + "\n".join(tests[:shown])
    return Problem(f"mbpp/{number}", question, "\n".join([setup, *tests]).strip(), 1, "python")


def last_block(completion: str) -> str | None:
    """The last closed block of code, or None."""
    blocks = BLOCK.findall(completion)
    return blocks[-1] if blocks else None
