"""What a run tells its rollout workers: where the store is, the command, the secret."""

import json
import shlex

from omegaconf import OmegaConf

from lowcomm.rl.served import asked_of, say_where, token_of
from lowcomm.rollout.__main__ import load


def config(store: str | None, engine: str = "transformers"):
    return OmegaConf.create(
        {"place": {"store": store}, "rollout": {"engine": engine}, "scale": {"device": "cpu", "threads": 2}}
    )


def test_the_command_works_from_any_folder_and_with_any_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path.relative_to(tmp_path) / "a run"
    folder.mkdir()
    for given, told in (
        (None, str(tmp_path / "a run" / "store")),
        ("weights", str(tmp_path / "weights")),
        ("s3://bucket/weights", "s3://bucket/weights"),  # it was bucket/weights, a folder
    ):
        command = say_where(folder, asked_of(config(given), folder, "127.0.0.1:7117"))
        assert command == json.loads((folder / "rollout.json").read_text())["command"]
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", "lowcomm.rollout"]
        cfg = load(words[3:])
        assert (cfg.store, cfg.trainer, cfg.threads) == (told, "127.0.0.1:7117", 2)
        assert (cfg.model, cfg.token_file) == (str(tmp_path / "a run/served"), str(tmp_path / "a run/rollout.token"))


def test_a_vllm_worker_is_asked_for_nothing_that_it_does_not_have(tmp_path):
    asked = asked_of(config(None, "vllm"), tmp_path, "127.0.0.1:7117")
    assert asked["engine"] == "vllm"
    assert not {"device", "threads"} & set(asked)


def test_a_run_killed_while_it_made_its_secret_makes_another(tmp_path):
    """It found an empty one, which no trainer takes, for ever."""
    (tmp_path / ".rollout.token").touch()
    token = token_of(tmp_path)
    assert len(token) == 32
    assert token_of(tmp_path) == token
    assert (tmp_path / "rollout.token").stat().st_mode & 0o077 == 0
