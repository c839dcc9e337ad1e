"""A paper's claim held against the numbers of one table; it can fail, pair by pair."""

import math
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


def worst(statuses: list[str]) -> str:
    """The status that counts of several: a difference before an agreement, *not run* only where nothing was run."""
    order = [DIFFERS, SAME, MATCHES, NOT_RUN]
    return min(statuses, key=order.index) if statuses else NOT_RUN


def single(claim: Claim, here: set[str]) -> list[Claim]:
    """A claim about pairs as one claim for each pair that the scale has; any other claim is itself."""
    if claim.kind not in ("pairs", "widens"):
        return [claim]
    pairs = [(a, b) for a, b in zip(claim.rows, claim.than, strict=True) if a in here and b in here]
    if claim.kind == "pairs":
        return [replace(claim, kind="better", rows=[a], than=[b]) for a, b in pairs]
    return [replace(claim, rows=[a for a, _ in pairs], than=[b for _, b in pairs])] if len(pairs) > 1 else []


def judge(claim: Claim, measure: str, cells: dict[tuple[str, str], Cell]) -> Verdict:
    """Hold one claim against the cells of one measure."""
    mine = [cells[n, measure] for n in claim.rows if cells[n, measure].values]
    verdict = partial(Verdict, claim, measure)
    if not mine:
        return verdict(NOT_RUN)
    if claim.kind == "equal":
        off = [abs(c.mean - r.value) if c.mean is not None else math.inf for c in mine for r in c.paper]
        if not off:
            return verdict(NOT_RUN, "the paper's value is not known")
        said = f"largest difference {max(off):.2g}, tolerance {claim.tolerance:g}"
        return verdict(MATCHES if max(off) <= claim.tolerance else DIFFERS, said)
    kind = MEASURES[measure]
    sign = 1 if kind.lower else -1
    if claim.kind == "widens":
        return verdict(*widening(claim, measure, cells))
    reached = [c for c in mine if c.mean is not None]
    if claim.kind == "reaches":
        worst_of = max(mine, key=lambda c: math.inf if c.mean is None else sign * c.mean)
        ok = worst_of.mean is not None and sign * worst_of.mean <= sign * claim.bound
        shown = "not reached" if worst_of.mean is None else number(worst_of.mean, measure)
        said = f"worst: {worst_of.row.method}, {shown}; bound {number(claim.bound, measure)}"
        return verdict(SAME if ok else DIFFERS, said)
    if claim.kind == "positive":
        if not reached:
            return verdict(DIFFERS, "not reached")
        best = max(reached, key=lambda c: c.mean)
        return verdict(SAME if best.mean > 0 else DIFFERS, f"{best.row.method}: {number(best.mean, measure)}")
    theirs = [cells[n, measure] for n in claim.than if cells[n, measure].values]
    if not theirs:
        return verdict(NOT_RUN)
    if not reached:
        return verdict(DIFFERS, "not reached")
    others = [c for c in theirs if c.mean is not None]
    best = min(reached, key=lambda c: sign * c.mean)
    if claim.kind == "close" and others:
        other = min(others, key=lambda c: sign * c.mean)
        ours, other_mean = means(best, other)
        near = sign * (ours - other_mean) <= claim.tolerance * abs(other_mean)
        return verdict(SAME if near else DIFFERS, compare(best, other, measure))
    if not others:
        return verdict(SAME, f"{best.row.method} reaches it, the others do not")
    other = min(others, key=lambda c: sign * c.mean)
    ours, other_mean = means(best, other)
    return verdict(SAME if sign * (ours - other_mean) < 0 else DIFFERS, compare(best, other, measure))


def grouped(verdicts: list[Verdict]) -> list[list[Verdict]]:
    """The verdicts of one claim and measure together, in their order: one for a plain claim, one a pair for `pairs`."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.claim.text, verdict.measure), []).append(verdict)
    return list(groups.values())


def tally(verdicts: list[Verdict]) -> str:
    """Of several pairs, how many are as claimed: `3 of 4 pairs, 2 not run`. Empty for a claim that is one."""
    if len(verdicts) < 2:
        return ""
    run = [v for v in verdicts if v.status != NOT_RUN]
    if not run:
        return f"{len(verdicts)} pairs"
    missing = f", {len(verdicts) - len(run)} not run" if len(run) < len(verdicts) else ""
    return f"{sum(v.status != DIFFERS for v in run)} of {len(run)} pairs{missing}"


def shared(*cells: Cell) -> list[int]:
    """The seeds with which all of them have a number."""
    return [seed for seed in cells[0].values if all(c.values.get(seed) is not None for c in cells)]


def means(*cells: Cell) -> list[float]:
    """The mean of each over the seeds that they share; over its own seeds where they share none."""
    seeds = shared(*cells)
    return [statistics.fmean(c.values[s] for s in seeds) if seeds else c.mean for c in cells]


def widening(claim: Claim, measure: str, cells: dict[tuple[str, str], Cell]) -> tuple[str, str]:
    """Status and the gains of all pairs that were run, in per cent of the partner's value, on the seeds of all."""
    pairs = [(cells[a, measure], cells[b, measure]) for a, b in zip(claim.rows, claim.than, strict=True)]
    run = [(a, b) for a, b in pairs if a.values and b.values and a.mean is not None and b.mean is not None]
    if len(run) < 2:
        return NOT_RUN, ""
    sign = 1 if MEASURES[measure].lower else -1
    involved = [c for pair in run for c in pair]
    values = means(*involved)
    gains = [100 * sign * (b - a) / b for a, b in zip(values[::2], values[1::2], strict=True)]
    grows = [after > before for before, after in pairwise(gains)]
    said = ", ".join(f"{a.row.method} {g:.2f} %" for (a, _), g in zip(run, gains, strict=True))
    said += f"; larger than before in {sum(grows)} of {len(grows)} steps, seeds shared by all: {len(shared(*involved))}"
    return (SAME if all(grows) else DIFFERS), said


def compare(a: Cell, b: Cell, measure: str) -> str:
    """`A 3.41, B 3.43; difference -0.020 ± 0.004, better with 3 of 3 seeds`: all of it on the seeds that both have."""
    sign = 1 if MEASURES[measure].lower else -1
    seeds, (left, right) = shared(a, b), means(a, b)
    gaps = [a.values[s] - b.values[s] for s in seeds]
    spread = f" ± {number(statistics.stdev(gaps), measure)}" if len(gaps) > 1 else ""
    text = f"{a.row.method} {number(left, measure)}, {b.row.method} {number(right, measure)}"
    if not gaps:
        return f"{text}; no seed in common"
    wins, which = sum(sign * g < 0 for g in gaps), "" if a.values.keys() == b.values.keys() else " that both have"
    difference = f"{number(statistics.fmean(gaps), measure)}{spread}"
    return f"{text}; difference {difference}, better with {wins} of {len(gaps)} seeds{which}"
