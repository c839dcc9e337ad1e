"""What surrounds a run in its process: ranks, threads, signals, peak memory."""

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from omegaconf import DictConfig

from lowcomm import models
from lowcomm.blocks import ConfigError
from lowcomm.models.checkpoint import checkpoint_architecture


def check_machine(cfg: DictConfig) -> None:
    """What needs no data: the model's config, a device that can hold weights and gradients, and where ready weights
    come from (not yet those that are trained first). Raises ConfigError.
    """
    models.architecture(cfg.model)
    count = models.parameter_count(cfg.model) if cfg.model.weights == "random" else 0
    need = 2 * count * (2 if cfg.model.dtype == "bfloat16" else 4)
    if cfg.scale.device == "cpu":
        have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    elif torch.cuda.is_available():
        have = torch.cuda.get_device_properties(int(os.environ.get("LOCAL_RANK", 0))).total_memory
    else:
        raise ConfigError("scale.device=cuda: torch finds no CUDA device here; take scale.device=cpu or scale=cpu")
    if need > have:
        raise ConfigError(
            f"model.name={cfg.model.name}: weights and gradients take {need / 1e9:.1f} GB, this machine has "
            f"{have / 1e9:.1f} GB for them (scale.device={cfg.scale.device}); choose a smaller model"
        )
    if cfg.model.weights in ("local", "hub", "package"):
        checkpoint_architecture(cfg.model, models.checkpoint_folder(cfg.model))


@contextlib.contextmanager
def process_group(device: str) -> Iterator[None]:
    """Join the ranks that torchrun or a submitit job started; do nothing when there is one process."""
    if "RANK" not in os.environ or dist.is_initialized():
        yield
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Rank 0 alone prepares a corpus and evaluates; the others wait, longer than torch's 10 or 30 minutes. Losses are
    # gathered from CPU memory, so an accelerator's ranks need both.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=timedelta(days=1))
    try:
        yield
    finally:
        dist.destroy_process_group()


def name_ranks() -> None:
    """Give the tasks of a submitit job (`hydra/launcher=submitit_slurm`) the names that torchrun gives its ranks."""
    if "SUBMITIT_EXECUTOR" not in os.environ or "RANK" in os.environ:
        return
    from submitit import JobEnvironment
    from submitit.helpers import TorchDistributedEnvironment

    if JobEnvironment().num_tasks > 1:
        job = TorchDistributedEnvironment()
        for name in ("master_addr", "master_port", "rank", "world_size", "local_rank", "local_world_size"):
            os.environ.setdefault(name.upper(), str(getattr(job, name)))  # an address of the user's own stays


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """So many OpenMP threads within the block, as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM fill the list instead of ending the process; a second one ends it. An ignored one stays so.

    Who pressed Ctrl-C is told, as a step may take minutes.
    """
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        if number == signal.SIGINT:
            with contextlib.suppress(OSError):  # nobody reads; and no logging from within whatever was interrupted
                os.write(2, b"\nstopping as soon as all is saved; Ctrl-C again ends at once\n")

    try:
        heard = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) != signal.SIG_IGN]
        kept = {s: signal.signal(s, note) for s in heard}
    except ValueError:  # not in the main thread: the caller handles signals
        kept = {}
    try:
        yield caught
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def reset_peak_memory() -> None:
    """Begin a new measurement of `peak_memory`, where the system can (Linux, CUDA)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Bytes: the most this process held since `reset_peak_memory`; the accelerator's where there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
