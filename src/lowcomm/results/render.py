"""Write every table and figure again from the records, byte for byte: `python -m lowcomm.results`."""

from collections.abc import Iterable
from pathlib import Path

from lowcomm.results.experiment import Experiment, load, names
from lowcomm.results.record import RECORDS
from lowcomm.results.tables import markdown

COMMITTED = ("cpu", "gpu", "paper")  # on one page; smoke shows that everything runs and lies apart, ignored by git


def render(experiments: Iterable[Experiment] | None = None, scale: str = "cpu", records: Path = RECORDS) -> list[Path]:
    """Tables and figures of the experiments (all by default) beside the folder of the records; returns the files.

    A page holds all scales but smoke: cpu and paper always, so that it says what was not run, gpu where there are
    records.
    """
    from lowcomm.results.figures import figure, save

    written = []
    for experiment in experiments or map(load, names()):
        smoke = scale == "smoke"
        folder = records.parent / "tables" / ("smoke" if smoke else "")
        there = [s for s in COMMITTED if s != "gpu" or any((records / s).glob("*/*.json"))]
        page = folder / f"{experiment.folder}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(markdown(experiment.name, ["smoke"] if smoke else there, folder, records), encoding="utf-8")
        written.append(page)
        drawing = figure(experiment.name, scale, records)
        if drawing is not None:
            name = f"{experiment.folder}{f'-{scale}' if scale in ('gpu', 'paper') else ''}.svg"
            written.append(save(drawing, records.parent / "figures" / ("smoke" if smoke else "") / name))
    return written
