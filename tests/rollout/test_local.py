"""Workers that a trainer starts: named when they die, gone when it ends, however it ends."""

import contextlib
import logging
import os
import signal
import sys
import time

import pytest

from lowcomm.rollout import local
from lowcomm.rollout.local import LocalWorkers, end_with

FAILS = "print('loading'); raise SystemExit(3)"
SERVES = "import os, time; print('here', os.getppid(), os.environ['OMP_NUM_THREADS'], flush=True); time.sleep(600)"
IGNORES = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVES}"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Stand-ins for `python -m lowcomm.rollout`: they do what a program says, and know nothing of keys."""
    stack = contextlib.ExitStack()

    def one(program: str, count: int = 1) -> LocalWorkers:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}"\n')
        python.chmod(0o755)
        monkeypatch.setattr(local.sys, "executable", str(python))
        made = LocalWorkers(count, {"store": "x"}, tmp_path, threads=1)
        stack.callback(made.close)
        made.start()
        return made

    with stack:
        yield one


def until(condition) -> None:
    while not condition():
        time.sleep(0.01)


def test_one_that_dies_is_named_with_its_exit_code_and_its_last_words(start, caplog):
    start(FAILS)
    until(lambda: "local-1" in caplog.text and "loading" in caplog.text)
    assert "rollout worker local-1 ended with exit code 3; the last lines of " in caplog.text


@pytest.mark.parametrize("program", [SERVES, IGNORES], ids=["asked", "killed"])
def test_they_end_with_the_run_and_nothing_is_said_of_it(start, caplog, monkeypatch, program):
    monkeypatch.setattr(local, "STOP_S", 10.0 if program == SERVES else 0.2)
    caplog.set_level(logging.INFO)
    made = start(program, count=2)
    made.start()  # once is enough
    assert list(made.processes) == ["local-1", "local-2"]
    until(lambda: all("here" in made.log_of(name).read_text() for name in made.processes))
    assert made.log_of("local-1").read_text().split()[1:] == [str(os.getpid()), "1"]
    made.close()
    expected = -signal.SIGTERM if program == SERVES else -signal.SIGKILL
    assert [process.returncode for process in made.processes.values()] == [expected] * 2
    assert [r.message for r in caplog.records if "ended" in r.message] == []


def test_a_terminals_signal_does_not_reach_them(start):
    """The trainer needs them to end its step."""
    made = start(SERVES)
    assert os.getpgid(made.processes["local-1"].pid) != os.getpgid(0)


def test_a_worker_ends_when_its_trainer_is_killed():
    read, write = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        worker = os.fork()
        if worker == 0:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            end_with(os.getppid(), every_s=0.02)
            os.write(write, b"%d" % os.getpid())
            time.sleep(600)
        time.sleep(600)
    os.close(write)
    assert int(os.read(read, 20)) != trainer  # it watches
    os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)
    assert os.read(read, 1) == b""  # its end of the pipe is closed: it is gone
