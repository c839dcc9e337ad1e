"""Compiled functions, cached on disk under all sources that they are made of.

numba's own cache follows the file of a function, not the helpers that it takes in from other files, and would go on
with old ones after an update. Here every function lies in a folder named by a hash of all the files.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numba

SOURCES = ("jit.py", "rangecoder.py", "gaps.py", "values.py", "packed.py", "paper.py")  # all that hold compiled code


def compiler(sources: Sequence[Path]) -> Callable[[Callable], Callable]:
    """A decorator: numba.njit without the GIL, cached for exactly the contents of ``sources``.

    The cache lies under NUMBA_CACHE_DIR if that is set, else beside the first source, else in the user's cache.
    """
    whole = hashlib.sha256(b"\0".join(s.read_bytes() for s in sources)).hexdigest()
    set_by_user = numba.config.CACHE_DIR
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lowcomm"
    roots = [Path(set_by_user)] if set_by_user else [sources[0].parent / "__pycache__", user]
    folder = next((r / f"numba-{whole[:16]}" for r in roots if _writable(r / f"numba-{whole[:16]}")), None)

    def decorate(function: Callable) -> Callable:
        numba.config.CACHE_DIR = str(folder or "")  # read when the cache is made, here
        try:
            return numba.njit(nogil=True, cache=folder is not None, boundscheck=False)(function)
        finally:
            numba.config.CACHE_DIR = set_by_user

    return decorate


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


compiled = compiler([Path(__file__).with_name(name) for name in SOURCES])
