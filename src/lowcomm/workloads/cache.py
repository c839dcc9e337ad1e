"""Folders that are expensive to make: made once, whole or not at all, whoever asks first."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lowcomm.disk import DENIED, writable

REMEDY = "free some space there, or set LOWCOMM_CACHE to another folder"


def root(cache_dir: str | None) -> Path:
    """`cache_dir`, else $LOWCOMM_CACHE, else `.cache/lowcomm` under the current folder."""
    return Path(cache_dir or os.environ.get("LOWCOMM_CACHE") or ".cache/lowcomm").absolute()


def digest(value: Any) -> str:
    """sha256 (hex) of a JSON-able value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the system gives the lock back if its holder dies."""
    with writable(f"the cache {path.parent}", REMEDY, *DENIED):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def part(folder: Path) -> Iterator[Path]:
    """An empty folder to write into; the caller renames it when it is whole. To be used under a lock.

    What fails leaves nothing behind, and so takes no space.
    """
    aside = folder.with_name(folder.name + ".part")
    if aside.exists():  # left by a build that was killed
        shutil.rmtree(aside)
    try:
        with writable(f"the cache {folder.parent}", REMEDY):
            aside.mkdir()
            yield aside
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def build_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Returns `folder`, after `write(empty folder)` and a rename if it is not there yet.

    Ranks that ask for the same folder at once wait for the one that builds it; a build that is interrupted leaves
    nothing that looks finished.
    """
    if not folder.is_dir():
        with locked(folder.with_name(folder.name + ".lock")):
            if not folder.is_dir():
                with part(folder) as aside:
                    write(aside)
                    aside.rename(folder)
    return folder
