import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowcomm.workloads.order import Order, permutation

sizes = st.integers(1, 7)
counts = st.integers(1, 6)
seeds = st.integers(0, 2**64 - 1)
GOLDEN = [
    [0, 2, 11, 9, 1, 8, 5, 4, 3, 10, 6, 7],
    [3, 5, 2, 9, 7, 10, 0, 8, 6, 11, 1, 4],
    [5, 3, 7, 8, 11, 2, 4, 1, 10, 0, 6, 9],
]  # of (seed, epoch) = (0, 0), (1, 0), (0, 1)


def rule(n: int, seed: int, position: int) -> int:
    """The documented rule, one position at a time."""
    return int(permutation(n, seed, position // n)[position % n])


@given(n=st.integers(1, 60), seed=seeds, workers=counts, size=sizes, data=st.data())
def test_follows_the_documented_rule(n, seed, workers, size, data):
    n = max(n, workers * size)
    worker = data.draw(st.integers(0, workers - 1))
    step = data.draw(st.integers(0, 50))
    expected = [rule(n, seed, (step * size + j) * workers + worker) for j in range(size)]
    assert Order(n, seed).samples(worker, workers, step, size).tolist() == expected


@given(n=st.integers(1, 60), seed=seeds, workers=counts, size=sizes)
def test_epochs_are_disjoint_and_whole(n, seed, workers, size):
    """Over two epochs: each sample once in the first n positions, once in the next n, whoever gets it."""
    n = max(n, workers * size)
    order = Order(n, seed)
    steps = -(-2 * n // (workers * size))
    shown = [[], []]
    for step, worker in itertools.product(range(steps), range(workers)):
        positions = order.positions(worker, workers, step, size)
        for position, sample in zip(positions, order.samples(worker, workers, step, size), strict=True):
            if position < 2 * n:
                shown[position // n].append(sample)
    assert sorted(shown[0]) == list(range(n))
    assert sorted(shown[1]) == list(range(n))


@given(n=st.integers(12, 60), seed=seeds, step=st.integers(0, 20), workers=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_a_step_shows_the_same_samples_for_any_number_of_workers(n, seed, step, workers):
    order = Order(n, seed)
    alone = order.samples(0, 1, step, 12)
    together = np.concatenate([order.samples(w, workers, step, 12 // workers) for w in range(workers)])
    assert sorted(alone) == sorted(together)


@given(n=st.integers(6, 40), seed=seeds)
def test_the_order_of_calls_does_not_matter(n, seed):
    calls = list(itertools.product(range(2), range(2 * n // 6 + 3)))
    order = Order(n, seed)
    forwards = {c: order.samples(c[0], 2, c[1], 3).tolist() for c in calls}
    backwards = {c: order.samples(c[0], 2, c[1], 3).tolist() for c in reversed(calls)}
    fresh = {c: Order(n, seed).samples(c[0], 2, c[1], 3).tolist() for c in calls}
    assert forwards == backwards == fresh


def test_a_fresh_process_gives_the_same():
    code = "from lowcomm.workloads.order import Order; print(Order(50, 7).samples(1, 2, 9, 4).tolist())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == str(Order(50, 7).samples(1, 2, 9, 4).tolist())


def test_golden_order():
    """Records name the order by its rule alone, so the rule must never give another order."""
    assert permutation(12, 0, 0).tolist() == GOLDEN[0]
    assert permutation(12, 1, 0).tolist() == GOLDEN[1]
    assert permutation(12, 0, 1).tolist() == GOLDEN[2]


def test_seeds_and_epochs_shuffle_anew():
    orders = {tuple(permutation(30, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_positions_are_spread_evenly():
    """Each sample comes first about equally often over many seeds."""
    first = [permutation(4, seed, 0)[0] for seed in range(4000)]
    assert np.bincount(first, minlength=4).min() > 900


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ((0, 4, 0, 3), "4 workers x 3 samples = 12 a step, but there are only 10 cats: feed more, or lower"),
        ((2, 2, 0, 3), "worker=2"),
        ((-1, 2, 0, 3), "worker=-1"),
        ((0, 2, -1, 3), "step=-1"),
        ((0, 0, 0, 3), "workers=0"),
        ((0, 2, 0, 0), "size=0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        Order(10, 0, "cats", "feed more").samples(*call)


@pytest.mark.parametrize("n", [10, 11])
def test_workers_share_an_epoch_and_stay_in_step(n):
    """Known elsewhere: every rank reads the same stream (astroPT #64), or one runs out of batches (CosyVoice #297)."""
    order = Order(n, 0)
    shown = [[int(i) for step in range(5) for i in order.samples(w, 2, step, 1)] for w in range(2)]
    assert [len(s) for s in shown] == [5, 5]
    assert len(set(shown[0] + shown[1])) == 10


def test_exactly_enough_is_enough():
    order = Order(12, 0)
    assert sorted(np.concatenate([order.samples(w, 4, 0, 3) for w in range(4)])) == list(range(12))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_that_are_none(seed):
    with pytest.raises(ValueError, match=f"seed={seed}"):
        Order(10, seed)
