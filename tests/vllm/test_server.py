"""A real server over HTTP, driven as a trainer drives it: `pulse_vllm.server` and `pulse_vllm.controller`."""

import functools
import json
import sys
import threading
import time
import urllib.request
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lowcomm.pulse import Publisher, Store
from pulse_vllm.controller import Controller, EngineError
from pulse_vllm.server import Server
from tests.vllm.engines import PROMPT, change, digests, runtime, tiny

pytestmark = pytest.mark.slow
OPTIONS = [
    *("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4", "--seed", "0"),
    *("--block-size", "32", "--kv-cache-memory-bytes", str(16 << 20)),
]


def stream(url: str, tokens: int, started: threading.Event, out: list, ends: list) -> None:
    other = PROMPT[50:90]  # no block of the prompt whose cache is looked at
    body = {"prompt": other, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
    body["return_token_ids"] = True
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=300) as response:
        for line in response:
            if line.startswith(b"data: {"):
                choice = json.loads(line[6:])["choices"][0]
                out += choice["token_ids"]  # several where the server is late to write
                ends.append(choice["finish_reason"])
                started.set()


class Slow(SimpleHTTPRequestHandler):
    """A store over HTTP that holds an object back until it is told to give it."""

    held, give = "", threading.Event()

    def do_GET(self):
        if Slow.held and Slow.held in self.path:
            Slow.give.wait()
        super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def store_url(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Slow, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/s"
    Slow.give.set()
    server.shutdown()


def cached(controller: Controller) -> int:
    details = controller.complete(PROMPT, max_tokens=2)["usage"]["prompt_tokens_details"]
    return (details or {}).get("cached_tokens") or 0


def test_scenario(tmp_path, store_url):
    (tmp_path / "m").mkdir()
    base = tiny(tmp_path / "m")
    publisher = Publisher(Store(tmp_path / "s"), base, anchor_every=3)
    publisher.publish(base, 0)
    with Server(sys.executable, tmp_path / "m", tmp_path / "log", OPTIONS) as server:
        server.wait(900)
        controller = Controller(server.url)
        assert controller.version() == "default"
        controller.initialize(store_url)
        assert controller.rpc("pulse_digests") == [digests(runtime(base, False))]
        assert cached(controller) == 0
        assert cached(controller) >= 96
        weights = change(base, seed=0)
        controller.update(1, publisher.publish(weights, 1).target_digest)  # what is compiled once is compiled now

        # a running request goes on while the store is slow, and over an update, none of its tokens lost
        weights = change(weights, seed=1)
        marker = publisher.publish(weights, 2)
        Slow.held = marker.name
        started, tokens, ends, seconds = threading.Event(), [], [], {}
        client = threading.Thread(target=stream, args=(server.url, 400, started, tokens, ends))
        client.start()
        assert started.wait(60)
        update = threading.Thread(
            target=lambda: seconds.update(controller.update(2, marker.target_digest, base_version=1))
        )
        before = len(tokens)
        update.start()
        while len(tokens) < before + 40:
            assert client.is_alive(), f"generation stands still while the store is asked, at token {len(tokens)}"
            time.sleep(0.01)
        assert controller.status()[0]["version"] == 1
        Slow.give.set()
        update.join()
        print("seconds of each step:", {k: round(v, 3) for k, v in seconds.items()}, "tokens:", before, len(tokens))
        assert client.is_alive(), "the update came too late to meet it"
        client.join()
        assert len(tokens) == 400
        assert ends[-1] == "length"
        assert controller.version() == "2"
        assert controller.rpc("pulse_digests") == [digests(runtime(weights, False))]
        assert cached(controller) == 0

        # refused while staging, and by the route itself: the server goes on
        with pytest.raises(EngineError, match="has digest") as refusal:
            controller.update(2, "0" * 32)
        assert not refusal.value.paused
        controller._post("start_weight_update")
        with pytest.raises(EngineError, match="status 500"):
            controller._post("update_weights", {"update_info": {"version": 2, "digest": "0" * 32}})
        assert cached(controller) >= 96
        assert controller.status()[0]["version"] == 2

        # a controller that died within an update
        controller._post("pause?mode=keep&clear_cache=false")
        controller._post("start_weight_update")
        for version in range(3, 9):
            weights = change(weights, seed=version)
            marker = publisher.publish(weights, version)
            way = "direct" if version % 2 else "layerwise"
            controller.update(version, marker.target_digest, base_version=version - 1, way=way, full=version == 8)
            assert controller.rpc("pulse_digests") == [digests(runtime(weights, False))]
            assert controller.version() == str(version)
            assert cached(controller) == 0
