"""Text that is on every machine which can run this project: Python sources. It is code, not web text."""

import hashlib
import importlib.metadata
import importlib.util
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("sympy", "torch", "transformers")  # pinned in the lock file; the largest sources among them
LICENCES = {
    "stdlib": "Python standard library: PSF-2.0",
    "stdlib+packages": "Python standard library: PSF-2.0; sympy, torch: BSD-3-Clause; transformers: Apache-2.0",
}
# Tests repeat what they test; lib2to3 is Python 2 and gone from later versions; the rest is not the library.
LEFT_OUT = {"test", "tests", "idle_test", "lib2to3", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Source:
    """One document. `name` is relative: corpus part, then path."""

    name: str
    text: str
    sha256: str


def held_out(sha256: str, share: float) -> bool:
    """The split is by content, so that copies of a document are on one side, whatever is added or renamed.

    Exact copies only: text that two documents share in part can be on both sides.
    """
    return int(sha256[:16], 16) < share * 2**64


def text_sha256(text: str) -> str:
    """Of the text in UTF-8, 64 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def stdlib_files() -> list[tuple[str, Path]]:
    """(name, path) of the standard library's modules, without what a machine's build wrote into it."""
    folder = Path(sysconfig.get_path("stdlib"))
    found = []
    for path in folder.rglob("*.py"):
        relative = path.relative_to(folder)
        local = relative.parts[0].startswith(("_sysconfigdata", "config-", "sitecustomize", "usercustomize"))
        if not local and not LEFT_OUT.intersection(relative.parts):
            found.append((f"stdlib/{relative.as_posix()}", path))
    return found


def package_files(package: str) -> list[tuple[str, Path]]:
    """(name, path) of the modules of an installed package, which is not imported. Raises ValueError."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"workload.corpus=stdlib+packages: the package {package} is not installed; "
            "install the locked environment or take workload.corpus=stdlib"
        )
    folder = Path(list(spec.submodule_search_locations)[0])
    return [
        (f"{package}/{path.relative_to(folder).as_posix()}", path)
        for path in folder.rglob("*.py")
        if not LEFT_OUT.intersection(path.relative_to(folder).parts)
    ]


def corpus_files(corpus: str) -> list[tuple[str, Path]]:
    """(name, path), sorted by name."""
    files = stdlib_files()
    if corpus == "stdlib+packages":
        for package in PACKAGES:
            files += package_files(package)
    return sorted(files)


def read_sources(corpus: str) -> list[Source]:
    """Documents in the order of their names; of equal contents the first; UTF-8 only; no empty files."""
    kept: dict[str, Source] = {}
    for name, path in corpus_files(corpus):
        raw = path.read_bytes()
        sha256 = hashlib.sha256(raw).hexdigest()
        if raw and sha256 not in kept and _is_utf8(raw):
            kept[sha256] = Source(name, raw.decode("utf-8"), sha256)
    return list(kept.values())


def versions(corpus: str) -> dict[str, str]:
    """What the documents' contents depend on."""
    found = {"python": platform.python_version(), "tokenizers": importlib.metadata.version("tokenizers")}
    if corpus == "stdlib+packages":
        found |= {package: importlib.metadata.version(package) for package in PACKAGES}
    return found


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
