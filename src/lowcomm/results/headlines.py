"""The papers' headline claims: `conf/claims.yaml` names them, the verdicts of the tables judge them.

Nothing is judged and no value is typed here. A headline points at an experiment: which of its claims decide, and which
of its cells show the paper's value and ours. One whose experiment is not there yet is shown as *not run*.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lowcomm.results.cell import DIFFERS, NOT_RUN, SAME, Cell
from lowcomm.results.claims import Verdict, grouped, worst
from lowcomm.results.cost import duration, missing
from lowcomm.results.experiment import Experiment, load, names
from lowcomm.results.phrases import NONE, held, measured, ours, printed, values
from lowcomm.results.record import ROOT
from lowcomm.results.summary import Summary

CLAIMS = ROOT / "conf" / "claims.yaml"
SCALES = ("paper", "gpu", "cpu")  # the largest at which something was run speaks


@dataclass
class Paper:
    """One paper; its tables lie in the folders of `conf/experiment` named here."""

    title: str = MISSING
    folders: list[str] = MISSING


@dataclass
class Headline:
    """What a paper says, and where this repository holds it against numbers."""

    paper: str = MISSING
    text: str = MISSING
    experiment: str | None = None  # <folder>/<table>
    claims: list[str] | None = None  # texts of its claims that decide; null: all
    cells: list[str] = field(default_factory=list)  # <row>/<measure>: the paper's value and ours
    check: str | None = None  # in place of an experiment: the test or benchmark that shows it
    deployment: bool = False  # in place of both: decided by paper_figures/deployment (lowcomm.deploy)
    readme: str | None = None  # the claim in a few words, where it stands in the README's table
    readme_cells: list[str] | None = None  # those of `cells` that it shows there; null: all


@dataclass
class Headlines:
    """The whole file."""

    papers: dict[str, Paper] = MISSING
    headlines: list[Headline] = MISSING


@dataclass
class Line:
    """One headline as the page shows it; all Markdown."""

    text: str
    measured: str = ""
    paper: str = NONE
    ours: str = ""
    held: str = ""
    scale: str = ""
    n: str = ""
    status: str = NOT_RUN
    more: str = ""


def read_headlines(path: Path = CLAIMS) -> Headlines:
    """Read and check the file. Raises ValueError naming it, the headline and what does not exist."""
    try:
        loaded = OmegaConf.merge(OmegaConf.structured(Headlines), OmegaConf.load(path))
        found: Headlines = OmegaConf.to_object(loaded)
    except OmegaConfBaseException as error:
        raise ValueError(f"{path.name}: {str(error).splitlines()[0]}") from error
    for headline in found.headlines:
        check(headline, found.papers, path.name)
    return found


def check(headline: Headline, papers: dict[str, Paper], file: str) -> None:
    """Names that refer to nothing. An experiment may be missing, what it is asked for may not. Raises ValueError."""

    def need(ok: bool, what: str) -> None:
        if not ok:
            raise ValueError(f"{file}: '{headline.text}': {what}")

    need(headline.paper in papers, f"paper '{headline.paper}' is none of {', '.join(papers)}")
    named = (headline.experiment is not None) + (headline.check is not None) + headline.deployment
    need(named == 1, "needs an experiment or a check or a deployment, one of them")
    if headline.deployment:
        return
    if headline.check is not None:
        need((ROOT / headline.check).is_file(), f"there is no file {headline.check}")
        return
    folders, folder = papers[headline.paper].folders, headline.experiment.partition("/")[0]
    need(folder in folders, f"{headline.experiment} lies in none of {', '.join(folders)}")
    if headline.experiment not in names():
        return
    experiment = load(headline.experiment)
    texts = [c.text for c in experiment.claims]
    for text in headline.claims or []:
        need(text in texts, f"{experiment.name} has no claim '{text}'; it has {'; '.join(texts)}")
    for cell in headline.cells:
        row, _, measure = cell.partition("/")
        known = row in [r.row for r in experiment.rows] and measure in experiment.measures
        need(known, f"{experiment.name} has no row and measure '{cell}'")
    for cell in headline.readme_cells or []:
        need(cell in headline.cells, f"readme_cells: '{cell}' is none of its cells")


def line(headline: Headline, summary: Summary, records: Path) -> Line:
    """One headline from the verdicts and cells of its experiment, linked from the folder above the records."""
    if headline.check is not None:
        tool = "pytest " if headline.check.startswith("tests/") else ""
        place = os.path.relpath(records.parents[1] / headline.check, records.parent)
        run = f"`python {'-m ' if tool else ''}{tool}{headline.check}`"
        return Line(headline.text, status=f"[{'test' if tool else 'bench'}]({place})", more=run)
    if headline.deployment:
        return deployed(headline, records.resolve().parent / "deployment")
    if headline.experiment not in names():
        needs = f"needs `conf/experiment/{headline.experiment}.yaml`, which is not there yet"
        return Line(headline.text, "not entered yet", more=needs)
    experiment = load(headline.experiment)
    scale, cells, groups = spoken(headline, experiment, summary)
    chosen = named(headline.cells, cells)
    status = worst([v.status for group in groups for v in group])
    judged = {(n, v.measure) for group in groups for v in group for n in v.claim.rows + v.claim.than}
    used = chosen + [c for c in cells if (c.row.row, c.measure) in judged]
    shown = Line(headline.text, measured(chosen), values(chosen, printed(chosen)), scale=scale, status=status)
    shown.more = links(experiment, scale, used, records)
    if status == NOT_RUN:
        shown.more += f" {cost(experiment, scale, records)}" if scale else "; no claim there decides it yet"
        return shown
    shown.ours, shown.held = values(chosen, ours), held(groups, chosen)
    counts = sorted({len(c.values) for c in used if c.values})
    shown.n = "exact" if experiment.computed else "–".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    shown.status = linked(status, experiment, os.path.relpath(records.parents[1] / "DEVIATIONS.md", records.parent))
    return shown


def named(wanted: list[str], cells: list[Cell]) -> list[Cell]:
    """The cells `<row>/<measure>`, in the order wanted."""
    return [c for name in wanted for c in cells if f"{c.row.row}/{c.measure}" == name]


def linked(status: str, experiment: Experiment, deviations: str) -> str:
    """A status, as a link to its reasons where it differs."""
    return f"[{status}]({deviations}#{experiment.folder})" if status == DIFFERS else status


def cost(experiment: Experiment, scale: str, records: Path) -> str:
    """How many runs are missing, and about how long they take."""
    runs, seconds = missing([experiment], scale, records)
    return f"({runs} runs, about {duration(seconds)} on one {'core' if scale == 'cpu' else 'accelerator'})"


def deployed(headline: Headline, folder: Path) -> Line:
    """The headline that a live deployment decides; the folder lies beside the records."""
    from lowcomm.deploy.report import said

    told, run = said(folder), "`sudo make reproduce-deploy`"
    if told is None:
        return Line(headline.text, more=f"{run} (about 15 minutes)")
    place = folder.name
    more = f"[table]({place}/table.md), [figure]({place}/figure.svg), [record]({place}/record.json), {run}"
    what, status = "time that the trainer does not wait", SAME if told[0] else DIFFERS
    return Line(headline.text, what, ours=told[1], scale="cpu", n="1", status=status, more=more)


def spoken(headline: Headline, experiment: Experiment, summary: Summary) -> tuple[str, list[Cell], list[list[Verdict]]]:
    """The largest scale at which the claim was judged, else the smallest that could: its cells and verdicts.

    The scale is empty where the experiment has no claim that decides.
    """
    found = []
    for scale in SCALES if experiment.computed else [s for s in SCALES if s in experiment.scales]:
        cells, verdicts = summary(experiment, scale)
        mine = [v for v in verdicts if headline.claims is None or v.claim.text in headline.claims]
        if any(v.status != NOT_RUN for v in mine):
            return scale if not experiment.computed else "any", cells, grouped(mine)
        if mine:
            found.append((scale, cells, grouped(mine)))
    return found[-1] if found else ("", [], [])


def links(experiment: Experiment, scale: str, cells: list[Cell], records: Path) -> str:
    """Table, figure, records and command, as far as they are there; the command stands in the table's page."""
    home = records.parent
    suffix = f"-{scale}" if scale in ("gpu", "paper") else ""
    figure, page = home / "figures" / f"{experiment.folder}{suffix}.svg", f"tables/{experiment.folder}.md"
    shown = [f"[table]({page})"]
    shown += [f"[figure]({figure.relative_to(home).as_posix()})"] if figure.is_file() else []
    folders = dict.fromkeys(p.rpartition("/")[0] for c in cells for p in c.paths if p != "computed")
    kept = " ".join(f"[{f.rpartition('/')[2]}]({records.name}/{f})" for f in folders)
    shown += [f"records {kept}"] if kept else []
    if experiment.computed:
        shown.append("`python -m lowcomm.results`")
    elif scale:
        shown.append(f"[command]({page}#scale-{scale})")
    return ", ".join(shown)
