"""Weights that share memory: what a patch writes to one of them would change another behind its back."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from lowcomm.pulse.errors import Unsupported

WORK = 10_000  # steps of numpy's exact answer about two strided views; where they do not suffice they count as shared


def refuse_overlaps(tensors: Mapping[str, Tensor]) -> None:
    """Raise Unsupported where two of the tensors, or two elements of one, share memory.

    Tied weights, the same tensor under two names, are to be given once.
    """
    spans = []
    for name, tensor in tensors.items():
        if not tensor.numel():
            continue
        if any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
            raise Unsupported(f"tensor {name!r} is expanded, its elements share memory: clone it")
        reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        start = tensor.data_ptr()
        spans.append((str(tensor.device), start, start + reach * tensor.element_size(), name))
    spans.sort()
    for at, (device, _, end, name) in enumerate(spans):
        for other_device, start, _, other in spans[at + 1 :]:
            if other_device != device or start >= end:
                break
            if _share(tensors[name], tensors[other]):
                raise Unsupported(f"tensors {name!r} and {other!r} overlap in memory: clone one")


def _share(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors whose ranges of addresses meet have a byte in common."""
    if a.is_contiguous() and b.is_contiguous():
        return True
    try:
        return bool(np.shares_memory(_addresses(a), _addresses(b), max_work=WORK))
    except np.exceptions.TooHardError:
        return True


def _addresses(tensor: Tensor) -> np.ndarray:
    """An array of the tensor's addresses, shape and strides that nobody may read: memory of any device."""
    size = tensor.element_size()
    where = {
        "version": 3,
        "shape": tuple(tensor.shape),
        "typestr": f"|V{size}",
        "strides": tuple(step * size for step in tensor.stride()),
        "data": (tensor.data_ptr(), True),
    }
    return np.asarray(type("Addresses", (), {"__array_interface__": where})())
