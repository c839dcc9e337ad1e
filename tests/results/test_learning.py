"""Whether a run learned, and rows that have seeds of their own."""

import pytest

from lowcomm.results.experiment import parse
from lowcomm.results.grid import plan
from lowcomm.results.measures import MEASURES

OUTCOME = {"paired": {"problems": 200, "before": 0.165, "after": 0.25, "lost": 3, "won": 20, "p": 0.000488}}

TEXT = """
paper: p
table: t
title: t
door: rl
measures: [gained_points, paired_p]
context: [paired_p]
scales:
  smoke: {seconds: 1}
  cpu: {seconds: 1}
rows:
  - {row: a, method: A, overrides: [x=1]}
  - {row: b, method: B, overrides: [x=2], seeds: [3, 4]}
claims: [{text: t, kind: reaches, rows: [a, b], bound: 5}]
"""


def test_gain_and_test_are_of_the_same_problems():
    read = lambda name: MEASURES[name].of(OUTCOME, None)  # noqa: E731
    assert read("gained_points") == pytest.approx(8.5)
    assert read("accuracy_first_pct") == pytest.approx(16.5)
    assert read("accuracy_last_pct") == 25
    assert read("paired_p") == 0.000488
    assert not MEASURES["gained_points"].lower
    assert MEASURES["paired_p"].lower


@pytest.mark.parametrize(("scale", "seeds"), [("cpu", {"a": [0], "b": [3, 4]}), ("smoke", {"a": [0], "b": [0]})])
def test_a_row_may_have_seeds_of_its_own(scale, seeds):
    done, ready, waiting = plan([parse(TEXT, "p/t")], scale, lambda run: True)
    assert not ready
    assert not waiting
    assert {row: [r.seed for r in done if r.row == row] for row in seeds} == seeds
