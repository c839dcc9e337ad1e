"""How many cells of a paper's tables are ours, reported, not run; and what the missing runs would cost."""

from dataclasses import dataclass
from pathlib import Path

from lowcomm.results.cost import missing
from lowcomm.results.experiment import Experiment
from lowcomm.results.grid import at_scale
from lowcomm.results.record import RECORDS
from lowcomm.results.summary import Summary


@dataclass
class Counts:
    """Cells of one paper. A cell is one row and measure of a table, whatever the number of scales it was run at.

    `cells` = `ours` + `not_run`; `reported` counts those with a value of the paper, whether ours is there or not;
    `planned` those of `not_run` that scale cpu has; `runs` and `seconds` are what these still need.
    """

    tables: int = 0
    cells: int = 0
    ours: int = 0
    reported: int = 0
    both: int = 0
    not_run: int = 0
    planned: int = 0
    runs: int = 0
    seconds: float = 0.0


def count(experiments: list[Experiment], scales: list[str], summary: Summary, records: Path = RECORDS) -> Counts:
    """Over all tables but collections, whose cells stand in other tables; `scales`: where a run of ours may be."""
    found, tables = Counts(), [e for e in experiments if not e.collection]
    for experiment in tables:
        planned = {r.row for r in at_scale(experiment, "cpu")}
        known, reported, seen = set(), set(), set()
        for scale in scales:
            for cell in summary(experiment, scale)[0]:
                if cell.row.literature:
                    continue  # nobody is to run it
                key = (cell.row.row, cell.measure)
                seen.add(key)
                known |= {key} if cell.values else set()
                reported |= {key} if cell.paper else set()
        found.tables += 1
        found.cells += len(seen)
        found.ours += len(known)
        found.reported += len(reported)
        found.both += len(known & reported)
        found.not_run += len(seen - known)
        found.planned += sum(row in planned for row, _ in seen - known)
    found.runs, found.seconds = missing(tables, "cpu", records)
    return found
