"""Everything a run is made of, on disk: written aside, hashed, renamed; a torn or foreign one is refused.

checkpoints/tick-00000120/
    shared.pt            theta, outer optimizer, round (or the replicated optimizer), position of the metrics file
    worker-00003.pt      one per logical worker, so a run can resume on another number of ranks
    manifest.json        config digest, tick, SHA-256 of every file; the folder gets its name only when complete
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from lowcomm.outer.workers import Wire

log = logging.getLogger(__name__)
KEEP = 2


def save(folder: Path, digest: str, tick: int, shared: dict, workers: dict[int, dict], wire: Wire) -> None:
    """Write one checkpoint; every rank writes its own workers, rank 0 the rest. Collective over the ranks."""
    final, aside = folder / f"tick-{tick:08d}", folder / f".tick-{tick:08d}"
    if wire.rank == 0:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    wire.barrier()
    for index, state in workers.items():
        write_tensors(aside / f"worker-{index:05d}.pt", state)
    if wire.rank == 0:
        write_tensors(aside / "shared.pt", shared)
    wire.barrier()
    if wire.rank == 0:
        files = {f.name: sha256(f) for f in sorted(aside.iterdir())}
        manifest = {"digest": digest, "tick": tick, "files": files}
        write_bytes(aside / "manifest.json", json.dumps(manifest, indent=1).encode())
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)
        sync_folder(folder)
        for old in complete(folder)[:-KEEP]:
            shutil.rmtree(old)
    wire.barrier()


def latest(folder: Path, digest: str) -> Path | None:
    """The newest checkpoint that is whole; torn ones are named in a warning. Raises ValueError on a foreign one."""
    for candidate in reversed(complete(folder)):
        reason = fault(candidate, digest)
        if reason is None:
            return candidate
        log.warning("checkpoint %s is not used: %s", candidate.name, reason)
    return None


def fault(checkpoint: Path, digest: str) -> str | None:
    """Why a checkpoint can't be used, or None. Raises ValueError when it belongs to another configuration."""
    try:
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        files, owner = manifest["files"], manifest["digest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its manifest.json can't be read ({error})"
    if owner != digest:
        raise ValueError(
            f"{checkpoint.name} belongs to another configuration (digest {str(owner)[:12]}, this run {digest[:12]}); "
            "choose another run_dir, or delete the folder"
        )
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256(path) != expected:
            return f"{name} does not have the hash in the manifest"
    return None


def load(checkpoint: Path, device: torch.device | str = "cpu") -> tuple[int, dict, Callable[[int], dict]]:
    """Tick, shared state, and a function that reads one worker's state. Safe loading only: no pickled code runs."""
    tick = json.loads((checkpoint / "manifest.json").read_text())["tick"]

    def read(name: str) -> dict:
        return torch.load(checkpoint / name, map_location=device, weights_only=True)

    return tick, read("shared.pt"), lambda index: read(f"worker-{index:05d}.pt")


def complete(folder: Path) -> list[Path]:
    """Whole checkpoints of a run, the oldest first; none where there is no folder."""
    return sorted(folder.glob("tick-*")) if folder.is_dir() else []


def write_tensors(path: Path, state: dict) -> None:
    """A nested state of tensors and plain values, flushed to the disk before it returns."""
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: Path, content: bytes) -> None:
    """Write aside, flush to the disk, rename: the file is whole or absent, after a crash too."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make what was renamed in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Of a file's bytes, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
