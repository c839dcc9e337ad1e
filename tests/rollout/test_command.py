import pytest

from lowcomm.blocks import ConfigError
from lowcomm.rollout.__main__ import engine, load, main, secret
from tests.rollout.tiny import save

GIVEN = ["store=memory://rollout-command", "trainer=127.0.0.1:1", "model=x"]


def test_defaults_come_from_the_file():
    cfg = load(GIVEN)
    assert (cfg.engine, cfg.device, cfg.threads) == ("transformers", "cpu", 1)


def test_addresses_and_paths_are_taken_as_they_stand():
    cfg = load(["store=/a #1/b", "trainer=[::1]:7117", "model=/x: y", "name=7", "base=null", "threads=2"])
    assert (cfg.store, cfg.trainer, cfg.model, cfg.name) == ("/a #1/b", "[::1]:7117", "/x: y", "7")
    assert (cfg.base, cfg.threads) == (None, 2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "no value"),
        ([*GIVEN, "engin=vllm"], "did you mean 'engine'"),
        ([*GIVEN, "engine=vlm"], "did you mean 'vllm'"),
        ([*GIVEN, "threads=two"], "threads"),
        ([*GIVEN, "threads=0"], "threads=0"),
        ([*GIVEN, "verbose"], "key=value"),
        (GIVEN[:2], "model=null"),
    ],
)
def test_mistakes(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load(overrides)


def test_the_token_is_in_a_file_or_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("LOWCOMM_ROLLOUT_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="LOWCOMM_ROLLOUT_TOKEN"):
        secret(load(GIVEN))
    monkeypatch.setenv("LOWCOMM_ROLLOUT_TOKEN", "t1")
    assert secret(load(GIVEN)) == "t1"
    (tmp_path / "token").write_text("t2\n")
    assert secret(load([*GIVEN, f"token_file={tmp_path / 'token'}"])) == "t2"
    with pytest.raises(ConfigError, match="token_file=.*No such file"):
        secret(load([*GIVEN, f"token_file={tmp_path / 'none'}"]))


def test_what_cannot_be_built_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("LOWCOMM_ROLLOUT_TOKEN", "t")
    with pytest.raises(ConfigError, match="no config.json"):
        engine(load([*GIVEN, f"model={tmp_path}"]))
    model = save(tmp_path / "model")
    with pytest.raises(SystemExit, match="error: .*not to be reached"):
        main([*GIVEN, f"model={model}", "wait_limit_s=0.1"])
