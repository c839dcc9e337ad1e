"""What every image workload shares: seeded batches, cross-entropy of the logits, held-out loss and accuracy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lowcomm.workloads.heldout import check_evaluation, device_of, evaluating
from lowcomm.workloads.order import RULE, Order, permutation

# Positions and images are given as int64 arrays; the answer is FP32 (size, channels, height, width).
Train = Callable[[np.ndarray, np.ndarray], Tensor]
Heldout = Callable[[np.ndarray], Tensor]


class Classification:
    """Batches, loss and evaluation over numbered images.

    `train_images(index, positions)` may augment as a function of the positions; `heldout_images(index)` must not.
    """

    unit, units_per_sample = "images", 1

    def __init__(
        self,
        name: str,
        train_images: Train,
        train_labels: np.ndarray,
        heldout_images: Heldout,
        heldout_labels: np.ndarray,
        seed: int,
    ):
        self.name = name
        self._train_images, self._heldout_images = train_images, heldout_images
        self._train_labels, self._heldout_labels = (torch.from_numpy(x) for x in (train_labels, heldout_labels))
        self._order = Order(len(train_labels), seed, "training images", "take a larger set")
        self._evaluation = permutation(len(heldout_labels), 0, 0)  # not by class, and the same for every seed

    def check(self, workers: int, size: int, eval_samples: int = 1) -> None:
        """Raises ValueError if `workers` batches of `size`, or an evaluation, need more images than there are."""
        self._order.check(workers, size)
        check_evaluation(eval_samples, 1, len(self._heldout_labels), "held-out images")

    def batch(self, worker: int, workers: int, step: int, size: int) -> dict[str, Tensor]:
        """`pixel_values`: FP32 `(size, channels, height, width)`; `labels`: int64 `(size,)`; on the CPU.

        Raises ValueError if a step of all workers needs more images than there are.
        """
        positions = self._order.positions(worker, workers, step, size)
        index = self._order.samples(worker, workers, step, size)
        return {"pixel_values": self._train_images(index, positions), "labels": self._train_labels[index]}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Mean cross-entropy (nats) of the model's logits: scalar, FP32."""
        return _cross_entropy(*_logits(model, batch))

    def evaluate(self, model: nn.Module, samples: int, batch: int) -> dict[str, float]:
        """`loss` and `accuracy` (share) over `n` = `samples` held-out images, the same ones each time.

        Leaves gradients, modes and random state alone. Raises ValueError if there are fewer held-out images.
        """
        check_evaluation(samples, batch, len(self._heldout_labels), "held-out images")
        total, right = 0.0, 0
        with evaluating(model):
            for index in np.split(self._evaluation[:samples], range(batch, samples, batch)):
                images = {"pixel_values": self._heldout_images(index), "labels": self._heldout_labels[index]}
                logits, labels = _logits(model, images)
                total += _cross_entropy(logits, labels).item() * len(index)
                right += int((logits.argmax(-1) == labels).sum())
        return {"loss": total / samples, "accuracy": right / samples, "n": samples}

    def describe(self) -> dict[str, Any]:
        """Sizes and order; the workloads add what the images are."""
        return {
            "name": self.name,
            "unit": self.unit,
            "seed": self._order.seed,
            "order": RULE,
            "images": len(self._train_labels),
            "heldout_images": len(self._heldout_labels),
        }


def _logits(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    device = device_of(model)
    pixels, labels = (batch[key].to(device, non_blocking=True) for key in ("pixel_values", "labels"))
    return model(pixel_values=pixels).logits.float(), labels


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, labels)
