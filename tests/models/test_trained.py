"""Weights that are trained on their first use: made once, on the BF16 grid, resumed, and unknown to other models."""

import json

import pytest
import torch
from safetensors.torch import load_file

from lowcomm.blocks import ConfigError
from lowcomm.config import checked, identity, load_config
from lowcomm.models import build, load_tokenizer, parameters, trained
from lowcomm.results.describe import weights_hash
from lowcomm.rl import digest_of
from lowcomm.schema import ModelConfig
from lowcomm.train import Stopped, run_overrides

RECIPE = [
    "model=qwen-nano", "model.config.hidden_size=16", "model.config.num_attention_heads=2",
    "model.config.intermediate_size=16", "model.config.num_hidden_layers=1", "workload=arithmetic",
    "workload.documents=256", "workload.heldout_documents=64", "scale.batch=4", "scale.steps=4", "scale.eval_every=4",
    "scale.eval_samples=4", "scale.checkpoint_every=4", "logger.progress=false",
]  # fmt: skip


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Trains in this process, into a cache of its own; the list of calls."""
    calls = []

    def train(recipe, run_dir):
        calls.append(run_dir)
        run_overrides([*recipe, f"run_dir={run_dir}"])

    monkeypatch.setenv("LOWCOMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trained, "train", train)
    return calls


def of(recipe: list[str]) -> ModelConfig:
    return ModelConfig(name="made", family="qwen2", weights="trained", recipe=recipe)


def test_trained_once_and_loaded_from_then_on(here):
    model = build(of(RECIPE), seed=0)
    again = build(of(RECIPE), seed=1)
    assert len(here) == 1
    assert not here[0].exists()
    for name, p in parameters(model).items():
        assert p.dtype == torch.float32
        assert torch.equal(p, p.bfloat16().float()), "a released checkpoint lies on the BF16 grid"
        assert torch.equal(p, parameters(again)[name])
    folder = trained.folder(RECIPE)
    told = json.loads((folder / "training.json").read_text())
    assert told["weights"] == weights_hash(load_file(folder / "model.safetensors"))
    assert told["recipe"] == RECIPE
    assert load_tokenizer(of(RECIPE)).eos_token_id == model.generation_config.eos_token_id == 0


def test_another_recipe_is_another_model(here):
    first, second = trained.folder(RECIPE), trained.folder([*RECIPE, "seed=1"])
    assert first != second
    assert load_file(first / "model.safetensors")["model.norm.weight"].isfinite().all()
    assert weights_hash(load_file(first / "model.safetensors")) != weights_hash(load_file(second / "model.safetensors"))


def test_interrupted_it_goes_on_and_gives_the_same_bits(here, monkeypatch, tmp_path):
    whole = load_file(trained.folder(RECIPE) / "model.safetensors")
    monkeypatch.setenv("LOWCOMM_CACHE", str(tmp_path / "other"))
    with pytest.raises(Stopped):
        trained.folder([*RECIPE, "stop_after=2"])
    assert here[1].is_dir(), "what was trained is kept"
    pieces = load_file(trained.folder(RECIPE) / "model.safetensors")
    assert here[1] == here[2]
    assert weights_hash(whole) == weights_hash(pieces)


def test_a_process_of_its_own_says_why_it_ended(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("LOWCOMM_CACHE", str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "2")  # a trainer among several: the recipe's run is not one of them
    with pytest.raises(ConfigError, match="ended with 1; its reason stands above"):
        trained.folder([*RECIPE, "stop_after=1"])
    assert "stopped after step 1 of 4" in capfd.readouterr().err
    assert not list(tmp_path.glob("model-trained-????????????????"))


def test_mistaken_recipes_are_refused_before_any_training(here):
    with pytest.raises(ConfigError, match=r"model.recipe=\[\]: model.weights=trained needs overrides"):
        build(of([]), seed=0)
    with pytest.raises(ConfigError, match=r"model.recipe=.*scale.stepz"):
        build(of([*RECIPE, "scale.stepz=3"]), seed=0)
    assert not here


def test_a_recipe_is_part_of_a_runs_identity_and_its_absence_is_not():
    assert "recipe" not in identity(checked(load_config(["model=qwen-nano", "workload=arithmetic"])))["model"]
    base = ["model=qwen-nano-sums", "workload=arithmetic", "prompt=none"]
    assert digest_of(base) != digest_of([*base, "model.recipe=['seed=1']"])
