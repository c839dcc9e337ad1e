"""Trainers as real processes: under torchrun, and started by the door itself; the same run, and plain mistakes."""

import json
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from lowcomm.blocks import ConfigError
from lowcomm.rl import run_overrides
from tests.rl.runs import TINY, metrics, same

# processes that each load TRL, on a machine that may be busy
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LOCO = [*TINY, "algorithm=pulseloco", "algorithm.inner_steps=2", "scale.steps=4", "scale.checkpoint_every=2",
        "meters=[]", "workers=2"]  # fmt: skip


def test_torchrun_and_the_door_itself_start_the_same_run(tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    made = run_overrides([*LOCO, f"run_dir={tmp_path / 'own'}"])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               "-m", "lowcomm.rl", *LOCO, f"run_dir={tmp_path / 'torchrun'}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    weights = [load_file(tmp_path / name / "weights.safetensors") for name in ("own", "torchrun")]
    assert same(*weights)
    assert metrics(tmp_path / "own") == metrics(tmp_path / "torchrun")
    again = json.loads((tmp_path / "torchrun" / "record.json").read_text())
    assert made["outcome"]["weights"] == again["outcome"]["weights"]


def test_a_mistake_that_only_a_trainer_sees_is_the_callers(tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ConfigError, match="3 training problems.*asks for 4"):
        run_overrides([*LOCO, "workload.size=3", f"run_dir={tmp_path / 'run'}"])
