"""What the papers say: `paper_figures/reported/<paper>/<table>.csv`, typed once, with source; empty where unknown."""

import csv
from dataclasses import dataclass
from pathlib import Path

from lowcomm.results.experiment import Experiment
from lowcomm.results.record import ROOT

REPORTED = ROOT / "paper_figures" / "reported"
COLUMNS = ("row", "measure", "value", "unit", "version", "item", "source")


@dataclass(frozen=True)
class Reported:
    """One value as printed; `value` is None where nobody outside the paper knows it."""

    row: str
    measure: str
    value: float | None
    unit: str
    version: str  # of the paper
    item: str  # table, figure or abstract
    source: str  # where it was read

    def __str__(self) -> str:
        return f"{self.value:g} ({self.item}, {self.version})"


def reported(experiment: Experiment, root: Path = REPORTED) -> list[Reported]:
    """All reported values of one table. Raises ValueError naming file and line."""
    path = root / f"{experiment.name}.csv"
    values = []
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{experiment.name}.csv: the columns must be {', '.join(COLUMNS)}")
        rows = {r.row for r in experiment.rows}
        for number, line in enumerate(lines, start=2):
            if line["row"] not in rows or line["measure"] not in experiment.measures:
                raise ValueError(
                    f"{experiment.name}.csv, line {number}: no row '{line['row']}' with measure '{line['measure']}'"
                )
            if not all(line[c] for c in ("unit", "version", "item", "source")):
                raise ValueError(f"{experiment.name}.csv, line {number}: unit, version, item and source must be given")
            values.append(Reported(**{**line, "value": float(line["value"]) if line["value"] else None}))
    return values
