"""What is asked of an engine and what it answers. Imports nothing heavy: trainer, worker and tests share it."""

import hashlib
import math
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; ``temperature`` 0 is greedy.

    With ``top_p`` below 1 or ``top_k`` above 0 the sampler draws from a truncated distribution, while log-probabilities
    stay those of the whole one, as the trainer computes them: the importance ratio is then biased (`biased`).
    Raises ValueError out of range.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all

    def __post_init__(self):
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}: at least one token is generated")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature={self.temperature}: a finite number; 0 is greedy, 1 the model itself")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: a share of the probability in (0, 1]; 1 keeps all")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k}: a number of tokens; 0 keeps all")

    @property
    def biased(self) -> bool:
        """Whether tokens come from another distribution than the one whose log-probabilities are returned."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


@dataclass
class Completion:
    """``tokens`` up to and with the first end token, at least one. ``logprobs``: of these tokens, natural logarithm,
    logits divided by the temperature (greedy: undivided). ``finished``: an end token was drawn. ``version``: of the
    weights that drew all of it."""

    tokens: list[int]
    logprobs: list[float]
    finished: bool
    version: int


@dataclass(frozen=True)
class Job:
    """One prompt group: the repeats of one prompt, one seed each. The unit that a worker takes, so that a completion
    is bitwise the same whichever worker of one kind makes it and whatever else runs."""

    prompt: list[int]
    seeds: list[int]
    sampling: Sampling

    def __post_init__(self):
        if not self.prompt:
            raise ValueError("prompt=[]: at least one token is needed to start from")
        if not self.seeds or not all(0 <= seed < 2**63 for seed in self.seeds):
            raise ValueError(f"seeds={self.seeds}: one for each completion, at least one, in [0, 2**63)")


class Engine(Protocol):
    """Generates with the weights of exactly one published version at a time."""

    version: int | None  # None before the first `advance`

    def advance(self, version: int | None) -> int:
        """Take the weights of ``version`` (None: the newest), verified, all or none; return it. Raises PatchError."""

    def digest(self) -> str:
        """32 hexadecimal digits (`lowcomm.pulse.digest`) of the BF16 weights that it generates with."""

    def generate(self, prompts: list[list[int]], seeds: list[int], sampling: Sampling) -> list[Completion]:
        """One completion for each prompt and its seed, in order."""


def generate_job(engine: Engine, job: Job) -> list[Completion]:
    """One completion for each seed of the job, in order."""
    return engine.generate([job.prompt] * len(job.seeds), job.seeds, job.sampling)


def seed_of(*keys: int | str) -> int:
    """A seed in [0, 2**63) that is a function of the keys alone: run seed, optimizer step, prompt index, repeat."""
    text = "\0".join(str(k) for k in keys)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
