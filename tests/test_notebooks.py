"""Notebooks only read: few cells, no definitions, no stored outputs; every one runs offline from top to bottom."""

import ast
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert {"00_tour", "01_gpa", "02_isoloco", "03_pulse_sparsity", "04_pulsesync", "05_pulseloco"} <= {
        path.stem for path in NOTEBOOKS
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_shape(path):
    cells = code_cells(path)
    assert 1 <= len(cells) <= 12
    for cell in cells:
        assert not cell.outputs, "outputs are stored: nbstripout"
        assert cell.execution_count is None
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda), (
                "logic belongs into the package, where it is tested"
            )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs_offline_and_shows_its_figures(path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no figure was shown"
    text = " ".join(str(output.get("text", "")) for output in outputs)
    assert not re.search(r"Warning", text), text
