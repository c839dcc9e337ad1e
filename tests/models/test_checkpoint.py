"""Models from checkpoints: local folders, the hub's cache, what is refused."""

import json
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from lowcomm.blocks import ConfigError
from lowcomm.models import FAMILIES, build, parameter_count, parameters
from lowcomm.schema import ModelConfig
from tests.models.test_building import TINY, same, tiny

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def saved(tmp_path) -> Path:
    """A checkpoint folder of the tiny Llama with BF16 weights."""
    build(tiny("llama"), seed=3).bfloat16().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_folder_comes_back_bitwise(family, tmp_path):
    model = build(tiny(family), seed=5)
    model.save_pretrained(tmp_path / "once")
    again = build(tiny(family, weights="local", path=str(tmp_path / "once")), seed=6)
    assert same(model, again)
    assert again.training
    assert again.config._attn_implementation == "sdpa"
    assert not getattr(again.config, "use_cache", False)
    again.save_pretrained(tmp_path / "twice")
    assert (
        load_file(tmp_path / "once/model.safetensors").keys() == load_file(tmp_path / "twice/model.safetensors").keys()
    )


def test_bf16_checkpoint_becomes_fp32(saved):
    with safe_open(saved / "model.safetensors", "pt") as f:
        assert f.get_tensor("model.norm.weight").dtype == torch.bfloat16
    torch.manual_seed(7)
    before = torch.get_rng_state()
    model = build(tiny("llama", weights="local", path=str(saved)), seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    reference = build(tiny("llama"), seed=3)
    for name, p in parameters(model).items():
        assert p.dtype == torch.float32
        assert torch.equal(p, parameters(reference)[name].bfloat16().float())


def test_shards_and_an_empty_config(saved, tmp_path):
    model = build(tiny("llama", weights="local", path=str(saved)), seed=0)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    cfg = ModelConfig(name="local", family="llama", weights="local", path=str(tmp_path / "shards"))
    assert same(model, build(cfg, seed=0))
    assert parameter_count(cfg) == parameter_count(tiny("llama"))
    next((tmp_path / "shards").glob("*-00002-*.safetensors")).unlink()
    with pytest.raises(
        ConfigError, match=r"there is no model-00002-of-\d+\.safetensors; give a save_pretrained folder"
    ):
        build(cfg, seed=0)


def test_dropout_of_a_checkpoint_is_switched_off(saved):
    raw = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(raw | {"attention_dropout": 0.5}))
    assert build(tiny("llama", weights="local", path=str(saved)), seed=0).config.attention_dropout == 0.0
    wanted = tiny("llama", {"attention_dropout": 0.25}, weights="local", path=str(saved))
    assert build(wanted, seed=0).config.attention_dropout == 0.25


def test_omegaconf_nodes_and_fp32_rounding(saved):
    """The door passes its own config node; a GGUF file keeps the norm's epsilon in FP32."""
    raw = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(raw | {"rms_norm_eps": torch.tensor(1e-6).item()}))
    cfg = OmegaConf.structured(tiny("llama", {"rms_norm_eps": 1e-6}, weights="local", path=str(saved)))
    OmegaConf.set_struct(cfg, True)
    assert build(cfg, seed=0).config.attention_dropout == 0.0
    cfg.config.rms_norm_eps = 1e-5
    with pytest.raises(ConfigError, match="model.config.rms_norm_eps=1e-05: the checkpoint has"):
        build(cfg, seed=0)


def test_config_json_of_older_releases(saved):
    """The hub's files still say rope_theta and rope_scaling."""
    raw = json.loads((saved / "config.json").read_text())
    del raw["rope_parameters"]
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}  # fmt: skip
    (saved / "config.json").write_text(json.dumps(raw | {"rope_theta": 500.0, "rope_scaling": scaling}))
    new = {"rope_parameters": scaling | {"rope_theta": 500.0}}
    model = build(tiny("llama", new, weights="local", path=str(saved)), seed=0)
    assert torch.equal(model.model.rotary_emb.inv_freq, build(tiny("llama", new), seed=0).model.rotary_emb.inv_freq)
    with pytest.raises(ConfigError, match="model.config.rope_parameters=.*the checkpoint has"):
        build(tiny("llama", {"rope_parameters": {"rope_theta": 500.0}}, weights="local", path=str(saved)), seed=0)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_text_tower_of_a_multimodal_gemma(tmp_path, prefix):
    """The published 4B checkpoint; its text class alone takes none of these names and only warns."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 8, "patch_size": 4}  # fmt: skip
    config = Gemma3Config(text_config=TINY["gemma3"], vision_config=vision, mm_tokens_per_image=4)
    whole = Gemma3ForConditionalGeneration(config)
    whole.save_pretrained(tmp_path / "whole")
    file = tmp_path / "whole/model.safetensors"
    if prefix:  # the newer layout: model.language_model.layers…
        save_file({prefix + k.replace(".model.", "."): v for k, v in load_file(file).items()}, file, {"format": "pt"})
    model = build(tiny("gemma3", weights="local", path=str(tmp_path / "whole")), seed=0)
    for name, p in whole.model.language_model.named_parameters():
        assert torch.equal(p, parameters(model)[f"model.{name}"]), name
    assert len(parameters(model)) == len(list(whole.model.language_model.parameters()))
    model.save_pretrained(tmp_path / "text")
    assert same(model, build(tiny("gemma3", weights="local", path=str(tmp_path / "text")), seed=0))


def test_hub_snapshot_in_the_cache_needs_no_network(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cfg = tiny("llama", weights="hub", hub="some/model", revision=SHA)
    with pytest.raises(ConfigError, match=f"model.hub=some/model@{SHA}: .*model.weights=random"):
        build(cfg, seed=0)
    snapshot = tmp_path / "models--some--model/snapshots" / SHA
    snapshot.parent.mkdir(parents=True)
    saved.rename(snapshot)
    assert same(build(cfg, seed=0), build(tiny("llama", weights="local", path=str(snapshot)), seed=0))


def test_refused_checkpoints(saved):
    cfg = tiny("llama", weights="local", path=str(saved))
    with pytest.raises(
        ConfigError, match="model.family=qwen2: the checkpoint's model_type is 'llama'; use model.family=llama"
    ):
        build(tiny("qwen2", weights="local", path=str(saved)), seed=0)
    with pytest.raises(ConfigError, match="model.config.hidden_size=16: the checkpoint has 32"):
        build(tiny("llama", {"hidden_size": 16}, weights="local", path=str(saved)), seed=0)
    raw = (saved / "config.json").read_text()
    (saved / "config.json").write_text(json.dumps(json.loads(raw) | {"quantization_config": {"quant_method": "gguf"}}))
    with pytest.raises(ConfigError, match="quantised checkpoint"):
        build(cfg, seed=0)
    (saved / "config.json").write_text(raw)
    weights = load_file(saved / "model.safetensors")
    for change, message in (
        ({"model.layers.0.mlp.up_proj.bias": torch.zeros(48)}, "an unknown tensor model.layers.0.mlp.up_proj.bias"),
        ({"model.norm.weight": None, "lm_head.weight": None}, r"lacks tensor lm_head.weight \(2 such\)"),
    ):
        changed = {k: v for k, v in (weights | change).items() if v is not None}
        save_file(changed, saved / "model.safetensors", {"format": "pt"})
        with pytest.raises(ConfigError, match=message):
            build(cfg, seed=0)
    (saved / "model.safetensors").unlink()
    torch.save(weights, saved / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"there is no model.safetensors; .*pickled .bin files are not read"):
        build(cfg, seed=0)
    (saved / "config.json").unlink()
    with pytest.raises(ConfigError, match="there is no config.json"):
        parameter_count(cfg)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"family": "lama"}, "model.family=lama: one of llama.*did you mean 'llama'"),
        ({"weights": "gguf"}, "model.weights=gguf: one of random, hub, local"),
        ({"weights": "local"}, "model.path=None: no such folder; .*model.weights=random"),
        ({"weights": "local", "path": "no/folder"}, "model.path=no/folder: no such folder; .*model.weights=random"),
        ({"weights": "hub"}, "model.hub=null"),
        ({"weights": "hub", "hub": "some/model"}, "model.revision=None: pin the commit of some/model"),
        ({"weights": "hub", "hub": "some/model", "revision": "main"}, "model.revision=main: pin the commit"),
        ({"weights": "hub", "hub": "some/model", "revision": SHA[:7]}, f"model.revision={SHA[:7]}: pin the commit"),
    ],
)
def test_refused_source(fields, message):
    cfg = ModelConfig(**{"name": "x", "family": "llama", "config": TINY["llama"], **fields})
    for function in (parameter_count, lambda cfg: build(cfg, seed=0)):
        with pytest.raises(ConfigError, match=message):
            function(cfg)
