"""The tokenizer that belongs to a model."""

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lowcomm.blocks import ConfigError
from lowcomm.byte_tokenizer import EOS, PAD, SIZE, byte_tokenizer
from lowcomm.models.folder import checkpoint_folder, source
from lowcomm.schema import ModelConfig


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
