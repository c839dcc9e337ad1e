"""Builds an environment from a lock: `make env` and `make env-vllm` run this with the standard library alone.

Interrupted at any point it can be started again: an environment without its stamp is rebuilt from nothing, one whose
stamp names another lock is brought up to date. The stamp is written last and holds the lock's SHA-256.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED_GB = 4  # 2.5 GB for either environment with the CPU build of torch, and room for pip to unpack

REMEDIES = (
    (r"No space left|Errno 28|Disk quota", "The disk is full: free some space (or point TMPDIR to another disk)."),
    (
        r"Connection|Temporary failure in name resolution|Max retries|timed? ?out|Network is unreachable",
        "No package index was reached: check the network, a proxy (HTTPS_PROXY), or PIP_INDEX_URL / PIP_FIND_LINKS.",
    ),
    (
        r"No matching distribution found for (?P<name>\S+)",
        "The package index has no file of {name} for this system and Python: choose another index (PIP_INDEX_URL).",
    ),
    (r"ensurepip is not", "This Python lacks venv: install it (on Debian and Ubuntu the package python3.11-venv)."),
    (r"gcc|error: command|Python\.h", "A package is compiled here: install a C compiler and the Python headers."),
)


def fail(message: str) -> None:
    sys.exit(f"\nenvironment: {message}")


def check_place(venv: Path) -> None:
    if venv.exists() and any(venv.iterdir()) and not (venv / "pyvenv.cfg").exists():
        fail(f"VENV={venv} exists and is no virtual environment; it is left alone. Choose another folder.")
    free = shutil.disk_usage(venv.absolute().parent).free / 1e9
    if free < NEEDED_GB and not (venv / ".ready").exists():
        fail(f"{NEEDED_GB} GB of free disk are needed, {free:.1f} GB are left. Free some space, then run it again.")


def remedy(log: str) -> str:
    """The remedy for the first known cause in pip's output."""
    for pattern, advice in REMEDIES:
        if found := re.search(pattern, log):
            return advice.format(**found.groupdict())
    return "The message above says why."


def run(lock: Path, *command: str | Path) -> None:
    """Runs a command, shows its output line by line, and ends with one remedy when it fails."""
    pinned = {"PIP_CONSTRAINT": str(lock), "PIP_BUILD_CONSTRAINT": str(lock)}  # builds use the lock's setuptools too
    log = []
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | pinned
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            log.append(line)
    if process.returncode:
        fail(f"{remedy(''.join(log))} Then run it again: it starts over and is safe to repeat.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True, help="folder of the environment")
    parser.add_argument("--lock", type=Path, required=True, help="exact versions of everything")
    parser.add_argument("--only", action="store_true", help="install the lock's lines and nothing that they ask for")
    parser.add_argument("--index", default="", help="address of a further package index, for another build of torch")
    args = parser.parse_args()
    venv, stamp, lock = args.venv, args.venv / ".ready", args.lock.absolute()
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    check_place(venv)
    if not stamp.exists():
        run(lock, sys.executable, "-m", "venv", "--clear", venv)
    elif stamp.read_text() == digest:
        stamp.touch()
        return
    stamp.unlink(missing_ok=True)
    install = (lock, venv / "bin" / "python", "-m", "pip", "install")
    options = [*(["--extra-index-url", args.index] if args.index else []), *(["--no-deps"] if args.only else [])]
    run(*install, *options, "-r", lock)
    run(*install, "--no-deps", "-e", ROOT)
    stamp.write_text(digest)
    print(f"\n{venv} is ready.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("stopped. Run it again: it starts over and is safe to repeat.")
