"""Mistakes that no other test makes: each is answered before work is lost, with the thing's name and the remedy."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lowcomm import train
from lowcomm.blocks import ConfigError
from lowcomm.config import checked, load_config
from lowcomm.patches.__main__ import main as measure
from lowcomm.pulse import Missing, Publisher, Store, Subscriber
from lowcomm.pulse.__main__ import main as pulse
from lowcomm.run_dir import RunDir

ROOT = Path(__file__).parent.parent


def refused(capsys, call, *arguments: str) -> str:
    """What the command says on the error stream; a traceback is no answer."""
    try:
        assert call(list(arguments)) == 2
    except SystemExit as end:
        return str(end.code) if isinstance(end.code, str) else capsys.readouterr().err
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("scale=papr", r"scale=papr: there is no such option; did you mean 'paper'\?; choose cpu, gpu, paper, smoke"),
        ("scale=big", r"scale=big: there is no such option; choose cpu, gpu, paper, smoke"),
        ("experiment=gpa/table22", r"experiment=gpa/table22.*did you mean 'gpa/table2'\?; choose gpa/abstract, "),
        ("experiment=table2", r"experiment=table2: there is no such option.*choose gpa/abstract, "),
        ("job=2", r"job=2: there is no key 'job'; did you mean 'jobs'\?"),
    ],
)
def test_what_shall_be_reproduced(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config([override], "reproduce")
    load_config(["experiment=gpa/table2", "scale=paper"], "reproduce")


@pytest.mark.parametrize("override", ["algorithm=pulsesync", "algorithm=ddp", "workload=gsm8k"])
def test_what_belongs_to_the_other_door(override):
    with pytest.raises(ConfigError, match=f"{override}: belongs to lowcomm.rl; here choose "):
        load_config([override])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.inner.lr=-1"], r"algorithm\.inner .*-1"),
        (["algorithm=gpa", "algorithm.inner.mu_x=1.5"], r"algorithm\.inner .*mu_x=1\.5"),
        (["algorithm=muloco", "algorithm.inner.momentum=2"], r"algorithm\.inner .*momentum=2"),
    ],
)
def test_a_range_of_the_inner_optimizer_before_a_corpus_is_prepared(overrides, message, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "build_workload", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(ConfigError, match=message):
        train.run_overrides([*overrides, f"run_dir={tmp_path / 'run'}"])
    state = torch.get_rng_state()
    train.try_inner(checked(load_config(["algorithm=isoloco-muon"])))
    assert torch.equal(torch.get_rng_state(), state), "the numbers of a run must not move"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model=local", "model.path=no/folder"],
            "model.path=no/folder: no such folder; give a save_pretrained folder",
        ),
        (
            ["model=qwen2.5-0.5b"],
            r"model\.hub=Qwen/.*not in the cache .*, and HF_HUB_OFFLINE forbids .*model\.weights=local",
        ),
    ],
)
def test_weights_that_are_not_there_before_a_corpus_is_prepared(overrides, message, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "build_workload", lambda *_: pytest.fail("work was begun"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=message):
        train.run_overrides([*overrides, f"run_dir={tmp_path / 'run'}"])


def test_a_store_where_none_can_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"store .*/file can't be written \(.*\); choose another place"):
        Store(tmp_path / "file")


def test_a_misspelt_make_target():
    made = subprocess.run(["make", "reproduc"], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 2
    assert made.stderr.startswith("make reproduc: there is no such target; 'make' lists them\n")


def test_a_configuration_on_the_disk_that_is_no_json(tmp_path):
    (tmp_path / "config.json").write_text('{"half')
    with pytest.raises(ConfigError, match=r"config\.json: is not the JSON.*another run_dir, or delete"):
        RunDir(tmp_path, checked(load_config([])), leader=True)


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_folder_where_a_patch_is_needed(command, tmp_path, capsys):
    assert f"{tmp_path} is a folder: give a patch" in refused(capsys, pulse, command, str(tmp_path))


def test_an_output_in_a_folder_that_is_not_there(tmp_path, capsys):
    save_file({"w": torch.ones(4)}, tmp_path / "a")
    said = refused(capsys, pulse, "diff", f"{tmp_path}/a", f"{tmp_path}/a", "-o", f"{tmp_path}/none/p")
    assert f"there is no folder {tmp_path}/none; make it, or choose another output" in said
    assert "partial" not in said


def test_an_unknown_codec(tmp_path, capsys):
    said = refused(capsys, pulse, "diff", "a", "b", "-o", "p", "--codec", "zip")
    assert "'zip'" in said
    assert "packed" in said


def test_a_record_that_cannot_be_kept_is_said_before_the_measurement(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lowcomm.patches.door.run", lambda _: pytest.fail("work was begun"))
    (tmp_path / "file").write_text(json.dumps({}))
    said = refused(capsys, measure, "--json", str(tmp_path / "file" / "record.json"))
    assert "file can't be written; choose another place" in said


def test_a_store_of_an_unknown_kind():
    with pytest.raises(ValueError, match="store s4://x/y: Protocol not known: s4; give a folder, or an address"):
        Store("s4://x/y")


def test_an_empty_store_and_other_shapes(tmp_path):
    three, four = ({"w": torch.zeros(n, dtype=torch.bfloat16)} for n in (3, 4))
    with pytest.raises(Missing, match=f"the store {tmp_path} holds no version yet; wait for its publisher"):
        Subscriber(Store(tmp_path), dict(three)).advance()
    publisher = Publisher(Store(tmp_path), three)
    publisher.publish(three, version=1)
    with pytest.raises(ValueError, match="shapes.*not those the publisher was made for: make a new one"):
        publisher.publish(four, version=2)
