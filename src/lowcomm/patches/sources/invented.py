"""Made up: normal weights, moved once or by AdamW on gradients that are made up too."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lowcomm.patches.sources.need import need
from lowcomm.pulse import measure, synthetic


class Gaussian:
    """Two versions: normal weights in matrices of 4096 columns, and the same after an update of scale ``delta``."""

    def __init__(self, megabytes: int, delta: float = 3.4e-7, seed: int = 0):
        need(megabytes > 0, "megabytes", megabytes, "must be positive")
        need(delta >= 0, "delta", delta, "must not be negative")
        self.megabytes, self.delta, self.seed = megabytes, delta, seed

    def chain(self) -> Iterator[dict[str, Tensor]]:
        """The two versions."""
        yield from measure.gaussian(self.megabytes, self.delta, self.seed)

    def describe(self) -> dict[str, Any]:
        """For the record; the numbers are those of NumPy's generator, hence its version."""
        text = f"Normal weights, {self.megabytes} MB of BF16, one update of scale {self.delta:g}"
        return {"name": "gaussian", "revision": f"numpy {np.__version__}", "summary": text}


class Adam:
    """``steps`` AdamW steps on normal weights, see `lowcomm.pulse.synthetic.chain`."""

    def __init__(self, weights: int, steps: int, lr: float = 3e-6, signal: float = 0.4, seed: int = 0):
        need(weights > 0 and weights % 64 == 0, "weights", weights, "must be a positive multiple of 64")
        need(steps > 0, "steps", steps, "must be at least 1")
        self.weights, self.steps, self.lr, self.signal, self.seed = weights, steps, lr, signal, seed

    def chain(self) -> Iterator[dict[str, Tensor]]:
        """One matrix of 64 columns, at the start and after every step."""
        for bits in synthetic.chain(self.weights, self.steps, self.lr, self.signal, self.seed):
            yield {"weight": torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).reshape(-1, 64)}

    def describe(self) -> dict[str, Any]:
        """For the record; the numbers are those of NumPy's generator, hence its version."""
        text = f"{self.weights:,} normal weights, {self.steps} AdamW steps at {self.lr:g}, steady part {self.signal:g}"
        return {"name": "adam", "revision": f"numpy {np.__version__}", "summary": text}
