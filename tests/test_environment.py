"""One lock, exact and closed: environment.yml, make and the package metadata cannot disagree with it."""

import ast
import hashlib
import importlib.util
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
LINES = [
    line for line in (ROOT / "requirements.lock").read_text().splitlines() if line.strip() and not line.startswith("#")
]
LOCK = {canonicalize_name(name): number for name, _, number in (line.partition("==") for line in LINES)}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared() -> list[Requirement]:
    """What pyproject.toml asks for, all extras and the build system included."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return [Requirement(line) for line in PROJECT["dependencies"] + extras + build]


def test_every_line_is_one_exact_public_version() -> None:
    """No build suffix, path, address, range, extra or option."""
    assert [line for line in LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)] == []


def test_names_are_unique_and_sorted() -> None:
    assert len(LOCK) == len(LINES)
    assert sorted(LINES, key=str.lower) == LINES


def test_lock_is_closed_and_satisfies_pyproject() -> None:
    """Walks from pyproject.toml to everything it needs; torch's own needs depend on the build that was chosen."""
    todo, seen = declared(), set()
    while todo:
        need = todo.pop()
        name = canonicalize_name(need.name)
        assert name in LOCK, f"{need} is not in requirements.lock"
        assert need.specifier.contains(LOCK[name], prereleases=True), f"requirements.lock: {name}=={LOCK[name]}: {need}"
        key = (name, frozenset(need.extras))
        if key in seen or name == "torch":
            continue
        seen.add(key)
        for line in requires(name) or []:
            child = Requirement(line)
            if child.marker is None or any(child.marker.evaluate({"extra": extra}) for extra in {"", *need.extras}):
                todo.append(child)


def test_what_the_code_imports_is_declared() -> None:
    """A package that comes along with another one today need not do so tomorrow."""
    files = [f for folder in ("src", "tests", "bench", "tools") for f in (ROOT / folder).rglob("*.py")]
    imported = {
        name.partition(".")[0]
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        )
    }  # fmt: skip
    # what the receiver in vLLM's own environment imports: tests/pulse_vllm/test_package.py
    foreign = imported - set(sys.stdlib_module_names) - {"llvmlite", "lowcomm", "pulse_vllm", "tests", "vllm"}
    distributions = packages_distributions()
    known = {canonicalize_name(need.name) for need in declared()}
    undeclared = {m for m in foreign if not known & {canonicalize_name(d) for d in distributions.get(m, [])}}
    assert undeclared == set(), "name its package in pyproject.toml and requirements.lock"


def test_what_is_installed_is_what_is_locked() -> None:
    installed = {name: Version(version(name)).public for name in LOCK}
    assert installed == LOCK, "run `make env`"


def test_conda_environment_reads_the_lock_and_names_no_other_version() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["dependencies"] == ["python=3.11", "pip", {"pip": ["-r requirements.lock", "-e ."]}]
    assert PROJECT["requires-python"] == ">=3.11,<3.12"


def test_the_lock_is_the_only_list_that_is_installed() -> None:
    """Versions are named in no other file; the one pip call that resolves anything reads a lock."""
    tool = (ROOT / "tools" / "environment.py").read_text()
    assert re.findall(r"run\(\*install.*\)", tool) == [
        'run(*install, *options, "-r", lock)',
        'run(*install, "--no-deps", "-e", ROOT)',
    ]
    assert not re.search(r"\bpip\b", (ROOT / "Makefile").read_text() + (ROOT / ".ci" / "run").read_text())


def tool():
    """tools/environment.py as a module."""
    spec = importlib.util.spec_from_file_location("environment_tool", ROOT / "tools" / "environment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError: Failed to establish a new connection: [Errno 111] Connection refused", "network"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no file of torch==2.13.0"),
        ("The virtual environment was not created because ensurepip is not available.", "python3.11-venv"),
        ("error: command 'gcc' failed: No such file or directory", "C compiler"),
        ("something new", "message above"),
    ],
)
def test_a_failed_install_names_its_remedy(log: str, advice: str) -> None:
    assert advice in tool().remedy(log)


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="left alone"):
        tool().check_place(tmp_path)


def test_too_little_disk_is_said_before_anything_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tool()
    monkeypatch.setattr(module, "NEEDED_GB", 1e9)
    with pytest.raises(SystemExit, match="GB of free disk are needed"):
        module.check_place(tmp_path / "venv")


@pytest.mark.parametrize(("stamp", "steps"), [(None, ["venv", "-r", "-e"]), ("other lock", ["-r", "-e"]), ("same", [])])
def test_interrupted_is_rebuilt_outdated_is_updated_ready_is_left(
    stamp: str | None, steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, calls = tool(), []
    monkeypatch.setattr(module, "run", lambda *words: calls.append(next(w for w in words if w in ("venv", "-r", "-e"))))
    monkeypatch.setattr(module, "check_place", lambda venv: None)
    lock = ROOT / "requirements.lock"
    monkeypatch.setattr("sys.argv", ["environment.py", "--venv", str(tmp_path), "--lock", str(lock)])
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp:
        (tmp_path / ".ready").write_text(digest if stamp == "same" else stamp)
    module.main()
    assert calls == steps
    assert (tmp_path / ".ready").read_text() == digest
