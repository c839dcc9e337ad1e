"""A paper's claim held against the numbers of one table; it can fail, pair by pair."""

import math
import re
import statistics
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from lowcomm.results.cell import DIFFERS, MATCHES, NOT_RUN, SAME, Cell, number
from lowcomm.results.experiment import Claim
from lowcomm.results.measures import MEASURES


@dataclass
class Verdict:
    """A claim, held against the cells."""

    claim: Claim
    measure: str
    status: str
    said: str = ""
    brief: str = ""  # the same without the values of the rows in `of`, for where these stand already
    of: tuple[str, ...] = ()  # the rows that decided


def worst(statuses: list[str]) -> str:
    """The status that counts of several: a difference before an agreement, *not run* only where nothing was run."""
    order = [DIFFERS, SAME, MATCHES, NOT_RUN]
    return min(statuses, key=order.index) if statuses else NOT_RUN


def single(claim: Claim, here: set[str]) -> list[Claim]:
    """A claim about each of several rows or pairs as one for each that the scale has; any other claim is itself.

    The pairs of `close` are partners where both lists are of one length, else the one row with each of the others.
    """
    if claim.kind in ("positive", "reaches"):
        return [replace(claim, rows=[name]) for name in claim.rows if name in here]
    if claim.kind not in ("pairs", "widens", "close"):
        return [claim]
    longest = max(len(claim.rows), len(claim.than))
    rows, than = (names * longest if len(names) == 1 else names for names in (claim.rows, claim.than))
    pairs = [(a, b) for a, b in zip(rows, than, strict=True) if a in here and b in here]
    if claim.kind != "widens":
        kind = "better" if claim.kind == "pairs" else "close"
        return [replace(claim, kind=kind, rows=[a], than=[b]) for a, b in pairs]
    return [replace(claim, rows=[a for a, _ in pairs], than=[b for _, b in pairs])] if len(pairs) > 1 else []


def judge(claim: Claim, measure: str, cells: dict[tuple[str, str], Cell]) -> Verdict:
    """Hold one claim, as `single` has it, against the cells of one measure."""
    mine = [cells[n, measure] for n in claim.rows if cells[n, measure].values]
    verdict = partial(Verdict, claim, measure)
    if not mine:
        return verdict(NOT_RUN)
    if claim.kind == "equal":
        off = [abs(c.mean - r.value) if c.mean is not None else math.inf for c in mine for r in c.paper]
        if not off:
            return verdict(NOT_RUN, "the paper's value is not known")
        said = f"largest difference {max(off):.2g}, tolerance {claim.tolerance:g}"
        within = all(distance <= claim.tolerance for distance in off)  # no NaN is
        return verdict(MATCHES if within else DIFFERS, said, said)
    if claim.kind in ("positive", "reaches"):
        return verdict(*bounded(claim, measure, mine[0]))
    if claim.kind == "widens":
        return verdict(*widening(claim, measure, cells))
    theirs = [cells[n, measure] for n in claim.than if cells[n, measure].values]
    if not theirs:
        return verdict(NOT_RUN)
    sign = 1 if MEASURES[measure].lower else -1
    reached, others = ([c for c in group if c.mean is not None] for group in (mine, theirs))
    if not reached:
        return verdict(DIFFERS, "not reached")
    best = min(reached, key=lambda c: sign * c.mean)
    if not others:
        return verdict(SAME, f"{best.row.method} reaches it, the others do not")
    other = min(others, key=lambda c: sign * c.mean)
    ours, other_mean = means(best, other)
    gap = sign * (ours - other_mean)
    holds = gap <= claim.tolerance * abs(other_mean) if claim.kind == "close" else gap < 0
    values, difference = compare(best, other, measure)
    decided = (best.row.row, other.row.row)
    return verdict(SAME if holds else DIFFERS, f"{values}; {difference}", difference, decided)


def bounded(claim: Claim, measure: str, cell: Cell) -> tuple[str, str, str, tuple[str]]:
    """A row that is to be above zero, or at a bound or better; one that missed its target is neither."""
    positive, sign = claim.kind == "positive", 1 if MEASURES[measure].lower else -1
    target = "above zero" if positive else f"bound {number(claim.bound, measure)}"
    if cell.mean is None:
        return DIFFERS, f"{cell.row.method}: not reached; {target}", target, (cell.row.row,)
    holds = cell.mean > 0 if positive else sign * cell.mean <= sign * claim.bound
    said = f"{cell.row.method}: {number(cell.mean, measure)}{'' if positive else f'; {target}'}"
    return (SAME if holds else DIFFERS), said, target, (cell.row.row,)


def grouped(verdicts: list[Verdict]) -> list[list[Verdict]]:
    """The verdicts of one claim and measure together, in their order: one for a plain claim, else one a row or pair."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.claim.text, verdict.measure), []).append(verdict)
    return list(groups.values())


def tally(verdicts: list[Verdict]) -> str:
    """Of several, how many are as claimed: `3 of 4 pairs, 2 not run`. Empty for a claim that is one."""
    verdicts = [v for v in verdicts if v.status != NOT_RUN or not v.said]  # run, but nothing to hold it against
    if len(verdicts) < 2:
        return ""
    kinds = {bool(v.claim.than) for v in verdicts}
    things = "checks" if len(kinds) == 2 else "pairs" if kinds == {True} else "rows"
    run = [v for v in verdicts if v.status != NOT_RUN]
    if not run:
        return f"{len(verdicts)} {things}"
    missing = f", {len(verdicts) - len(run)} not run" if len(run) < len(verdicts) else ""
    return f"{sum(v.status != DIFFERS for v in run)} of {len(run)} {things}{missing}"


def shared(*cells: Cell) -> list[int]:
    """The seeds with which all of them have a number."""
    return [seed for seed in cells[0].values if all(c.values.get(seed) is not None for c in cells)]


def means(*cells: Cell) -> list[float]:
    """The mean of each over the seeds that they share; over its own seeds where they share none."""
    seeds = shared(*cells)
    return [statistics.fmean(c.values[s] for s in seeds) if seeds else c.mean for c in cells]


def widening(claim: Claim, measure: str, cells: dict[tuple[str, str], Cell]) -> tuple[str, str, str]:
    """Status and the gains of all pairs that were run, in per cent of the partner's value, on the seeds of all."""
    pairs = [(cells[a, measure], cells[b, measure]) for a, b in zip(claim.rows, claim.than, strict=True)]
    run = [(a, b) for a, b in pairs if a.values and b.values and a.mean is not None and b.mean is not None]
    if len(run) < 2:
        return NOT_RUN, "", ""
    sign = 1 if MEASURES[measure].lower else -1
    involved = [c for pair in run for c in pair]
    values = means(*involved)
    gains = [100 * sign * (b - a) / b for a, b in zip(values[::2], values[1::2], strict=True)]
    grows = [after > before for before, after in pairwise(gains)]
    methods = [a.row.method for a, _ in run]
    steps = f"in {sum(grows)} of {len(grows)} steps"
    said = ", ".join(f"{name} {g:.2f} %" for name, g in zip(methods, gains, strict=True))
    brief = f"gain of {together(methods)}: {' / '.join(f'{g:.1f}' for g in gains)} %, larger {steps}"
    said += f"; larger than before {steps}, seeds shared by all: {len(shared(*involved))}"
    return (SAME if all(grows) else DIFFERS), said, brief


def together(names: list[str]) -> str:
    """Names with what they all begin with, up to a separator, said once: `DiLoCo, R = 1 / 2 / 4`."""
    start = stem(names[0])
    rest = names if any(stem(n) != start for n in names) else [names[0], *(n.removeprefix(start) for n in names[1:])]
    return " / ".join(rest)


def stem(name: str) -> str:
    """All of a name but the part after its last separator; empty for a name of one part."""
    return re.match(r"(.*( = |, |: ))?", name)[0]


def compare(a: Cell, b: Cell, measure: str) -> tuple[str, str]:
    """`A 3.41, B 3.43` and `difference -0.020 ± 0.004, better with 3 of 3 seeds`: all on the seeds that both have."""
    sign = 1 if MEASURES[measure].lower else -1
    seeds, (left, right) = shared(a, b), means(a, b)
    gaps = [a.values[s] - b.values[s] for s in seeds]
    spread = f" ± {number(statistics.stdev(gaps), measure)}" if len(gaps) > 1 else ""
    values = f"{a.row.method} {number(left, measure)}, {b.row.method} {number(right, measure)}"
    if not gaps:
        return values, "no seed in common"
    wins, which = sum(sign * g < 0 for g in gaps), "" if a.values.keys() == b.values.keys() else " that both have"
    difference = f"{number(statistics.fmean(gaps), measure)}{spread}"
    return values, f"difference {difference}, better with {wins} of {len(gaps)} seeds{which}"
