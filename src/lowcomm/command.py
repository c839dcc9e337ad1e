"""What the command lines of runs share: a mistaken override is explained first, and every end is one line."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType
from hydra.errors import HydraException

from lowcomm.blocks import ConfigError

log = logging.getLogger(__name__)
FLAGS = (  # Hydra's
    "--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--multirun", "--info",
    "--shell-completion", "--config-path", "--config-name", "--config-dir", "--experimental-rerun",
)  # fmt: skip


class Stopped(Exception):
    """The run was asked to stop and has saved everything; start it again to go on."""


def explain_first(load_config: Callable[[list[str]], Any]) -> None:
    """Compose the overrides of this process once before Hydra does: its own messages name no remedy.

    Of a sweep every choice of a group is tried once. Raises SystemExit. Help is left to Hydra.
    """
    for argument in sys.argv[1:]:
        flag, equals, value = argument.partition("=")
        if argument.startswith("--") and flag not in FLAGS:
            key = flag.lstrip("-").replace("-", "_")
            raise SystemExit(f"error: {argument}: keys have no dashes; write {key}={value if equals else 'VALUE'}")
    flags = [a for a in sys.argv[1:] if a.startswith("-")]
    if any(flag not in ("-m", "--multirun", "--cfg", "-c") for flag in flags):
        return
    overrides = [a for a in sys.argv[1:] if a not in flags and (not flags or "=" in a)]  # `--cfg job` is none
    try:
        for point in points(overrides) if {"-m", "--multirun"} & {*flags} else [overrides]:
            load_config(point)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None


def points(overrides: list[str]) -> list[list[str]]:
    """Of a sweep: the first value of every key; then each further word in its place. What is Hydra's is left out."""
    try:
        parsed = OverridesParser.create().parse_overrides([o for o in overrides if not o.startswith("hydra")])
    except HydraException:
        return [overrides]  # to be explained
    sweeps = [o for o in parsed if o.value_type not in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP)]
    axes = [[f"{o.get_key_element()}={v}" for v in o.sweep_string_iterator()] if o.is_sweep_override()
            else [o.input_line] for o in sweeps]  # fmt: skip
    first = [values[0] for values in axes]
    words = [(i, v) for i, values in enumerate(axes) for v in values[1:] if v.partition("=")[2][:1].isalpha()]
    return [first, *([*first[:i], v, *first[i + 1 :]] for i, v in words)]


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
