"""Whole runs on a tiny model: exact resume, dense and sparse alike, records, staleness."""

import json

import pytest
import torch
from safetensors.torch import load_file

from lowcomm.results import record
from lowcomm.rl import digest_of, ledger, run_overrides
from tests.rl.runs import TINY, run, run_in_pieces, same


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rl") / "whole"
    return folder, *run(folder)


def test_a_run_learns_something_and_its_record_is_whole(whole):
    folder, weights, lines, made = whole
    record.check(made)
    assert made["code"]["digest"] == digest_of([*TINY, "run_dir=elsewhere"])
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert all(line["train/grad_norm"] > 0 for line in lines[1:]), "no gradient: the rewards of every group are alike"
    assert all(line["density/bf16"] > 0 for line in lines[1:])
    assert {"eval/loss", "eval/accuracy"} <= lines[0].keys() & lines[2].keys() & lines[4].keys()
    assert made["outcome"]["curve"]["step"] == [0, 2, 4]
    assert not (folder / "checkpoints").exists()


def test_the_masters_stay_float32(whole):
    assert {t.dtype for t in whole[1].values()} == {torch.float32}


def test_stopped_after_every_step_and_resumed_it_is_the_same_run_bit_for_bit(whole, tmp_path):
    weights, lines, made = run_in_pieces(tmp_path / "pieces")
    assert same(weights, whole[1])
    assert lines == whole[2]
    assert made["outcome"]["weights"] == whole[3]["outcome"]["weights"]
    without = lambda folder: [{k: v for k, v in n.items() if k != "seconds"} for n in ledger.read(folder)]  # noqa: E731
    assert without(tmp_path / "pieces") == without(whole[0])


@pytest.mark.parametrize("sync", ["dense", "none"])
def test_dense_and_sparse_publishing_train_the_same_weights(whole, tmp_path, sync):
    weights, _, made = run(tmp_path / sync, f"sync={sync}")
    assert same(weights, whole[1])


def test_the_ledger_rebuilds_every_ratio(whole):
    folder, weights, lines, made = whole
    sent = ledger.read(folder)
    numel = sum(t.numel() for t in weights.values())
    assert [n["step"] for n in sent] == [0, 1, 2, 3, 4]
    assert [n["kind"] for n in sent] == ["anchor"] + ["patch"] * 4
    assert all(n["dense_bf16"] == 2 * numel and n["dense_fp32"] == 4 * numel and n["verified"] for n in sent)
    files = {int(p.name[:12]): p.stat().st_size for p in (folder / "store" / "patches").glob("*.pulse")}
    assert files == {n["version"]: n["bytes"] for n in sent[1:]}
    assert [n["changed"] / numel for n in sent[1:]] == [line["density/bf16"] for line in lines[1:]]
    totals = made["outcome"]["bytes"]
    assert totals["per_worker"] == sum(files.values())
    assert totals["verified"] == totals["versions"] == 5


def test_a_finished_run_is_not_run_again(whole, monkeypatch):
    monkeypatch.setattr("lowcomm.rl.run.train", None)
    assert run_overrides([*TINY, f"run_dir={whole[0]}"])["identity"] == whole[3]["identity"]


def test_stale_text_is_by_old_weights_and_ppo_sees_it(tmp_path):
    """With clipping at the slightest difference, text that is one step old is clipped; text that is fresh is not."""
    tight = ["loss.epsilon=1e-4", "loss.epsilon_high=1e-4", "algorithm.inner.lr=1e-2", "algorithm.schedule.warmup=0"]
    _, stale, _ = run(tmp_path / "stale", "rollout.staleness=1", "sync.anchor_every=2", *tight)
    assert [line["rollout/version_lag"] for line in stale[1:]] == [0, 1, 1, 1]
    assert max(line["grpo/clip_region"] for line in stale[2:]) > 0.1
    assert stale[2]["rollout/logp_gap"] > 10 * stale[1]["rollout/logp_gap"]


def test_another_store_version_with_other_weights_begins_a_new_epoch(tmp_path, monkeypatch):
    """A run that is not reproducible, or a store that was used before: numbers rise, readers follow."""
    run(tmp_path / "first", f"place.store={tmp_path}/store", "scale.steps=2", "seed=1")
    run(tmp_path / "second", f"place.store={tmp_path}/store", "scale.steps=2", "seed=2")
    versions = [n["version"] for n in ledger.read(tmp_path / "second")]
    assert versions == [10**9, 10**9 + 1, 10**9 + 2]


def test_supervised_fine_tuning_through_the_same_door(tmp_path):
    overrides = ["objective=sft", "algorithm.inner.lr=1e-2", "scale.eval_every=4", "meters=[density]"]
    weights, lines, made = run(tmp_path / "whole", *overrides)
    assert lines[-1]["train/loss"] < lines[1]["train/loss"] - 0.1
    assert "train/reward" not in lines[1]
    assert [n["step"] for n in ledger.read(tmp_path / "whole")] == [0, 1, 2, 3, 4]
    resumed, again, _ = run_in_pieces(tmp_path / "pieces", "scale.checkpoint_every=1", *overrides)
    assert same(weights, resumed)
    assert lines == again


def test_bfloat16_parameters_are_an_option(tmp_path):
    run(tmp_path / "run", "model.dtype=bfloat16", "scale.steps=2")
    assert {t.dtype for t in load_file(tmp_path / "run" / "weights.safetensors").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "run" / "record.json").read_text())["code"]["config"]["model"]["dtype"] == "bfloat16"
