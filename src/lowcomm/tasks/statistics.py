"""Estimators of accuracy over problems with several samples each."""

import math
from collections.abc import Sequence


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that one of k samples is right, given c right ones of n: 1 - C(n-c, k) / C(n, k), unbiased.

    Source: Chen et al., arXiv 2107.03374, equation 1. Raises ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"n={n}, c={c}, k={k}: needs 1 <= k <= n and 0 <= c <= n")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over problems and its standard error; one value a problem. The error of a single problem is infinite.

    Raises ValueError for no problem.
    """
    n = len(values)
    if n == 0:
        raise ValueError("no problem was evaluated")
    mean = math.fsum(values) / n
    if n == 1:
        return mean, math.inf
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> tuple[int, int, float]:
    """Problems lost, problems won, and McNemar's exact two-sided p-value.

    Under the null hypothesis each of the problems whose verdict changed was won or lost with probability 1/2. Raises
    ValueError for two different numbers of verdicts.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} and {len(after)} verdicts: the test pairs the same problems")
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    won = sum(b and not a for a, b in zip(before, after, strict=True))
    n = lost + won
    tail = sum(math.comb(n, i) for i in range(min(lost, won) + 1))
    return lost, won, min(1.0, 2 * tail / 2**n)
