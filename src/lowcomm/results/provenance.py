"""What a record says of the run, the code and the machine: enough to run it again, nothing about whose it was."""

import hashlib
import importlib.metadata
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lowcomm.results.record import ROOT

SOURCES = ("src", "conf")  # what decides a result; evidence itself may be uncommitted
PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "schedulefree", "hydra-core", "safetensors", "scikit-learn")


def session(name: str, seed: int, started: datetime) -> dict[str, Any]:
    """Which run, when it started (UTC), and that it ends now."""
    finished = datetime.now(UTC)
    return {
        "name": name,
        "seed": seed,
        "started": started.isoformat(timespec="seconds"),
        "finished": finished.isoformat(timespec="seconds"),
        "wall_seconds": round((finished - started).total_seconds(), 1),
    }


def environment(processes: int = 1) -> dict[str, Any]:
    """Where a run happens, without saying whose machine: versions, lock, kind of device, threads, determinism."""
    import torch  # records are also read where nobody trains

    cuda = torch.cuda.is_available()
    device = {
        "kind": torch.cuda.get_device_name() if cuda else f"cpu {platform.machine()}",
        "capability": torch.version.cuda if cuda else torch.backends.cpu.get_cpu_capability(),
        "count": torch.cuda.device_count() if cuda else 1,
    }
    lock = ROOT / "requirements.lock"
    return {
        "versions": {"python": platform.python_version(), **{p: importlib.metadata.version(p) for p in PACKAGES}},
        "lock": hashlib.sha256(lock.read_bytes()).hexdigest(),
        "device": device,
        "threads": torch.get_num_threads(),
        "processes": processes,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def code(config: dict[str, Any], digest: str, overrides: list[str]) -> dict[str, Any]:
    """Which code and configuration: commit, hash of uncommitted changes (null when clean), hash of all sources.

    `config` is the resolved part that decides the result (`lowcomm.config.identity`), `digest` its hash. Without git
    the commit is null: the record is then refused as evidence, except at scale smoke.
    """
    overrides = [o for o in overrides if not o.lstrip("+").startswith(("run_dir", "logger", "stop_after"))]
    return {**source_state(), "overrides": overrides, "config": config, "digest": digest}


def source_state(root: Path = ROOT) -> dict[str, str | None]:
    """{commit, dirty, sources} of the checkout at `root`."""
    files = sorted(f for d in SOURCES for f in (root / d).rglob("*") if f.suffix in (".py", ".yaml"))
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    try:
        commit = git(root, "rev-parse", "HEAD").strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or a copy of the sources without history
        return {"commit": None, "dirty": None, "sources": total.hexdigest()}
    dirty = None
    if git(root, "status", "--porcelain", "--", *SOURCES).strip():
        new = git(root, "ls-files", "--others", "--exclude-standard", "--", *SOURCES).split("\n")[:-1]
        change = git(root, "diff", "HEAD", "--", *SOURCES) + "".join(
            f"{f}\n{(root / f).read_bytes().hex()}" for f in new
        )
        dirty = hashlib.sha256(change.encode()).hexdigest()
    return {"commit": commit, "dirty": dirty, "sources": total.hexdigest()}


def git(root: Path, *arguments: str) -> str:
    """Output of a git command in the checkout at `root`. Raises CalledProcessError when it fails."""
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True).stdout
