"""What the command lines of runs share: a mistaken override is explained first, and every end is one line."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lowcomm.blocks import ConfigError

log = logging.getLogger(__name__)


class Stopped(Exception):
    """The run was asked to stop and has saved everything; start it again to go on."""


def explain_first(load_config: Callable[[list[str]], Any]) -> None:
    """Compose the overrides of this process once before Hydra does: its own messages name no remedy.

    Raises SystemExit. What has flags beside overrides is left to Hydra.
    """
    overrides = [a for a in sys.argv[1:] if not a.startswith("-")]
    if len(overrides) == len(sys.argv) - 1:
        try:
            load_config(overrides)
        except ConfigError as error:
            raise SystemExit(f"error: {error}") from None


@contextlib.contextmanager
def one_line(*interruptions: type[Exception]) -> Iterator[None]:
    """Mistakes, interruptions and stops of a run within the block end the process in one line: raises SystemExit.

    ``interruptions``: errors after which the same command goes on from the last checkpoint.
    """
    try:
        yield
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    except FloatingPointError as error:
        raise SystemExit(f"stopped: {error}; the last good checkpoint is kept") from None
    except interruptions as error:
        raise SystemExit(f"stopped: {error}; run the same command to go on from the last checkpoint") from None
    except Stopped as note:
        raise SystemExit(f"{note}") from None


def final_loss(record: dict[str, Any], folder: Path) -> float:
    """Say what came out and where it lies; the loss, for sweeps. 0.0 where another rank has the record."""
    if not record:
        return 0.0
    metrics = record["outcome"]["metrics"]
    log.info("%s: %s", folder, ", ".join(f"{k} {v:.4f}" for k, v in metrics.items()))
    return metrics["loss"]
