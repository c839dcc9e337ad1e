"""From records to numbers: mean, spread and status of every row and measure of an experiment at one scale."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lowcomm.results.cell import MEASURED, NOT_RUN, REPORTED, UNMEASURED, Cell
from lowcomm.results.claims import Verdict, judge, single, worst
from lowcomm.results.experiment import Experiment, Row, claim_measures, home, load, seeds_of, tune_of
from lowcomm.results.grid import at_scale, best_value, run, tuning_runs
from lowcomm.results.measures import MEASURES, step_ratio
from lowcomm.results.record import RECORDS, read
from lowcomm.results.reported import reported

Summary = Callable[[Experiment, str], tuple[list[Cell], list[Verdict]]]  # `summarise` over given records


def shown_scales(records: Path = RECORDS) -> list[str]:
    """Scales of evidence: cpu and paper always, so that what was not run is said, gpu where there are records."""
    return [s for s in ("cpu", "gpu", "paper") if s != "gpu" or any((records / s).glob("*/*.json"))]


def finished_runs(experiment: Experiment, row: Row, scale: str, records: Path) -> tuple[list, float | None, bool]:
    """Runs of a row that have a record, at its best tuned value; that value; whether it is at the edge of the grid."""
    owner, row = home(experiment, row)
    if scale not in owner.scales or not row.overrides:
        return [], None, False
    there = [r for r in tuning_runs(owner, row, scale) if (records / r.path).is_file()]
    if not there:
        return [], None, False
    value = best_value(owner, there, records)
    runs = [
        r for s in seeds_of(owner, row, scale) if (records / (r := run(owner, row, scale, value, s)).path).is_file()
    ]
    tune = tune_of(owner, row, scale)
    edge = tune is not None and value in (min(tune.values), max(tune.values))
    return runs, value, edge


def run_cell(experiment: Experiment, row: Row, measure: str, scale: str, records: Path) -> Cell:
    """A row that was trained: the measure of every seed, against the baseline's run of the same seed."""
    runs, value, edge = finished_runs(experiment, row, scale, records)
    cell = Cell(row, measure, tuned=value, edge=edge)
    kind = MEASURES[measure]
    base = {}
    if kind.relative:
        base_runs, _, _ = finished_runs(experiment, experiment.get(experiment.baseline), scale, records)
        base = {r.seed: read(records / r.path)["outcome"] for r in base_runs}
    for r in runs:
        if kind.relative and r.seed not in base:
            continue
        record = read(records / r.path)
        outcome = record["outcome"] | {"config": record["code"]["config"]}
        value = kind.of(outcome, base.get(r.seed))
        if value is None and not kind.target:
            cell.untaken = True
            continue
        cell.values[r.seed] = value
        if kind.ratio:
            cell.ratios[r.seed] = step_ratio(kind.ratio)(outcome, base[r.seed])
        cell.paths.append(r.path)
    return cell


def summarise(experiment: Experiment, scale: str, records: Path = RECORDS) -> tuple[list[Cell], list[Verdict]]:
    """All cells in table order (measures outside, rows inside) with their status, and the verdicts."""
    if experiment.collection:
        return collect(experiment, scale, records), []
    cells: dict[tuple[str, str], Cell] = {}
    here = {r.row for r in at_scale(experiment, scale)}
    paper = reported(experiment)
    for measure in experiment.measures:
        for row in experiment.rows:
            if measure in MEASURES and MEASURES[measure].relative and row.row == experiment.baseline:
                continue  # no distance to itself
            if row.literature:
                cell = Cell(row, measure, status=REPORTED)
            elif experiment.computed:
                cell = Cell(row, measure, {0: compute(experiment.computed, row.x)}, ["computed"])
            elif row.row not in here:
                cell = Cell(row, measure)
            elif row.best_of:
                cell = best_cell(row, measure, experiment.measures[0], cells)
            else:
                cell = run_cell(experiment, row, measure, scale, records)
            cell.paper = [r for r in paper if (r.row, r.measure) == (row.row, measure) and r.value is not None]
            cells[row.row, measure] = cell
    verdicts = [
        judge(claim, measure, cells)
        for whole in experiment.claims
        for claim in single(whole, here)
        for measure in claim_measures(experiment, claim)
        if claim.scales is None or scale in claim.scales
    ]
    for (name, measure), cell in cells.items():
        if cell.values:
            mine = [v for v in verdicts if v.measure == measure]
            known = [v for v in mine if cell.paper or v.claim.kind != "equal"]  # equal to what, where it prints none?
            subject = [v.status for v in known if name in v.claim.rows]
            judged = subject or [v.status for v in known if name in v.claim.than]
            cell.status = MEASURED if worst(judged) == NOT_RUN else worst(judged)
        elif cell.untaken:
            cell.status = UNMEASURED
    return list(cells.values()), verdicts


def collect(experiment: Experiment, scale: str, records: Path) -> list[Cell]:
    """Rows of other tables of the paper, with their numbers and their status there."""
    found = []
    for row in experiment.rows:
        table, _, name = row.cite.partition("/")
        cells, _ = summarise(load(f"{experiment.paper}/{table}"), scale, records)
        found += [replace(c, row=row) for c in cells if c.row.row == name and c.measure in experiment.measures]
    return sorted(found, key=lambda c: experiment.measures.index(c.measure))


def compute(name: str, x: float) -> float:
    """Call a function by its dotted name."""
    import importlib

    module, _, function = name.rpartition(".")
    return float(getattr(importlib.import_module(module), function)(x))


def best_cell(row: Row, measure: str, by: str, cells: dict[tuple[str, str], Cell]) -> Cell:
    """The row whose mean of measure `by` is best, with its value of `measure`."""
    sign = 1 if MEASURES[by].lower else -1
    known = [c for n in row.best_of if (c := cells[n, by]).mean is not None]
    if not known:
        return Cell(row, measure)
    winner = min(known, key=lambda c: sign * c.mean).row
    best = cells[winner.row, measure]
    return replace(best, row=row, values=dict(best.values), status=NOT_RUN, of=winner)
