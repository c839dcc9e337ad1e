"""A workload that a random model of one token a character can learn: to write letters. For trying things out."""

from collections.abc import Sequence
from typing import Any

from lowcomm.tasks import Problem, Score


class Letters:
    """Reward: share of lower-case letters among the characters written. `correct`: at least half are.

    Args:
        name: what the record calls it.
        seed: of the run; the problems are the same for all.
        size: training problems, and as many test problems.
    """

    def __init__(self, *, name: str, seed: int, size: int = 64):
        if size < 1:
            raise ValueError(f"size={size}: must be at least 1")
        self.name, self.size = name, size

    def problems(self, split: str) -> Sequence[Problem]:
        """To write numbers, each another one; the answer is not looked at."""
        first = {"train": 0, "test": self.size}[split]
        return [Problem(f"{split}-{i}", f"Write {first + i}.", str(first + i), 1, "letters") for i in range(self.size)]

    def reward(self, problem: Problem, completion: str) -> Score:
        """The share itself; `boxed` says whether there is any letter."""
        share = sum(c.islower() for c in completion) / max(1, len(completion))
        return Score(share, share >= 0.5, share > 0, "share")

    def metrics(self) -> dict[str, int]:
        """None: nothing is graded."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Name and sizes, for the record."""
        return {"name": self.name, "revision": None, "train_problems": self.size, "test_problems": self.size}

    def close(self) -> None:
        """Nothing was started."""
        pass
