"""Several trainers: joined by outer steps or at every step, the same after a kill, with text from shared workers."""

import json
import os
import signal
import threading
import time
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from lowcomm.blocks import build
from lowcomm.config import CONF
from lowcomm.outer.loop import OuterLoop
from lowcomm.outer.workers import Wire
from lowcomm.outer.workers import Worker as Trainer
from lowcomm.pulse import Store
from lowcomm.results import record
from lowcomm.rl import ledger
from lowcomm.rl.config import checked, load_config
from lowcomm.rl.data import Prompts
from lowcomm.rl.outer_ranks import mean_of
from lowcomm.rl.toy import Letters
from lowcomm.rollout.transformers_engine import TransformersEngine, skeleton
from lowcomm.rollout.worker import Worker
from tests.rl.ranks import run_ranks
from tests.rl.runs import metrics, run, same

LOCO = [
    "algorithm=pulseloco",
    "algorithm.inner_steps=2",
    "scale.steps=5",
    "scale.checkpoint_every=2",
    "meters=[density]",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rl") / "whole"
    assert run_ranks(2, folder, *LOCO) == [0, 0]
    made = json.loads((folder / "record.json").read_text())
    return folder, load_file(folder / "weights.safetensors"), metrics(folder), made


def test_trainers_join_after_every_h_steps_and_only_then_publish(whole):
    folder, weights, lines, made = whole
    assert [line["step"] for line in lines] == [0, 2, 4, 5]
    assert [n["version"] for n in ledger.read(folder)] == [0, 2, 4, 5]
    assert all(n["verified"] for n in ledger.read(folder))
    assert [line["rollout/version_lag"] for line in lines[1:]] == [0.5, 0.5, 0]
    assert all(-1 < line["outer/cosine"] < 0.99 for line in lines[1:]), "the trainers have learnt the same"
    assert all(line["density/bf16"] == line["sync/density"] for line in lines[1:])
    assert {t.dtype for t in weights.values()} == {torch.float32}
    record.check(made)
    assert made["environment"]["processes"] == 2
    assert made["data"]["units"] == 5 * 2 * 4 * 2
    assert not (folder / "checkpoints").exists()


def test_what_each_trainer_sent_is_in_ledger_metrics_and_record(whole):
    folder, _, lines, made = whole
    told = [n["trainers"] for n in ledger.read(folder)[1:]]
    assert [t["bytes"] for t in told] == [line["comm/bytes"] for line in lines[1:]]
    assert all(0 < t["sparsity_min"] <= t["sparsity"] <= t["sparsity_max"] < 1 for t in told)
    totals = made["outcome"]["bytes"]["trainers"]
    assert totals["rounds"] == 3
    assert totals["per_worker"] == sum(t["bytes"] for t in told)
    assert totals["sparsity_min"] == min(t["sparsity_min"] for t in told)
    assert totals["sent"] == sum(t["sent"] for t in told)
    memory = made["outcome"]["memory"]
    assert memory["residual"] == memory["theta"] == memory["outer"] == memory["parameters"]


def test_a_trainer_killed_in_mid_round_and_all_started_again_it_is_the_same_run_bit_for_bit(whole, tmp_path):
    """Two prompts a step: the seventh text of rank 1 is that of the fourth step, in the middle of the second round."""

    def die(rank: int) -> None:
        original, calls = TransformersEngine.generate, []

        def counted(*args, **kwargs):
            calls.append(1)
            if rank == 1 and len(calls) == 7:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        TransformersEngine.generate = counted

    assert run_ranks(2, tmp_path / "run", *LOCO, before=die) == [1, -signal.SIGKILL]
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["tick-00000002"]
    assert run_ranks(2, tmp_path / "run", *LOCO) == [0, 0]
    assert same(load_file(tmp_path / "run" / "weights.safetensors"), whole[1])
    assert metrics(tmp_path / "run") == whole[2]


def test_rollout_workers_are_shared_and_their_text_is_the_trainers_own(whole, tmp_path):
    folder, over = tmp_path / "run", threading.Event()
    listen = ["rollout=transformers", f"place.listen=unix:{tmp_path}/socket"]

    def serve() -> None:
        while not (folder / "rollout.json").exists():
            time.sleep(0.05)
        told = json.loads((folder / "rollout.json").read_text())
        engine = TransformersEngine(skeleton(folder / "served"), Store(told["store"]))
        Worker(engine, told["trainer"], (folder / "rollout.token").read_text(), "one", "transformers", 1.0).run()
        over.set()

    codes: list[int] = []
    ranks = threading.Thread(target=lambda: codes.extend(run_ranks(2, folder, *LOCO, *listen)))
    ranks.start()
    threading.Thread(target=serve, daemon=True).start()
    ranks.join()
    assert codes == [0, 0]
    assert same(load_file(folder / "weights.safetensors"), whole[1])


def test_averaged_gradients_of_two_are_those_of_one_with_all_prompts(tmp_path):
    """Adam with a large epsilon moves by the gradient, so that rounding stays rounding."""
    step = ["scale.steps=1", "algorithm.inner.eps=1.0", "algorithm.inner.lr=1.0", "algorithm.schedule.warmup=0",
            "meters=[]", "workload.size=32"]  # fmt: skip
    alone, lines, _ = run(tmp_path / "one", "algorithm=ddp", "scale.prompts_per_step=4", *step)
    assert run_ranks(2, tmp_path / "two", "algorithm=ddp", *step) == [0, 0]
    together, both = load_file(tmp_path / "two" / "weights.safetensors"), metrics(tmp_path / "two")
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-5, atol=2e-6)
    for key in ("train/reward", "train/grad_norm", "rollout/tokens"):
        assert both[1][key] == pytest.approx(lines[1][key], rel=1e-5), key
    assert both[1]["comm/bytes"] == 4 * sum(t.numel() for t in alone.values())


def test_an_open_gate_is_diloco_bit_for_bit_and_one_trainer_will_do(tmp_path):
    short = ["algorithm.inner_steps=2", "scale.steps=4", "scale.checkpoint_every=4", "meters=[]", "sync=none"]
    dense, _, _ = run(tmp_path / "dense", "algorithm=diloco", *short)
    gated, lines, _ = run(tmp_path / "gated", "algorithm=pulseloco", "algorithm.compressor.dtype=float32", *short)
    assert same(dense, gated)
    assert [line["step"] for line in lines] == [0, 2, 4]
    assert lines[1]["outer/residual_norm"] == 0


def test_one_trainer_with_an_outer_step_after_every_step_is_adamw_up_to_a_rounding_a_step(tmp_path):
    """H = 1, R = 1, rate 1, no momentum; open gate: theta - (theta - w) is w, but for one rounding."""
    short = ["scale.steps=3", "scale.checkpoint_every=3", "meters=[]", "sync=none"]
    plain, lines, _ = run(tmp_path / "plain", "algorithm=adamw", *short)
    joined = ["algorithm=pulseloco", "algorithm.compressor.dtype=float32", "algorithm.inner_steps=1",
              "algorithm/outer=sgd", "algorithm.outer.lr=1.0", "algorithm.outer.momentum=0.0"]  # fmt: skip
    outer, again, _ = run(tmp_path / "outer", *joined, *short)
    assert [line["train/reward"] for line in lines[1:]] == [line["train/reward"] for line in again[1:]]
    for name, value in plain.items():
        torch.testing.assert_close(outer[name], value, rtol=0, atol=3 * 2.0**-23 * max(1.0, float(value.abs().max())))


@pytest.mark.parametrize("rule", sorted(path.stem for path in (CONF / "algorithm" / "aggregator").glob("*.yaml")))
def test_every_aggregator_takes_the_gated_messages_of_trainers(rule):
    """Two gated messages of a matrix and a vector, by the blocks that the configuration names."""
    cfg = checked(load_config(["algorithm=pulseloco", f"algorithm/aggregator={rule}", "workers=2"]))
    params = {
        "w": torch.nn.Parameter(torch.linspace(-0.1, 0.1, 96).view(8, 12)),
        "b": torch.nn.Parameter(torch.ones(5)),
    }
    compressor, outer = (partial(build, f"algorithm.{k}", cfg.algorithm[k]) for k in ("compressor", "outer"))
    loop = OuterLoop(params, compressor, build("algorithm.aggregator", cfg.algorithm.aggregator), outer, Wire(2))
    workers = [Trainer(index, params, partial(torch.optim.SGD, lr=1.0), alone=False) for index in range(2)]
    for worker in workers:
        for at, weight in enumerate(worker.weights.values()):
            weight += 1e-3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(worker.index + 2 * at))
    report = loop.sync(workers)
    assert 0 < report["comm/sparsity"] < 1
    assert report["outer/delta_norm"] > 0
    assert all(torch.isfinite(theta).all() for theta in loop.theta.values())


def test_shards_are_parts_of_what_one_trainer_would_take(monkeypatch):
    from lowcomm.rl import characters

    def prompts(worker: int, *overrides: str) -> list[str]:
        cfg = checked(load_config([*overrides, "prompt=boxed_user", "scale.updates_per_rollout=2", "scale.steps=4",
                                   "scale.checkpoint_every=2"]))  # fmt: skip
        problems = Letters(name="x", seed=0).problems("train")
        return Prompts(problems, characters.tokenizer(), cfg, worker).dataset(2, 4)["prompt"]

    one = prompts(0, "scale.prompts_per_step=6")
    parts = [prompts(worker, "workers=3", "scale.prompts_per_step=2") for worker in range(3)]
    assert [name for part in parts for name in part] == list(one)
    assert len(set(one)) == 12


def test_means_are_over_those_that_have_a_value():
    assert mean_of([{"a": 1, "b": 2.0}, {"a": 3}]) == {"a": 2.0, "b": 2.0}
    assert mean_of([{"a": 1}]) == {"a": 1}
