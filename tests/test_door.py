"""The training door as a person uses it: real processes, exit codes, messages, help, sweeps, trackers."""

import json
import os
import subprocess
import sys

import pytest

from lowcomm.blocks import ConfigError
from lowcomm.schema import LoggerConfig
from lowcomm.tracking import Tracker, read_metrics
from tests.runs import TINY, run


def door(*arguments: str, launcher: tuple[str, ...] = ("-m",), cwd=None) -> subprocess.CompletedProcess:
    command = [sys.executable, *launcher, "lowcomm.train", *arguments]
    environment = os.environ | {"WANDB_MODE": "offline", "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=cwd, env=environment)


def test_help_names_the_groups_and_examples():
    done = door("--help")
    assert done.returncode == 0
    for word in ("torchrun", "algorithm", "schedule-free", "pycode", "-m"):
        assert word in done.stdout, word


def test_a_mistake_is_one_line_without_a_traceback():
    done = door("algorithm.inner.lrr=1")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "algorithm.inner.lr" in done.stderr
    assert "Traceback" not in done.stderr


def test_more_ranks_than_workers_is_one_message(tmp_path):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    done = door(*TINY, f"run_dir={tmp_path}/run", "workers=1", launcher=launcher)
    assert done.returncode != 0
    assert "workers=1 is not divisible by 2 ranks" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_sweep_runs_every_point_in_its_own_folder(tmp_path):
    done = door(*TINY, "scale.steps=2", "seed=0,1", "-m", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    records = sorted((tmp_path / "runs").glob("*/seed*/record.json"))
    assert [json.loads(r.read_text())["identity"]["seed"] for r in records] == [0, 1]
    assert len({r.parent.parent for r in records}) == 1


def test_wandb_offline_needs_neither_account_nor_network(tmp_path):
    pytest.importorskip("wandb")
    _, lines, _ = run(tmp_path / "run", "logger.wandb=offline", "scale.steps=3")
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert lines[-1]["step"] == 3


def test_wandb_online_without_a_key_is_one_message(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"logger\.wandb=online: .*; take logger\.wandb=offline"):
        run(tmp_path / "run", "logger.wandb=online")


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path):
    """Lines written after the last checkpoint are written again by the resumed run, not twice."""
    (tmp_path / "config.json").write_text("{}")
    first = Tracker(tmp_path, LoggerConfig(progress=False), True, "tokens", 8, 10)
    first.log(1, {"train/loss": 2.0})
    position = first.position()
    first.log(2, {"train/loss": 1.0})
    first.close()
    second = Tracker(tmp_path, LoggerConfig(progress=False), True, "tokens", 8, 10)
    second.resume(1, 1, position)
    second.log(2, {"train/loss": 1.5})
    second.close()
    assert [line["train/loss"] for line in read_metrics(tmp_path)] == [2.0, 1.5]


def test_only_rank_zero_writes(tmp_path):
    Tracker(tmp_path, LoggerConfig(), False, "tokens", 8, 10).log(1, {"train/loss": 2.0})
    assert not list(tmp_path.iterdir())
