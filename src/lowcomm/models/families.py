"""The four families of Hugging Face models, and the config of one: `model.config`, checked to the last key."""

from typing import Any

from huggingface_hub.errors import StrictDataclassError
from omegaconf import OmegaConf
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RopeParameters

from lowcomm.blocks import ConfigError, nearest
from lowcomm.schema import ModelConfig

# family: (config class, model class, model types of the checkpoints it can load)
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, ("llama",)),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, ("qwen2",)),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, ("gemma3_text", "gemma3")),
    "vit": (ViTConfig, ViTForImageClassification, ("vit",)),
}


def architecture(cfg: ModelConfig) -> PreTrainedConfig:
    """`model.config` as the family's Hugging Face config, checked to the last key. Raises ConfigError."""
    if cfg.family not in FAMILIES:
        raise ConfigError(f"model.family={cfg.family}: one of {', '.join(FAMILIES)}{nearest(cfg.family, FAMILIES)}")
    if cfg.weights not in ("random", "hub", "local", "package", "trained"):
        raise ConfigError(f"model.weights={cfg.weights}: one of random, hub, local, package, trained")
    config_class = FAMILIES[cfg.family][0]
    # A copy, as the config class completes `rope_parameters` in place; and plain, as it takes no OmegaConf nodes.
    values = OmegaConf.to_container(OmegaConf.create({"config": cfg.config}), resolve=True)["config"]
    # The class's own fields only: those of its base are bookkeeping, and there is no cache in training.
    known = {*config_class.__annotations__, *(["num_labels"] if cfg.family == "vit" else [])} - {"use_cache"}
    check_keys("model.config", values, known, config_class.__name__)
    for key, value in values.items():
        sizes = key.endswith("_size") or key.startswith("num_")
        if sizes and isinstance(value, int) and value < 1:
            raise ConfigError(f"model.config.{key}={value}: must be at least 1")
    check_rope("model.config.rope_parameters", values.get("rope_parameters") or {})
    try:
        config = config_class(**values, attn_implementation="sdpa")
    except (StrictDataclassError, KeyError) as error:
        raise ConfigError(f"model.config: {' '.join(str(error).split())}") from error
    heads, groups = config.num_attention_heads, getattr(config, "num_key_value_heads", 1)
    if config.hidden_size % heads or heads % groups:
        why = f"must divide hidden_size={config.hidden_size} and be a multiple of num_key_value_heads={groups}"
        raise ConfigError(f"model.config.num_attention_heads={heads}: {why}")
    return without_cache(config)


def check_keys(path: str, node: dict[str, Any], known: set[str], owner: str) -> None:
    """Raises ConfigError with the nearest key for one that `owner` does not have; `path` is that of `node`."""
    for key in node:
        if key not in known:
            hint = nearest(key, known) or f"; known: {', '.join(sorted(known))}"
            raise ConfigError(f"{path}.{key}={node[key]}: {owner} has no '{key}'{hint}")


def check_rope(path: str, node: dict[str, Any]) -> None:
    """Raises ConfigError for a misspelt key, where Hugging Face only warns and takes the default frequencies."""
    if any(isinstance(value, dict) for value in node.values()):  # one dictionary for each kind of layer (Gemma)
        check_keys(path, node, {"full_attention", "sliding_attention"}, "a model with several kinds of layers")
        for kind, inner in node.items():
            check_rope(f"{path}.{kind}", inner)
        return
    check_keys(path, node, set(RopeParameters.__annotations__), "RopeParameters")
    kinds = ["default", *ROPE_INIT_FUNCTIONS]
    if (kind := node.get("rope_type", "default")) not in kinds:
        raise ConfigError(f"{path}.rope_type={kind}: one of {', '.join(kinds)}{nearest(kind, kinds)}")


def without_cache(config: PreTrainedConfig) -> PreTrainedConfig:
    """The same config, changed in place: a training forward pass keeps no keys and values."""
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config
