"""A real server over HTTP, driven as a trainer drives it: `pulse_vllm.server` and `pulse_vllm.controller`."""

import json
import sys
import threading
import urllib.request

import pytest

from lowcomm.pulse import Publisher, Store
from pulse_vllm.controller import Controller, EngineError
from pulse_vllm.server import Server
from tests.vllm.engines import PROMPT, change, digests, runtime, tiny

pytestmark = pytest.mark.slow
OPTIONS = [
    *("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "4", "--seed", "0"),
    *("--block-size", "32", "--kv-cache-memory-bytes", str(16 << 20)),
]


def stream(url: str, tokens: int, started: threading.Event, out: list) -> None:
    body = {"prompt": PROMPT[:40], "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=300) as response:
        for line in response:
            if line.startswith(b"data: {"):
                out.append(json.loads(line[6:])["choices"][0]["finish_reason"])
                started.set()


def cached(controller: Controller) -> int:
    details = controller.complete(PROMPT, max_tokens=2)["usage"]["prompt_tokens_details"]
    return (details or {}).get("cached_tokens") or 0


def test_scenario(tmp_path):
    (tmp_path / "m").mkdir()
    base = tiny(tmp_path / "m")
    publisher = Publisher(Store(tmp_path / "s"), base, anchor_every=3)
    publisher.publish(base, 0)
    with Server(sys.executable, tmp_path / "m", tmp_path / "log", OPTIONS) as server:
        server.wait(900)
        controller = Controller(server.url)
        assert controller.version() == "default"
        controller.initialize(str(tmp_path / "s"))
        assert controller.rpc("pulse_digests") == [digests(runtime(base, False))]
        assert cached(controller) == 0
        assert cached(controller) >= 96

        # a running request goes on over an update, none of its tokens lost
        started, tokens = threading.Event(), []
        client = threading.Thread(target=stream, args=(server.url, 200, started, tokens))
        client.start()
        assert started.wait(60)
        weights = change(base, seed=1)
        marker = publisher.publish(weights, 1)
        seconds = controller.update(1, marker.target_digest, base_version=0)
        print("seconds of each step:", {k: round(v, 3) for k, v in seconds.items()}, "tokens before:", len(tokens))
        assert client.is_alive(), "the update came too late to meet it"
        client.join()
        assert len(tokens) == 200
        assert tokens[-1] == "length"
        assert controller.version() == "1"
        assert controller.rpc("pulse_digests") == [digests(runtime(weights, False))]
        assert cached(controller) == 0

        # refused while staging, and by the route itself: the server goes on
        with pytest.raises(EngineError, match="has digest") as refusal:
            controller.update(1, "0" * 32)
        assert not refusal.value.paused
        controller._post("start_weight_update")
        with pytest.raises(EngineError, match="status 500"):
            controller._post("update_weights", {"update_info": {"version": 1, "digest": "0" * 32}})
        assert cached(controller) >= 96
        assert controller.status()[0]["version"] == 1

        # a controller that died within an update
        controller._post("pause?mode=keep&clear_cache=false")
        controller._post("start_weight_update")
        for version in range(2, 8):
            weights = change(weights, seed=version)
            marker = publisher.publish(weights, version)
            way = "direct" if version % 2 else "layerwise"
            controller.update(version, marker.target_digest, base_version=version - 1, way=way, full=version == 7)
            assert controller.rpc("pulse_digests") == [digests(runtime(weights, False))]
            assert controller.version() == str(version)
            assert cached(controller) == 0
