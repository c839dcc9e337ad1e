"""W logical workers give the same run on 1, 2 and 4 ranks, bit for bit, weights and metrics; resume on another P."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from lowcomm.outer.workers import Wire
from lowcomm.train import Stopped
from tests.runs import ALGORITHMS, TINY, metrics, run

CASES = ("adamw-W4", "diloco-W4", "dareloco-W4")


def torchrun(ranks: int, folder, *cases: str) -> None:
    """All cases in one launch, since starting costs more than running."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
               "-m", "tests.ranks", str(folder), *cases]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def lone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lone")
    return {name: run(folder / name, *ALGORITHMS[name]) for name in CASES}


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_are_outside_the_mathematics(tmp_path, lone, ranks):
    """Each case whole, and again stopped mid-round under torchrun and resumed there.

    And begun on one rank, stopped when two of the four workers had ended the round and one had not begun it.
    """
    with pytest.raises(Stopped):
        run(tmp_path / "diloco-W4-moved", *ALGORITHMS["diloco-W4"], "stop_after=9")
    torchrun(ranks, tmp_path, *CASES, "diloco-W4-moved")
    moved, expected = load_file(tmp_path / "diloco-W4-moved" / "weights.safetensors"), lone["diloco-W4"][0]
    assert all(torch.equal(moved[n], expected[n]) for n in expected)
    assert metrics(tmp_path / "diloco-W4-moved") == lone["diloco-W4"][1]
    for name in CASES:
        for variant in (name, f"{name}-pieces"):
            weights = load_file(tmp_path / variant / "weights.safetensors")
            assert all(torch.equal(weights[n], lone[name][0][n]) for n in weights), variant
            assert metrics(tmp_path / variant) == lone[name][1], variant


def test_the_tasks_of_a_submitit_job_are_ranks(tmp_path, lone):
    """Its local executor starts two, as Slurm's would on its nodes, from a function that travelled as a pickle."""
    name = "diloco-W4"
    launcher = ["hydra/launcher=submitit_local", "hydra.launcher.tasks_per_node=2", f"hydra.sweep.dir={tmp_path}/sweep"]
    overrides = [*TINY, *ALGORITHMS[name], f"run_dir={tmp_path}/run"]
    command = [sys.executable, "-m", "lowcomm.train", "-m", *launcher, *overrides]
    env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    env["MASTER_ADDR"] = "127.0.0.1"  # one of the user's own stays
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=env)
    logs = "\n".join(path.read_text() for path in tmp_path.glob("sweep/.submitit/*/*_log.*"))
    assert done.returncode == 0, done.stderr[-3000:] + logs[-3000:]
    assert "global_rank=1(2)" in logs
    weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert all(torch.equal(weights[n], lone[name][0][n]) for n in weights)
    assert metrics(tmp_path / "run") == lone[name][1]


def test_resume_on_another_number_of_ranks(tmp_path, lone):
    """Begun on two ranks, finished on one."""
    torchrun(2, tmp_path, "diloco-W4-begin")
    weights, lines, _ = run(tmp_path / "diloco-W4-begin", *ALGORITHMS["diloco-W4"])
    assert all(torch.equal(weights[n], lone["diloco-W4"][0][n]) for n in weights)
    assert lines == lone["diloco-W4"][1]


def test_workers_must_divide_over_the_ranks(monkeypatch):
    import torch.distributed as dist

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    assert list(Wire(8).local) == [2, 3]
    with pytest.raises(ValueError, match=r"workers=6.*4 ranks.*workers=4"):
        Wire(6)
