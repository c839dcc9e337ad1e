"""Evaluating without leaving a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter lies."""
    return next(model.parameters()).device


def check_evaluation(samples: int, batch: int, available: int, what: str) -> None:
    """Raises ValueError unless `samples` of the `available` can be evaluated in batches of `batch`."""
    if samples < 1 or batch < 1:
        raise ValueError(f"evaluation of samples={samples} in batches of {batch}: both must be at least 1")
    if samples > available:
        raise ValueError(
            f"scale.eval_samples={samples}: there are only {available} {what}; lower it or hold out more of the data"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module is in the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
