"""The order of an update's requests, and what the trainer's side does with refusals: against a server of few lines."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pulse_vllm.controller import Controller, EngineError

DIGEST = "a" * 32
ORDER = [
    *("pulse_stage", "pulse_staged"),
    *("pause", "start_weight_update", "update_weights", "finish_weight_update", "reset_prefix_cache"),
]


class Engine:
    """Answers as vLLM does. ``replies``: what a step answers instead, (status, body), each taken once."""

    def __init__(self):
        self.log, self.bodies, self.queries, self.poisoned, self.replies = [], {}, {}, None, {}

    def handle(self, path: str, body: dict) -> tuple[int, dict]:
        path, _, query = path.strip("/").partition("?")
        step = body.get("method", path)
        self.log.append(step)
        self.bodies[step], self.queries[step] = body, query
        if self.replies.get(step):
            return self.replies[step].pop(0)
        if step in ("pulse_stage", "pulse_staged"):
            return 200, {"results": [{"error": ""}, {"error": ""}]}
        if step == "pulse_status":
            return 200, {"results": [{"poisoned": self.poisoned}, {"poisoned": None}]}
        return 200, {"success": True} if step == "reset_prefix_cache" else {"message": "done"}


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def controller(engine):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = engine.handle(self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Controller(f"http://127.0.0.1:{server.server_port}", timeout=20)
    server.shutdown()
    server.server_close()


def test_order_and_explicit_flags(engine, controller):
    seconds = controller.update(3, DIGEST, base_version=2)
    assert engine.log == [*ORDER, "resume"]
    assert list(seconds) == ["stage", "pause", "start", "update", "finish", "reset", "resume"]
    assert engine.queries["pause"] == "mode=keep&clear_cache=false", "left out, it would clear the caches too early"
    assert engine.queries["reset_prefix_cache"] == "reset_running_requests=true"
    info = {"version": 3, "digest": DIGEST, "base_version": 2, "way": "layerwise", "full": False}
    assert engine.bodies["update_weights"] == {"update_info": info}
    assert engine.bodies["pulse_stage"]["kwargs"] == {"update": info}
    assert engine.bodies["finish_weight_update"] == {"weight_version": "3"}


def test_a_refusal_while_staging_pauses_nothing(engine, controller):
    engine.replies["pulse_stage"] = [(200, {"results": [{"error": ""}, {"error": "Missing: version 3 ..."}]})]
    with pytest.raises(EngineError, match="goes on as it was: Missing: version 3") as e:
        controller.update(3, DIGEST)
    assert engine.log == ["pulse_stage"]
    assert not e.value.paused


def test_what_is_staged_is_waited_for_and_nothing_paused_meanwhile(engine, controller):
    busy, ready = {"error": None}, {"error": ""}
    engine.replies["pulse_staged"] = [(200, {"results": r}) for r in ([busy, busy], [ready, busy], [ready, ready])]
    controller.update(3, DIGEST)
    assert engine.log == [ORDER[0], *[ORDER[1]] * 3, *ORDER[2:], "resume"]
    engine.log.clear()
    engine.replies["pulse_staged"] = [(200, {"results": [ready, {"error": "Corrupt: ..."}]})]
    with pytest.raises(EngineError, match="goes on as it was: Corrupt"):
        controller.update(4, DIGEST)
    assert engine.log == ORDER[:2]
    controller.timeout, engine.replies["pulse_staged"] = 0.2, [(200, {"results": [busy, ready]})] * 100
    with pytest.raises(EngineError, match="not fetched within 0.2 s; the engine goes on as it was"):
        controller.update(4, DIGEST)
    assert "pause" not in engine.log


def test_a_refused_update_resumes(engine, controller):
    engine.replies["update_weights"] = [(500, {"error": {"message": "StaleBase: ..."}})]
    with pytest.raises(EngineError, match="update_weights: status 500.*StaleBase") as e:
        controller.update(3, DIGEST)
    assert engine.log == [*ORDER[:5], "pulse_status", "resume"]
    assert not e.value.paused


def test_a_poisoned_engine_stays_paused(engine, controller):
    engine.replies["update_weights"], engine.poisoned = [(500, {})], "the device is gone"
    with pytest.raises(EngineError, match="full=True") as e:
        controller.update(3, DIGEST)
    assert "resume" not in engine.log
    assert e.value.paused


def test_success_false_with_status_200_is_a_failure(engine, controller):
    """As vLLM answers a reset that a frozen request prevents: going on would serve old cache entries."""
    engine.replies["reset_prefix_cache"] = [(200, {"success": False})]
    with pytest.raises(EngineError, match="reset_prefix_cache") as e:
        controller.update(3, DIGEST)
    assert "resume" not in engine.log
    assert e.value.paused


def test_an_abandoned_session_is_closed_first(engine, controller):
    engine.replies["start_weight_update"] = [(500, {"error": "a weight update is already active"})]
    controller.update(3, DIGEST)
    start = engine.log.index("start_weight_update")
    assert engine.log[start : start + 3] == ["start_weight_update", "finish_weight_update", "start_weight_update"]
    assert engine.log[-1] == "resume"


def test_nobody_there():
    with pytest.raises(EngineError, match="is the server up at http://127.0.0.1:9"):
        Controller("http://127.0.0.1:9", timeout=2).update(1, DIGEST)
