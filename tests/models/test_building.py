"""Models: every file of conf/model counted, the four families trained, wrong configs refused."""

import json

import pytest
import torch
from omegaconf import OmegaConf

from lowcomm.blocks import ConfigError
from lowcomm.config import CONF
from lowcomm.models import FAMILIES, architecture, build, hidden_matrices, parameter_count, parameters
from lowcomm.schema import ModelConfig

DECODER = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "intermediate_size": 48}  # fmt: skip
TINY = {
    "llama": DECODER,
    "qwen2": DECODER | {"tie_word_embeddings": True},
    "gemma3": DECODER | {"head_dim": 16, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "vit": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
            "image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10},
}  # fmt: skip
# Published totals (hub pages, Keras' presets, papers); text tower alone for gemma-3-4b.
COUNTS = {
    "llama-nano": 246_336,
    "llama-1m": 918_656,
    "llama-3m": 3_163_552,
    "llama-10m": 10_818_432,
    "llama-160m": 162_417_408,
    "llama-178m": 177_622_016,
    "llama-512m": 512_398_848,
    "llama-1b": 1_004_607_488,
    "llama-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "qwen-nano": 928_384,
    "qwen-nano-sums": 896_640,
    "qwen-nano-sums-1500": 896_640,
    "smollm2-135m": 134_515_008,
    "vit-tiny": 665_994,
    "vit-ti16": 5_717_416,
    "vit-s16": 22_050_664,
}


def tiny(family: str, config: dict | None = None, **fields) -> ModelConfig:
    return ModelConfig(name="tiny", family=family, config=TINY[family] | (config or {}), **fields)


def load(name: str) -> ModelConfig:
    images = {"image_size": 8, "num_classes": 10, "channels": 1}
    if name in ("vit-s16", "vit-ti16"):
        images = {"image_size": 224, "num_classes": 1000, "channels": 3}
    model = OmegaConf.load(CONF / f"model/{name}.yaml")
    for base in model.pop("defaults", []):
        model = OmegaConf.merge(OmegaConf.load(CONF / f"model/{base}.yaml"), model)
    size = 264 if name.startswith("qwen-nano-sums") else 512  # it writes bytes
    cfg = OmegaConf.create({"workload": {"vocab_size": size, **images}, "model": model})
    plain = OmegaConf.to_container(cfg, resolve=True)["model"]
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelConfig), plain))


def batch(family: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if family == "vit":
        return {"pixel_values": torch.randn(4, 1, 8, 8, generator=generator), "labels": torch.arange(4)}
    ids = torch.randint(1, 64, (4, 12), generator=generator)
    return {"input_ids": ids, "labels": ids}


def same(a, b) -> bool:
    return parameters(a).keys() == parameters(b).keys() and all(
        torch.equal(p, q) for p, q in zip(parameters(a).values(), parameters(b).values(), strict=True)
    )


# conf/model


def test_every_file_is_counted():
    assert {f.stem for f in (CONF / "model").glob("*.yaml")} == {*COUNTS, "local"}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_and_files(name):
    cfg = load(name)
    assert cfg.name == name
    cfg.weights = "random"
    assert parameter_count(cfg) == COUNTS[name]
    comment = (CONF / f"model/{name}.yaml").read_text().splitlines()[0]
    assert comment.startswith("# ")
    assert f"{COUNTS[name]:,}" in comment


@pytest.mark.parametrize(
    "name", ["llama-3.2-1b", "llama-8b", "qwen2.5-0.5b", "gemma-3-4b", "smollm2-135m", "llama-178m"]
)
def test_rotary_frequencies_are_those_of_the_file(name):
    cfg = load(name)
    cfg.weights = "random"
    rope, config = cfg.config.get("rope_parameters"), architecture(cfg)
    d = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # Only the head's width matters; six layers, as Gemma's first with full attention is the sixth.
    cfg.config |= {"num_hidden_layers": 6, "vocab_size": 8, "intermediate_size": 8, "hidden_size": 2 * d,
                   "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
    rotary = build(cfg, seed=0).model.rotary_emb
    exponents = torch.arange(0, d, 2, dtype=torch.float64) / d
    if name == "gemma-3-4b":
        assert torch.allclose(rotary.sliding_attention_inv_freq.double(), 1e4**-exponents)
        assert torch.allclose(rotary.full_attention_inv_freq.double(), 1e6**-exponents / 8)
    elif rope is None:
        assert torch.allclose(rotary.inv_freq.double(), 1e4**-exponents)
    elif rope["rope_type"] == "llama3":
        plain = rope["rope_theta"] ** -exponents
        assert torch.allclose(rotary.inv_freq[:4].double(), plain[:4])  # high frequencies stay
        assert torch.allclose(rotary.inv_freq[-4:].double(), plain[-4:] / rope["factor"])  # low ones are stretched
    else:
        assert torch.allclose(rotary.inv_freq.double(), rope["rope_theta"] ** -exponents)


# random weights


@pytest.mark.parametrize("family", FAMILIES)
def test_family_trains(family):
    cfg = tiny(family)
    model = build(cfg, seed=1)
    assert type(model) is FAMILIES[family][1]
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert not getattr(model.config, "use_cache", False)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert parameter_count(cfg) == sum(p.numel() for p in parameters(model).values())
    optimizer, losses = torch.optim.AdamW(parameters(model).values(), lr=1e-2), []
    for _ in range(3):
        loss = model(**batch(family)).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in parameters(model).values())
        optimizer.step()
    assert losses[0] > losses[1] > losses[2] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_seed_decides_and_the_global_rng_is_left_alone(family):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = build(tiny(family), seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    assert same(first, build(tiny(family), seed=1))
    assert not same(first, build(tiny(family), seed=2))
    with torch.no_grad():  # no dropout: training mode changes nothing
        first.train()
        train = first(**batch(family)).loss
        first.eval()
        assert torch.equal(train, first(**batch(family)).loss)


def test_building_changes_neither_the_config_nor_plain_or_omegaconf_results():
    cfg = tiny("llama", {"rope_parameters": {"rope_theta": 500.0}})
    before = json.dumps(cfg.config)
    model = build(cfg, seed=1)
    assert json.dumps(cfg.config) == before
    assert same(model, build(OmegaConf.structured(cfg), seed=1))
    assert model.config.rope_parameters == {"rope_type": "default", "rope_theta": 500.0}


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_tied_weights_once_and_hidden_matrices(family, tie):
    model = build(tiny(family, {"tie_word_embeddings": tie}), seed=0)
    names = list(parameters(model))
    assert names[0] == "model.embed_tokens.weight"
    assert ("lm_head.weight" in names) is not tie
    assert len({p.data_ptr() for p in parameters(model).values()}) == len(names)
    blocks = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
              "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
    assert sorted(hidden_matrices(model)) == sorted(f"model.layers.{i}.{b}.weight" for i in range(2) for b in blocks)


def test_hidden_matrices_of_a_vit():
    model = build(tiny("vit"), seed=0)
    blocks = [f"attention.{x}_proj" for x in "qkvo"] + ["mlp.fc1", "mlp.fc2"]
    assert sorted(hidden_matrices(model)) == sorted(f"vit.layers.{i}.{b}.weight" for i in range(2) for b in blocks)


def test_frozen_parameters_are_left_out():
    model = build(tiny("llama"), seed=0)
    frozen = hidden_matrices(model)[0]
    model.get_parameter(frozen).requires_grad_(False)
    assert frozen not in parameters(model)
    assert frozen not in hidden_matrices(model)


def test_bfloat16_rounds_the_parameters_alone():
    wide, narrow = build(tiny("llama"), seed=1), build(tiny("llama", dtype="bfloat16"), seed=1)
    for name, p in parameters(wide).items():
        assert torch.equal(p.bfloat16(), parameters(narrow)[name])
    assert torch.equal(wide.model.rotary_emb.inv_freq, narrow.model.rotary_emb.inv_freq)
    assert narrow.model.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.isfinite(narrow(**batch("llama")).loss)


# refusals


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        (
            "llama",
            {"hiden_size": 8},
            "config.hiden_size=8: LlamaConfig has no 'hiden_size'; did you mean 'hidden_size'",
        ),
        ("vit", {"vocab_size": 8}, "model.config.vocab_size=8: ViTConfig has no 'vocab_size'"),
        ("llama", {"num_labels": 8}, "LlamaConfig has no 'num_labels'"),
        ("llama", {"use_cache": True}, "LlamaConfig has no 'use_cache'"),
        ("llama", {"rope_parameters": {"rope_thet": 5.0}}, "rope_parameters.rope_thet=5.0: .*mean 'rope_theta'"),
        ("llama", {"rope_parameters": {"rope_type": "lama3"}}, "rope_type=lama3: one of .*did you mean 'llama3'"),
        ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "model.config: .*Missing required keys.*factor"),
        (
            "gemma3",
            {"rope_parameters": {"sliding": {"rope_theta": 5.0}}},
            "rope_parameters.sliding=.*sliding_attention",
        ),
        ("llama", {"hidden_size": "wide"}, "model.config: .*'hidden_size' expected int"),
        ("vit", {"num_attention_heads": 5}, "num_attention_heads=5: must divide hidden_size=32"),
        ("qwen2", {"num_key_value_heads": 3}, "num_attention_heads=4: must .*num_key_value_heads=3"),
    ],
)
def test_refused_config(family, config, message):
    for function in (parameter_count, lambda cfg: build(cfg, seed=0)):
        with pytest.raises(ConfigError, match=message):
            function(tiny(family, config))
