"""`paper_figures/README.md`: every headline claim of the papers in one line, and what of their tables is there."""

from functools import cache
from pathlib import Path

from lowcomm.results.cost import duration
from lowcomm.results.counts import Counts, count
from lowcomm.results.experiment import load, names
from lowcomm.results.headlines import Headlines, Line, Paper, line, read_headlines
from lowcomm.results.record import RECORDS
from lowcomm.results.summary import Summary, shown_scales, summarise

TOP = """\
# Results

Every headline claim of the three papers, one line each. Written by `python -m lowcomm.results` from the records, the
experiments' own claims and the papers' values in [reported](reported); the list is `conf/claims.yaml`.

- **measured**: of which rows of the table; **the paper** and **ours** have their values in that order.
- **the paper**: what it prints, with table and version; "—" where it prints no number or none that we could read.
- **ours**: mean ± standard deviation over n seeds, at the scale named; never at the paper's scale unless it says so.
- **as claimed**: the difference that decides; or of all rows and pairs that decide, how many are as claimed, and what
  is not. The table has each of them.
- **status**: *matches*, within a stated tolerance of the paper's value; *same order*, the ranking or sign holds at this
  scale; *differs*, it does not hold in every part, with our reasons; *not run*, with the command and its cost.
- **command**: leads to the line of the table's page that has it. A *test* or *bench* shows what no table does.

What stands in for the papers' models and data, and why, is said in each table and in [DEVIATIONS.md](../DEVIATIONS.md).
"""
COLUMNS = ("claim", "measured", "the paper", "ours", "as claimed", "scale", "n", "status", "more")
FIELDS = ("tables", "cells", "ours", "reported", "both", "not run", "of these at scale cpu", "which takes")


def page(records: Path = RECORDS, summary: Summary | None = None) -> str:
    """The whole page, to lie beside the records; `summary`: of these records, where it was made already."""
    listed, summary = read_headlines(), summary or remember(records)
    parts = [TOP]
    for key, paper in listed.papers.items():
        lines = [line(h, summary, records) for h in listed.headlines if h.paper == key]
        parts += [f"## {paper.title}", table(COLUMNS, [cells_of(entry) for entry in lines])]
    rows = [[paper.title, *fields(c)] for paper, c in counts(listed, summary, records)]
    parts += ["## Cells of the tables", COUNTED, table(("paper", *FIELDS), rows)]
    return "\n\n".join(p.strip("\n") for p in parts) + "\n"


def remember(records: Path) -> Summary:
    """`summarise` over these records, each experiment and scale once."""
    summary = cache(lambda name, scale: summarise(load(name), scale, records))
    return lambda experiment, scale: summary(experiment.name, scale)


def count_lines(records: Path = RECORDS) -> list[str]:
    """The table of counts in words, one line a paper, for the command."""
    return [
        f"{paper.title}: {c.cells} cells, {c.ours} ours, {c.reported} reported, {c.not_run} not run, {c.planned} at cpu"
        for paper, c in counts(read_headlines(), remember(records), records)
    ]


COUNTED = """\
A cell is one row and measure of a table, ours once whatever the number of scales; *reported* has a value of the paper,
*both* that and ours. The cells of [the headline numbers](tables/gpa-abstract.md) are those of other tables and not
counted. Rows of our own are counted. What is not run even at scale cpu needs the paper's models: every table has the
command."""


def counts(listed: Headlines, summary: Summary, records: Path = RECORDS) -> list[tuple[Paper, Counts]]:
    """Of every paper, over all experiments in its folders."""
    scales = shown_scales(records)
    return [
        (paper, count([load(n) for folder in paper.folders for n in names(folder)], scales, summary, records))
        for paper in listed.papers.values()
    ]


def fields(c: Counts) -> list[str]:
    """One row of the table of counts."""
    cost = f"{c.runs} runs, {duration(c.seconds)} on one core" if c.runs else "—"
    return [str(n) for n in (c.tables, c.cells, c.ours, c.reported, c.both, c.not_run, c.planned)] + [cost]


def cells_of(entry: Line) -> list[str]:
    """In the order of COLUMNS."""
    e = entry
    return [e.text, e.measured, e.paper, e.ours, e.held, e.scale, e.n, e.status, e.more]


def table(columns: tuple[str, ...], rows: list[list[str]]) -> str:
    """A Markdown table, unpadded: lines are long, and a changed value then changes one line."""
    lines = [list(columns), ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
