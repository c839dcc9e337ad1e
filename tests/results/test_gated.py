import pytest

from lowcomm.results.gated import gate_totals
from lowcomm.results.measures import MEASURES
from tests.results.synthetic import make


def test_totals_of_a_gated_run_and_of_any_other():
    lines = [{"step": 0}, *({"step": s, "comm/bytes": 9, "comm/sent": n, "comm/sparsity": 1 - n / 100,
              "comm/sparsity_min": 0.1 * s, "comm/sparsity_max": 0.9} for s, n in ((1, 20), (2, 40)))]  # fmt: skip
    assert gate_totals(lines) == {"sent": 60, "sparsity": pytest.approx(0.7), "sparsity_min": 0.1, "sparsity_max": 0.9}
    assert gate_totals([{"step": 1, "comm/bytes": 9}]) == {}


def test_the_papers_ratios():
    """30.46 GB of FP32, 1.77 GB a round, H = 8: 17.2 times less than dense, 138 times less than gradients each step."""
    traffic = {"rounds": 5, "per_worker": 5 * 1.77e9, "last_round": 1.77e9, "sent": 5 * 3.54e8, "sparsity": 0.9535}
    outcome = make(steps=40, bytes=traffic, memory={"parameters": 30.46e9, "optimizer": 0, "peak": 0})["outcome"]
    names = ("round_gb", "less_than_dense", "less_than_ddp", "model_7b_gb", "entry_bytes", "sparsity_pct")
    value = {name: MEASURES[name].of(outcome, None) for name in names}
    assert value["round_gb"] == pytest.approx(1.77)
    assert value["less_than_dense"] == pytest.approx(17.2, abs=0.02)
    assert value["less_than_ddp"] == pytest.approx(137.7, abs=0.1)
    assert value["model_7b_gb"] == pytest.approx(1.77)
    assert value["entry_bytes"] == pytest.approx(5.0)
    assert value["sparsity_pct"] == 0.9535
    del traffic["sent"], traffic["sparsity"]
    assert MEASURES["entry_bytes"].of(outcome, None) is None
    assert MEASURES["sparsity_pct"].of(outcome, None) == 0


def test_the_early_gap_is_read_at_a_quarter_of_the_run():
    base, late = make()["outcome"], make()["outcome"]
    base["curve"] = {"step": [0, 20, 40, 80], "loss": [5.0, 4.0, 3.0, 2.0]}
    late["curve"] = {"step": [0, 20, 40, 80], "loss": [5.0, 4.4, 3.0, 2.0]}
    assert MEASURES["early_gap_pct"].of(late, base) == pytest.approx(10)
