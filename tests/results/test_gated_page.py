"""PULSELoCo's drawings and derived payloads, on records that no run made."""

import json
import re

import pytest
import torch

from lowcomm.results import gated_figures
from lowcomm.results.experiment import load
from lowcomm.results.gated_page import MODELS, chooser, derived, points
from lowcomm.results.grid import run
from tests.results.synthetic import make, put


def gated(ratio: float, share: float) -> dict:
    """Four rounds of two trainers that send `share` of 250 entries, all in `ratio` times less than 1000 bytes."""
    steps = [8, 16, 24, 32]
    traffic = {"rounds": 4, "per_worker": 4 * 1000 / ratio, "last_round": 1000 / ratio, "sent": 4 * 250 * share,
               "sparsity": 1 - share}  # fmt: skip
    of = {"step": steps, "train/reward": [0.1, 0.2, 0.3, 0.4], "comm/sparsity": [1 - share] * 4}
    memory = {"parameters": 1000, "optimizer": 0, "peak": 1}
    return make(steps=32, bytes={"trainers": traffic}, memory=memory, steps_of=of)


def fill(root):
    experiment = load("pulseloco/grpo")
    put(root, run(experiment, experiment.get("pulseloco"), "cpu", None, 0), gated(20.0, 0.05))
    dense = gated(1.0, 1.0)
    del dense["outcome"]["steps_of"]["comm/sparsity"]
    put(root, run(experiment, experiment.get("diloco"), "cpu", None, 0), dense)
    every = make(steps_of={"step": list(range(1, 33)), "train/reward": [0.5] * 32})
    put(root, run(experiment, experiment.get("ddp"), "cpu", None, 0), every)
    experiment = load("pulseloco/payload")
    put(root, run(experiment, experiment.get("lr-1e-3"), "cpu", None, 0), gated(2.0, 0.5))


def test_payloads_of_other_models_follow_from_the_measured_ratio(tmp_path):
    rows = derived("cpu", tmp_path)
    assert rows[-1]["ours, not run: GB a round"] == ""
    assert rows[-1]["paper's ratio, 17.2: GB a round"] == "1.77"
    fill(tmp_path)
    seven = derived("cpu", tmp_path)[-1]
    assert seven["DiLoCo: GB a round"] == "30.46"
    assert float(seven["ours, 20.0: GB a round"]) == pytest.approx(30.464 / 20, abs=0.005)
    assert float(seven["ours, 20.0: Gbit/s for 90 %"]) == pytest.approx(72 * 30.464 / 20 / 50, abs=0.005)


def test_the_page_has_the_measured_messages_and_the_papers_without_records(tmp_path):
    assert points("cpu", tmp_path) == []
    told = json.loads(re.search(r"const d = (\{.*?\}), all", chooser(records=tmp_path).data)[1])
    ((share, size),) = told["points"]
    assert share * size * MODELS["Qwen2.5-7B"] == pytest.approx(1.77)
    fill(tmp_path)
    assert points("cpu", tmp_path) == [
        {"where": "grpo/pulseloco", "share": pytest.approx(0.05), "bytes": pytest.approx(4.0)},
        {"where": "payload/lr-1e-3", "share": pytest.approx(0.5), "bytes": pytest.approx(4.0)},
    ]
    page = chooser("Llama-3.2-3B", records=tmp_path).data
    assert "<option selected>Llama-3.2-3B</option>" in page
    assert not re.search("OPTIONS|SOURCE|DATA", page)


def test_rounds_are_drawn_against_the_baseline_at_the_ends_of_its_rounds(tmp_path):
    assert gated_figures.rounds("pulseloco/grpo", "cpu", tmp_path) is None
    fill(tmp_path)
    reward, gap, held = gated_figures.rounds("pulseloco/grpo", "cpu", tmp_path).axes
    assert [line.get_xdata().tolist() for line in reward.lines] == [[8, 16, 24, 32]] * 3
    assert reward.lines[0].get_ydata().tolist() == [0.5] * 4, "steps are averaged over the round"
    assert gap.lines[0].get_ydata().tolist() == pytest.approx([0.4, 0.3, 0.2, 0.1])
    (share,) = held.lines
    assert share.get_ydata().tolist() == pytest.approx([95.0] * 4)


def test_the_share_that_fires_is_counted_by_magnitude():
    theta = torch.cat([torch.full((50,), 0.01), torch.full((50,), 1.0)])
    fired = theta < 0.1
    (line,) = gated_figures.share_fired(theta, {"small": fired}).axes[0].lines
    assert line.get_ydata().tolist() == [100.0, 0.0]
    assert "50.0 % of all" in line.get_label()


def test_what_was_sent_less_what_came_in():
    drawn = gated_figures.pushes({"a": [1.0, 0.0]}, {"a": [0.0, 2.0]}, 1.0).axes
    assert drawn[0].lines[0].get_ydata().tolist() == [1.0, 0.0]
    assert drawn[1].lines[0].get_ydata().tolist() == [-1.0, 0.0]
