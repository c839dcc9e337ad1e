"""The door of measurements: every codec decodes, sums are those of the chain, sources yield what they say."""

import pytest
import torch

from lowcomm.blocks import ConfigError
from lowcomm.config import digest as train_digest
from lowcomm.patches import digest_of, run_overrides
from lowcomm.patches.codecs import names
from lowcomm.patches.door import report
from lowcomm.patches.measuring import follow
from lowcomm.patches.sources import Adam, Gaussian, Published, Reinforcement, Training
from lowcomm.pulse import Missing, Publisher, Store, encode
from lowcomm.results import record
from tests.runs import TINY

SMALL = ["source=adam", "source.weights=4096", "source.steps=3"]
CLAIM = {"paper": "pulsesync", "table": "t", "row": "r", "experiment": "pulsesync/t", "scale": "smoke", "tuned": None}


@pytest.mark.parametrize("name", names())
def test_every_codec_is_exact_along_a_chain(name):
    """`follow` compares every version bit for bit; sizes are counted, not estimated."""
    versions = list(Adam(4096, 2, lr=3e-5).chain())
    versions[1]["empty"] = versions[0]["empty"] = versions[2]["empty"] = torch.zeros(0, 3).bfloat16()
    rows = follow(versions, name, 0, 1)
    assert [r["step"] for r in rows] == [1, 2]
    assert all(r["changed"] == int((b["weight"].view(torch.int16) != a["weight"].view(torch.int16)).sum())
               for r, a, b in zip(rows, versions, versions[1:], strict=False))  # fmt: skip
    assert all(r["coo_bytes"] == 10 * r["changed"] and r["dense_bytes"] == 8192 for r in rows)
    assert rows[0]["published_bytes"] == len(encode(*versions[:2], "paper"))
    if name == "dense":
        assert rows[0]["bytes"] == 8192
    if name == "packed":
        assert rows[0]["bytes"] == len(encode(*versions[:2], "packed"))


def test_a_lossy_codec_would_be_caught(monkeypatch):
    from lowcomm.patches.codecs import Dense

    monkeypatch.setattr(Dense, "apply", lambda self, here, data, memory: None)
    with pytest.raises(AssertionError, match="not exact: tensor 'weight' of version 1"):
        follow(Adam(4096, 1, lr=3e-5).chain(), "dense", 0, 1)


@pytest.mark.parametrize("codec", ["history", "published+zstd-1", "dense"])
def test_a_record_is_fit_for_evidence(codec, tmp_path):
    made = run_overrides([*SMALL, f"codec={codec}", "repeats=2", "scale.threads=1"], CLAIM)
    record.write(tmp_path / "r.json", made)
    m = made["outcome"]["metrics"]
    assert m["bytes"] == sum(made["outcome"]["curve"]["bytes"])
    assert m["encode_seconds"] > 0
    assert m["apply_seconds"] > 0
    assert ("pack_seconds" in m) == ("+" in codec)
    assert made["code"]["digest"] == digest_of([*SMALL, f"codec={codec}", "repeats=2", "scale.threads=1"])
    assert "MB/s" in report(made)
    untimed = run_overrides([*SMALL, f"codec={codec}"])
    assert "encode_seconds" not in untimed["outcome"]["metrics"], "no time is taken unless it is asked for"
    assert untimed["outcome"]["metrics"]["bytes"] == m["bytes"]


def test_the_digest_is_of_what_decides():
    assert digest_of(SMALL) == digest_of([*SMALL, "scale.batch=3"])
    others = {digest_of([*SMALL, o]) for o in ("seed=1", "codec=paper", "repeats=1", "scale.threads=2", "scale=cpu",
                                               "source.lr=1e-6")}  # fmt: skip
    assert len(others | {digest_of(SMALL)}) == 7
    assert train_digest is not digest_of


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("codec=pakced", "codec=pakced.*did you mean 'packed'"),
        ("source.megabites=3", "megabites"),
        ("source.megabytes=0", "megabytes=0: must be positive"),
        ("repeats=-1", "repeats=-1"),
        ("codex=packed", "codex"),
    ],
)
def test_a_mistake_is_named(override, message):
    with pytest.raises(ConfigError, match=message):
        run_overrides([override])


def test_gaussian_is_deterministic_in_the_seed():
    a, b, c = (list(Gaussian(1, seed=s).chain())[1]["layers.0.weight"].view(torch.int16) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_published_chain_is_followed(tmp_path):
    versions = list(Adam(640, 5, lr=3e-5).chain())
    versions[0]["weight"][0] = 0
    for v in versions[1:]:
        v["weight"][0] = 1.0
    publisher = Publisher(Store(tmp_path), versions[0], anchor_every=2, codec="history")
    for i, tensors in enumerate(versions):
        publisher.publish(tensors, 10 * i, lr=3e-5)
    source = Published(str(tmp_path), versions=3)
    for got, true in zip(source.chain(), versions[2:], strict=True):
        assert torch.equal(got["weight"].view(torch.int16), true["weight"].view(torch.int16))
    assert "lr 3e-05" in source.describe()["summary"]
    rest = list(Published(str(tmp_path), versions=5, zeros=False).chain())
    assert rest[0]["weight"].numel() == rest[5]["weight"].numel() == 640 - 64
    with pytest.raises(Missing, match="lower versions"):
        list(Published(str(tmp_path), versions=6).chain())
    with pytest.raises(ConfigError, match="lower versions"):
        run_overrides(["source=store", f"source.url={tmp_path}", "source.versions=6"])


@pytest.mark.parametrize(("algorithm", "every"), [("adamw", 1), ("diloco", 2)])
def test_training_goes_on_from_a_trained_start(algorithm, every, tmp_path, monkeypatch):
    monkeypatch.setattr("lowcomm.run_dir.ROOT", tmp_path)
    tiny = [o for o in TINY if not o.startswith(("model=", "workload=", "scale=", "scale.steps"))]
    source = Training("vit-tiny", "digits", 1e-3, 1e-4, algorithm=algorithm, inner_steps=every, workers=2, versions=3)
    source.start += [*tiny, "scale.steps=4"]
    source.go_on += tiny
    versions = list(source.chain())
    again = list(source.chain())
    assert len(versions) == 4
    assert all(torch.equal(a[n], b[n]) for a, b in zip(versions, again, strict=True) for n in a)
    assert len(list(tmp_path.glob("*/seed0/record.json"))) == 1, "the start is trained once"
    rows = follow(versions, "packed", 0, 1)
    assert all(0 < r["changed"] < r["numel"] for r in rows)


def test_reinforcement_reads_the_run_that_it_makes(tmp_path, monkeypatch):
    """Version 0 is the cast of the model as built; the patches are the run's own, and a second reader makes no run."""
    from lowcomm import models, rl
    from lowcomm.rl.config import checked, load_config

    monkeypatch.chdir(tmp_path)
    overrides = ["scale=smoke", "algorithm=pulsesync", "scale.steps=2", "scale.eval_problems=1"]
    source = Reinforcement(overrides, versions=2, seed=3)
    chain = list(source.chain())
    model = models.build(checked(load_config([*overrides, "seed=3"])).model, seed=3)
    for name, p in models.parameters(model).items():
        assert torch.equal(chain[0][name], p.detach().bfloat16())
    assert len(chain) == 3
    assert any(not torch.equal(chain[1][n], chain[2][n]) for n in chain[1])
    monkeypatch.setattr(rl, "run_overrides", lambda overrides: rl_finished(overrides))
    again = list(Reinforcement(overrides, versions=1, zeros=False, seed=3).chain())
    assert [int((t != 0).sum()) == t.numel() for t in again[0].values()] == [True] * len(again[0])
    with pytest.raises(Missing, match="lower versions"):
        list(Reinforcement(overrides, versions=9, seed=3).chain())


def rl_finished(overrides):
    from lowcomm.rl.config import checked, load_config
    from lowcomm.run_dir import run_dir_of

    assert (run_dir_of(checked(load_config(overrides))) / "record.json").is_file()


def test_the_chain_of_grpo_keeps_all_its_versions_and_has_the_settings_of_the_table_of_sparsity():
    from lowcomm.patches.config import checked
    from lowcomm.results import experiment
    from lowcomm.results.grid import plan
    from lowcomm.rl import config

    _, ready, _ = plan([experiment.load("pulse/sparsity")], "cpu", lambda run: False)
    run = next(r for r in ready if r.row == "masters" and r.seed == 0)
    source = checked(["source=grpo-smollm2"]).source
    chain, table = (config.checked(config.load_config(list(o))) for o in (source.overrides, run.overrides))
    assert chain.scale.steps == source.versions <= chain.sync.anchor_every * (chain.sync.keep_anchors - 1)
    for key in ("model", "workload", "prompt", "sampling", "loss", "sync"):
        assert chain[key] == table[key]
    assert chain.algorithm.inner == table.algorithm.inner
