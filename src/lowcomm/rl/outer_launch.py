"""Several trainers without torchrun: this process starts them on its machine, one a rank, and waits for the record."""

import logging
import multiprocessing
import os
import signal
import socket
from multiprocessing.connection import wait
from multiprocessing.queues import SimpleQueue
from typing import Any

from omegaconf import DictConfig
from safetensors import SafetensorError

from lowcomm.blocks import ConfigError
from lowcomm.command import Stopped
from lowcomm.outer.exchange import ConsensusError
from lowcomm.pulse.errors import PatchError
from lowcomm.rollout.dispatcher import RolloutError
from lowcomm.session import stop_signals

# what a trainer may end with, the special before the general
ENDS = (ConfigError, FloatingPointError, Stopped, RolloutError, PatchError, ConsensusError, SafetensorError,
        ConnectionError, OSError)  # fmt: skip
TELLS = {kind.__name__: kind for kind in ENDS}


def launches(cfg: DictConfig) -> bool:
    """Whether the configuration asks for several trainers and nobody has started them."""
    return cfg.workers > 1 and "WORLD_SIZE" not in os.environ


def launch(cfg: DictConfig, overrides: list[str], claim: dict[str, Any] | None) -> dict[str, Any]:
    """Run ``cfg``, which ``overrides`` make, with its trainers as child processes; its record.

    Raises as `lowcomm.rl.run.run`; ConnectionError where a trainer dies: the others are then ended, and the same call
    goes on from the last checkpoint. A signal is passed on to the trainers, which stop at the next outer step.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    told = context.SimpleQueue()
    level = logging.getLogger().getEffectiveLevel()
    ranks = [context.Process(target=trainer, args=(rank, cfg.workers, port, overrides, claim, told, level))
             for rank in range(cfg.workers)]  # fmt: skip
    with stop_signals() as caught:
        for process in ranks:
            process.start()
        passed_on, left = False, list(ranks)
        try:
            while left and all(process.exitcode in (None, 0) for process in ranks):
                wait([process.sentinel for process in left], timeout=0.5)
                left = [process for process in left if process.exitcode is None]
                if caught and not passed_on:
                    passed_on = True
                    for process in left:
                        os.kill(process.pid, signal.SIGTERM)
            for process in left:  # one has failed: the others fail on it, or wait for it
                process.join(timeout=5)
        finally:
            for process in ranks:
                process.kill()
                process.join()
    if failed := next((process for process in ranks if process.exitcode), None):
        if not told.empty():
            kind, message = told.get()
            raise TELLS[kind](message)
        raise ConnectionError(f"trainer {ranks.index(failed)} ended with {failed.exitcode}")
    from lowcomm.results import record
    from lowcomm.run_dir import run_dir_of

    return record.read(run_dir_of(cfg) / "record.json")


def trainer(rank: int, ranks: int, port: int, overrides: list[str], claim: dict[str, Any] | None,
            told: SimpleQueue, level: int) -> None:  # fmt: skip
    """A child process: its variables are as torchrun sets them; what went wrong is told to the parent."""
    os.setsid()  # a terminal's signals go to the parent alone
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
    logging.basicConfig(level=logging.WARNING if rank else level, format="%(message)s")
    from lowcomm.rl import run_overrides

    try:
        run_overrides(overrides, claim)
    except tuple(TELLS.values()) as error:
        told.put((next(name for name, kind in TELLS.items() if isinstance(error, kind)), str(error)))
        raise SystemExit(1) from None
