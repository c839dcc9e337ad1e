"""Rollout workers that a trainer starts on its own machine, and that end with it however it ends.

Who starts more by hand, here or elsewhere, has the same workers; these are `python -m lowcomm.rollout` too.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)
LINES = 5  # of a log, when its worker has died
STOP_S = 10.0  # from being asked to end to being ended


class LocalWorkers:
    """``count`` workers with the keys ``asked`` of `lowcomm.rollout`, each with ``threads`` OpenMP threads.

    Their logs are ``folder``/rollout-local-<k>.log. A terminal's Ctrl-C does not reach them: the trainer needs them to
    finish its step. One that dies is named in the trainer's log, and its job goes to another.
    """

    def __init__(self, count: int, asked: Mapping[str, str], folder: Path, threads: int):
        self.count, self.asked, self.folder, self.threads = count, asked, folder, threads
        self.processes: dict[str, subprocess.Popen] = {}
        self._ending = threading.Event()

    def start(self) -> None:
        """Once there is something in the store that they can begin with; later calls do nothing."""
        if self.processes or not self.count or self._ending.is_set():
            return
        own = {"OMP_NUM_THREADS": str(self.threads)}
        for k in range(1, self.count + 1):
            name = f"local-{k}"
            asked = {**self.asked, "name": name, "parent": os.getpid()}
            command = [sys.executable, "-m", "lowcomm.rollout", *(f"{key}={value}" for key, value in asked.items())]
            with self.log_of(name).open("ab") as out:
                self.processes[name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=os.environ | own,
                    start_new_session=True,
                )  # fmt: skip
            threading.Thread(target=self._watch, args=(name,), name=f"watch-{name}", daemon=True).start()
        log.info("started %d rollout workers, which load for some seconds; they write %s", self.count,
                 self.log_of("local-*"))  # fmt: skip

    def log_of(self, name: str) -> Path:
        """Where a worker writes; every session of a run appends."""
        return self.folder / f"rollout-{name}.log"

    def close(self) -> None:
        """End them, and be sure that they have ended."""
        self._ending.set()
        for process in self.processes.values():
            process.terminate()
        ends = time.monotonic() + STOP_S
        for process in self.processes.values():
            try:
                process.wait(max(0.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _watch(self, name: str) -> None:
        code = self.processes[name].wait()
        if not self._ending.is_set():
            said = "\n  ".join(tail(self.log_of(name)))
            log.warning(
                "rollout worker %s %s; the last lines of %s:\n  %s", name, ending(code), self.log_of(name), said
            )


def ending(code: int) -> str:
    """An exit code in words, as `subprocess` gives it."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def tail(path: Path) -> list[str]:
    """The last lines of a log, none of them longer than a screen."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 14)))
        return [line[:500] for line in file.read().decode(errors="replace").splitlines()[-LINES:]]


def end_with(parent: int, every_s: float = 0.5) -> None:
    """Ask this process to end (SIGTERM) once ``parent`` is not its parent any more, even killed; in the background."""

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(every_s)
        log.info("the trainer that started this worker is gone")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_S)
        os._exit(1)  # it does not listen

    threading.Thread(target=wait, name="parent", daemon=True).start()
