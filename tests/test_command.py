"""How a command ends: one line for whoever started it, whatever happened."""

import sys
from pathlib import Path

import pytest

from lowcomm.blocks import ConfigError
from lowcomm.command import Stopped, explain_first, final_loss, one_line, points


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("seed=-1: must lie in [0, 2**32)"), "error: seed=-1: must lie in [0, 2**32)"),
        (FloatingPointError("loss is nan"), "stopped: loss is nan; the last good checkpoint is kept"),
        (OSError("disk"), "stopped: disk; run the same command to go on from the last checkpoint"),
        (ConnectionError("gone"), "stopped: gone; run the same command to go on from the last checkpoint"),
        (Stopped("stopped after step 3"), "stopped after step 3"),
    ],
)
def test_what_is_expected_ends_in_one_line(error, line):
    with pytest.raises(SystemExit) as end, one_line(OSError):
        raise error
    assert end.value.code == line
    assert end.value.__cause__ is None


def test_a_bug_keeps_its_traceback():
    with pytest.raises(KeyError), one_line(OSError):
        raise KeyError("x")


def test_overrides_are_explained_before_hydra_and_help_is_its_own(monkeypatch):
    def load_config(overrides):
        raise ConfigError(f"{overrides[0]}: there is no such key")

    for flags in ([], ["--cfg", "job"], ["-m"]):
        monkeypatch.setattr(sys, "argv", ["train", "sead=1", *flags])
        with pytest.raises(SystemExit, match="error: sead=1: there is no such key"):
            explain_first(load_config)
    monkeypatch.setattr(sys, "argv", ["train", "sead=1", "--help"])
    explain_first(load_config)


def test_every_choice_of_a_sweep_is_tried_once(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "argv", ["train", "algorithm=gpa,diloco", "seed=0,1,2", "hydra/launcher=joblib", "-m"])
    explain_first(seen.append)
    assert seen == [["algorithm=gpa", "seed=0"], ["algorithm=diloco", "seed=0"]]
    assert points(["algorithm=glob(*)", "x=1"]) == [["x=1"]]
    assert points(["lr=interval(0,1)", "x=1"]) == [["x=1"]]  # of a sweeper that draws values
    assert points(["seed"]) == [["seed"]]


@pytest.mark.parametrize(
    ("argument", "line"),
    [("--seed=1", "write seed=1$"), ("--run-dir", "write run_dir=VALUE$")],
)
def test_dashes_are_hydras(argument, line, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train", argument])
    with pytest.raises(SystemExit, match=f"error: {argument}: keys have no dashes; {line}"):
        explain_first(pytest.fail)
    for flag in ("--help", "--cfg=job", "--info"):
        monkeypatch.setattr(sys, "argv", ["train", flag])
        explain_first(pytest.fail)


def test_a_sweep_gets_the_loss_and_another_rank_a_zero():
    assert final_loss({"outcome": {"metrics": {"loss": 2.5, "accuracy": 0.5}}}, Path("runs/x")) == 2.5
    assert final_loss({}, Path("runs/x")) == 0.0
