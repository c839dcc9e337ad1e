"""Where the trainer's text comes from: its own process, or rollout workers that follow the published weights."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from lowcomm.pulse import Store
from lowcomm.rollout import Completion, Job
from lowcomm.rollout.generation import generate_job
from lowcomm.rollout.transformers_engine import TransformersEngine


class Rollouts(Protocol):
    """Answers jobs, each with the weights of one version in [at_least, at_most]."""

    def generate(self, jobs: list[Job], at_least: int, at_most: int) -> list[list[Completion]]:
        """Completions of every job, one a seed, in the order of the jobs."""
        ...

    def close(self) -> None:
        """The run has ended: no more jobs."""
        ...


class Inline:
    """In this process, job by job, on the newest version allowed."""

    def __init__(self, engine: TransformersEngine):
        self.engine = engine

    def generate(self, jobs: list[Job], at_least: int, at_most: int) -> list[list[Completion]]:
        self.engine.advance(at_most)
        return [generate_job(self.engine, job) for job in jobs]

    def close(self) -> None:
        pass


class DirectEngine(TransformersEngine):
    """Takes the trainer's weights, cast to BF16, without a store (`sync=none`).

    ``params``: the trainer's; ``version``: says which version they are now. Any other is refused with ValueError.
    """

    def __init__(self, model, params: Mapping[str, Tensor], now: Callable[[], int], eos: frozenset[int]):
        super().__init__(model, Store("memory://lowcomm-rl-nothing-published"), eos)
        self.source, self.now = params, now

    def advance(self, version: int | None = None) -> int:
        """Take the trainer's weights as they are now. Raises ValueError for any ``version`` but that."""
        if version not in (None, self.now()):
            raise ValueError(f"version={version}: nothing is published, only the weights of {self.now()} are there")
        with torch.no_grad():
            for name, p in self.source.items():
                self.params[name].copy_(p.to(torch.bfloat16))
        self.version = self.now()
        return self.version
