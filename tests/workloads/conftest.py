"""Small corpora in the form of the real ones, made here: nothing is read from outside."""

import random

import pytest
import zstandard

from lowcomm.workloads import corpora

WORDS = ["return", "self", "def", "class", "import", "for", "in", "if", "else", "not", "None", "value", "key", "name"]


def prose(seed: int, words: int = 200) -> str:
    """Text that no other seed gives."""
    pick = random.Random(seed)
    return f"document {seed}\n" + " ".join(pick.choice(WORDS) for _ in range(words)) + "\n"


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """The folder that stands for the standard library: 40 files, no two alike."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for i in range(40):
        (folder / f"module{i:02d}.py").write_text(prose(i))
    monkeypatch.setattr(corpora, "stdlib_files", lambda: [(f"stdlib/{f.name}", f) for f in folder.glob("*.py")])
    return folder


def zst(path, lines: list[bytes]) -> None:
    path.write_bytes(zstandard.ZstdCompressor().compress(b"".join(line + b"\n" for line in lines)))


@pytest.fixture
def tiny_llama():
    """A Llama of a few thousand parameters over 300 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=300,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
            attention_dropout=0.5,
        )
    )
