"""A model of the hub on a machine without it: said at once, in one attempt; what is cached needs nobody."""

import pytest

from lowcomm import hub

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A hub at a closed port, and an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "getproxies", dict)
    return tmp_path / "models--some--model/snapshots" / SHA


def asked(monkeypatch) -> list[bool]:
    """Whether each call was for local files only; the downloading one is cut short."""
    real, calls = hub.snapshot_download, []

    def download(*args, local_files_only=False, **kwargs):
        calls.append(local_files_only)
        return real(*args, local_files_only=True, **kwargs) if local_files_only else "downloaded"

    monkeypatch.setattr(hub, "snapshot_download", download)
    return calls


def test_a_hub_that_is_not_there_is_asked_once(nowhere, monkeypatch):
    calls = asked(monkeypatch)
    with pytest.raises(OSError, match=r"not in the cache .*, and 127\.0\.0\.1 can't be reached: Connection refused"):
        hub.snapshot("some/model", SHA)
    assert calls == [True]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="HF_HUB_OFFLINE forbids to ask the hub"):
        hub.snapshot("some/model", SHA)


def test_whole_in_the_cache_or_completed(nowhere, monkeypatch):
    calls = asked(monkeypatch)
    nowhere.mkdir(parents=True)
    (nowhere / "config.json").write_text("{}")
    with pytest.raises(OSError, match="can't be reached"):  # an interrupted download is no snapshot
        hub.snapshot("some/model", SHA)
    (nowhere / "model.safetensors").touch()
    assert hub.snapshot("some/model", SHA) == nowhere
    assert calls == [True, True]
    monkeypatch.setattr(hub, "unreachable", lambda: None)
    assert str(hub.snapshot("some/model", SHA)) == "downloaded"  # somebody took the weights alone
    (nowhere / "tokenizer.json").touch()
    assert hub.snapshot("some/model", SHA) == nowhere
    assert calls[2:] == [True, False, True]


def test_behind_a_proxy_the_download_tries_itself(nowhere, monkeypatch):
    calls = asked(monkeypatch)
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy:8080"})
    assert str(hub.snapshot("some/model", SHA)) == "downloaded"
    assert calls == [True, False]


def test_others_ask_it_offline_and_are_told_once(nowhere):
    from huggingface_hub import constants

    message = r"the dataset a/b is not in the cache, and 127.* refused; give a copy"
    with pytest.raises(OSError, match=message), hub.asking("the dataset a/b", "give a copy"):
        raise ConnectionError("gone")
    with hub.asking("the dataset a/b", "give a copy"):  # it is cached
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE


def test_what_a_folder_lacks(tmp_path):
    assert hub.absent(tmp_path) == "config.json"
    (tmp_path / "config.json").touch()
    assert hub.absent(tmp_path) == "model.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"w": "b.safetensors", "v": "a.safetensors"}}'
    )
    assert hub.absent(tmp_path) == "a.safetensors"
