"""Write every table and figure again from the records, byte for byte: `python -m lowcomm.results`."""

from collections.abc import Iterable
from pathlib import Path

from lowcomm.results.experiment import Experiment, load, names
from lowcomm.results.record import RECORDS
from lowcomm.results.summary import shown_scales
from lowcomm.results.tables import markdown


def render(experiments: Iterable[Experiment] | None = None, scale: str = "cpu", records: Path = RECORDS) -> list[Path]:
    """Tables and figures of the experiments (all by default) beside the folder of the records; returns the files.

    A page holds all scales but smoke, which shows that everything runs and lies apart, ignored by git. With any other
    scale the page of all claims is written too, see `lowcomm.results.page`, and the table of a README one folder above
    that has the marks of `lowcomm.results.readme`.
    """
    from lowcomm.results.figures import figure, save
    from lowcomm.results.page import page, remember
    from lowcomm.results.readme import BEGIN, filled

    written = []
    for experiment in experiments or map(load, names()):
        smoke = scale == "smoke"
        folder = records.parent / "tables" / ("smoke" if smoke else "")
        text = markdown(experiment.name, ["smoke"] if smoke else shown_scales(records), folder, records)
        written.append(write(folder / f"{experiment.folder}.md", text))
        drawing = figure(experiment.name, scale, records)
        if drawing is not None:
            name = f"{experiment.folder}{f'-{scale}' if scale in ('gpu', 'paper') else ''}.svg"
            written.append(save(drawing, records.parent / "figures" / ("smoke" if smoke else "") / name))
    if scale != "smoke":
        summary = remember(records)
        written.append(write(records.parent / "README.md", page(records, summary)))
        readme = records.parents[1] / "README.md"
        if readme.is_file() and BEGIN in (text := readme.read_text(encoding="utf-8")):
            written.append(write(readme, filled(text, summary, records)))
    return written


def write(path: Path, text: str) -> Path:
    """UTF-8, the folder made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
