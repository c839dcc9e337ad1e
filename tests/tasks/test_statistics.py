"""Estimators of accuracy, against enumeration and known values."""

import itertools
import math

import pytest

from lowcomm.tasks.statistics import mcnemar, mean_and_error, pass_at_k


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (4, 1, 4), (7, 3, 5)])
def test_pass_at_k_counts_the_draws_with_a_right_one(n, c, k):
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_1_is_the_mean():
    assert pass_at_k(8, 3, 1) == pytest.approx(3 / 8)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 2, 5), (4, 5, 1), (4, -1, 1), (4, 2, 0)])
def test_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k}"):
        pass_at_k(n, c, k)


def test_standard_error():
    mean, error = mean_and_error([1.0] * 250 + [0.0] * 250)
    assert (mean, round(error, 4)) == (0.5, 0.0224)  # MATH-500 at one half: 2.2 points
    assert mean_and_error([1.0]) == (1.0, math.inf)
    with pytest.raises(ValueError, match="no problem"):
        mean_and_error([])


def test_mcnemar_against_the_binomial():
    before = [True] * 3 + [False] * 20
    after = [False] * 3 + [True] * 12 + [False] * 8
    lost, won, p = mcnemar(before, after)
    assert (lost, won) == (3, 12)
    assert p == pytest.approx(2 * sum(math.comb(15, i) for i in range(4)) / 2**15)
    assert mcnemar(after, before) == (12, 3, p)
    assert mcnemar([True, False], [True, False]) == (0, 0, 1.0)
    assert mcnemar([True, False], [False, True])[2] == 1.0
    with pytest.raises(ValueError, match="1 and 2 verdicts"):
        mcnemar([True], [True, False])
