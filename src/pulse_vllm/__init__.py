"""A vLLM engine follows a store of sparse weight patches: plug-in for vLLM 0.32, weight-transfer backend "pulse".

Needs vLLM, torch, numpy, safetensors and what `lowcomm.pulse` needs; nothing of the trainer. The trainer's side
(`pulse_vllm.controller`, `pulse_vllm.server`) is standard library alone and runs without vLLM.
"""

import os

BACKEND = "pulse"
NO_PREPACK = "PULSE_VLLM_NO_PREPACK"


def register() -> None:
    """Entry point of `vllm.general_plugins`, in every process of an engine before the model is built; idempotent.

    With PULSE_VLLM_NO_PREPACK=1 the CPU backend keeps linear weights where they can be read and replaced. It packs
    them otherwise, on some machines and for some dtypes: the parameter is then empty and any checksum of it is blind.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # registering twice raises
        WeightTransferEngineFactory.register_engine(BACKEND, "pulse_vllm.engine", "PulseEngine")
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _let_numba_be_there()
    if os.environ.get(NO_PREPACK) == "1":
        import vllm.model_executor.layers.utils as layers

        layers.dispatch_cpu_unquantized_gemm = _plain_linear  # looked up when a layer is processed


def _plain_linear(layer, remove_weight: bool) -> None:
    import torch

    layer.cpu_linear = torch.nn.functional.linear


def _let_numba_be_there() -> None:
    """vLLM 0.32 on CPUs reads the ``__dict__`` of every object in every module when it places its kernels, and fails on
    llvmlite's library object, which answers any name with a function. So no numba before the engine, or this.
    """
    from llvmlite.binding import ffi

    ffi.lib._fntab.setdefault("__dict__", {})
