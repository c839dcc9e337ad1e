"""Generated arithmetic in graded difficulty: the offline default, and what tiny models can learn."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any

import numpy as np

from lowcomm.tasks.grading import Grader
from lowcomm.tasks.problem import Problem, Score, check_split

RECIPE = 1  # raise it when the same seed would give other problems
LEVELS = {1: "sums of two digits", 2: "sums and differences of two numbers below 20", 3: "the same below 100",
          4: "three numbers below 100", 5: "products of a number below 100 and a digit"}  # fmt: skip
STREAMS = {"train": 1, "test": 2, "text": 3}
FRUITLESS = 5000  # draws without a new problem after which the levels are taken for exhausted
FORMAT_SHARE, DIGIT_SHARE = 0.1, 0.8  # of the dense reward, for a box and for its digits; an exact answer has 1


class Arithmetic:
    r"""Integer arithmetic with boxed answers, such as "What is 3 + 8?" and `\boxed{11}`.

    Problem `index` of a stream is a pure function of (seed, index), by Philox. Whether a problem may be trained on or
    tested is decided by the hash of its text, so that no seed trains on what another tests.

    Args:
        name: what the record calls it.
        levels: of difficulty, 1 to 5, drawn in turn: sums of two digits; sums and differences of two numbers below 20,
            or below 100; three numbers below 100; a number below 100 times a digit.
        train_size: problems, the levels in equal shares; at low levels many are drawn more than once.
        test_size: different problems, the same for every seed; an exhausted level leaves its share to the others.
        test_share: share of all problems that only tests may use.
        reward: "exact" (1 for the right answer, else 0), or "digits", a dense one for models too small to be right:
            0.1 for a box, 0.8 times the share of right digits, 1 for the right answer. `correct` is exact in both.
        accept: "boxed", or "number": where a completion has no box, its last number is its answer.
        verify_workers, verify_limit_s: of the grader, see `lowcomm.tasks.grading`.
        seed: draws the training problems.
    """

    def __init__(
        self,
        *,
        name: str,
        seed: int,
        levels: Sequence[int] = (1, 2),
        train_size: int = 1024,
        test_size: int = 200,
        test_share: float = 0.25,
        reward: str = "exact",
        accept: str = "number",
        verify_workers: int = 1,
        verify_limit_s: float = 30.0,
    ):
        check_levels(levels)
        if reward not in ("exact", "digits"):
            raise ValueError(f"reward={reward}: must be exact or digits")
        if train_size < 1 or test_size < 1:
            raise ValueError(f"train_size={train_size}, test_size={test_size}: both must be at least 1")
        if not 0 < test_share < 1:
            raise ValueError(f"test_share={test_share}: a share of the problems, between 0 and 1")
        self.name, self._seed, self._levels, self._reward = name, seed, tuple(levels), reward
        self._share = test_share
        train = (p for p in drawn("train", seed, self._levels) if not held_out(p, test_share))
        self._problems = {"train": list(islice(train, train_size)), "test": self._distinct(test_size)}
        self._grader = Grader(accept=accept, workers=verify_workers, limit_s=verify_limit_s)

    def _distinct(self, size: int) -> list[Problem]:
        """The first `size` different test problems of the stream with seed 0."""
        found: dict[str, Problem] = {}
        fruitless = 0
        for problem in drawn("test", 0, self._levels):
            if held_out(problem, self._share) and problem.question not in found:
                found[problem.question], fruitless = problem, 0
            else:
                fruitless += 1
            if len(found) == size or fruitless > FRUITLESS:
                break
        if len(found) < size:
            raise ValueError(
                f"test_size={size}: levels={list(self._levels)} have only about {len(found)} different problems to "
                f"test with (test_share={self._share}); lower it, or add levels"
            )
        return list(found.values())

    def problems(self, split: str) -> Sequence[Problem]:
        return self._problems[check_split(split)]

    def reward(self, problem: Problem, completion: str) -> Score:
        score = self._grader.grade(problem.answer, completion)
        answer = self._grader.answer(completion)
        if self._reward == "exact" or score.correct or answer is None:
            return score
        value = FORMAT_SHARE * score.boxed + DIGIT_SHARE * right_digits(problem.answer, answer)
        return replace(score, value=value)

    def metrics(self) -> dict[str, int]:
        return self._grader.metrics()

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "recipe": RECIPE,
            "levels": {level: LEVELS[level] for level in self._levels},
            "seed": self._seed,
            "reward": self._reward,
            "test_share": self._share,
            **{f"{split}_problems": len(problems) for split, problems in self._problems.items()},
            **{f"{split}_sha256": sha256_of(problems) for split, problems in self._problems.items()},
            **self._grader.describe(),
        }

    def close(self) -> None:
        self._grader.close()


def check_levels(levels: Sequence[int]) -> None:
    """Raises ValueError for none, or for one that is not of LEVELS."""
    if not levels or not set(levels) <= set(LEVELS):
        raise ValueError(f"levels={list(levels)}: one or more of {', '.join(map(str, LEVELS))}")


def drawn(stream: str, seed: int, levels: Sequence[int]) -> Iterator[Problem]:
    """Problem after problem of an endless stream; problems come again."""
    return (problem(stream, seed, index, levels[index % len(levels)]) for index in count())


def problem(stream: str, seed: int, index: int, level: int) -> Problem:
    """Problem `index`: numbers from raw bits of Philox with key (seed, index), a stream NumPy keeps (NEP 19)."""
    philox = np.random.Philox(key=np.array([seed, index], dtype=np.uint64), counter=[0, 0, 0, STREAMS[stream]])
    bits = [int(word) for word in philox.random_raw(4)]

    def between(word: int, low: int, high: int) -> int:
        return low + bits[word] % (high - low + 1)

    if level == 1:
        a, b = between(0, 0, 9), between(1, 0, 9)
        text, value, subject = f"{a} + {b}", a + b, "sum"
    elif level in (2, 3):
        most = 19 if level == 2 else 99
        a, b, plus = between(0, 0, most), between(1, 0, most), between(2, 0, 1)
        text, value, subject = (f"{a} + {b}", a + b, "sum") if plus else (f"{a} - {b}", a - b, "difference")
    elif level == 4:
        a, b, c, plus = between(0, 0, 99), between(1, 0, 99), between(2, 0, 99), between(3, 0, 1)
        text, value, subject = f"{a} + {b} {'+' if plus else '-'} {c}", a + b + (c if plus else -c), "three"
    else:
        a, b = between(0, 2, 99), between(1, 2, 9)
        text, value, subject = f"{a} * {b}", a * b, "product"
    return Problem(f"{stream}-{seed}-{index}", f"What is {text}?", str(value), level, subject)


def held_out(problem: Problem, share: float) -> bool:
    """Test problems by the hash of the text, so that the sides share none whatever is drawn."""
    return int(hashlib.sha256(problem.question.encode()).hexdigest()[:16], 16) < share * 2**64


def texts(seed: int, levels: Sequence[int], test_share: float, test: bool) -> Iterator[tuple[str, str]]:
    """(question, answer) after (question, answer) to pretrain on, of one side of the split; they come again."""
    stream = ((p, held_out(p, test_share)) for p in drawn("text", seed, levels))
    return ((p.question, p.answer) for p, out in stream if out == test)


def right_digits(gold: str, answer: str) -> float:
    """Share of characters that agree, from the right, over the longer of the two."""
    agree = sum(a == b for a, b in zip(reversed(gold), reversed(answer.strip()), strict=False))
    return agree / max(len(gold), len(answer.strip()))


def sha256_of(problems: Sequence[Problem]) -> str:
    """SHA-256 (hex) of problems in their order: of ids, questions, answers, levels and subjects."""
    lines = (json.dumps([p.id, p.question, p.answer, p.level, p.subject]) for p in problems)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
