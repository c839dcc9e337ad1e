"""What the trainers of one run share beside weights: a place to publish, rollout workers, metrics, the end.

Rank 0 publishes, holds the rollout workers' door and writes; the others find all of it through the wire.
"""

import contextlib
import json
import os
import statistics
from collections.abc import Iterator
from dataclasses import asdict

import torch
from omegaconf import DictConfig

from lowcomm.blocks import ConfigError
from lowcomm.outer.workers import Wire
from lowcomm.rl.generate import Rollouts
from lowcomm.rl.publishing import EPOCH, Publishing, Sent
from lowcomm.rollout import Completion, Job, Sampling
from lowcomm.session import process_group

Values = dict[str, float]


@contextlib.contextmanager
def trainers(cfg: DictConfig) -> Iterator[Wire]:
    """Join the trainers that torchrun started, one a rank. Raises ConfigError when there are not `workers` of them, and
    ConnectionError within the block when one of the others is lost."""
    started = int(os.environ.get("WORLD_SIZE", 1))
    if started != cfg.workers:
        raise ConfigError(
            f"workers={cfg.workers}: one trainer is one process, and WORLD_SIZE={started}; start them with "
            f"torchrun --nproc-per-node {cfg.workers} -m lowcomm.rl, or say workers={started}"
        )
    if cfg.workers == 1:
        yield Wire(1)
        return
    if cfg.scale.device == "cuda":
        own_device()
    with process_group(cfg.scale.device):
        try:
            yield Wire(cfg.workers)
        except RuntimeError as error:
            if "gloo/transport" in str(error):
                raise ConnectionError("another trainer is gone, and the round with it") from error
            raise


def own_device() -> None:
    """One accelerator a rank is all that TRL may see: it takes the first, and would spread a model over several."""
    local = int(os.environ["LOCAL_RANK"])
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = seen.split(",")[local] if seen else str(local)
    os.environ["LOCAL_RANK"] = "0"


class SharedPublishing:
    """`Publishing` of rank 0 as every rank sees it; ``own`` is None on the others."""

    def __init__(self, own: Publishing | None, wire: Wire):
        self.own, self.wire, self.epoch = own, wire, own.epoch if own else 0

    def version(self, step: int) -> int:
        """The number under which the weights of `step` are, or would be, published."""
        return self.epoch * EPOCH + step

    def for_text(self, step: int, staleness: int) -> int:
        """The version of `step`: staleness of one's own choice is for one trainer, and 0 here."""
        return self.version(step)

    def publish(self, step: int) -> Sent | None:
        """Afterwards the version of `step` can be fetched by all ranks. None where another rank has published it."""
        sent = self.own.publish(step) if self.own else None
        found = self.wire.gather(torch.tensor([sent.version if sent else 0]))
        self.epoch = int(found[0]) // EPOCH
        return sent


class SharedText:
    """Rollout workers for all trainers: these ask at the same steps, rank 0's ``lead`` hands out all jobs at once."""

    def __init__(self, lead: Rollouts | None, wire: Wire):
        self.lead, self.wire = lead, wire

    def generate(self, jobs: list[Job], at_least: int, at_most: int) -> list[list[Completion]]:
        """Answers to this rank's jobs, in their order."""
        asked = self.wire.gather_bytes([json.dumps([asdict(job) for job in jobs]).encode()])
        answers = b"-"
        if self.lead:
            parts = [[job_of(fields) for fields in json.loads(part)] for part in asked]
            groups = iter(self.lead.generate([job for part in parts for job in part], at_least, at_most))
            answers = json.dumps([[[asdict(c) for c in next(groups)] for _ in part] for part in parts]).encode()
        mine = json.loads(self.wire.gather_bytes([answers])[0])[self.wire.rank]
        return [[Completion(**fields) for fields in group] for group in mine]

    def close(self) -> None:
        """Let the rollout workers go."""
        if self.lead:
            self.lead.close()


def job_of(fields: dict) -> Job:
    """From what `asdict` made of it."""
    return Job(fields["prompt"], fields["seeds"], Sampling(**fields["sampling"]))


def means(wire: Wire, steps: list[Values]) -> Values:
    """Key by key over the steps and trainers that have it; collective. A single value stays as it is."""
    mine = mean_of(steps)
    if wire.ranks == 1:
        return mine
    return mean_of([json.loads(part) for part in wire.gather_bytes([json.dumps(mine).encode()])])


def mean_of(parts: list[Values]) -> Values:
    """Key by key over the parts that have it; one part alone as it is."""
    if len(parts) == 1:
        return parts[0]
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: statistics.fmean(part[key] for part in parts if key in part) for key in keys}


def any_of(wire: Wire, asked: bool) -> bool:
    """Whether one of the trainers asks; collective."""
    return bool(wire.gather(torch.tensor([int(asked)])).any())
