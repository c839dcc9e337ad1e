"""A few persistent processes that work through a list of tasks; one that dies takes only its own task along."""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

PATIENCE = 30  # seconds a stopped process has to save its state


def serve(link: Connection, work: Callable[..., Any], log: Path) -> None:
    """A child: receive arguments, work, send ("done", result) or ("failed", reason). Output goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    while True:
        try:
            arguments = link.recv()
        except EOFError:
            return
        try:
            answer = ("done", work(*arguments))
        except Exception as error:
            traceback.print_exc()
            sys.stderr.flush()
            answer = ("failed", f"{type(error).__name__}: {error}")
        link.send(answer)


class Child:
    """One process and the task it has in hand."""

    def __init__(self, work: Callable[..., Any], log: Path):
        context = multiprocessing.get_context("spawn")
        self.link, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, work, log))  # no daemon: it may start trainers
        self.process.start()
        other.close()
        self.task: Any = None

    def ask(self) -> None:
        """To end: at once when idle, after saving its state when at work."""
        self.link.close()
        if self.task is not None:
            self.process.terminate()

    def stop(self) -> None:
        """Wait for the end, at most PATIENCE seconds."""
        self.process.join(PATIENCE)
        self.process.kill()


def dismiss(children: list[Child]) -> None:
    """All end together; whoever waits is told what for."""
    if busy := sum(child.task is not None for child in children):
        said = f"\nstopping: jobs at work save their checkpoints ({busy} of them, {PATIENCE} s at most)"
        print(said, file=sys.stderr, flush=True)
    for child in children:
        child.ask()
    for child in children:
        child.stop()


def work_through(
    next_task: Callable[[], Any | None],
    arguments: Callable[[Any], tuple],
    work: Callable[..., Any],
    jobs: int,
    logs: Path,
) -> Iterator[tuple[Any, str, Any]]:
    """Yield (task, "done" or "failed", result or reason) as tasks end.

    `next_task()` gives the next task or None when there is none at the moment; it is asked again after every end, so a
    task may depend on others. Leaving the iterator early stops the children, which may save their state.
    """
    with ExitStack() as stack:
        children: list[Child] = []

        def add(number: int) -> Child:
            child = Child(work, logs / f"process{number}.log")
            children.insert(number, child)
            return child

        stack.callback(dismiss, children)
        while True:
            for number in range(jobs):
                if number < len(children) and children[number].task is not None:
                    continue
                if (task := next_task()) is None:
                    break
                child = children[number] if number < len(children) else add(number)
                child.task = task
                child.link.send(arguments(task))
            busy = [child for child in children if child.task is not None]
            if not busy:
                return
            ready = wait([child.link for child in busy])
            for child in [c for c in busy if c.link in ready]:
                task = child.task
                try:
                    state, result = child.link.recv()
                except EOFError:
                    child.process.join()
                    number = children.index(child)
                    children.remove(child)
                    add(number)
                    state, result = "failed", died(child.process.exitcode)
                child.task = None
                yield task, state, result


def died(exitcode: int | None) -> str:
    """Why a process ended without an answer."""
    name = signal.Signals(-exitcode).name if exitcode and exitcode < 0 else f"exit code {exitcode}"
    hint = "; out of memory? try jobs=1" if exitcode == -signal.SIGKILL else ""
    return f"the process ended with {name}{hint}"
