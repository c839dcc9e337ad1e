"""Checkpoints: whole or refused with the reason; the previous one is then used; a foreign one is an error."""

import json
import logging

import pytest
import torch

from lowcomm import checkpoint
from lowcomm.outer.workers import Wire


def save(folder, tick, digest="d"):
    checkpoint.save(folder, digest, tick, {"tick": tick, "theta": torch.ones(3) * tick}, {0: {"step": tick}}, Wire(1))


def test_round_trip_and_retention(tmp_path):
    for tick in (1, 2, 3):
        save(tmp_path, tick)
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["tick-00000002", "tick-00000003"]
    tick, shared, worker = checkpoint.load(checkpoint.latest(tmp_path, "d"))
    assert tick == 3
    assert torch.equal(shared["theta"], torch.ones(3) * 3)
    assert worker(0) == {"step": 3}


def damage_missing(path):
    (path / "shared.pt").unlink()


def damage_bytes(path):
    content = bytearray((path / "shared.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (path / "shared.pt").write_bytes(content)


def damage_truncated(path):
    content = (path / "worker-00000.pt").read_bytes()
    (path / "worker-00000.pt").write_bytes(content[:-1])


def damage_manifest(path):
    (path / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(damage_missing, "missing"), (damage_bytes, "hash"), (damage_truncated, "hash"), (damage_manifest, "manifest")],
)
def test_a_torn_checkpoint_is_refused_with_the_reason_and_the_previous_used(tmp_path, caplog, damage, reason):
    save(tmp_path, 1)
    save(tmp_path, 2)
    damage(tmp_path / "tick-00000002")
    with caplog.at_level(logging.WARNING):
        assert checkpoint.latest(tmp_path, "d").name == "tick-00000001"
    assert "tick-00000002" in caplog.text
    assert reason in caplog.text


def test_a_foreign_checkpoint_is_an_error(tmp_path):
    save(tmp_path, 1, digest="other")
    with pytest.raises(ValueError, match="another configuration"):
        checkpoint.latest(tmp_path, "d")


def test_a_crash_while_writing_leaves_the_previous_one(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full_disk(path, state):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_tensors", full_disk)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert checkpoint.latest(tmp_path, "d").name == "tick-00000001"


def test_no_pickled_code_runs(tmp_path):
    save(tmp_path, 1)
    path = tmp_path / "tick-00000001" / "shared.pt"
    torch.save({"x": Evil()}, path)
    manifest = json.loads((path.parent / "manifest.json").read_text())
    manifest["files"]["shared.pt"] = checkpoint.sha256(path)
    (path.parent / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(Exception, match="weights_only|Unsupported"):
        checkpoint.load(checkpoint.latest(tmp_path, "d"))


class Evil:
    def __reduce__(self):
        return exec, ("raise SystemExit('code ran')",)
