"""Generation by a vLLM server that follows the store through its plug-in (`pulse_vllm`).

`python -m lowcomm.rollout.folder` writes what the server begins with, `python -m pulse_vllm.server` starts it. A server
started otherwise needs the plug-in, BF16 weights, ``--logprobs-mode processed_logprobs``, so that log-probabilities are
divided by the temperature, and ``--max-logprobs`` of 1 or more.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lowcomm.pulse import Missing, Store
from lowcomm.rollout.generation import Completion, Sampling
from pulse_vllm.controller import Controller, EngineError

REQUESTS = 64  # at once; the server batches them


class VllmEngine:
    """One server, which nobody else updates. ``store``: URL as the server can open it; ``options``: to its file system;
    ``base``: folder of the weights that the server loaded (None: its own model folder).

    The server batches as it likes, so the last bits of a completion may depend on what else runs, as elsewhere in vLLM;
    seeds are one a completion.
    """

    def __init__(
        self,
        url: str,
        store: str,
        public_key: bytes | None = None,
        options: dict[str, Any] | None = None,
        base: str | None = None,
        timeout_s: float = 600.0,
    ):
        self.controller = Controller(url, timeout_s)
        self.store = Store(store, public_key=public_key, options=options)
        key = public_key.hex() if public_key else None
        self.controller.initialize(store, base=base, public_key=key, options=options)
        self.version: int | None = None
        self._digest = ""

    def advance(self, version: int | None = None) -> int:
        """Raises Missing and other PatchErrors, OSError (the store), EngineError (the server)."""
        if version is None:
            version = self.store.latest()
            if version is None:
                raise Missing(
                    f"the store {self.store.root} holds no version yet; wait for its publisher, or give another"
                )
        if version == self.version:
            return version
        kind = "patch" if version in self.store.versions("patch") else "anchor"
        digest = self.store.marker(kind, version).target_digest
        try:
            self.controller.update(version, digest)
        except EngineError as error:
            if not error.paused:
                raise
            self.version = None
            self.controller.update(version, digest, full=True)
        self.version, self._digest = version, digest
        return version

    def digest(self) -> str:
        """What the server's own mirror was verified against before these weights went into the model."""
        return self._digest

    def generate(self, prompts: list[list[int]], seeds: list[int], sampling: Sampling) -> list[Completion]:
        """Raises EngineError, also if somebody else has updated the server meanwhile, ValueError before any version."""
        if self.version is None:
            raise ValueError("the engine has no weights yet: call advance() first")
        with ThreadPoolExecutor(min(len(prompts), REQUESTS)) as pool:
            out = list(pool.map(lambda p, s: self._one(p, s, sampling), prompts, seeds))
        if (held := self.controller.version()) != str(self.version):
            raise EngineError(
                f"the server went to version {held} while it generated with {self.version}: one owner each"
            )
        return out

    def _one(self, prompt: list[int], seed: int, sampling: Sampling) -> Completion:
        how = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k, "seed": seed}
        answer = self.controller.complete(
            prompt, sampling.max_new_tokens, **how, logprobs=0, return_token_ids=True, return_tokens_as_token_ids=True
        )
        choice = answer["choices"][0]
        tokens, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        if not tokens or len(tokens) != len(logprobs):
            raise EngineError(f"the server answered {len(tokens)} tokens and {len(logprobs)} log-probabilities")
        return Completion(tokens, logprobs, choice["finish_reason"] == "stop", self.version)
