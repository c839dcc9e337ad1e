"""Which sample comes when: a pure function of (seed, worker, workers, step, size), with no state to save.

The k-th sample of worker w among W stands at position p = k*W + w, and position p is sample permutation(p // n)[p % n]
of the n there are. A worker's step s of `size` samples covers k = s*size ... s*size + size - 1. So

- the workers' positions never meet: within an epoch no two of them see the same sample, and all of them together see
  every sample once;
- one step of all workers covers the positions s*W*size ... (s + 1)*W*size - 1: under a shared budget (W*size fixed) a
  step sees the same samples whatever W is;
- an epoch may end inside a batch: the next position belongs to the next epoch, newly shuffled.
"""

import numpy as np

RULE = "sample k of worker w of W is permutation[epoch][k*W + w], shuffled anew each epoch by Philox(seed, epoch)"
KEPT = 2  # permutations kept: a batch meets two epochs at most


def permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    """int64 `(n,)`: the order of epoch `epoch`.

    It sorts raw Philox bits, whose stream NumPy promises to keep (NEP 19); `Generator.permutation` may change between
    versions of NumPy, and the order of the data would change with it.
    """
    bits = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(n)
    return np.argsort(bits, kind="stable")


class Order:
    """The order of `n` samples under `seed`. 8 bytes of memory a sample and epoch, two epochs kept."""

    def __init__(self, n: int, seed: int, what: str = "training samples", remedy: str = "take more data"):
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed={seed}: must be between 0 and 2**64 - 1")
        self.n, self.seed, self._what, self._remedy = n, seed, what, remedy
        self._kept: dict[int, np.ndarray] = {}

    def check(self, workers: int, size: int) -> None:
        """Raises ValueError if one step of all workers would have to show a sample twice."""
        if workers < 1 or size < 1:
            raise ValueError(f"workers={workers}, size={size}: both must be at least 1")
        if workers * size > self.n:
            raise ValueError(
                f"{workers} workers x {size} samples = {workers * size} a step, but there are only {self.n} "
                f"{self._what}: {self._remedy}, or lower workers or scale.batch"
            )

    def positions(self, worker: int, workers: int, step: int, size: int) -> np.ndarray:
        """int64 `(size,)`: places in the endless sequence of epochs. Raises ValueError."""
        self.check(workers, size)
        if not 0 <= worker < workers:
            raise ValueError(f"worker={worker}: must be between 0 and {workers - 1}, there are {workers} workers")
        if step < 0:
            raise ValueError(f"step={step}: must not be negative")
        return (step * size + np.arange(size, dtype=np.int64)) * workers + worker

    def samples(self, worker: int, workers: int, step: int, size: int) -> np.ndarray:
        """int64 `(size,)`: sample numbers in [0, n)."""
        positions = self.positions(worker, workers, step, size)
        first, last = int(positions[0]) // self.n, int(positions[-1]) // self.n
        if first == last:
            return self._epoch(first)[positions - first * self.n]
        old = positions < last * self.n  # the step is shorter than an epoch, so there are two at most
        return np.concatenate(
            [
                self._epoch(first)[positions[old] - first * self.n],
                self._epoch(last)[positions[~old] - last * self.n],
            ]
        )

    def _epoch(self, epoch: int) -> np.ndarray:
        found = self._kept.get(epoch)
        if found is None:
            found = permutation(self.n, self.seed, epoch)
            self._kept = {**dict(list(self._kept.items())[1 - KEPT :]), epoch: found}
        return found
