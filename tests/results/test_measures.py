import pytest

from lowcomm.results.measures import MEASURES, crossing
from tests.results.synthetic import ending, make


def test_crossing_is_linear_between_evaluations():
    steps, values = [0, 10, 20], [5.0, 4.0, 2.0]
    assert crossing(steps, values, 4.5, lower=True) == 5
    assert crossing(steps, values, 3.0, lower=True) == 15
    assert crossing(steps, values, 2.0, lower=True) == 20
    assert crossing(steps, values, 1.9, lower=True) is None
    assert crossing(steps, values, 6.0, lower=True) == 0
    assert crossing(steps, [0.1, 0.5, 0.9], 0.7, lower=False) == pytest.approx(15)


def test_both_readings_of_the_speedup():
    # 5 -> 3 in 20 steps against 5 -> 1 in 20 steps, both linear: 3 is reached at step 10
    base, fast = ending(3.0)["outcome"], ending(1.0)["outcome"]
    assert MEASURES["fewer_steps_pct"].of(fast, base) == pytest.approx(50)
    assert MEASURES["fewer_steps_pct"].of(base, base) == pytest.approx(0)
    assert MEASURES["fewer_steps_pct"].of(base, fast) is None
    from lowcomm.results.measures import step_ratio

    assert step_ratio("loss")(fast, base) == pytest.approx(100)


def test_the_papers_percentages():
    """8.71 % fewer steps is t = .9129 T (gpa.md, section 3)."""
    base = make()["outcome"]
    base["curve"] = {"step": [0, 100], "loss": [4.0, 3.0]}
    fast = make()["outcome"]
    fast["curve"] = {"step": [0, 91.29, 100], "loss": [4.0, 3.0, 2.9]}
    assert MEASURES["fewer_steps_pct"].of(fast, base) == pytest.approx(8.71)


def test_accuracy_and_memory():
    outcome = ending(1.0, copies=3)["outcome"]
    assert MEASURES["accuracy"].of(outcome, None) == pytest.approx(0.9)
    assert MEASURES["steps_to_90"].of(outcome, None) == pytest.approx(20)
    assert MEASURES["steps_to_90"].of(ending(2.0)["outcome"], None) is None
    assert MEASURES["state_copies"].of(outcome, None) == 3
