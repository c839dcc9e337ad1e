"""An experiment at one scale, unfolded into runs: tuning with the first seed, then the best value with the others."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowcomm.results.experiment import Experiment, Row, cited_tables, home, seeds_of, tune_of
from lowcomm.results.measures import MEASURES
from lowcomm.results.record import RECORDS, read


@dataclass(frozen=True)
class Run:
    """One run of a grid."""

    experiment: str
    row: str
    scale: str
    seed: int
    tuned: float | None
    overrides: tuple[str, ...]
    seconds: float
    door: str = "train"

    @property
    def path(self) -> str:
        """Relative to the records' folder."""
        value = "" if self.tuned is None else f"-{self.tuned:g}"
        return f"{self.scale}/{self.experiment.replace('/', '-')}/{self.row}{value}-seed{self.seed}.json"

    @property
    def command(self) -> str:
        """What a person types to make this run alone."""
        return f"python -m lowcomm.{self.door} {shlex.join(self.overrides)}"

    @property
    def claim(self) -> dict[str, Any]:
        """What its record claims to be."""
        paper, _, table = self.experiment.partition("/")
        names = ("experiment", "row", "scale", "tuned")
        return {"paper": paper, "table": table, **{n: getattr(self, n) for n in names}}


def at_scale(experiment: Experiment, scale: str) -> list[Row]:
    """The rows of the table that a scale has; cited ones only where their home has them, none of the literature."""
    grid = experiment.scales.get(scale)
    rows = [r for r in experiment.rows if grid is not None and not r.literature]
    return [r for r in rows if grid.rows is None or r.row in grid.rows]


def run(experiment: Experiment, row: Row, scale: str, tuned: float | None, seed: int) -> Run:
    """The run of a row with one seed, at a tuned value or at none."""
    grid = experiment.scales[scale]
    value = [] if tuned is None else [f"{tune_of(experiment, row, scale).key}={tuned:g}"]
    overrides = [f"scale={scale}", *experiment.common, *grid.overrides, *row.overrides, *value, f"seed={seed}"]
    return Run(experiment.name, row.row, scale, seed, tuned, tuple(overrides), grid.seconds, experiment.door)


def tuning_runs(experiment: Experiment, row: Row, scale: str) -> list[Run]:
    """All values with the first seed, or that seed alone where nothing is tuned."""
    tune, seed = tune_of(experiment, row, scale), seeds_of(experiment, row, scale)[0]
    return [run(experiment, row, scale, v, seed) for v in (tune.values if tune else [None])]


def best_value(experiment: Experiment, runs: list[Run], records: Path) -> float | None:
    """The tuned value whose run ended best by the first measure; the lower value on a tie."""
    if len(runs) == 1:  # nothing to choose
        return runs[0].tuned
    measure = MEASURES[experiment.measures[0]]
    sign = 1 if measure.lower else -1
    return min(runs, key=lambda r: (sign * measure.of(read(records / r.path)["outcome"], None), r.tuned or 0)).tuned


def plan(
    experiments: list[Experiment],
    scale: str,
    done: Callable[[Run], bool],
    records: Path = RECORDS,
) -> tuple[list[Run], list[Run], int]:
    """Runs that are finished, runs that could start now, and how many still wait for a row's tuning.

    `done(run)` says whether its record is there. Cited rows are planned at their home, each run once.
    """
    finished, ready, waiting, seen = [], [], 0, set()
    tables = [t for e in experiments for t in (cited_tables(e) if e.collection else [e])]
    for experiment, row in (home(t, r) for t in tables for r in at_scale(t, scale)):
        if (experiment.name, row.row) in seen or not row.overrides or scale not in experiment.scales:
            continue
        seen.add((experiment.name, row.row))
        first = tuning_runs(experiment, row, scale)
        finished += [r for r in first if done(r)]
        ready += [r for r in first if not done(r)]
        seeds = seeds_of(experiment, row, scale)[1:]
        if not all(done(r) for r in first):
            waiting += len(seeds)
            continue
        value = best_value(experiment, first, records)
        for other in (run(experiment, row, scale, value, s) for s in seeds):
            (finished if done(other) else ready).append(other)
    return finished, ready, waiting
