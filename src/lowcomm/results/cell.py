"""One entry of a table: the values of a row by seed, what they come from, and how it compares."""

import statistics
from dataclasses import dataclass, field

from lowcomm.results.experiment import Row
from lowcomm.results.measures import MEASURES
from lowcomm.results.reported import Reported

MATCHES, SAME, DIFFERS, NOT_RUN = "matches", "same order", "differs", "not run"
MEASURED, REPORTED = "measured", "reported"  # no claim is about it, or its partner was not run; a row of the literature
UNMEASURED = "not measured"  # run, but this was not taken


@dataclass
class Cell:
    """One row and measure: values by seed (None: target not reached), and the records they come from."""

    row: Row
    measure: str
    values: dict[int, float | None] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    tuned: float | None = None
    edge: bool = False  # the best value is the first or last of its grid
    status: str = NOT_RUN
    untaken: bool = False  # some seed was run and did not measure this
    ratios: dict[int, float | None] = field(default_factory=dict)  # T/t - 1 in per cent, by seed
    of: Row | None = None  # which row is the best of several
    paper: list[Reported] = field(default_factory=list)

    @property
    def reached(self) -> list[float]:
        """The values of the seeds that reached the target."""
        return [v for v in self.values.values() if v is not None]

    @property
    def mean(self) -> float | None:
        """Over seeds; None when a seed is missing the target, since the mean of the others would flatter."""
        return statistics.fmean(self.reached) if self.reached and len(self.reached) == len(self.values) else None

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over seeds."""
        return statistics.stdev(self.reached) if len(self.reached) > 1 else None


def number(value: float, measure: str) -> str:
    """A value in the unit and with the digits of its measure."""
    kind = MEASURES.get(measure)
    return f"{value:.4f}" if kind is None else f"{kind.scale * value:.{kind.digits}f}"
