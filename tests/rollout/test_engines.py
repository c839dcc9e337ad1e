"""A whole RL run by its commands: a trainer, its store, and workers with either engine, all processes of their own."""

import contextlib
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from lowcomm.pulse import Store
from lowcomm.rollout import folder
from lowcomm.tracking import read_metrics
from pulse_vllm.server import SAMPLED, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1700)]
PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
STEPS, WAIT_S = 6, 1500
# heads of 32, the smallest that vLLM's CPU kernel has; a temperature that raw log-probabilities would give away
RUN = [
    "model.config.num_attention_heads=2", f"scale.steps={STEPS}", "scale.prompts_per_step=4", "scale.max_completion=24",
    "scale.eval_every=3", "scale.eval_problems=4", "algorithm.inner.lr=1e-3", "sync.anchor_every=3", "horizons=[1]",
    "rollout.staleness=1", "sampling.temperature=1.5", "logger.progress=false",
]  # fmt: skip
SERVER = ["--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "16", *SAMPLED]
SERVER += ["--block-size", "32", "--kv-cache-memory-bytes", str(64 << 20)]


@contextlib.contextmanager
def process(log: Path, *command: str):
    """It is gone at the end, whatever happens."""
    with log.open("wb") as out:
        made = subprocess.Popen([sys.executable, "-m", *command], stdout=out, stderr=subprocess.STDOUT)
    try:
        yield made
    finally:
        made.kill()
        made.wait()


def wait(condition, trainer: subprocess.Popen, log: Path) -> None:
    while not condition():
        assert trainer.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """The same run with its text from the trainer's own process."""
    here = tmp_path_factory.mktemp("inline")
    with process(here / "log", "lowcomm.rl", *RUN, f"run_dir={here / 'run'}") as trainer:
        assert trainer.wait(WAIT_S) == 0, (here / "log").read_text()[-3000:]
    return here / "run"


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_run_with_its_text_from_workers(tmp_path, inline, engine):
    """Every version used is held bit for bit; text is a version old; its log-probabilities are the trainer's."""
    if engine == "vllm" and not PYTHON.exists():
        pytest.skip("no vLLM environment: make env-vllm")
    run, log = tmp_path / "run", tmp_path / "trainer.log"
    command = ["lowcomm.rl", *RUN, f"rollout={engine}", f"rollout.wait_limit_s={WAIT_S}", f"run_dir={run}"]
    with contextlib.ExitStack() as stack:
        trainer = stack.enter_context(process(log, *command))
        wait((run / "rollout.json").exists, trainer, log)
        told = json.loads((run / "rollout.json").read_text())
        worker = shlex.split(told["command"])[2:]
        if engine == "vllm":
            wait(lambda: Store(told["store"]).latest() is not None, trainer, log)
            assert folder.write(Store(told["store"]), run / "served", tmp_path / "begin") == 0
            server = stack.enter_context(Server(PYTHON, tmp_path / "begin", tmp_path / "vllm.log", SERVER))
            server.wait(WAIT_S)
            worker.append(f"vllm={server.url}")
        for name in ("a", "b")[: 2 if engine == "transformers" else 1]:
            stack.enter_context(process(tmp_path / f"{name}.log", *worker, f"name={name}"))
        assert trainer.wait(WAIT_S) == 0, log.read_text()[-3000:]

    lines = read_metrics(run)
    (counts,) = re.findall(r"rollout workers: (.*)", log.read_text().split("rollout workers: python")[1])
    print(f"\n{engine}: {counts}")
    for line in lines[1:]:
        keys = ("rollout/version_lag", "rollout/logp_gap", "density/bf16", "sync/bytes", "time/generate", "time/step")
        print(f"  step {line['step']}:", {key: round(line[key], 5) for key in keys})
    said = dict(pair.rsplit(" ", 1) for pair in counts.split(", "))
    assert int(said["versions held bit for bit"]) == STEPS  # of 7: nobody needs the one before the last
    assert said["refused"] == said["failed"] == "0"
    assert [line["rollout/version_lag"] for line in lines[1:]] == [0, *[1] * (STEPS - 1)]
    ours, theirs = load_file(run / "weights.safetensors"), load_file(inline / "weights.safetensors")
    gaps = [line["rollout/logp_gap"] for line in lines[1:]]
    stale = [line["rollout/logp_gap"] for line in read_metrics(inline)[1:]]
    if engine == "transformers":
        assert all(ours[name].equal(theirs[name]) for name in theirs)
        assert gaps == stale
    else:  # FP32 here, BF16 there, which also draws other tokens now and then
        assert 0 < gaps[0] < 0.002, "the same version: log-probabilities are those of the same distribution"
        assert max(gaps) < max(stale) + 0.05
