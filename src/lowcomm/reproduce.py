"""Run what is missing of the papers' tables, record it, render tables and figures.

    python -m lowcomm.reproduce paper=gpa scale=smoke jobs=2
    python -m lowcomm.reproduce experiment=gpa/table2 scale=cpu
    python -m lowcomm.reproduce scale=paper list=true

A run is finished when its record is there and its configuration has not changed. Interrupt it anywhere and start it
again: finished runs are kept, the interrupted one resumes from its checkpoint.
"""

import importlib
import os
import signal
import sys
import time
from functools import cache
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lowcomm.command import explain_first
from lowcomm.config import load_config
from lowcomm.results import experiment as experiments
from lowcomm.results import provenance, record
from lowcomm.results.cost import duration, seconds_of
from lowcomm.results.experiment import Experiment
from lowcomm.results.grid import Run, plan
from lowcomm.results.pool import work_through

LOGS = Path("runs/reproduce")


def work(door: str, overrides: list[str], claim: dict, path: Path) -> float:
    """In a child: one run from its start, its checkpoint or its end, and its record to `path`; returns its seconds.

    A door is a module `lowcomm.<door>` with `run_overrides(overrides, claim) -> record` and `digest_of(overrides)`.
    """
    begun = time.monotonic()
    record.write(path, {**importlib.import_module(f"lowcomm.{door}").run_overrides(overrides, claim), "claim": claim})
    return time.monotonic() - begun


@cache
def digest_of(door: str, overrides: tuple[str, ...]) -> str:
    """Digest of a run's configuration, composed and checked by its door without running it."""
    return importlib.import_module(f"lowcomm.{door}").digest_of(list(overrides))


def is_done(run: Run, records: Path) -> bool:
    """Its record is there and was made with today's configuration."""
    path = records / run.path
    return path.is_file() and record.read(path)["code"]["digest"] == digest_of(run.door, run.overrides)


class Progress:
    """One line per finished run: how many, what, how long still. Estimates follow the measured times."""

    def __init__(self, total: int, seconds: float, jobs: int):
        self.total, self.left, self.jobs = total, seconds, jobs
        self.ended, self.failures, self.begun = 0, [], time.monotonic()
        self.estimated = self.measured = 0.0

    def show(self, run: Run, state: str, result: float | str) -> None:
        """Count a run that ended: `state` done with its seconds, or failed with the reason."""
        self.ended += 1
        self.left -= run.seconds
        if state == "failed":
            self.failures.append((run, result))
        else:
            self.estimated += run.seconds
            self.measured += result
        pace = self.measured / self.estimated if self.estimated else 1.0
        left = max(0.0, self.left) * pace / self.jobs
        end = f"failed: {result}" if state == "failed" else f"{result:.0f} s"
        print(f"[{self.ended}/{self.total}] {label(run)} · {end} · about {duration(left)} left", flush=True)


def label(run: Run) -> str:
    """How a run is named in a line of progress."""
    value = "" if run.tuned is None else f" {run.tuned:g}"
    return f"{run.experiment} {run.row}{value} seed {run.seed}"


def execute(chosen: list[Experiment], scale: str, jobs: int, records: Path) -> Progress:
    """Work through the missing runs on `jobs` processes; a failure leaves the others alone."""
    tried: set[str] = set()

    def now() -> tuple[list[Run], list[Run], int]:
        return plan(chosen, scale, lambda run: is_done(run, records), records)

    def next_run() -> Run | None:
        run = next((r for r in now()[1] if r.path not in tried), None)
        if run:
            tried.add(run.path)
        return run

    announce(chosen, scale)
    finished, ready, waiting = now()
    refuse_twins(ready + finished)
    total = len(ready) + waiting
    seconds = seconds_of(ready, waiting)
    progress = Progress(total, seconds, jobs)
    print(f"scale {scale}: {len(finished)} runs are there, {total} to do, about {duration(seconds / jobs)}", flush=True)
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the children when they load torch
    arguments = lambda run: (run.door, list(run.overrides), run.claim, records / run.path)  # noqa: E731
    for run, state, result in work_through(next_run, arguments, work, jobs, LOGS):
        progress.show(run, state, result)
    return progress


def announce(chosen: list[Experiment], scale: str) -> None:
    """Before the first wait: every configuration is composed once, to see which records are still those of today."""
    runs = sum(map(len, plan(chosen, scale, lambda run: False)[:2]))
    if runs:
        print(f"scale {scale}: checking the configurations of {runs} runs, a few seconds for every ten", flush=True)


def refuse_twins(runs: list[Run]) -> None:
    """Two runs of one configuration are one run. Raises ValueError naming both."""
    seen: dict[str, Run] = {}
    for run in runs:
        other = seen.setdefault(digest_of(run.door, run.overrides), run)
        if other is not run:
            raise ValueError(f"{label(run)} and {label(other)} are the same run: let one row cite the other")


def show(chosen: list[Experiment], scale: str, jobs: int, records: Path) -> None:
    """The grid: state, estimated seconds and command of every run."""
    announce(chosen, scale)
    finished, ready, waiting = plan(chosen, scale, lambda run: is_done(run, records), records)
    for state, runs in (("done", finished), ("missing", ready)):
        for run in runs:
            print(f"{state:8}{duration(run.seconds):>8}  {label(run)}\n{'':18}{run.command}")
    if waiting:
        print(f"and {waiting} runs with further seeds, at the value that the first seed finds best")
    left = duration(seconds_of(ready, waiting) / jobs)
    print(f"scale {scale}: {len(finished)} done, {len(ready) + waiting} to do, {jobs} at a time, about {left}")


def select(experiment: str | None, paper: str | None) -> list[Experiment]:
    """The experiments that `experiment=` or `paper=` names, or all of them. Raises ValueError."""
    if experiment and paper:
        raise ValueError(f"experiment={experiment} paper={paper}: give one of them")
    chosen = [experiment] if experiment else experiments.names(paper)
    if not chosen:
        papers = sorted({name.split("/")[0] for name in experiments.names()})
        raise ValueError(f"paper={paper}: there are no experiments of it; there are {', '.join(papers)}")
    return [experiments.load(name) for name in chosen]


def check_evidence(scale: str) -> None:
    """Before any work: can what will be written be evidence? Raises ValueError with the remedy."""
    state = provenance.source_state()
    if state["commit"] is None and scale != "smoke":
        raise ValueError(f"scale={scale}: evidence names a commit; run in a git checkout with git installed")
    if state["dirty"] and scale in ("gpu", "paper"):
        raise ValueError(f"scale={scale}: src or conf has uncommitted changes; commit them first")


@hydra.main(version_base="1.3", config_path="../../conf", config_name="reproduce")
def main(cfg: DictConfig) -> None:
    """The command: run and record what is missing, then write tables, figures and the page of claims.

    A ValueError of any part ends in one line.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    records = record.ROOT / cfg.records
    try:
        if type(cfg.jobs) is not int or cfg.jobs < 1:
            raise ValueError(f"jobs={cfg.jobs}: must be a whole number, at least 1")
        if cfg.jobs > max(2, cores := os.cpu_count() or 1):  # 2 is what make says on any machine
            raise ValueError(f"jobs={cfg.jobs}: that many processes on {cores} cores wait for each other and may run "
                             f"out of memory; take jobs={max(2, cores)} or less")  # fmt: skip
        for key in ("list", "render"):
            if type(cfg[key]) is not bool:
                raise ValueError(f"{key}={cfg[key]}: must be true or false")
        choices = HydraConfig.get().runtime.choices
        chosen, scale = select(choices["experiment"], cfg.paper), choices["scale"]
        if cfg.list:
            return show(chosen, scale, cfg.jobs, records)
        check_evidence(scale)
        progress = execute(chosen, scale, cfg.jobs, records)
        if cfg.render:
            from lowcomm.results.render import render

            for path in render(chosen, scale, records):
                print(f"wrote {os.path.relpath(path)}")
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("\ninterrupted: the same command goes on where this one stopped") from None
    if progress.failures:
        for run, reason in progress.failures:
            print(f"failed: {label(run)}: {reason}\n        {run.command}", file=sys.stderr)
        raise SystemExit(f"{len(progress.failures)} of {progress.total} runs failed; the logs are in {LOGS}")


if __name__ == "__main__":
    explain_first(lambda overrides: load_config(overrides, "reproduce"))
    main()
