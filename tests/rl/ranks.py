"""Several trainers as torchrun would start them: forks of this process, which has imported TRL already."""

import os
import signal
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

from lowcomm.rl import run_overrides
from tests.rl.runs import TINY

LIMIT = 280  # s, against a hang


def run_ranks(ranks: int, folder: Path, *overrides: str, before: Callable[[int], None] | None = None) -> list[int]:
    """Exit codes of the ranks, by rank: 0, 1 with a traceback on stderr, or minus the signal that ended it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = [os.fork() or _rank(rank, ranks, port, folder, overrides, before) for rank in range(ranks)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _rank(rank: int, ranks: int, port: int, folder: Path, overrides: tuple[str, ...], before) -> None:
    """Never returns."""
    code = 1
    try:
        signal.alarm(LIMIT)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
        if before:
            before(rank)
        run_overrides([*TINY, f"run_dir={folder}", f"workers={ranks}", *overrides])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
