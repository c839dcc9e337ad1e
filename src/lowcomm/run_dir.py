"""The run directory: deterministic, the same on all ranks, written by rank 0, owned by one process group.

runs/<model>_<algorithm>_<workload>_<scale>-<digest>/seed<k>/
    config.json  overrides.txt  metrics.jsonl  checkpoints/  weights.safetensors  record.json
"""

import fcntl
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lowcomm.blocks import ConfigError
from lowcomm.checkpoint import write_bytes
from lowcomm.config import identity, run_name
from lowcomm.disk import FULL
from lowcomm.results import record

log = logging.getLogger(__name__)
ROOT = Path(os.environ.get("LOWCOMM_RUNS", "runs"))


def run_dir_of(cfg: DictConfig) -> Path:
    """The run's folder: the one given, or the one that its configuration names."""
    return Path(cfg.run_dir) if cfg.run_dir else ROOT / run_name(cfg)


class RunDir:
    """Holds the folder for one configuration, while in a `with`. Raises ConfigError when it is another's or in use."""

    def __init__(self, path: Path, cfg: DictConfig, leader: bool):
        self.path, self.leader, self.lock = path, leader, None
        self.checkpoints = path / "checkpoints"
        self.record = path / "record.json"
        if not leader:
            return
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.lock = (path / ".lock").open("w")
        except OSError as error:
            raise ConfigError(f"run_dir={path}: can't be written ({error.strerror}); choose another") from error
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"run_dir={path}: another process is running it; wait, or choose another") from error
        self.identity, self.stored = identity(cfg), path / "config.json"
        if self.stored.exists():
            differ = differences(self._begun(), self.identity)
            if differ:
                raise ConfigError(
                    f"run_dir={path} holds a run of another configuration ({'; '.join(differ[:3])}); "
                    "choose another run_dir, or delete the folder"
                )

    def _begun(self) -> dict[str, Any]:
        try:
            return json.loads(self.stored.read_text())
        except ValueError as error:
            why = f"is not the JSON that was written ({error}); choose another run_dir, or delete the folder"
            raise ConfigError(f"{self.stored}: {why}") from error

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self.release()
        if isinstance(error, OSError) and error.errno in FULL:
            why = f"can't be written ({error.strerror}); free some space"
            raise OSError(f"run_dir={self.path}: {why}") from error

    def finished(self) -> dict[str, Any] | None:
        """The record of a run that is finished, else None. Raises ConfigError for a record that is not valid."""
        if not self.record.exists():
            return None
        try:
            done = record.read(self.record)
        except record.RecordError as error:
            raise ConfigError(f"run_dir={self.path}: {error}") from error
        log.info("%s is finished already", self.path)
        self.finish()  # it may have died before
        return done

    def begin(self, overrides: list[str]) -> None:
        """Everything was checked: from now on the folder is this configuration's, and not before."""
        if self.leader and not self.stored.exists():
            write_bytes(self.path / "overrides.txt", "\n".join(overrides).encode())
            write_bytes(self.stored, json.dumps(self.identity, indent=1, sort_keys=True).encode())

    def need_space(self, nbytes: int) -> None:
        """Refuse to start when the disk can't hold two checkpoints and the one being written. Raises ConfigError."""
        if not self.leader:
            return
        held = sum(f.stat().st_size for f in self.checkpoints.rglob("*"))  # of a run begun before: they make way
        free = shutil.disk_usage(self.path).free
        if free + held < nbytes:
            raise ConfigError(
                f"run_dir={self.path}: {free / 1e9:.3f} GB free, checkpoints need {(nbytes - held) / 1e9:.3f} GB; "
                "free some space, or choose a run_dir on another disk"
            )

    def finish(self) -> None:
        """The record is written: the checkpoints have served."""
        if self.leader:
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def release(self) -> None:
        """Let another process claim the folder."""
        if self.lock:
            self.lock.close()


def differences(old: dict, new: dict, prefix: str = "") -> list[str]:
    """`key: old -> new` for every leaf that differs."""
    out = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            out += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            out.append(f"{prefix}{key}: {a} -> {b}")
    return out
