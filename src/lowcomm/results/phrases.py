"""How a headline says its numbers: what was measured, once; then the paper's values and ours, in that same order."""

from collections.abc import Callable
from itertools import groupby

from lowcomm.results.cell import DIFFERS, Cell, number
from lowcomm.results.claims import Verdict, stem, tally, together
from lowcomm.results.measures import MEASURES, with_unit

NONE = "—"


def measured(cells: list[Cell]) -> str:
    """`final validation loss (nats): DiLoCo, R = 1 / 8; IsoLoCo, R = 1 / 8`; several measures one after the other."""
    parts = runs(cells)
    if one_row(cells) and len(parts) > 1:
        return f"{cells[0].row.method}: {' / '.join(map(label, parts))}"
    before = [None, *(part[0].measure for part in parts)]
    named = [together([c.row.method for c in part]) for part in parts]
    return "; ".join(
        name if part[0].measure == last else f"{label(part)}: {name}"
        for part, name, last in zip(parts, named, before, strict=False)
    )


def values(cells: list[Cell], say: Callable[[Cell], str]) -> str:
    """What `say` says of every cell, in the order of `measured`; a dash where it has nothing to say."""
    parts = [[say(c) or NONE for c in part] for part in runs(cells)]
    parts = [part if set(part) != {NONE} else [NONE] for part in parts]
    if {text for part in parts for text in part} <= {NONE}:
        return NONE
    return (" / " if one_row(cells) else "; ").join(" / ".join(part) for part in parts)


def runs(cells: list[Cell]) -> list[list[Cell]]:
    """The cells of one measure together, in the order of first appearance, and of these the rows of one series."""
    parts: list[list[Cell]] = []
    for measure in dict.fromkeys(c.measure for c in cells):
        mine = [c for c in cells if c.measure == measure]
        series = [list(part) for _, part in groupby(mine, key=lambda c: stem(c.row.method))]
        parts += series if any(len(part) > 1 and stem(part[0].row.method) for part in series) else [mine]
    return parts


def one_row(cells: list[Cell]) -> bool:
    """Whether all cells are of one row of the table."""
    return len({c.row.row for c in cells}) == 1


def label(cells: list[Cell]) -> str:
    """Title and unit of a measure, to stand in a sentence; what a function computes is named by its unit."""
    kind = MEASURES.get(cells[0].measure)
    if kind is None:
        units = [r.unit for c in cells for r in c.paper if r.unit != "1"]
        return units[0] if units else cells[0].measure
    return with_unit(kind.phrase, kind.unit)


def ours(cell: Cell) -> str:
    """Mean ± sample s.d.; or how many seeds reach the target. Empty where nothing was run."""
    if not cell.values:
        return ""
    if cell.mean is None:
        return f"reached by {len(cell.reached)} of {len(cell.values)} seeds"
    spread = f" ± {number(cell.spread, cell.measure)}" if cell.spread else ""
    return f"{number(cell.mean, cell.measure)}{spread}"


def printed(cells: list[Cell]) -> Callable[[Cell], str]:
    """What the paper prints for a cell, with its place; of a line of values from one place after the last of them."""
    said = [(c, r, f"{r.item}, {r.version}") for part in runs(cells) for c in part for r in c.paper]
    texts: dict[tuple[str, str], list[str]] = {}
    for i, (cell, reported, place) in enumerate(said):
        follows = i + 1 < len(said) and said[i + 1][2] == place and said[i + 1][0] is not cell
        texts.setdefault((cell.row.row, cell.measure), []).append(
            f"{reported.value:g}{'' if follows else f' ({place})'}"
        )
    return lambda cell: ", ".join(texts.get((cell.row.row, cell.measure), []))


def held(groups: list[list[Verdict]], cells: list[Cell]) -> str:
    """How much of it is as claimed: the one comparison that decides, or how many of several and which do not hold."""
    shown = {(c.row.row, c.measure) for c in cells if c.values}
    verdicts = [v for group in groups for v in group]
    if len(verdicts) == 1:
        return told(verdicts[0], shown)
    counted = [v for v in verdicts if v.claim.kind != "widens"] or verdicts
    said, lost = [tally(counted) or told(counted[0], shown)], []
    texts = dict.fromkeys(v.claim.text for v in verdicts)
    for text in texts if len(texts) > 1 else []:
        mine = [v for v in verdicts if v.claim.text == text]
        if mine[0].claim.kind != "widens" and any(v.status == DIFFERS for v in mine):
            lost.append(f"{text} ({tally(mine) or told(mine[0], shown)})")
    said += [f"not: {'; '.join(lost)}"] if lost else []
    said += [told(v, shown) for v in verdicts if v.claim.kind == "widens"]
    return "; ".join(s for s in said if s)


def told(verdict: Verdict, shown: set[tuple[str, str]]) -> str:
    """One verdict, without the values that the cells show beside it."""
    there = all((row, verdict.measure) in shown for row in verdict.of)
    return verdict.brief if verdict.brief and there and "both have" not in verdict.brief else verdict.said
