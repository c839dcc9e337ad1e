"""Tables: what the paper says beside what came out, and whether they agree. Rows of two scales never share a table."""

import os
import statistics
from pathlib import Path

import pandas as pd

from lowcomm.results.cell import DIFFERS, Cell, number
from lowcomm.results.claims import Verdict, grouped, tally, worst
from lowcomm.results.cost import command, estimate, missing
from lowcomm.results.experiment import Experiment, Tune, home, load, tune_of
from lowcomm.results.grid import at_scale
from lowcomm.results.measures import MEASURES
from lowcomm.results.record import RECORDS, read
from lowcomm.results.summary import summarise

COLUMNS = ["method", "paper value", "ours", "scale", "status", "record"]


def table(name: str, scale: str = "cpu", records: Path = RECORDS, links_from: Path | None = None) -> pd.DataFrame:
    """Columns `measure` and COLUMNS, one line per row and measure of the experiment `name` (`<paper>/<table>`).

    *matches*: within the stated tolerance of the paper's value; *same order*: the ranking or sign holds at this scale;
    *differs*: it does not, see DEVIATIONS.md; *not run*; *measured*: a number that no claim is about, or whose partner
    was not run; *reported*: of the literature, nothing is run here. With `links_from` (a folder) records and
    DEVIATIONS.md are links.
    """
    experiment = load(name)
    cells, _ = summarise(experiment, scale, records)
    lines = []
    here = {r.row for r in at_scale(experiment, scale)}
    for cell in cells:
        if not (cell.values or cell.paper or cell.row.row in here or experiment.collection):
            continue  # neither planned at this scale nor known from the paper
        status = cell.status
        if status == DIFFERS and links_from is not None and scale != "smoke":
            target = os.path.relpath(records.parents[1] / "DEVIATIONS.md", links_from)
            status = f"[{status}]({target}#{experiment.folder})"
        values = [cell.measure, cell.row.method, "; ".join(map(str, cell.paper)), ours(cell), scale, status]
        lines.append([*values, links(experiment, cell, records, links_from)])
    return pd.DataFrame(lines, columns=["measure", *COLUMNS])


def ours(cell: Cell) -> str:
    """Mean ± sample s.d. (n); the paper's value never stands here, nor a derived one in the paper's column."""
    if not cell.values:
        return ""
    of = f", {cell.of.method}" if cell.of else ""
    if cell.mean is None:
        return value(cell) + of
    return value(cell) if cell.paths == ["computed"] else f"{value(cell)} (n = {len(cell.values)}{of})"


def value(cell: Cell) -> str:
    """Mean ± sample s.d., and the other reading of a step speedup in brackets; or how many seeds reach the target."""
    if cell.mean is None:
        return f"not reached ({len(cell.reached)} of {len(cell.values)} seeds reach it)"
    spread = f" ± {number(cell.spread, cell.measure)}" if cell.spread is not None else ""
    ratio = f" [{number(statistics.fmean(cell.ratios.values()), cell.measure)}]" if cell.ratios else ""
    return f"{number(cell.mean, cell.measure)}{spread}{ratio}"


def links(experiment: Experiment, cell: Cell, records: Path, links_from: Path | None) -> str:
    """The tuned value and the records, one link per seed."""
    if not cell.paths or cell.paths == ["computed"]:
        return "".join(cell.paths)
    if links_from is None:
        seeds = ",".join(map(str, cell.values))
        shown = f"{cell.paths[0].rpartition('-seed')[0]}-seed{{{seeds}}}.json"
    else:
        places = [os.path.relpath(records / path, links_from) for path in cell.paths]
        shown = "seeds " + " ".join(f"[{seed}]({place})" for seed, place in zip(cell.values, places, strict=True))
    value = ""
    if cell.tuned is not None:
        owner, row = home(experiment, cell.row)
        if cell.of:
            owner, row = home(owner, cell.of)
        key = tune_of(owner, row, cell.paths[0].partition("/")[0]).key
        key = key.removeprefix("algorithm.").removeprefix("inner.")
        value = f"{key} {cell.tuned:g}{' (edge of its grid)' if cell.edge else ''}, "
    return value + shown


def markdown(name: str, scales: list[str], folder: Path, records: Path = RECORDS) -> str:
    """The page of one table, to lie in `folder`: a section per scale, and the command where nothing was run."""
    experiment = load(name)
    parts = [f"# {experiment.folder}: {experiment.title}", experiment.note.strip()]
    for scale in scales:
        cells, verdicts = summarise(experiment, scale, records)
        parts.append(f"## Scale: {scale}")
        parts.append(legend(experiment, scale, cells, records))
        lines = table(name, scale, records, folder)
        if lines.empty:
            continue  # the legend says so
        for measure in experiment.measures:
            kind = MEASURES.get(measure)
            parts.append(f"### {kind.label}" if kind else f"### {measure}")
            part = lines[lines.measure == measure][COLUMNS]
            parts.append(part.to_markdown(index=False, disable_numparse=True))
        parts.append("\n".join(claim_lines(verdicts)))
    return "\n\n".join(p for p in parts if p) + "\n"


def claim_lines(verdicts: list[Verdict]) -> list[str]:
    """A bullet per claim and measure; one about several rows or pairs counts them and lists those that were run."""
    shown = []
    for group in grouped(verdicts):
        first, count = group[0], tally(group)
        name = MEASURES[first.measure].phrase if first.measure in MEASURES else first.measure
        head = f"- {first.claim.text} ({name}): **{worst([v.status for v in group])}**"
        if not count:
            shown.append(f"{head}. {first.said}" if first.said else head)
            continue
        shown.append(f"{head}, {count}")
        shown += [f"  - {v.status}. {v.said}" for v in group if v.said]
    return shown


def legend(experiment: Experiment, scale: str, cells: list[Cell], records: Path) -> str:
    """What the numbers of one scale are: model, length, tuning, seeds, cost; or how to get them."""
    if experiment.computed:
        return f"Computed by `{experiment.computed}`."
    paths = {p for c in cells for p in c.paths}
    if not paths:
        planned = experiment.collection or at_scale(experiment, scale)
        return f"Not run. {estimate(experiment, scale, records)}." if planned else "Nothing is planned at this scale."
    used = [read(records / p) for p in sorted(paths)]
    smoke = ["Smoke shows that everything runs; its numbers are no evidence."] if scale == "smoke" else []
    facts = smoke + sorted({size(r) for r in used})
    hours = sum(r["identity"]["wall_seconds"] for r in used) / 3600
    grids = {tuning(owner, scale) for c in cells for owner in [home(experiment, c.row)[0]] if scale in owner.scales}
    shown = f"{len(paths)} runs shown, {hours:.2f} h in all. {command(experiment, scale)}"
    lines = [*facts, *sorted(g for g in grids if g), shown]
    if missing([experiment], scale, records)[0]:
        lines.append(f"Not run yet: {estimate(experiment, scale, records)}.")
    dirty = sum(r["code"]["dirty"] is not None for r in used)
    if dirty:
        lines.append(f"{dirty} of them with uncommitted changes of the code.")
    return "\n".join(f"- {line}" for line in lines)


def size(record: dict) -> str:
    """Model, parameters, data and length of a run, or what the record itself says."""
    config, outcome, data = record["code"]["config"], record["outcome"], record["data"]
    if "summary" in data:
        return f"{data['summary']}; {record['environment']['device']['kind']}."
    model = config["model"]
    count = outcome["memory"]["parameters"] // (4 if model["dtype"] == "float32" else 2)
    evaluated = outcome["evaluation_n"]
    unit = "completions" if "objective" in config else "images" if model["family"] == "vit" else "tokens"
    return (
        f"{model['name']} ({count:,} parameters) on {config['workload']['name']}: {outcome['steps']:,} steps, "
        f"{data['units']:,} {unit}, {evaluated:,.0f} evaluated; {record['environment']['device']['kind']}."
    )


def tuning(experiment: Experiment, scale: str) -> str:
    """What was tuned, over which values, and the seeds of one scale."""
    grid = experiment.scales[scale]
    seeds = ", ".join(map(str, grid.seeds))
    own = [r for r in at_scale(experiment, scale) if r.overrides and r.seeds and scale != "smoke"]
    for other in sorted({tuple(r.seeds) for r in own}):
        seeds += f"; {', '.join(map(str, other))} of {', '.join(r.method for r in own if tuple(r.seeds) == other)}"
    if grid.tune is None:
        return f"Seeds: {seeds}."
    own = [r for r in at_scale(experiment, scale) if r.overrides and r.tune and scale != "smoke"]
    instead = "".join(f", in place of it {grid_of(r.tune)} for {r.method}" for r in own)
    return f"{grid_of(grid.tune, ' for every row')} with seed {grid.seeds[0]}{instead}; seeds: {seeds}."


def grid_of(tune: Tune, rows: str = "") -> str:
    """A key and the values that were tried."""
    return f"`{tune.key}` chosen{rows} from {', '.join(f'{v:g}' for v in tune.values)}"
