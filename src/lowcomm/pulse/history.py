"""What both sides remember of recent patches: for each weight, when it last changed and in which direction.

Crossings recur: a weight that has just crossed a rounding boundary is far from the next one, one that crossed some
versions ago in a steady direction is near it, and goes on in that direction. The codec `history` puts both into its
contexts. One byte a weight on each side; it starts empty at an anchor.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xxhash
from torch import Tensor

from lowcomm.pulse.gaps import AGES
from lowcomm.pulse.paper import differences
from lowcomm.pulse.state import State, as_state

LAST = 127  # patches are numbered 1 to 127 from the anchor; a longer chain stays at the last number
BOUNDS = (1, 2, 4, 8)  # ages up to these, in patches, form the groups 1, 2, 3, 4; older ones 5; never changed 0
assert len(BOUNDS) + 2 == AGES


class Marks(NamedTuple):
    """A block's part: one mark a weight (0: never, else number << 1 | upwards), and what each mark means now."""

    marks: np.ndarray  # u8
    age: np.ndarray  # i64 (256): group of age
    turn: np.ndarray  # i64 (256): context of direction, 0 for never, else 2 * age + upwards


class History:
    """The memory of one side, for weights of these names and sizes. ``start`` is the version where it was empty.

    Pass the same object to every `encode` (``commit`` it when the patch is out) or `apply` of a chain.
    """

    def __init__(self, tensors: Mapping[str, Tensor] | State, start: int | None = None):
        self._marks = {n: np.zeros(e.numel, np.uint8) for n, e in as_state(tensors).entries.items()}
        self.reset(start)

    def reset(self, start: int | None) -> None:
        """Forget everything: the weights are those of anchor ``start`` (None: of no version, nothing can be read)."""
        self.start, self.number = start, 0
        for marks in self._marks.values():
            marks.fill(0)

    def digest(self) -> bytes:
        """Equal on both sides exactly when their memories are."""
        whole = xxhash.xxh3_128(bytes([self.number]))
        for marks in self._marks.values():
            whole.update(marks)
        return whole.digest()

    def meaning(self) -> tuple[np.ndarray, np.ndarray]:
        """(age, turn) for the patch that comes next, see Marks."""
        mark = np.arange(256)
        since = min(self.number + 1, LAST) - (mark >> 1)
        age = np.where(mark < 2, 0, 1 + np.searchsorted(BOUNDS, since))
        age = np.minimum(age, AGES - 1)
        return age.astype(np.int64), np.where(age == 0, 0, 2 * age + (mark & 1)).astype(np.int64)

    def block(self, name: str, start: int, stop: int) -> np.ndarray:
        """The marks of elements [start, stop) of a tensor, u8: a view."""
        return self._marks[name][start:stop]

    def record(self, name: str, start: int, position: np.ndarray, upwards: np.ndarray) -> None:
        """Part of committing the next patch: what changed in a block, and which values grew (bool)."""
        self._marks[name][start + position.astype(np.int64)] = (min(self.number + 1, LAST) << 1) | upwards

    def close(self) -> None:
        """The patch is committed."""
        self.number = min(self.number + 1, LAST)

    def commit(self, old: Mapping[str, Tensor] | State, new: Mapping[str, Tensor] | State) -> None:
        """After ``encode(old, new, "history", history=...)`` went out: remember what it changed."""
        old, new = as_state(old), as_state(new)
        for name, entry in new.entries.items():
            for span in entry.blocks():
                a, b = old.read(name, *span), new.read(name, *span)
                position = differences(a, b)
                self.record(name, span[0], position, grew(a[position], b[position], entry.layout.exponent > 0))
        self.close()


def grew(old: np.ndarray, new: np.ndarray, signed: bool) -> np.ndarray:
    """Which words stand for greater values (bool); ``signed``: their top bit is a sign, as in floats."""
    if not signed:
        return new > old
    top = old.dtype.type(1 << (8 * old.itemsize - 1))
    low, high = (np.where(w & top, ~w, w | top) for w in (old, new))
    return high > low
