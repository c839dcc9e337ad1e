"""What is trained on: data, loss and evaluation. A workload knows nothing of algorithms, workers or Hydra."""

from typing import Any, Protocol

from torch import Tensor, nn

from lowcomm.workloads.arithmetic import ArithmeticText
from lowcomm.workloads.images import Digits, ImageNet
from lowcomm.workloads.text import Dclm, PyCode

__all__ = ["ArithmeticText", "Dclm", "Digits", "ImageNet", "PyCode", "Workload"]


class Workload(Protocol):
    """Batches are a pure function of (seed, worker, workers, step, size), so there is no loader state to save."""

    name: str
    unit: str  # "tokens" or "images": what throughput and budgets count
    units_per_sample: int

    def check(self, workers: int, size: int, eval_samples: int = 1) -> None:
        """Raise ValueError with the numbers when there is too little data for one step or one evaluation."""

    def batch(self, worker: int, workers: int, step: int, size: int) -> dict[str, Tensor]:
        """`size` samples for one inner step of one worker; workers are disjoint within an epoch."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Scalar FP32 mean over the predicted units."""

    def evaluate(self, model: nn.Module, samples: int, batch: int) -> dict[str, float]:
        """Held-out split: `loss` (unit-weighted mean), `n` (units), and `accuracy` for images."""

    def describe(self) -> dict[str, Any]:
        """What the record says of the data: name, revision, hashes, sizes. JSON-able, no absolute paths."""
