"""A checkpoint folder as a model: its config must be that of `model.config`, and every tensor is accounted for.

A tensor that a checkpoint lacks or has too much is an error: a half-loaded model trains as if all were well.
"""

import json
import math
import re
from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from lowcomm.blocks import ConfigError
from lowcomm.models.families import FAMILIES, architecture, without_cache
from lowcomm.models.folder import checkpoint_folder, source
from lowcomm.schema import ModelConfig

DROPOUT = ("attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob")
# A checkpoint may differ in these from `model.config`: they do not enter the function its weights compute.
FREE = {*DROPOUT, "initializer_range", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"}


def pretrained_model(cfg: ModelConfig) -> PreTrainedModel:
    """The weights of a safetensors folder (sharded or not), every tensor accounted for. Raises ConfigError."""
    folder = checkpoint_folder(cfg)
    config = checkpoint_architecture(cfg, folder)
    multimodal = json.loads((folder / "config.json").read_text())["model_type"] == "gemma3"
    model, info = FAMILIES[cfg.family][1].from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        use_safetensors=True,
        local_files_only=True,
        attn_implementation="sdpa",
        output_loading_info=True,
        # Without it the text class takes no tensor of a multimodal checkpoint, and only warns.
        key_mapping={r"^(model\.)?language_model\.(model\.)?": "model."} if multimodal else None,
    )
    model._weight_conversions = None  # save_pretrained would try to undo the renaming
    vision = re.compile(r"^(model\.)?(vision_tower|multi_modal_projector)\.")
    extra = [key for key in info["unexpected_keys"] if not (multimodal and vision.match(key))]
    for what, keys in (("lacks", info["missing_keys"]), ("has an unknown", extra)):
        if keys:
            why = f"the checkpoint {what} tensor {min(keys)} ({len(keys)} such)"
            raise ConfigError(f"model.{source(cfg)}: {why}; its config.json and its weights do not belong together")
    return model


def checkpoint_architecture(cfg: ModelConfig, folder: Path) -> PreTrainedConfig:
    """The checkpoint's own config, with which `model.config` must agree. Raises ConfigError."""
    raw = json.loads((folder / "config.json").read_text())
    config_class, _, kinds = FAMILIES[cfg.family]
    if (kind := raw.get("model_type")) not in kinds:
        remedy = "".join(f"; use model.family={f}" for f, entry in FAMILIES.items() if kind in entry[2])
        raise ConfigError(f"model.family={cfg.family}: the checkpoint's model_type is '{kind}'{remedy}")
    if "quantization_config" in raw:
        why = "a quantised checkpoint; save it dequantised, with no 'quantization_config' in config.json"
        raise ConfigError(f"model.{source(cfg)}: {why}")
    ours, theirs = architecture(cfg), config_class.from_pretrained(folder)
    for key in sorted(set(cfg.config) - FREE):
        a, b = getattr(ours, key), getattr(theirs, key)
        close = isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=1e-6)  # FP32 in GGUF
        if a != b and not close:
            raise ConfigError(f"model.config.{key}={a}: the checkpoint has {b}; correct it, or drop the key with ~")
    for key in DROPOUT:
        if hasattr(theirs, key):
            setattr(theirs, key, cfg.config.get(key, 0.0))
    return without_cache(theirs)
