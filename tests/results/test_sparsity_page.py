"""The page that predicts a density from magnitudes, on records that no run made."""

import json
import re

import pytest

from lowcomm.results.experiment import load
from lowcomm.results.grid import run
from lowcomm.results.sparsity_page import chooser, counted
from tests.results.synthetic import make, put


def told(page) -> dict:
    """The numbers inside the page."""
    return json.loads(re.search(r"const d = (\{.*?\}), all", page.data)[1])


def fill(root, table, row, lr, below, seed=0):
    """A run of two steps at the rates lr and lr / 2, with these shares below 256 lr and four times as many below 10."""
    steps = {"step": [1, 2], "train/lr": [lr, lr / 2], "bounds/below_effective": below,
             "bounds/below_conservative": [4 * share for share in below]}  # fmt: skip
    experiment = load(f"pulse/{table}")
    put(root, run(experiment, experiment.get(row), "cpu", None, seed), make(steps_of=steps))


def test_counts_are_means_over_seeds_by_model_and_ascend(tmp_path):
    assert counted("cpu", tmp_path) == {}
    fill(tmp_path, "sparsity", "masters", 3e-6, [0.02, 0.01])  # cited by the table of rates
    fill(tmp_path, "learning-rate", "lr-2e-5", 2e-5, [0.06, 0.05])
    for seed, share in enumerate((0.04, 0.06)):
        fill(tmp_path, "learning-rate", "qwen-nano-1e-6", 1e-6, [share, share / 2], seed)
    found = counted("cpu", tmp_path)
    assert list(found) == ["SmolLM2-135M", "Qwen-nano"]
    assert found["Qwen-nano"] == [
        pytest.approx(point) for point in [(1.28e-4, 0.025), (2.56e-4, 0.05), (1.28e-3, 0.1), (2.56e-3, 0.2)]
    ]
    smol = [x for x, _ in found["SmolLM2-135M"]]
    assert smol == sorted(smol)
    assert smol == pytest.approx([3.84e-4, 7.68e-4, 2.56e-3, 3.84e-3, 5.12e-3, 7.68e-3, 2.56e-2, 5.12e-2])


def test_the_page_has_formats_start_and_counts_and_works_without_records(tmp_path):
    data = told(chooser(1e-6, "fp16", 0.02, 0.3, records=tmp_path))
    assert data["counted"] == {}
    assert (data["rate"], data["format"], data["sigma"], data["move"]) == (1e-6, "fp16", 0.02, 0.3)
    assert data["formats"] == {"bf16": [7, -126], "fp16": [10, -14], "fp8-e4m3": [3, -6], "fp8-e5m2": [2, -14]}
    fill(tmp_path, "sparsity", "masters", 3e-6, [0.02, 0.01])
    assert [len(points) for points in told(chooser(records=tmp_path))["counted"].values()] == [4]
