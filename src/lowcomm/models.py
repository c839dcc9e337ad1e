"""Models: four Hugging Face families from their config (random weights), the hub, a pip package, a folder, or a run.

Always FP32 weights first, scaled-dot-product attention, no KV cache, no dropout unless the config asks for it, never
a pickle. A tensor that a checkpoint lacks or has too much is an error: a half-loaded model trains as if all were well.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from omegaconf import OmegaConf
from torch import nn
from transformers import (
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RopeParameters

from lowcomm import hub, packaged, trained
from lowcomm.blocks import ConfigError, nearest
from lowcomm.byte_tokenizer import EOS, PAD, SIZE, byte_tokenizer
from lowcomm.schema import ModelConfig

# family: (config class, model class, model types of the checkpoints it can load)
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, ("llama",)),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, ("qwen2",)),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, ("gemma3_text", "gemma3")),
    "vit": (ViTConfig, ViTForImageClassification, ("vit",)),
}
DROPOUT = ("attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob")
# A checkpoint may differ in these from `model.config`: they do not enter the function its weights compute.
FREE = {*DROPOUT, "initializer_range", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"}
SAVED = "a save_pretrained folder with safetensors weights (pickled .bin files are not read), or model.weights=random"


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


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by canonical name, in a fixed order, tied weights once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def hidden_matrices(model: nn.Module) -> list[str]:
    """Names of the 2-D weights inside the transformer blocks: what Muon takes.

    Embeddings, output heads, norms, biases and the patch convolution are left out, tied or not.
    """
    return [name for name, p in parameters(model).items() if p.ndim == 2 and re.search(r"\.\d+\.", name)]


def parameter_count(cfg: ModelConfig) -> int:
    """Number of trainable parameters, tied weights once, without allocating them (meta device)."""
    with torch.device("meta"):
        return sum(p.numel() for p in parameters(random_model(cfg)).values())


def random_model(cfg: ModelConfig) -> PreTrainedModel:
    """The architecture with random weights, on the current default device. Raises ConfigError."""
    config = architecture(cfg) if cfg.weights == "random" else checkpoint_architecture(cfg, checkpoint_folder(cfg))
    return FAMILIES[cfg.family][1](config)


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


def checkpoint_folder(cfg: ModelConfig) -> Path:
    """The folder with config.json, safetensors and tokenizer: `model.path`, a package's (converted once), that of
    `model.recipe` (trained once), or the hub's snapshot (cached, else downloaded). Raises ConfigError.
    """
    architecture(cfg)  # a mistake in the config should not wait for a download
    if cfg.weights == "local":
        if not cfg.path or not Path(cfg.path).is_dir():
            raise ConfigError(f"model.path={cfg.path}: no such folder; give {SAVED}")
        folder = Path(cfg.path)
    elif cfg.weights == "package":
        folder = packaged.folder(cfg.hub)
    elif cfg.weights == "trained":
        folder = trained.folder(cfg.recipe)
    else:
        if not cfg.hub:
            raise ConfigError("model.hub=null: model.weights=hub needs a repository id; or take model.weights=random")
        if not re.fullmatch(r"[0-9a-f]{40}", cfg.revision or ""):
            why = f"pin the commit of {cfg.hub}, 40 hexadecimal digits; a branch would change under the results"
            raise ConfigError(f"model.revision={cfg.revision}: {why}")
        try:
            folder = hub.snapshot(cfg.hub, cfg.revision)
        except OSError as error:
            remedy = (
                "give a copy with model.weights=local model.path=FOLDER or in HF_HOME, or take model.weights=random"
            )
            why = f"not to be had ({' '.join(str(error).split())}); {remedy}"
            raise ConfigError(f"model.{source(cfg)}: {why}") from error
    if (name := hub.absent(folder)) is not None:
        raise ConfigError(f"model.{source(cfg)}: there is no {name}; give {SAVED}")
    return folder


def source(cfg: ModelConfig) -> str:
    """Where the weights come from, as the configuration says it; for messages."""
    of = {"local": f"path={cfg.path}", "package": f"weights=package ({cfg.hub})", "trained": "weights=trained"}
    return of.get(cfg.weights, f"hub={cfg.hub}@{cfg.revision}")


def load_tokenizer(cfg: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer beside the weights; for random weights ours, of bytes. Raises ConfigError if there is none."""
    if cfg.weights == "random":
        if (size := cfg.config.get("vocab_size", 0)) < SIZE:
            why = f"random weights take the tokenizer of bytes, with {SIZE} entries"
            raise ConfigError(f"model.config.vocab_size={size}: {why}; raise it")
        named = {"eos_token": EOS, "pad_token": PAD, "padding_side": "left"}
        return PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), **named)
    folder = checkpoint_folder(cfg)
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(f"model.{source(cfg)}: there is no tokenizer.json; copy the model's into the folder")
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)
