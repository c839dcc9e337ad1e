"""A model from its configuration: random weights or a checkpoint's, always in FP32 first."""

import torch
from transformers import PreTrainedModel

from lowcomm.models.checkpoint import checkpoint_architecture, pretrained_model
from lowcomm.models.families import FAMILIES, architecture
from lowcomm.models.folder import checkpoint_folder
from lowcomm.models.named import parameters
from lowcomm.schema import ModelConfig


def build(cfg: ModelConfig, *, seed: int) -> PreTrainedModel:
    """The model of `cfg` on the CPU, in training mode, deterministic in `seed`; the global RNG is left alone.

    Weights are FP32 whatever the checkpoint's dtype; `dtype: bfloat16` then rounds the parameters (not the rotary
    frequencies). Raises ConfigError for a mistake in the configuration, and for a checkpoint that does not fit it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's alone: torch.manual_seed reaches every device
        model = random_model(cfg) if cfg.weights == "random" else pretrained_model(cfg)
    if cfg.dtype == "bfloat16":
        for p in model.parameters():
            p.data = p.data.bfloat16()
        model.config.dtype = torch.bfloat16
    return model.train()


def random_model(cfg: ModelConfig) -> PreTrainedModel:
    """The architecture with random weights, on the current default device. Raises ConfigError."""
    config = architecture(cfg) if cfg.weights == "random" else checkpoint_architecture(cfg, checkpoint_folder(cfg))
    return FAMILIES[cfg.family][1](config)


def parameter_count(cfg: ModelConfig) -> int:
    """Number of trainable parameters, tied weights once, without allocating them (meta device)."""
    with torch.device("meta"):
        return sum(p.numel() for p in parameters(random_model(cfg)).values())
