"""Real worker processes that are killed, stopped and late, on real weights that change: nothing of it is seen."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from lowcomm.pulse import Publisher, Store, digest
from lowcomm.rollout.generation import Job, Sampling, generate_job, seed_of
from lowcomm.rollout.transformers_engine import TransformersEngine
from tests.rollout.fakes import TOKEN, dispatcher
from tests.rollout.tiny import masters, model, save, served

VERSIONS, HOW = 6, Sampling(40)
PROMPTS = [[7, 3, 9], [5, 5, 1, 30], [11], [2, 44, 8, 8, 8]]


def step_jobs(version: int) -> list[Job]:
    return [Job(p, [seed_of(1, version, i, r) for r in range(2)], HOW) for i, p in enumerate(PROMPTS)]


def work(overrides: list[str]) -> None:
    """What `python -m lowcomm.rollout` does, in a process of the fork server."""
    from lowcomm.rollout.__main__ import main

    torch.set_num_threads(1)
    os.environ["LOWCOMM_ROLLOUT_TOKEN"] = TOKEN
    main(overrides)


@pytest.fixture(scope="module")
def spawn():
    """Starts workers; they are gone at the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.rollout.test_faults"])
    started = []

    def one(store, address, folder, name):
        process = context.Process(
            target=work, args=([f"store={store}", f"trainer={address}", f"model={folder}", f"name={name}"],)
        )
        process.start()
        started.append(process)
        return process

    yield one
    for process in started:
        process.kill()
        process.join()


def until(condition) -> None:
    while not condition():
        time.sleep(0.01)


@pytest.mark.parametrize("staleness", [0, 2])
def test_kill_stop_and_late_join_change_no_bit(tmp_path, spawn, staleness):
    store, folder = tmp_path / "store", save(tmp_path / "model", eos=7)
    publisher = Publisher(Store(str(store)), served(masters(0)), anchor_every=3)
    here = TransformersEngine(model(seed=99, eos=7), Store(str(store)))  # the run without faults: nobody else is there
    with dispatcher(heartbeat_s=0.5, lost_after_s=5.0, wait_limit_s=250.0) as d:
        by_name = lambda n: next((w for w in d.workers if w.name.startswith(f"{n} ")), None)  # noqa: E731
        a, b = (spawn(store, d.address, folder, name) for name in "ab")
        for version in range(VERSIONS):
            weights = served(masters(version))
            publisher.publish(weights, version)
            d.announce(version, digest(weights).hex())
            used = max(0, version - staleness)
            here.advance(used)
            assert here.digest() == d.expected[used]
            expected = [generate_job(here, job) for job in step_jobs(version)]
            killer = None
            if version == 1:  # in the middle of a job, if it is quick enough
                until(lambda: by_name("a") and by_name("b"))

                def kill():
                    until(lambda: (w := by_name("a")) is None or w.task)
                    a.kill()

                killer = threading.Thread(target=kill)
                killer.start()
            if version == 2:
                until(lambda: by_name("b").ready)
                os.kill(b.pid, signal.SIGSTOP)
                spawn(store, d.address, folder, "c")
            if version == 4:
                os.kill(b.pid, signal.SIGCONT)
                until(lambda: by_name("b"))  # it was dropped and comes back by itself
            assert d.generate(step_jobs(version), used, used) == expected
            if killer:
                killer.join()
        assert d.follow(VERSIONS - 1, wait_s=60.0) == 2
        counts = d.status()
        assert counts["returned"] >= 1
        assert counts["refused"] == counts["failed"] == 0
        assert counts["verified"] == VERSIONS - staleness + (staleness > 0)  # those used, and the last
        assert counts["done"] == VERSIONS * len(PROMPTS)


def test_the_command_serves_until_it_is_told_to_stop(tmp_path):
    store, folder = tmp_path / "store", save(tmp_path / "model")
    Publisher(Store(str(store)), served(masters(0))).publish(served(masters(0)), 0)
    (tmp_path / "token").write_text(TOKEN + "\n")
    with dispatcher(wait_limit_s=250.0) as d:
        command = ["store=" + str(store), "trainer=" + d.address, f"model={folder}", f"token_file={tmp_path / 'token'}"]
        worker = subprocess.Popen(
            [sys.executable, "-m", "lowcomm.rollout", *command], stderr=subprocess.PIPE, text=True
        )
        try:
            (answer,) = d.generate([Job([3, 4], [1, 2, 3], Sampling(5))], 0, 0)
            assert [len(c.tokens) for c in answer] == [5, 5, 5]
            worker.send_signal(signal.SIGTERM)
            _, said = worker.communicate(timeout=60)
        finally:
            worker.kill()
        assert (worker.returncode, "stopped after 1 jobs" in said, "Traceback" in said) == (0, True, False), said
