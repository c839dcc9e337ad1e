"""One JSON file per run: who claims what, with which code, where, on what data, and what came out.

    {"schema": 1,
     "identity":    {name, seed, started, finished, wall_seconds},
     "claim":       null | {paper, table, row, experiment, scale, tuned},
     "code":        {commit, dirty, sources, overrides, config, digest},
     "environment": {versions, lock, device, threads, processes, deterministic},
     "data":        {name, revision, units, order_seed, hashes ...},
     "outcome":     {metrics, evaluation_n, steps, curve, bytes, memory, weights}}

`outcome.curve` is columnar, `{"step": [...], "loss": [...], ...}`, one entry per evaluation; further columns by name
(`accuracy`, `train_loss`: mean since the evaluation before; of patches, one entry a version: `bytes`, `changed`).
`outcome.metrics` holds the values at the end, or of patches the sums. `data.summary`, where it is given, is the
sentence that says what was run; else it is made of the configuration's model and workload.
`outcome.memory` is in bytes: `parameters`, `optimizer` (all state that training keeps beside the model and its
gradients), its parts, `peak`. A record with a claim is evidence: it is written once, atomically, and is refused when
anything in it is unknown, private or not reproducible. A record without one describes a run made by hand.
"""

import getpass
import json
import math
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "paper_figures" / "records"

FIELDS: dict[str, tuple[str, ...]] = {
    "identity": ("name", "seed", "started", "finished", "wall_seconds"),
    "claim": ("paper", "table", "row", "experiment", "scale", "tuned"),
    "code": ("commit", "dirty", "sources", "overrides", "config", "digest"),
    "environment": ("versions", "lock", "device", "threads", "processes", "deterministic"),
    "data": ("name", "revision", "units", "order_seed"),
    "outcome": ("metrics", "evaluation_n", "steps", "curve", "bytes", "memory", "weights"),
}
PRIVATE = ("host", "hostname", "user", "username", "node", "cwd", "home")
ABSOLUTE = re.compile(r"(?:^|[\s=:,'\"\[])(?:/[\w.~-]+|~/|[A-Za-z]:\\)")


class RecordError(ValueError):
    """A record is incomplete, or says something it must not."""


def write(path: Path, record: dict[str, Any]) -> Path:
    """Check `record` and write it to `path` in one move; a reader sees the old file, the new one, or none.

    Raises RecordError naming the field when the record is incomplete or, with a claim, not fit to be evidence.
    """
    check(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w", encoding="utf-8") as file:
        file.write(dumps(record))
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    return path


def dumps(record: dict[str, Any]) -> str:
    """JSON with one line per leaf list, so that a curve does not fill the screen."""
    text = json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda m: " ".join(m[0].split()), text) + "\n"


def check(record: dict[str, Any]) -> None:
    """All fields of the schema and no more at the top; for evidence also the rules of `evidence_fault`.

    Raises RecordError naming the field.
    """
    if set(record) != {"schema", *FIELDS}:
        difference = sorted(set(record) ^ {"schema", *FIELDS})
        raise RecordError(f"record: {', '.join(difference)} missing or not part of the schema")
    if record["schema"] != 1:
        raise RecordError(f"schema={record['schema']!r}: this version writes and reads schema 1")
    for part, names in FIELDS.items():
        if part == "claim" and record[part] is None:
            continue
        for name in names:
            if name not in record[part]:
                raise RecordError(f"{part}.{name}: missing")
    for key, value in leaves(record):
        if isinstance(value, float) and not math.isfinite(value):
            raise RecordError(f"{key}={value}: not a finite number; write null and say why, or do not record the run")
    curve = record["outcome"]["curve"]
    columns = {len(column) for column in curve.values()}
    if "step" not in curve or len(curve) < 2 or len(columns) != 1 or not curve["step"]:
        raise RecordError("outcome.curve: needs step and another column, of one length, and one evaluation at least")
    if record["claim"] is None:
        return
    for key, value in leaves(record):
        if fault := evidence_fault(key, value):
            raise RecordError(f"{key}={value!r}: {fault}")
    if record["code"]["commit"] is None and record["claim"]["scale"] != "smoke":
        raise RecordError("code.commit=None: evidence names a commit; run from a git checkout with git installed")


def evidence_fault(key: str, value: Any) -> str | None:
    """Why a value may not stand in evidence: nothing unknown, no place, no person, no address."""
    if key.rpartition(".")[2].lower() in PRIVATE:
        return "a record names no machine and no person"
    if not isinstance(value, str):
        return None
    if value.strip().lower() in ("unknown", "n/a", "?", "tbd"):
        return "nothing in a record is unknown; find the value or leave the record unwritten"
    if "://" in value:
        return "a record holds no address; give a name and a revision"
    if ABSOLUTE.search(value):
        return "an absolute path means nothing elsewhere; use a relative one or a name"
    if value in (socket.gethostname(), getpass.getuser()) and value not in ("localhost", "root"):
        return "a record names no machine and no person"
    return None


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every value in nested dicts and lists."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list | tuple) else None
    if items is None:
        yield prefix, node
        return
    for key, value in items:
        yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))


def read(path: Path) -> dict[str, Any]:
    """One checked record; raises RecordError naming the file."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        check(record)
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{path.name}: not a valid record ({error}); delete it and run what made it") from error
    return record


def load_records(scale: str | None = None, experiment: str | None = None, root: Path = RECORDS):
    """All committed records as a `pandas.DataFrame`, one row a run, sorted by path.

    Columns: paper, table, experiment, row, scale, tuned, seed, one per final metric (`loss`, `accuracy`, ...), steps,
    curve (dict of lists), memory, bytes, wall_seconds, commit, dirty, digest, device, path (relative to `root`) and the
    whole `record`.
    `experiment` is `<paper>/<table>`. An empty frame when nothing was run.
    """
    import pandas as pd

    folder = f"{experiment.replace('/', '-')}" if experiment else "*"
    rows = []
    for path in sorted(Path(root).glob(f"{scale or '*'}/{folder}/*.json")):
        record = read(path)
        claim, outcome, done = record["claim"], record["outcome"], record["code"]
        rows.append(
            {
                **{k: claim[k] for k in ("paper", "table", "experiment", "row", "scale", "tuned")},
                "seed": record["identity"]["seed"],
                **outcome["metrics"],
                **{k: outcome[k] for k in ("steps", "curve", "memory", "bytes")},
                "wall_seconds": record["identity"]["wall_seconds"],
                **{k: done[k] for k in ("commit", "dirty", "digest")},
                "device": record["environment"]["device"]["kind"],
                "path": path.relative_to(root).as_posix(),
                "record": record,
            }
        )
    columns = ["paper", "table", "experiment", "row", "scale", "tuned", "seed", "loss", "curve", "path", "record"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)
