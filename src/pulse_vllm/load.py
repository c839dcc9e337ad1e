"""From tensors in checkpoint names to the parameters of a running model: fused, sharded, tied, as the model has them.

Runs in every worker. The model's own loader knows how its layers are put together; here is only which tensors must go
together, and whether the result is what it should be.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

RELOAD_LOGGER = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")


def groups(model: nn.Module, names: Iterable[str]) -> dict[str, list[str]]:
    """Checkpoint names by the module of the running model that they are parts of: q, k, v and their biases together.

    The layerwise way rebuilds a module from uninitialised memory, so that whoever sends one of a group must send all.
    The fusing is the model's own: its name mapper, then `packed_modules_mapping`; a name that leads to no module (the
    experts of a mixture) counts for the nearest one above it.
    """
    modules = {name for name, _ in model.named_modules()}
    packed = getattr(model, "packed_modules_mapping", {})
    fused = {part: whole for whole, parts in packed.items() for part in parts}
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    out: dict[str, list[str]] = {}
    for name in names:
        mapped = mapper.map_name(name) if mapper is not None else name
        path = [fused.get(part, part) for part in (mapped or name).split(".")]
        while path and ".".join(path) not in modules:
            path.pop()
        out.setdefault(".".join(path), []).append(name)
    return out


def differing(model: nn.Module, tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the modules that do not hold ``tensors`` exactly as the model's loader would put them.

    Empty means two things: these are the weights of the running model, bit for bit, and they lie in memory as loaded,
    not repacked. ``tensors`` must hold whole groups. Nothing is changed: one module at a time is loaded again and put
    back if it differs.
    """
    modules, out = dict(model.named_modules()), []
    for module, names in groups(model, tensors).items():
        mine = dict(modules[module].named_parameters(recurse=True))
        before = {name: p.detach().clone() for name, p in mine.items()}
        model.load_weights((name, tensors[name]) for name in names)
        if not all(same_bits(mine[name], before[name]) for name in mine):
            out.append(module)
            for name, p in mine.items():
                p.data.copy_(before[name])
    return out


def layerwise(model: nn.Module, model_config, tensors: Mapping[str, Tensor]) -> None:
    """Load whole groups by vLLM's layerwise reload, which also repacks what its kernels want packed.

    ``tensors``: any shapes, those of the checkpoint by its names; ``model_config``: the engine's.
    """
    device = next(model.parameters()).device
    with torch.device(device), _unconcerned():
        initialize_layerwise_reload(model)
        try:
            _load(model, tensors)
        finally:  # without this the model would be left with parameters that have no memory
            finalize_layerwise_reload(model, model_config)


def direct(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load ``tensors``, of the checkpoint's shapes, in place: right only where memory is laid out as loaded (see
    `differing`).
    """
    _load(model, tensors)


def _load(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    model.load_weights(tensors.items())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of equal shape and dtype hold the same bits; also for NaN and -0."""
    return torch.equal(a.detach().reshape(-1).view(torch.uint8), b.detach().reshape(-1).view(torch.uint8))


@contextmanager
def _unconcerned() -> Iterator[None]:
    """vLLM warns for every layer of which nothing is sent: here that is most of them."""

    def keep(record: logging.LogRecord) -> bool:
        return "Failed to load weights" not in record.getMessage()

    RELOAD_LOGGER.addFilter(keep)
    try:
        yield
    finally:
        RELOAD_LOGGER.removeFilter(keep)
