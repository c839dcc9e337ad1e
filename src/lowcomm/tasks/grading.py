"""One grader for reward and evaluation.

The last box of the completion, then strings, then algebra: the two graders repair each other. Strings alone miss
1,000 for 1000, 2*sqrt(2) for sqrt(8) and sets in another order; algebra alone misses brace-less fractions and per cent.
"""

import contextlib
import json
import queue
import select
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from importlib.metadata import version
from typing import Any

from lowcomm.tasks.answers import by_string, guarded, last_boxed, last_number
from lowcomm.tasks.problem import Score

START_S = 300.0  # of a judge, on a busy machine
CACHE = 1 << 16  # verdicts kept


class Grader:
    """Grades completions against a gold answer. From any thread; no process starts before algebra is needed.

    Args:
        accept: "boxed", or "number": where a completion has no box, its last number is its answer.
        workers: math-verify processes, as many answers at once.
        limit_s: wall clock of one answer; its process is then killed, another started, and the answer is wrong.
        recycle: answers after which a process is replaced, as sympy's caches grow.

    `counts` says how often which verdict was given: "no box", "string" (equal strings), "different" (unequal
    integers), "guarded" (not given to algebra), "verified" and "refuted" (math-verify), "error", "timeout".
    """

    def __init__(self, *, accept: str = "boxed", workers: int = 1, limit_s: float = 30.0, recycle: int = 2000):
        if accept not in ("boxed", "number"):
            raise ValueError(f"accept={accept}: must be boxed or number")
        if workers < 1 or recycle < 1:
            raise ValueError(f"workers={workers}, recycle={recycle}: both must be at least 1")
        if limit_s <= 0:
            raise ValueError(f"limit_s={limit_s}: must be positive")
        self._accept, self._limit_s, self._recycle = accept, limit_s, recycle
        self._idle: queue.LifoQueue[Judge | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._workers, self._lock = workers, threading.Lock()
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def grade(self, gold: str, completion: str) -> Score:
        """1 for a completion whose last box holds an answer equal to `gold`, else 0."""
        answer = self.answer(completion)
        verdict = "no box" if answer is None else self.compare(gold, answer)
        with self._lock:
            self.counts[verdict] += 1
        correct = verdict in ("string", "verified")
        return Score(float(correct), correct, last_boxed(completion) is not None, verdict)

    def answer(self, completion: str) -> str | None:
        """What is graded of a completion: the content of its last box or, where accepted, its last number."""
        boxed = last_boxed(completion)
        return last_number(completion) if boxed is None and self._accept == "number" else boxed

    def compare(self, gold: str, answer: str) -> str:
        """The verdict on an answer without its box."""
        equal = by_string(gold, answer)
        if equal is not None:
            return "string" if equal else "different"
        if not answer or guarded(gold, answer):
            return "guarded"
        with self._lock:
            known = self._known.get((gold, answer))
        if known is None:
            known = self._judged(gold, answer)
            with self._lock:
                self._known[gold, answer] = known
                if len(self._known) > CACHE:
                    self._known.popitem(last=False)
        return known

    def _judged(self, gold: str, answer: str) -> str:
        judge = self._idle.get()
        try:
            if judge is not None and judge.answered >= self._recycle:
                judge.close()
                judge = None
            judge = judge or Judge()
            verdict = judge.ask(gold, answer, self._limit_s)
            if verdict in ("timeout", "died"):
                judge.close()
                judge = None
        finally:
            self._idle.put(judge)
        return "error" if verdict == "died" else verdict

    def metrics(self) -> dict[str, int]:
        """For the training log."""
        counts = Counter(self.counts)
        return {
            "grade/fast_path": counts["string"] + counts["different"],
            "grade/guarded": counts["guarded"],
            "grade/verify_error": counts["error"],
            "grade/verify_timeout": counts["timeout"],
        }

    def describe(self) -> dict[str, Any]:
        packages = ("math-verify", "latex2sympy2_extended", "sympy")
        return {
            "grader": "strings, then math-verify",
            "accept": self._accept,
            "versions": {p: version(p) for p in packages},
        }

    def close(self) -> None:
        """End the processes. Waits for answers that are being judged."""
        for _ in range(self._workers):
            judge = self._idle.get()
            if judge is not None:
                judge.close()
        for _ in range(self._workers):
            self._idle.put(None)


class Judge:
    """One math-verify process. Raises RuntimeError if it cannot start."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lowcomm.tasks.judge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the trainer's
        )
        self.answered = 0
        if self._read(START_S) != "ready":
            self.close()
            raise RuntimeError(
                "the grader's math-verify process does not start: `python -m lowcomm.tasks.judge` says why; "
                "install the extra: pip install 'lowcomm[rl]'"
            )

    def ask(self, gold: str, answer: str, limit_s: float) -> str:
        """The verdict: "verified", "refuted", "error", "timeout" after `limit_s` seconds, or "died" (the process)."""
        self.answered += 1
        line = json.dumps({"gold": gold, "answer": answer}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            return "died"
        return self._read(limit_s)

    def _read(self, limit_s: float) -> str:
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        if not ready:
            return "timeout"
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else "died"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
