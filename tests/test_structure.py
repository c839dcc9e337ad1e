"""The house in order: short files, public names described. `python tools/structure.py --list` names what is not."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("structure", ROOT / "tools" / "structure.py")
structure = importlib.util.module_from_spec(spec)
spec.loader.exec_module(structure)

ROOMS = {room.relative_to(ROOT).as_posix(): room for room in structure.rooms()}
OTHERS = {name: ROOT / name for name in ("tools", "bench")}


@pytest.mark.parametrize("name", [*ROOMS, *OTHERS])
def test_no_file_is_too_long(name):
    files = list((ROOMS | OTHERS)[name].glob("*.py"))
    assert files
    assert [f.name for f in files if len(f.read_text().splitlines()) > structure.LIMIT] == []


@pytest.mark.parametrize("name", ROOMS)
def test_every_public_name_is_described(name):
    assert structure.incomplete(ROOMS[name])[1] == []


def test_nothing_is_written_twice():
    assert structure.twice(ROOT / "src") == []


def test_what_counts_as_described(tmp_path, monkeypatch):
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    (tmp_path / "room.py").write_text('''
from typing import Protocol

class Source(Protocol):
    """What gives."""
    def give(self) -> int:
        """One number."""

class Well:
    """A source."""
    def give(self) -> int:
        return 1
    def dry(self):
        return _inner()

def tell(x: int) -> int:
    """A number. Raises ValueError."""
    raise ValueError(x)

def hide(x: int) -> int:
    """A number."""
    raise ValueError(x)

def turn(x: Tensor) -> Tensor:
    """The other way round."""

def mirror(x: Tensor) -> Tensor:
    """(n, m) to (m, n)."""

def _inner():
    raise KeyError(1)
''')
    total, lacking = structure.incomplete(tmp_path)
    assert total == 9
    assert [fault.partition(" ")[2] for fault in lacking] == [
        "Well.dry: no docstring",
        "hide: raises ValueError and does not say so",
        "turn: does not say the shape of a tensor",
    ]


def test_equal_lines_in_two_places_are_found_once(tmp_path, monkeypatch):
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    body = [f"    value_{i} = compute({i})" for i in range(8)]
    (tmp_path / "a.py").write_text("\n".join(["def a():", *body, "    return 'a'"]))
    (tmp_path / "b.py").write_text(
        "\n".join(["import os", "def b():", *body[:4], "    # why", *body[4:], "    return 'b'"])
    )
    (tmp_path / "c.py").write_text("\n".join(["def c():", *body[:5], "    return 'c'"]))
    assert structure.twice(tmp_path) == ["a.py:2 = b.py:3"]


def test_parameters_are_no_lines_of_code(tmp_path, monkeypatch):
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    parameters = [f"    parameter_{i}: int = {i}," for i in range(8)]
    for name in "ab":
        (tmp_path / f"{name}.py").write_text("\n".join([f"def {name}(", *parameters, "):", f"    return '{name}'"]))
    assert structure.twice(tmp_path) == []
