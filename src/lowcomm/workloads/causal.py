"""What every text workload shares: windows of tokens, next-token loss, token-weighted evaluation."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lowcomm.workloads.heldout import check_evaluation, device_of, evaluating
from lowcomm.workloads.order import RULE, Order, permutation
from lowcomm.workloads.tokens import Windows


class CausalText:
    """Batches, loss and evaluation over two sets of windows that share no document."""

    unit = "tokens"

    def __init__(self, name: str, train: Windows, heldout: Windows, seq_len: int, seed: int, remedy: str):
        self.name, self.seq_len, self.units_per_sample = name, seq_len, seq_len
        self._train, self._heldout = train, heldout
        what = f"training windows of seq_len={seq_len} ({train.tokens} tokens)"
        self._order = Order(len(train), seed, what, remedy)
        self._evaluation = permutation(len(heldout), 0, 0)  # not in the files' order, and the same for every seed

    def check(self, workers: int, size: int, eval_samples: int = 1) -> None:
        """Raises ValueError if `workers` batches of `size`, or an evaluation, need more windows than there are."""
        self._order.check(workers, size)
        check_evaluation(eval_samples, 1, len(self._heldout), "held-out windows")

    def batch(self, worker: int, workers: int, step: int, size: int) -> dict[str, Tensor]:
        """`input_ids`: int64 `(size, seq_len)`, on the CPU. The order is that of `lowcomm.workloads.order`.

        Raises ValueError if a step of all workers needs more windows than there are.
        """
        return {"input_ids": torch.from_numpy(self._train.rows(self._order.samples(worker, workers, step, size)))}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Mean negative log-likelihood (nats) of tokens 2 to seq_len of each window: scalar, FP32."""
        ids = batch["input_ids"].to(device_of(model), non_blocking=True)
        return model(input_ids=ids, labels=ids).loss.float()

    def evaluate(self, model: nn.Module, samples: int, batch: int) -> dict[str, float]:
        """`loss`: mean over the predicted tokens of `samples` held-out windows, the same ones each time; `n`: tokens.

        Leaves gradients, modes and random state alone. Raises ValueError if there are fewer held-out windows.
        """
        check_evaluation(samples, batch, len(self._heldout), "held-out windows")
        total, predicted = 0.0, 0
        with evaluating(model):
            for rows in np.split(self._evaluation[:samples], range(batch, samples, batch)):
                ids = torch.from_numpy(self._heldout.rows(rows))
                n = ids.shape[0] * (ids.shape[1] - 1)
                total += self.loss(model, {"input_ids": ids}).item() * n
                predicted += n
        return {"loss": total / predicted, "n": predicted}

    def describe(self) -> dict[str, Any]:
        """Sizes and order; the workloads add what the text is."""
        return {
            "name": self.name,
            "unit": self.unit,
            "seq_len": self.seq_len,
            "seed": self._order.seed,
            "order": RULE,
            "tokens": self._train.tokens,
            "windows": len(self._train),
            "heldout_tokens": self._heldout.tokens,
            "heldout_windows": len(self._heldout),
        }
