"""Rows of a dataset of problems: from local files in any of the usual forms, or from the hub at a pinned commit."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SUFFIXES = (".json", ".jsonl", ".parquet")
WHOLE = ("default", "main", "full")  # configurations that hold a whole dataset


def read(
    path: str | None, hub: str | None, revision: str | None, split: str, key: str = "workload."
) -> tuple[list[Row], dict[str, Any]]:
    """Rows of a split, and what they are (for the record, with a hash of their contents).

    Raises ValueError unless exactly one of `path` and `hub` is given; `key` begins the names in messages.
    """
    if (path is None) == (hub is None):
        raise ValueError(f"{key}path={path}, {key}hub={hub}: give one, a local file or folder, or a dataset on the hub")
    rows = read_local(Path(path), split) if path is not None else read_hub(hub, revision, split, key)
    if not rows:
        raise ValueError(f"{key}{'path' if hub is None else 'hub'}={path or hub}: no rows in the split {split}")
    where = {"hub": hub, "revision": revision} if hub else {"files": Path(path).name}
    return rows, {**where, "rows": len(rows), "rows_sha256": sha256_of(rows)}


def sha256_of(rows: list[Row]) -> str:
    """Of the contents, whatever file they came in."""
    return hashlib.sha256("\n".join(json.dumps(row, sort_keys=True, default=str) for row in rows).encode()).hexdigest()


def read_local(path: Path, split: str) -> list[Row]:
    """The files of a folder whose name, or a folder's above them, begins with the split's.

    So `train.jsonl`, `algebra/train-00000-of-00001.parquet` (a clone of the hub) and `train/algebra/1.json` (the
    original MATH archive, one problem a file) all do; in the order of their names. No split: all files, or one file.
    Raises ValueError where there is no such file, or one file for several splits.
    """
    if path.is_file():
        if split:
            raise ValueError(f"workload.path={path}: one file, which cannot hold train and test; give its folder")
        return read_file(path)
    if not path.is_dir():
        raise ValueError(f"workload.path={path}: no such file or folder")
    pattern = re.compile(rf"{split}(?![A-Za-z])" if split else "")
    found = [
        file
        for file in sorted(path.rglob("*"), key=natural)
        if file.suffix in SUFFIXES and any(pattern.match(part) for part in file.relative_to(path).parts)
    ]
    if not found:
        kinds = ", ".join(f"{split}*{suffix}" for suffix in SUFFIXES)
        raise ValueError(f"workload.path={path}: no file for the split {split} ({kinds}, or in a folder {split})")
    return [row for file in found for row in read_file(file)]


def natural(path: Path) -> list[tuple[str, int]]:
    """So that 2.json comes before 10.json."""
    return [(text, int(part or 0)) for text, part in re.findall(r"(\D*)(\d*)", path.as_posix())]


def read_file(path: Path) -> list[Row]:
    """Raises ValueError with file and line for what is not JSON objects."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path).to_pylist()
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: must be one of {', '.join(SUFFIXES)}")
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        found = parsed(text, str(path))
        rows = found if isinstance(found, list) else [found]
    else:
        rows = [parsed(line, f"{path}, line {n}") for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    for n, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {n}: not an object with fields, but {type(row).__name__}")
    return rows


def parsed(text: str, where: str) -> Any:
    """JSON; ``where`` begins the message of the ValueError for anything else."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error})") from error


def read_hub(hub: str, revision: str | None, split: str, key: str) -> list[Row]:
    """All configurations of the dataset one after another (MATH has seven, one a subject), or its "default" one."""
    from lowcomm.workloads.web import pinned  # and torch with it: of no use to local files

    pinned(revision, f"{key}revision", f"the dataset {hub}")
    from datasets import load_dataset

    from lowcomm.hub import asking, of_commit

    with asking(f"{key}hub={hub}", f"give a copy with {key}path=FOLDER"):
        names = configurations(hub, revision)
        parts = [of_commit(load_dataset(hub, name, revision=revision, split=split), revision) for name in names]
    return [row for part in parts for row in part]


def configurations(hub: str, revision: str) -> list[str]:
    """The configuration that has everything, where there is one, else all of them.

    Without the hub the cache is asked, which does not know what a dataset of several lacks: there raises OSError.
    """
    from datasets import config, get_dataset_config_names
    from datasets.naming import camelcase_to_snakecase
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE:
        names = get_dataset_config_names(hub, revision=revision)
        return next(([name] for name in WHOLE if name in names), sorted(names))
    owner, _, name = hub.rpartition("/")
    cached = Path(config.HF_DATASETS_CACHE) / "___".join(filter(None, (owner, camelcase_to_snakecase(name))))
    found = [name for name in WHOLE if any(cached.glob(f"{name}/*/{revision}"))]
    if not found:
        raise OSError(f"{cached} has none of the configurations {', '.join(WHOLE)} of commit {revision}")
    return found[:1]


def first(row: Row, *fields: str) -> Any:
    """The first of these fields that a row has, else None."""
    return next((row[field] for field in fields if row.get(field) is not None), None)


def kept(rows: list[Row], problem: Callable[[int, Row], Any], skipped: dict[str, int]) -> list[Any]:
    """What `problem` makes of the rows; where it returns a string, the row is left out and counted under it."""
    out = []
    for index, row in enumerate(rows):
        made = problem(index, row)
        if isinstance(made, str):
            skipped[made] = skipped.get(made, 0) + 1
        else:
            out.append(made)
    return out
