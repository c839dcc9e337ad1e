"""The table of results in `README.md`: the headlines that have a few words for it in `conf/claims.yaml`."""

import os
from pathlib import Path

from lowcomm.results.cell import NOT_RUN, Cell, number
from lowcomm.results.claims import tally, worst
from lowcomm.results.experiment import load, names
from lowcomm.results.headlines import Headline, linked, named, read_headlines, spoken
from lowcomm.results.phrases import NONE, held, values
from lowcomm.results.record import RECORDS
from lowcomm.results.summary import Summary

BEGIN = "<!-- this table is written by `python -m lowcomm.results` -->"
END = "<!-- end of the table -->"
COLUMNS = ("claim", "the paper", "ours", "status")


def filled(text: str, summary: Summary, records: Path = RECORDS) -> str:
    """The text of a README with the table between its two marks. Raises ValueError where they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md: the table of results stands between '{BEGIN}' and '{END}'; put both lines back")
    return f"{before}{BEGIN}\n{block(summary, records)}\n{END}{after}"


def block(summary: Summary, records: Path) -> str:
    """The table; links lead from the folder above that of the records."""
    place = os.path.relpath(records.parent, records.parents[1])
    rows = [row(h, summary, place) for h in read_headlines().headlines if h.readme and h.experiment in names()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows))


def row(headline: Headline, summary: Summary, place: str) -> list[str]:
    """Claim, the paper's first value of each cell, ours with how much is as claimed, and the status."""
    experiment = load(headline.experiment)
    scale, cells, groups = spoken(headline, experiment, summary)
    wanted = headline.cells if headline.readme_cells is None else headline.readme_cells
    chosen, verdicts = named(wanted, cells), [v for group in groups for v in group]
    status = worst([v.status for v in verdicts])
    claim = f"[{headline.readme}]({place}/tables/{experiment.folder}.md)"
    paper = values(chosen, lambda c: f"{c.paper[0].value:g}" if c.paper else "")
    if status == NOT_RUN:
        return [claim, paper, NONE, status]
    numbers = values(chosen, mean)
    said = [numbers, tally(verdicts)] if numbers != NONE else [held(groups, [])]
    where = "" if scale in ("cpu", "any") else f" ({scale})"
    return [claim, paper, "; ".join(s for s in said if s) + where, linked(status, experiment, "DEVIATIONS.md")]


def mean(cell: Cell) -> str:
    """The mean over seeds, or how many of them reach the target."""
    if cell.mean is None:
        return f"reached by {len(cell.reached)} of {len(cell.values)} seeds" if cell.values else ""
    return number(cell.mean, cell.measure)
