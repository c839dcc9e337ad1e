"""What the missing runs of a table would cost, from the seconds that its grid states."""

from pathlib import Path

from lowcomm.results.experiment import Experiment
from lowcomm.results.grid import Run, plan
from lowcomm.results.record import RECORDS


def seconds_of(ready: list[Run], waiting: int) -> float:
    """Of runs that could start now and of those that wait for a tuning, each as long as the longest of the others."""
    return sum(r.seconds for r in ready) + waiting * max((r.seconds for r in ready), default=0)


def missing(experiments: list[Experiment], scale: str, records: Path = RECORDS) -> tuple[int, float]:
    """How many runs have no record at this scale, and their seconds one after the other; a cited run counts once."""
    _, ready, waiting = plan(experiments, scale, lambda run: (records / run.path).is_file(), records)
    return len(ready) + waiting, seconds_of(ready, waiting)


def command(experiment: Experiment, scale: str) -> str:
    """What a person types to get this table."""
    return f"`python -m lowcomm.reproduce experiment={experiment.name} scale={scale}`"


def estimate(experiment: Experiment, scale: str, records: Path = RECORDS) -> str:
    """The command that makes the missing runs of a table, how many they are, and about how long they take."""
    runs, seconds = missing([experiment], scale, records)
    where = "core" if scale in ("smoke", "cpu") else "accelerator"
    return f"{command(experiment, scale)}: {runs} runs, about {duration(seconds)} on one {where}"


def duration(seconds: float) -> str:
    """In the largest unit that leaves two digits."""
    for unit, size, enough in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 72 * 3600)):
        if seconds < enough:
            return f"{seconds / size:.{int(unit == 'h')}f} {unit}"
    return f"{seconds / 86400:.0f} days"
