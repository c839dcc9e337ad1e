"""The bridge to a vLLM server: against a stand-in for its routes, and (slow) against a real one."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lowcomm.pulse import Missing, Publisher, Store, digest
from lowcomm.rollout import vllm_engine
from lowcomm.rollout.generation import Completion, Job, Sampling
from lowcomm.rollout.vllm_engine import VllmEngine
from pulse_vllm.controller import EngineError
from pulse_vllm.server import Server
from tests.rollout.fakes import dispatcher, start
from tests.rollout.tiny import masters, publish, served

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"


class Routes:
    """What a server does, as far as `Controller` shows it."""

    made: list["Routes"] = []

    def __init__(self, url, timeout):
        self.held, self.asked, self.broken, self.fulls = "default", [], False, []
        Routes.made.append(self)

    def initialize(self, store, **info):
        self.init = (store, info)

    def update(self, version, digest, full=False):
        self.fulls.append(full)
        if self.broken and not full:
            raise EngineError("poisoned", paused=True)
        self.held, self.digest = str(version), digest

    def version(self):
        return self.held

    def complete(self, prompt, max_tokens, **how):
        self.asked.append((prompt, max_tokens, how))
        ids = [prompt[0], how["seed"]][:max_tokens]
        reason = "stop" if how["seed"] == 7 else "length"
        return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": [-0.5, -1.5]}, "finish_reason": reason}]}


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_engine, "Controller", Routes)
    publish(tmp_path / "store", range(4))
    return VllmEngine("http://nowhere", str(tmp_path / "store"))


def test_versions_go_to_the_server_with_the_digest_of_their_marker(engine):
    with pytest.raises(ValueError, match="no weights yet"):
        engine.generate([[1]], [1], Sampling(2))
    assert engine.advance(2) == engine.advance(2) == 2
    assert engine.digest() == engine.controller.digest == digest(served(masters(2))).hex()
    assert engine.controller.fulls == [False]
    assert engine.advance(None) == 3
    with pytest.raises(Missing):
        engine.advance(9)
    assert engine.version == 3


def test_a_poisoned_server_gets_every_weight(engine):
    engine.controller.broken = True
    assert engine.advance(1) == 1
    assert engine.controller.fulls == [False, True]


def test_each_completion_is_asked_for_with_its_seed(engine):
    engine.advance(1)
    out = engine.generate([[5, 6], [5, 6], [8]], [7, 9, 11], Sampling(2, temperature=0.7))
    assert out[0] == Completion([5, 7], [-0.5, -1.5], True, 1)
    assert [(c.tokens, c.finished) for c in out[1:]] == [([5, 9], False), ([8, 11], False)]
    for _, limit, how in engine.controller.asked:
        assert (limit, how["temperature"], how["top_p"], how["top_k"]) == (2, 0.7, 1.0, 0)
        assert (how["logprobs"], how["return_token_ids"]) == (0, True)
    engine.controller.held = "8"
    with pytest.raises(EngineError, match="went to version 8"):
        engine.generate([[5]], [1], Sampling(2))


def test_answers_that_do_not_fit_are_refused(engine):
    engine.advance(1)
    with pytest.raises(EngineError, match="1 tokens and 2 log-probabilities"):
        engine.generate([[5]], [1], Sampling(1))


def gone(pid: int) -> bool:
    """Also one that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("asked", ["trap '' TERM", "trap 'exit 0' TERM"], ids=["it ignores that", "it ends alone"])
def test_stopping_a_server_leaves_none_of_its_processes(tmp_path, asked):
    """An engine process that its server waits for without end, or forgets, would keep the memory and a core."""
    stand_in, pids = tmp_path / "bin" / "python", tmp_path / "pids"
    stand_in.parent.mkdir()
    engine = "(trap '' TERM; while :; do sleep 0.1; done) &"
    stand_in.write_text(f"#!/bin/sh\n{asked}\n{engine}\necho $$ $! > {pids}\nwait\n")
    stand_in.chmod(0o755)
    with Server(stand_in, "model", tmp_path / "log") as server:
        while not (pids.exists() and pids.read_text().endswith("\n")):
            time.sleep(0.01)
        if "exit" not in asked:
            server.stop(0.2)
    both = [int(pid) for pid in pids.read_text().split()]
    while not all(map(gone, both)):  # the kernel takes a moment
        time.sleep(0.01)


STAND_IN = """
import http.server, sys
option = lambda name: sys.argv[sys.argv.index(name) + 1]
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
print(*sys.argv, flush=True)
http.server.HTTPServer(("127.0.0.1", int(option("--port"))), Healthy).serve_forever()
"""


def test_the_command_serves_until_it_is_told_to_stop(tmp_path):
    stand_in = tmp_path / "bin" / "python"
    stand_in.parent.mkdir()
    stand_in.write_text(f"#!{sys.executable}\n{STAND_IN}")
    stand_in.chmod(0o755)
    command = [
        "-m",
        "pulse_vllm.server",
        "model",
        "--python",
        stand_in,
        "--port",
        "0",
        "--log",
        tmp_path / "log",
        "--seed",
        "3",
    ]
    served_by = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert "is up" in served_by.stdout.readline()
        served_by.terminate()
        assert served_by.wait() == 0
    finally:
        served_by.kill()
    said = (tmp_path / "log").read_text().splitlines()[0]
    assert "--model model" in said
    assert "--dtype bfloat16 --logprobs-mode processed_logprobs --seed 3" in said


def real_model(folder: Path) -> LlamaForCausalLM:
    """Heads of 32, the smallest that the CPU kernel has; a word a token."""
    torch.manual_seed(0)
    shape = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
    made = LlamaForCausalLM(LlamaConfig(**shape, **heads, tie_word_embeddings=True, initializer_range=0.2))
    made.generation_config = GenerationConfig(eos_token_id=[3, 4], pad_token_id=0)
    made.bfloat16().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(256)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="3", unk_token="0").save_pretrained(folder)
    return made.float()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_real_server_follows_and_generates(tmp_path):
    if not PYTHON.exists():
        pytest.skip("no vLLM environment: make env-vllm")
    model = real_model(tmp_path / "model")
    store = Store(str(tmp_path / "store"))
    publisher = Publisher(store, served(model))
    options = ["--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "128", "--max-num-seqs", "8"]
    options += ["--block-size", "32", "--kv-cache-memory-bytes", str(16 << 20), "--logprobs-mode", "processed_logprobs"]
    how = Sampling(24, temperature=2.0)
    asked = [Job([5, 6, 7, 8], [1, 2, 3], how), Job([9, 200], [4, 5, 6], how)]
    with Server(PYTHON, tmp_path / "model", tmp_path / "server.log", options) as server, dispatcher() as d:
        d.wait_limit_s = 1200.0
        publisher.publish(served(model), 0)
        server.wait(1200)
        start(d.address, VllmEngine(server.url, str(tmp_path / "store")), name="vllm")
        for version in range(2):
            weights = served(model)
            publisher.publish(weights, version)
            d.announce(version, digest(weights).hex())
            for job, completions in zip(asked, d.generate(asked, version, version), strict=True):
                for c in completions:
                    assert c.version == version
                    assert c.finished == (c.tokens[-1] in (3, 4))
                    assert c.finished or len(c.tokens) == 24
                    with torch.no_grad():
                        logits = model(torch.tensor([job.prompt + c.tokens])).logits[0, len(job.prompt) - 1 : -1]
                    lp = torch.log_softmax(logits / 2.0, -1).gather(1, torch.tensor(c.tokens)[:, None])[:, 0]
                    torch.testing.assert_close(torch.tensor(c.logprobs), lp, atol=0.15, rtol=0)  # BF16 sums there
                assert len({tuple(c.tokens) for c in completions}) == 3
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_((p * (1 + 0.3 * torch.randn(p.shape))).bfloat16())
        assert d.status()["verified"] == 2
