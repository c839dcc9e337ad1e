"""What every reinforcement-learning workload speaks of: a problem, the score of a completion, a task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Problem:
    """One problem, with the fields of MATH-500."""

    id: str
    question: str
    answer: str
    level: int
    subject: str


@dataclass(frozen=True)
class Score:
    """Of one completion: the reward `value` in [0, 1], and what was found.

    `verdict`: "no box", "string", "different", "guarded", "verified", "refuted", "error" or "timeout" from the grader
    (see `grading`), or what a task of another kind says.
    """

    value: float
    correct: bool
    boxed: bool
    verdict: str


class Task(Protocol):
    """Problems and their reward. Knows nothing of models, trainers or Hydra. Close it when done."""

    name: str

    def problems(self, split: str) -> Sequence[Problem]:
        """Of "train" or "test", which share no problem; the same list each time."""

    def reward(self, problem: Problem, completion: str) -> Score:
        """Score of the text that a model wrote after the prompt. Safe to call from several threads."""

    def metrics(self) -> dict[str, int]:
        """Counts of the grader since the beginning, for the training log: `grade/fast_path`, `grade/verify_timeout`…"""

    def describe(self) -> dict[str, Any]:
        """What the record says of the data: name, revision, sizes, hashes. JSON-able, no absolute paths."""

    def close(self) -> None:
        """End helper processes."""


def check_split(split: str) -> str:
    """The split itself. Raises ValueError unless it is "train" or "test"."""
    if split not in ("train", "test"):
        raise ValueError(f"split={split}: must be train or test")
    return split
