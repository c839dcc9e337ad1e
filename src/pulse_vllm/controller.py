"""Drives a vLLM server through an update over HTTP. Standard library alone: for the trainer's side, without vLLM.

The server must run with VLLM_SERVER_DEV_MODE=1, this plug-in and `pulse_vllm.extension.Inspect` (see `server`). These
routes have no password: keep them on a private network.
"""

import json
import time
import urllib.error
import urllib.request

POLL_S = 0.05  # between two looks at what is staged


class EngineError(RuntimeError):
    """The server refused or failed. What it says is the message; ``paused`` tells whether it was left paused."""

    def __init__(self, message: str, paused: bool = False):
        super().__init__(message)
        self.paused = paused


class Controller:
    """One server. ``timeout``: seconds for each request, and for staging, which may fetch an anchor."""

    def __init__(self, url: str, timeout: float = 300):
        self.url, self.timeout = url.rstrip("/"), timeout

    def initialize(self, store: str, **info) -> None:
        """Tell the engine where the patches are; ``info``: the further fields of `pulse_vllm.engine.Init`."""
        self._post("init_weight_transfer_engine", {"init_info": {"store": store, **info}})

    def update(
        self,
        version: int,
        digest: str,
        base_version: int | None = None,
        way: str = "layerwise",
        full: bool = False,
        mode: str = "keep",
    ) -> dict[str, float]:
        """Bring the engine to ``version`` and return the seconds of each step.

        Stage (fetched and verified while it still answers), pause, start, update, finish, prefix cache emptied with
        running requests, resume. ``mode``: of the pause; with "keep" running requests go on with the new weights, their
        prefill repeated. A refusal leaves the engine running at its old version; after a failed apply, or if old cache
        entries may be left, it stays paused: call again with ``full=True``. Raises EngineError.
        """
        info = {"version": version, "digest": digest, "base_version": base_version, "way": way, "full": full}
        seconds: dict[str, float] = {}

        def step(name: str, function, *args, **kwargs):
            start = time.monotonic()
            answer = function(*args, **kwargs)
            seconds[name] = time.monotonic() - start
            return answer

        if errors := step("stage", self._stage, info):
            raise EngineError(f"version {version} was refused, the engine goes on as it was: {errors[0]}")
        step("pause", self._post, f"pause?mode={mode}&clear_cache=false")
        try:
            step("start", self._open)
            step("update", self._post, "update_weights", {"update_info": info})
            step("finish", self._post, "finish_weight_update", {"weight_version": str(version)})
            step("reset", self._post, "reset_prefix_cache?reset_running_requests=true")
        except EngineError as e:
            if "update" in seconds or any(worker["poisoned"] for worker in self.status()):
                raise EngineError(f"{e}\nThe engine stays paused; repeat with full=True", paused=True) from e
            self._post("resume")
            raise
        step("resume", self._post, "resume")
        return seconds

    def _stage(self, info: dict) -> list[str]:
        """Why workers refuse. They fetch by themselves, and are asked whether they have it."""
        errors = [worker["error"] for worker in self.rpc("pulse_stage", update=info)]
        deadline = time.monotonic() + self.timeout
        while not any(errors) and None in (errors := [worker["error"] for worker in self.rpc("pulse_staged")]):
            if time.monotonic() > deadline:
                raise EngineError(f"the store was not fetched within {self.timeout:g} s; the engine goes on as it was")
            time.sleep(POLL_S)
        return [error for error in errors if error]

    def _open(self) -> None:
        """Whoever died within an update has left a session, which is closed first."""
        try:
            self._post("start_weight_update")
        except EngineError as e:
            if "already active" not in str(e):
                raise
            self._post("finish_weight_update")
            self._post("start_weight_update")

    def version(self) -> str:
        """What the last finished update was called; "default" before the first."""
        return self._ask("GET", "weight_info", None)["weight_version"]

    def status(self) -> list[dict]:
        """Of each worker: version, staged, poisoned, in_place, device."""
        return self.rpc("pulse_status")

    def rpc(self, method: str, **kwargs) -> list:
        """The answers of all workers to a method of `pulse_vllm.extension.Inspect`."""
        return self._post("collective_rpc", {"method": method, "kwargs": kwargs})["results"]

    def complete(self, prompt: list[int], max_tokens: int = 16, **sampling) -> dict:
        """POST /v1/completions: one greedy completion of token ids, unless ``sampling`` says otherwise."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **sampling}
        return self._post("v1/completions", body)

    def _post(self, path: str, body: dict | None = None) -> dict:
        return self._ask("POST", path, body)

    def _ask(self, verb: str, path: str, body: dict | None) -> dict:
        """Some failures have status 200 and say so in the body only."""
        data = json.dumps(body or {}).encode() if verb == "POST" else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{path}", data, headers, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                answer = json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as e:
            raise EngineError(f"{verb} /{path}: status {e.code}: {e.read().decode(errors='replace')[:2000]}") from None
        except (OSError, ValueError) as e:
            raise EngineError(f"{verb} /{path}: {e}: is the server up at {self.url}?") from None
        if answer.get("success") is False or "error" in answer:
            raise EngineError(f"{verb} /{path}: {json.dumps(answer)[:2000]}")
        return answer
