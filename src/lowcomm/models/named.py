"""Which tensors of a model are trained, by name, and which of them Muon takes."""

import re

from torch import nn


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by canonical name, in a fixed order, tied weights once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def hidden_matrices(model: nn.Module) -> list[str]:
    """Names of the 2-D weights inside the transformer blocks: what Muon takes.

    Embeddings, output heads, norms, biases and the patch convolution are left out, tied or not.
    """
    return [name for name, p in parameters(model).items() if p.ndim == 2 and re.search(r"\.\d+\.", name)]
