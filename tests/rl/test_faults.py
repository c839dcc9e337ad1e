"""kill -9 at chosen and at random moments, then the same call: bitwise the uninterrupted run. Workers. Refusals.

python -m tests.rl.test_faults FOLDER --kills 10    a trainer and two workers, one of them killed again and again
"""

import argparse
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lowcomm import checkpoint
from lowcomm.blocks import ConfigError
from lowcomm.pulse import Store
from lowcomm.rl import ledger
from lowcomm.rollout.local import LocalWorkers
from lowcomm.rollout.transformers_engine import TransformersEngine, skeleton
from lowcomm.rollout.worker import Worker
from tests.rl.runs import run, same

STALE = ["rollout.staleness=1", "sync.anchor_every=2"]
LONG = [*STALE, "scale.checkpoint_every=2", "scale.steps=12", "sync.keep_anchors=4"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rl") / "whole"
    return folder, *run(folder, *STALE, "scale.checkpoint_every=2")


def die_at(patched, name: str, call: int, monkeypatch) -> None:
    """Kill this process at the `call`-th call of a function."""
    original, calls = getattr(patched, name), []

    def counted(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    monkeypatch.setattr(patched, name, counted)


MOMENTS = {
    "while text is written": (TransformersEngine, "generate", 9),
    "between a patch and its marker": (Store, "_write", 6),
    "between an anchor and its marker": (Store, "_write", 8),
    "between a checkpoint and its manifest": (checkpoint, "write_bytes", 1),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_started_again_it_is_the_same_run_bit_for_bit(whole, tmp_path, monkeypatch, moment):
    overrides = [*STALE, "scale.checkpoint_every=2"]
    child = os.fork()
    if child == 0:
        try:
            die_at(*MOMENTS[moment], monkeypatch)
            run(tmp_path / "run", *overrides)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "it was not killed"
    weights, lines, _ = run(tmp_path / "run", *overrides)
    assert same(weights, whole[1])
    anchors = "sync/anchor_bytes"  # one that was due when it died comes after the next patch
    assert [{**n, anchors: 0} for n in lines if n["step"]] == [{**n, anchors: 0} for n in whole[2] if n["step"]]
    versions = [n["version"] for n in ledger.read(tmp_path / "run")]
    assert versions == [0, 1, 2, 3, 4]


def test_text_from_workers_is_the_text_of_the_trainer_and_so_are_the_weights(whole, tmp_path):
    """One worker that joins late, another that is there when the trainer begins to wait; both follow the store."""
    folder, over = tmp_path / "run", threading.Event()

    def serve(delay: float) -> None:
        while not (folder / "rollout.json").exists():
            time.sleep(0.05)
        time.sleep(delay)
        told = json.loads((folder / "rollout.json").read_text())
        engine = TransformersEngine(skeleton(folder / "served"), Store(told["store"]))
        token = (folder / "rollout.token").read_text()
        worker = Worker(engine, told["trainer"], token, f"after {delay}", "transformers", 1.0)
        threading.Thread(target=lambda: (worker.run(), over.set()), daemon=True).start()

    for delay in (0.0, 0.5):
        threading.Thread(target=serve, args=(delay,), daemon=True).start()
    listen = f"place.listen=unix:{tmp_path}/socket"
    weights, lines, made = run(folder, *STALE, "scale.checkpoint_every=2", "rollout=transformers", listen)
    assert same(weights, whole[1])
    assert [line["rollout/version_lag"] for line in lines[1:]] == [0, 1, 1, 1]
    assert (folder / "rollout.token").stat().st_mode & 0o077 == 0
    assert made["outcome"]["metrics"]["accuracy"] == whole[3]["outcome"]["metrics"]["accuracy"]


def test_workers_that_the_run_starts_itself_one_of_them_killed_change_no_bit(whole, tmp_path, monkeypatch, caplog):
    started, start, folder = [], LocalWorkers.start, tmp_path / "run"

    def once(self) -> None:
        start(self)
        if self not in started:
            started.append(self)
            threading.Thread(target=kill, args=(self,), daemon=True).start()

    def kill(workers: LocalWorkers) -> None:
        """The first that has done a job."""
        while True:
            for name, process in workers.processes.items():
                if " job " in workers.log_of(name).read_text():
                    return process.kill()
            time.sleep(0.005)

    monkeypatch.setattr(LocalWorkers, "start", once)
    _, _, made = run(folder, *STALE, "scale.checkpoint_every=2", "rollout=transformers", "place.local_workers=2",
                     f"place.listen=unix:{tmp_path}/socket")  # fmt: skip
    assert made["outcome"]["weights"] == whole[3]["outcome"]["weights"]
    ((workers,), token) = started, (folder / "rollout.token").read_text()
    assert all(process.poll() is not None for process in workers.processes.values())
    assert sum("was ended by SIGKILL; the last lines of" in r.message for r in caplog.records) == 1
    assert not any(token in str(word) for process in workers.processes.values() for word in process.args)


def fork(work: Callable[[], None]) -> int:
    """A process that does only this, with everything imported and compiled already."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(1)  # before it has got there


def serve(folder: Path) -> None:
    """`python -m lowcomm.rollout`, as soon as there is a trainer."""
    from lowcomm.rollout.__main__ import main

    while not (folder / "rollout.json").exists():
        time.sleep(0.02)
    told = json.loads((folder / "rollout.json").read_text())
    main([f"store={told['store']}", f"trainer={told['trainer']}", f"model={folder / 'served'}",
          f"token_file={folder / 'rollout.token'}", "wait_limit_s=600"])  # fmt: skip


def through_kills(folder: Path, kills: int, chance: random.Random, slowest: float) -> Counter[str]:
    """One whole run, its trainer or one of its two workers killed at random moments; who was, how often."""

    def train() -> None:
        run(folder / "run", *LONG, "rollout=transformers", f"place.listen=unix:{folder}/s", "rollout.wait_limit_s=600")
        os._exit(0)

    work = {"trainer": train, "worker a": lambda: serve(folder / "run"), "worker b": lambda: serve(folder / "run")}
    running, killed = {name: fork(does) for name, does in work.items()}, Counter()
    try:
        while True:
            ends = time.monotonic() + chance.uniform(0, slowest)
            while killed.total() == kills or time.monotonic() < ends:
                pid, status = os.waitpid(running["trainer"], os.WNOHANG)
                if pid:
                    assert status == 0, "the trainer failed by itself"
                    del running["trainer"]
                    return killed
                time.sleep(0.01)
            name = chance.choice(["trainer", "trainer", "worker a", "worker b"])
            os.kill(running[name], signal.SIGKILL)
            os.waitpid(running[name], 0)
            killed[name] += 1
            running[name] = fork(work[name])
    finally:
        for pid in running.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def check_same(folder: Path, whole: tuple) -> None:
    """Weights, every line of metrics but for when an anchor came, and every version, of two finished runs."""
    weights, lines, _ = run(folder, *LONG, "rollout=transformers", f"place.listen=unix:{folder.parent}/s",
                            "rollout.wait_limit_s=600")  # fmt: skip
    assert same(weights, whole[0])
    drop = {"sync/anchor_bytes": 0}
    assert [n | drop for n in lines if n["step"]] == [n | drop for n in whole[1] if n["step"]]
    assert [n["version"] for n in ledger.read(folder)] == list(range(13))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_random_moments_trainer_and_workers_make_the_same_run(tmp_path):
    whole = run(tmp_path / "whole", *LONG)
    killed = through_kills(tmp_path, 3, random.Random(0), 3.0)
    check_same(tmp_path / "run", whole)
    assert killed.total() > 0


def main(argv: list[str] | None = None) -> None:
    """Runs with kills, each held against one without, until there were as many kills as asked for."""
    parser = argparse.ArgumentParser("python -m tests.rl.test_faults", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the runs; new")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slowest", type=float, default=3.0, help="seconds between two kills at most")
    args = parser.parse_args(argv)
    begun = time.monotonic()
    whole = run(args.folder / "whole", *LONG)
    print(f"12 steps without a kill: {time.monotonic() - begun:.0f} s", flush=True)
    chance, killed, runs = random.Random(args.seed), Counter(), 0
    while killed.total() < args.kills:
        folder = args.folder / f"{runs}"
        folder.mkdir()
        killed += through_kills(folder, args.kills - killed.total(), chance, args.slowest)
        check_same(folder / "run", whole)
        runs += 1
        print(f"run {runs} is bitwise the one without kills; so far: {dict(killed)}", flush=True)
    print(
        f"{killed.total()} kills over {runs} runs: weights, metrics and all 13 versions bitwise the uninterrupted run"
    )


def test_another_number_of_trainers_than_configured_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="workers=1: one trainer is one process, and WORLD_SIZE=2"):
        run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_under_torchrun_alone_accelerate_sees_one_process(tmp_path, monkeypatch):
    for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(key, "1" if key == "WORLD_SIZE" else "0")
    run(tmp_path / "run", "scale.steps=1")
    assert os.environ["MASTER_ADDR"] == "0"


def test_too_few_problems_are_refused_where_trl_would_train_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"3 training problems.*asks for 4 \(prompts_per_step=4"):
        run(tmp_path / "run", "workload.size=3", "scale.prompts_per_step=4")


if __name__ == "__main__":
    main()
