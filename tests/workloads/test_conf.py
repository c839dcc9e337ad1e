"""The workload configs build what they say, with nothing but the seed added."""

import inspect
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

from lowcomm import workloads

CONF = Path(__file__).parents[2] / "conf" / "workload"
FILES = sorted(CONF.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_keys_are_arguments(file):
    block = OmegaConf.to_container(OmegaConf.load(file))
    target = hydra.utils.get_class(block.pop("_target_"))
    assert block["name"] == file.stem
    inspect.signature(target).bind(**block, seed=0)
    accepted = set(inspect.signature(target).parameters) - {"seed"}
    assert set(block) == accepted, "every argument is in the file, so that it can be seen and set"


def test_there_is_a_config_for_every_workload():
    targets = {OmegaConf.load(file)._target_ for file in FILES}
    names = ("ArithmeticText", "PyCode", "Dclm", "Digits", "ImageNet")
    assert targets == {f"lowcomm.workloads.{name}" for name in names}


def test_pycode_builds(sources, tmp_path):
    block = OmegaConf.load(CONF / "pycode.yaml")
    workload = hydra.utils.instantiate(block, seed=1, cache_dir=str(tmp_path), holdout=0.3, vocab_size=300)
    assert isinstance(workload, workloads.PyCode)
    assert workload.batch(0, 1, 0, 4)["input_ids"].shape == (4, 128)


def test_digits_build():
    workload = hydra.utils.instantiate(OmegaConf.load(CONF / "digits.yaml"), seed=1)
    assert workload.batch(0, 1, 0, 4)["pixel_values"].shape == (4, 1, 8, 8)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("dclm", {}, "give one, a local folder of shards or a dataset on the hub"),
        ("dclm", {"hub": "a/b", "tokens": 4096}, "workload.revision=None"),
        ("imagenet", {}, "give one, a local folder or a dataset on the hub"),
        ("imagenet", {"hub": "a/b"}, "workload.revision=None"),
    ],
)
def test_what_needs_data_says_so(name, changes, message):
    with pytest.raises(hydra.errors.InstantiationException, match=message):
        hydra.utils.instantiate(OmegaConf.load(CONF / f"{name}.yaml"), seed=1, **changes)


def test_dclm_asks_to_pin_its_tokenizer(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(hydra.errors.InstantiationException, match="tokenizer_revision=None: the tokenizer together"):
        hydra.utils.instantiate(OmegaConf.load(CONF / "dclm.yaml"), seed=1, path=str(tmp_path), cache_dir=str(tmp_path))
