"""What an inference server begins with: a folder of the published weights."""

import pytest
from transformers import AutoModelForCausalLM

from lowcomm.pulse import Missing, Store, digest
from lowcomm.rollout import folder
from tests.rollout.tiny import masters, publish, save, served


def test_it_holds_the_published_version_and_loads_as_any_checkpoint(tmp_path):
    publish(tmp_path / "store", range(3))
    store, skeleton = Store(str(tmp_path / "store")), save(tmp_path / "served", eos=7)
    assert folder.write(store, skeleton, tmp_path / "new") == 2
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "new", dtype="bfloat16")
    assert digest(served(made)) == digest(served(masters(2)))
    assert made.generation_config.eos_token_id == 7
    assert folder.write(store, skeleton, tmp_path / "old", version=1) == 1
    with pytest.raises(ValueError, match="new: is there already"):
        folder.write(store, skeleton, tmp_path / "new")
    with pytest.raises(Missing):
        folder.write(store, skeleton, tmp_path / "none", version=9)
    assert not (tmp_path / "none").exists()


def test_the_command_says_what_is_wrong_in_one_line(tmp_path, capsys):
    publish(tmp_path / "store", range(1))
    command = [str(tmp_path / "store"), str(save(tmp_path / "served")), str(tmp_path / "new")]
    folder.main(command)
    assert "new: version 0" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="error: .*new: is there already"):
        folder.main(command)
