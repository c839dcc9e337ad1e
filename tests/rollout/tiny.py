"""Random models of some ten thousand parameters, and a store that holds a few versions of one."""

from pathlib import Path

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from lowcomm.pulse import Publisher, Store

SIZE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # else all logits are alike and every wrong cache passes
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}


def model(family: str = "llama", seed: int = 0, eos: int | list[int] | None = None) -> PreTrainedModel:
    torch.manual_seed(seed)
    if family == "llama":
        made = LlamaForCausalLM(LlamaConfig(**SIZE, tie_word_embeddings=True))
    elif family == "qwen2":
        made = Qwen2ForCausalLM(Qwen2Config(**SIZE, tie_word_embeddings=False))
    else:
        config = Gemma3TextConfig(
            **SIZE, head_dim=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
        )
        made = Gemma3ForCausalLM(config)
    made.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=0)
    return made.eval()


def served(made: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What a trainer publishes: the BF16 cast of its parameters, ties once."""
    return {n: p.detach().to(torch.bfloat16) for n, p in made.named_parameters()}


def masters(version: int, family: str = "llama") -> PreTrainedModel:
    """The trainer's model at a version: version 0 and some steps that change a part of the casts."""
    made = model(family)
    with torch.no_grad():
        for v in range(1, version + 1):
            generator = torch.Generator().manual_seed(v)
            for p in made.parameters():
                p.mul_(1 + 0.004 * torch.randn(p.shape, generator=generator))
    return made


def publish(folder: Path | str, versions: range, family: str = "llama", anchor_every: int = 3) -> Store:
    store = Store(str(folder))
    publisher = Publisher(store, served(masters(0, family)), anchor_every=anchor_every)
    for v in versions:
        publisher.publish(served(masters(v, family)), v)
    return store


def save(folder: Path, family: str = "llama", eos: int | list[int] | None = None) -> Path:
    """config.json and generation_config.json, no weights: these come from an anchor."""
    made = model(family, eos=eos)
    made.config.save_pretrained(folder)
    made.generation_config.save_pretrained(folder)
    return folder
