"""The grid of one table: `conf/experiment/<paper>/<table>.yaml`, read strictly, and checked.

One name runs through: `gpa/table2` is the experiment, `records/<scale>/gpa-table2/` its evidence,
`tables/gpa-table2.md` its table. A row that another table already has is cited (`cite: table2/adamw`), never run twice.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lowcomm.results.measures import MEASURES
from lowcomm.results.record import ROOT

EXPERIMENTS = ROOT / "conf" / "experiment"


@dataclass
class Tune:
    """One key, a few values, the same for every row: tried with the first seed, the best goes on to the others."""

    key: str = MISSING
    values: list[float] = MISSING


@dataclass
class Grid:
    """What one scale runs of the table."""

    overrides: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0])
    tune: Tune | None = None
    rows: list[str] | None = None  # null: all
    seconds: float = MISSING  # of one run, on one core or one accelerator; for the estimate shown before a start


@dataclass
class Row:
    """One method of the table: run here, cited from another table, computed, or the best of others."""

    row: str = MISSING  # the name in paths; [a-z0-9.-]
    method: str = MISSING  # the name in the table
    overrides: list[str] = field(default_factory=list)
    cite: str | None = None  # <table>/<row> of the same paper; in a collection any row of it, with its numbers
    tune: Tune | None = None  # in place of the grid's, at every scale but smoke
    seeds: list[int] | None = None  # as tune
    best_of: list[str] | None = None  # the best mean of the first measure among these rows
    literature: bool = False  # only a value that others report; nothing is run
    series: str = ""  # curve or line that it belongs to in a figure
    x: float | None = None  # its place on that line; the argument of a computed row


@dataclass
class Claim:
    """What the paper says of some rows, in a form that can fail.

    better: the best of `rows` has a better mean of the measure than the best of `than`
    pairs: each of `rows` has a better mean than its partner in `than`; one verdict a pair
    widens: the gain of `rows` over their partners in `than`, in per cent, is larger for each pair than the one before
    positive: the measure is above zero; one verdict for each of `rows`
    close: not worse than the partner in `than` by more than `tolerance`, a fraction of the latter; one verdict a pair
    equal: each of `rows` is within `tolerance` of its reported value
    reaches: a mean of `bound` or better; one verdict for each of `rows`
    """

    text: str = MISSING
    kind: str = "better"
    rows: list[str] = MISSING
    than: list[str] = field(default_factory=list)
    measures: list[str] | None = None  # null: the first one of the experiment
    tolerance: float = 0.0
    bound: float | None = None
    scales: list[str] | None = None  # null: all


@dataclass
class Experiment:
    """One file of `conf/experiment`: what is run, what is measured, what the paper says of it."""

    paper: str = MISSING
    table: str = MISSING
    title: str = MISSING
    note: str = ""  # printed under the title: what stands in for what
    door: str = "train"  # the module lowcomm.<door> that runs a row, see `lowcomm.reproduce.work`
    measures: list[str] = MISSING
    context: list[str] = field(default_factory=list)  # of the measures: shown without a claim, what the others rest on
    baseline: str | None = None  # the row that relative measures refer to
    computed: str | None = None  # dotted name of a function of `x`: the table needs no runs
    collection: bool = False  # every row stands in another table and is judged there
    common: list[str] = field(default_factory=list)
    scales: dict[str, Grid] = field(default_factory=dict)
    rows: list[Row] = MISSING
    claims: list[Claim] = field(default_factory=list)
    panels: list[dict[str, Any]] = field(default_factory=list)  # the figure, see lowcomm.results.figures

    @property
    def name(self) -> str:
        """`<paper>/<table>`, as commands have it."""
        return f"{self.paper}/{self.table}"

    @property
    def folder(self) -> str:
        """`<paper>-<table>`, as files have it."""
        return f"{self.paper}-{self.table}"

    def get(self, row: str) -> Row:
        """The row of this name; it must be there."""
        return next(r for r in self.rows if r.row == row)


def names(paper: str | None = None) -> list[str]:
    """Names of all experiments, or of one paper's."""
    return sorted(
        f.relative_to(EXPERIMENTS).with_suffix("").as_posix() for f in EXPERIMENTS.glob(f"{paper or '*'}/*.yaml")
    )


@cache
def load(name: str) -> Experiment:
    """Read and check `conf/experiment/<name>.yaml`. Raises ValueError naming the file and the key."""
    path = EXPERIMENTS / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"experiment={name}: no such experiment; there are {', '.join(names())}")
    experiment = parse(path.read_text(encoding="utf-8"), name)
    if experiment.name != name:
        raise ValueError(f"{name}.yaml: paper={experiment.paper}, table={experiment.table} do not say the file's name")
    return experiment


def parse(text: str, name: str) -> Experiment:
    """One experiment from YAML; `name` stands in the messages. Raises ValueError."""
    try:
        experiment = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Experiment), OmegaConf.create(text)))
    except OmegaConfBaseException as error:
        raise ValueError(f"{name}.yaml: {str(error).splitlines()[0]}") from error
    check(experiment)
    return experiment


def check(experiment: Experiment) -> None:
    """Names that refer to nothing, rows that nobody judges. Raises ValueError."""
    rows = [r.row for r in experiment.rows]

    def need(ok: bool, what: str) -> None:
        if not ok:
            raise ValueError(f"{experiment.name}.yaml: {what}")

    need(len(set(rows)) == len(rows), "two rows have one name")
    for measure in experiment.measures:
        need(measure in MEASURES or experiment.computed is not None, f"measure '{measure}' does not exist")
        relative = measure in MEASURES and MEASURES[measure].relative
        need(
            not relative or bool(experiment.baseline) or experiment.collection, f"measure '{measure}' needs a baseline"
        )
    for row in experiment.rows:
        kinds = (bool(row.overrides), row.cite is not None, row.best_of is not None)
        kinds += (row.literature, experiment.computed is not None and not row.literature)
        need(sum(kinds) == 1, f"row '{row.row}': needs exactly one of overrides, cite, best_of, literature")
    used = [n for g in experiment.scales.values() for n in g.rows or []]
    used += [n for c in experiment.claims for n in c.rows + c.than] + [
        n for r in experiment.rows for n in r.best_of or []
    ]
    used += [experiment.baseline] if experiment.baseline else []
    for row in used:
        need(row in rows, f"'{row}' is no row; there are {', '.join(rows)}")
    for claim in experiment.claims:
        kinds = ("better", "pairs", "widens", "positive", "close", "equal", "reaches")
        need(claim.kind in kinds, f"claim kind '{claim.kind}': {', '.join(kinds)}")
        compares = claim.kind in ("better", "pairs", "widens", "close")
        need(compares == bool(claim.than), f"claim '{claim.text}': `than` goes with better, pairs, widens and close")
        need((claim.kind == "reaches") == (claim.bound is not None), f"claim '{claim.text}': bound goes with reaches")
        lengths = (len(claim.rows), len(claim.than))
        paired = claim.kind in ("pairs", "widens") or (claim.kind == "close" and 1 not in lengths)
        need(not paired or len(set(lengths)) == 1, f"claim '{claim.text}': rows and than are no pairs")
    for measure in experiment.context:
        need(measure in experiment.measures, f"context '{measure}' is none of the measures")
    claimed = [] if experiment.collection else [m for m in experiment.measures if m not in experiment.context]
    for measure in claimed:
        judged = {n for c in experiment.claims if measure in claim_measures(experiment, c) for n in c.rows + c.than}
        for row in experiment.rows:
            relative = measure in MEASURES and MEASURES[measure].relative and row.row == experiment.baseline
            need(
                relative or row.literature or row.row in judged,
                f"row '{row.row}', measure '{measure}': no claim judges it",
            )


def claim_measures(experiment: Experiment, claim: Claim) -> list[str]:
    """The measures by which a claim is judged: its own, or the first of the experiment."""
    return claim.measures or experiment.measures[:1]


def tune_of(experiment: Experiment, row: Row, scale: str) -> Tune | None:
    """What is tuned for a row: its own key, or the grid's."""
    return row.tune if row.tune and scale != "smoke" else experiment.scales[scale].tune


def seeds_of(experiment: Experiment, row: Row, scale: str) -> list[int]:
    """The seeds of a row: its own, or the grid's."""
    return row.seeds if row.seeds and scale != "smoke" else experiment.scales[scale].seeds


def home(experiment: Experiment, row: Row) -> tuple[Experiment, Row]:
    """Where a row is run: here, or in the table that it cites."""
    if row.cite is None:
        return experiment, row
    table, _, name = row.cite.partition("/")
    other = load(f"{experiment.paper}/{table}")
    return other, other.get(name)


def cited_tables(experiment: Experiment) -> list[Experiment]:
    """The tables that a collection draws from, in its order."""
    tables = dict.fromkeys(row.cite.partition("/")[0] for row in experiment.rows)
    return [load(f"{experiment.paper}/{table}") for table in tables]
