"""The RL door as a person uses it: help and mistakes, before anything heavy is imported."""

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import SafetensorError

from lowcomm.outer.exchange import ConsensusError
from lowcomm.rl import outer_launch
from lowcomm.rollout.dispatcher import RolloutError
from lowcomm.tracking import read_metrics
from tests.rl.runs import TINY


def door(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lowcomm.rl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def test_help_names_the_groups_and_examples():
    done = door("--help")
    assert done.returncode == 0
    for word in ("algorithm: adamw, ", "pulsesync", "rollout: inline, transformers, vllm", "smollm2-135m", "-m"):
        assert word in done.stdout, word


def test_a_mistake_is_one_line_without_a_traceback():
    done = door("scale.micro_batchs=2")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "scale.micro_batch" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_door_loads_neither_torch_nor_trl():
    code = "import sys, lowcomm.rl; assert not {'torch', 'trl', 'hydra'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=280).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_however_it_ends_no_worker_that_it_started_is_left(tmp_path, number):
    folder, log = tmp_path / "run", tmp_path / "log"
    command = ["-m", "lowcomm.rl", *TINY, "scale.steps=100000", "horizons=[1]", "meters=[]", f"run_dir={folder}",
               "rollout=transformers", "place.local_workers=2"]  # fmt: skip
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background hands down its deafness
    with log.open("wb") as out:
        trainer = subprocess.Popen([sys.executable, *command], stdout=out, stderr=out)
    try:
        while not (folder / "metrics.jsonl").exists() or len(read_metrics(folder)) < 3:
            assert trainer.poll() is None, log.read_text()[-3000:]
            time.sleep(0.1)
        assert len(workers_of(folder)) == 2
        trainer.send_signal(number)
        code = trainer.wait()
    finally:
        trainer.kill()
        trainer.wait()
    while workers_of(folder):
        time.sleep(0.05)
    if number == signal.SIGKILL:
        assert code == -number
        assert "is gone" in (folder / "rollout-local-1.log").read_text()
    else:
        assert (code, "stopped after step" in log.read_text()) == (1, True), log.read_text()[-3000:]


def workers_of(folder: Path) -> list[str]:
    """Process ids; what has ended and not been waited for has no command line."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if b"lowcomm.rollout" in words and any(str(folder).encode() in word for word in words):
                    found.append(process.name)
    return found


@pytest.mark.parametrize("error", [SafetensorError, ConsensusError, RolloutError])
def test_a_trainer_that_was_started_here_tells_what_it_ended_with(error, monkeypatch):
    def fails(*_):
        raise error("why")

    monkeypatch.setattr("os.setsid", lambda: None)
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr("lowcomm.rl.run_overrides", fails)
    told = queue.SimpleQueue()
    with pytest.raises(SystemExit):
        outer_launch.trainer(0, 2, 1, [], None, told, logging.WARNING)
    assert told.get() == (error.__name__, "why")
