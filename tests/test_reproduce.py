"""The grid is worked through for real on tiny runs: tuning, seeds, failures, restarts, interruption."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lowcomm import reproduce
from lowcomm.results import provenance, record
from lowcomm.results.experiment import load, parse
from tests.runs import TINY

GRID = f"""
paper: gpa
table: tiny
title: t
measures: [loss]
common: [{", ".join(o for o in TINY if not o.startswith("scale="))}]
scales:
  smoke: {{seconds: 1, seeds: [0, 1], tune: {{key: algorithm.inner.lr, values: [1e-6, 2e-3]}}}}
rows:
  - {{row: adamw, method: A, overrides: [algorithm=adamw]}}
  - {{row: gpa, method: G, overrides: [algorithm=gpa, algorithm.inner.mu_x=0.5]}}
  - {{row: broken, method: B, overrides: [algorithm=adamw, scale.batch=5000]}}
claims: [{{text: t, rows: [gpa, broken], than: [adamw]}}]
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("LOWCOMM_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(reproduce, "LOGS", tmp_path / "logs")
    return tmp_path


def test_a_grid_from_nothing_to_records_and_again(runs, capsys):
    experiment, records = parse(GRID, "gpa/tiny"), runs / "records"
    progress = reproduce.execute([experiment], "smoke", 1, records)
    made = {p.stem for p in records.glob("smoke/gpa-tiny/*.json")}
    for row in ("adamw", "gpa"):
        first = {v: record.read(records / f"smoke/gpa-tiny/{row}-{v}-seed0.json") for v in ("1e-06", "0.002")}
        best = min(first, key=lambda v: first[v]["outcome"]["metrics"]["loss"])
        made -= {f"{row}-1e-06-seed0", f"{row}-0.002-seed0", f"{row}-{best}-seed1"}
    assert not made, "the better rate alone goes on to the second seed"
    assert [(r.row, r.tuned) for r, _ in progress.failures] == [("broken", 1e-6), ("broken", 2e-3)]
    assert "5000" in progress.failures[0][1], "the reason is given"
    assert first["0.002"]["claim"]["row"] == "gpa"
    assert first["0.002"]["claim"]["tuned"] == 0.002
    assert "about" in capsys.readouterr().out

    stale = next(records.glob("smoke/gpa-tiny/adamw-*-seed1.json"))
    changed = record.read(stale)
    changed["code"]["digest"] = "0" * 64
    record.write(stale, changed)
    again = reproduce.execute([experiment], "smoke", 1, records)
    assert (again.ended, len(again.failures)) == (3, 2), "what failed and what is stale is tried again, nothing else"
    assert record.read(stale)["code"]["digest"] != "0" * 64
    experiment.rows.pop()
    capsys.readouterr()
    reproduce.show([experiment], "smoke", 2, records)
    assert "6 done, 0 to do" in capsys.readouterr().out


def test_interrupt_and_go_on(runs):
    """SIGINT in the middle of training: the run saves itself, and the second start ends it from there."""
    longer = GRID.replace("values: [1e-6, 2e-3]", "values: [1e-3]").replace("scale.steps=10", "scale.steps=400")
    experiment = parse(longer.replace("seeds: [0, 1]", "seeds: [0]"), "gpa/tiny")
    experiment.rows = experiment.rows[:1]

    def interrupt() -> None:
        while not any(p.stat().st_size > 1000 for p in runs.glob("runs/*/*/metrics.jsonl")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        reproduce.execute([experiment], "smoke", 1, runs / "records")
    assert not list(runs.glob("records/**/*.json"))
    assert "stopped after step" in (runs / "logs" / "process0.log").read_text()
    steps = next(runs.glob("runs/*/*/metrics.jsonl")).read_text().count("train/loss")
    assert steps < 400
    reproduce.execute([experiment], "smoke", 1, runs / "records")
    done = record.read(next(runs.glob("records/**/*.json")))
    assert done["outcome"]["steps"] == 400
    assert next(runs.glob("runs/*/*/metrics.jsonl")).read_text().count("train/loss") == 400, "no step was run twice"


def test_two_rows_with_one_configuration_are_refused(runs):
    twin = parse(GRID.replace("[algorithm=gpa, algorithm.inner.mu_x=0.5]", "[algorithm=adamw]"), "gpa/tiny")
    with pytest.raises(ValueError, match="gpa/tiny gpa 1e-06 seed 0 and gpa/tiny adamw 1e-06 seed 0 are the same run"):
        reproduce.execute([twin], "smoke", 1, runs / "records")


def test_selection():
    assert [e.name for e in reproduce.select("gpa/table2", None)] == ["gpa/table2"]
    assert {e.paper for e in reproduce.select(None, "gpa")} == {"gpa"}
    for arguments, message in (
        (("gpa/x", None), "no such experiment"),
        ((None, "gpt"), "there are .*gpa"),
        (("a", "b"), "one"),
    ):
        with pytest.raises(ValueError, match=message):
            reproduce.select(*arguments)


def test_evidence_is_refused_before_work(monkeypatch):
    monkeypatch.setattr(provenance, "source_state", lambda: {"commit": None, "dirty": None, "sources": ""})
    reproduce.check_evidence("smoke")
    with pytest.raises(ValueError, match="git"):
        reproduce.check_evidence("cpu")
    monkeypatch.setattr(provenance, "source_state", lambda: {"commit": "a", "dirty": "b", "sources": ""})
    reproduce.check_evidence("cpu")
    with pytest.raises(ValueError, match="commit them first"):
        reproduce.check_evidence("paper")


def test_the_command_line(tmp_path):
    """No runs: the computed table is rendered; wrong arguments say what is wrong and end with an error."""

    def call(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-m", "lowcomm.reproduce", *arguments], capture_output=True, text=True)

    done = call("experiment=gpa/table6", f"records={tmp_path}/records")
    assert done.returncode == 0, done.stderr
    assert "| H = 32" in (tmp_path / "tables" / "smoke" / "gpa-table6.md").read_text()
    for argument, message in (
        ("paper=none", "there are gpa"),
        ("jobs=two", "jobs=two"),
        ("jobs=100000", "jobs=100000: that many processes on "),
        ("experiment=gpa/x", "gpa/x"),
    ):
        failed = call(argument)
        assert failed.returncode != 0
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr


def test_the_papers_own_scale_can_be_listed(tmp_path, capsys):
    reproduce.show([load("gpa/table2")], "paper", 1, tmp_path)
    said = capsys.readouterr().out
    assert said.startswith("scale paper: checking the configurations of "), "before the wait for them"
    assert "model=llama-160m workload=dclm scale.steps=12000" in said
