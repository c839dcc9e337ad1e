"""Blocks: config nodes with `_target_` and keyword arguments, checked against the target before any work."""

import difflib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_origin

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

HYDRA_KEYS = {"_target_", "_partial_"}
SEED = "seed"  # passed at the build
T = TypeVar("T")


class ConfigError(ValueError):
    """A mistake in the configuration: one message with the key, its value and the remedy."""


def as_config_error(call: Callable[..., T], *args: Any) -> T:
    """Rooms that know no configuration raise ValueError, or OSError for a place that is none; before the first step
    it is one of the configuration.

    Returns what the call returns. Raises ConfigError in their place.
    """
    try:
        return call(*args)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error


def nearest(word: str, options: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest option, or an empty string."""
    last = {o.rpartition(".")[2]: o for o in options}
    close = difflib.get_close_matches(word, list(options), n=1, cutoff=0.6) or [
        last[m] for m in difflib.get_close_matches(word.rpartition(".")[2], list(last), n=1, cutoff=0.6)
    ]
    return f"; did you mean '{close[0]}'?" if close else ""


def check_block(path: str, block: DictConfig) -> None:
    """Compare a block's keys and the kinds of its values with the signature of its target. Raises ConfigError."""
    if "_target_" not in block:
        raise ConfigError(f"{path}: has no _target_; choose an option of this group on the command line")
    try:
        target = pkgutil.resolve_name(block["_target_"])
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path}._target_={block['_target_']}: cannot be imported ({error})") from error
    arguments = inspect.signature(target).parameters
    for key, value in block.items():
        if key in HYDRA_KEYS:
            continue
        if key == SEED:
            raise ConfigError(f"{path}.{key}={value}: the run's seed is used everywhere; set seed={value}")
        if key not in arguments:
            hint = nearest(key, arguments).replace("'", f"'{path}.", 1)
            hint = hint or f"; it takes {', '.join(a for a in arguments if a != SEED)}"
            raise ConfigError(f"{path}.{key}={value}: {block['_target_']} takes no '{key}'{hint}")
        argument = arguments[key]
        if get_origin(argument.annotation) is not Sequence:  # as many values as one likes
            check_kind(f"{path}.{key}", value, argument.default)
    for key, argument in arguments.items() if not block.get("_partial_") else ():
        if argument.kind is argument.KEYWORD_ONLY and argument.default is argument.empty and key not in (*block, SEED):
            raise ConfigError(f"{path}.{key}: missing, {block['_target_']} needs it; leave out the ~ or give a value")


def check_kind(key: str, value: Any, default: Any) -> None:
    """A number where the default is a number, a truth value where it is one. Raises ConfigError."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, bool):
        if not isinstance(value, bool | None):
            raise ConfigError(f"{key}={value}: must be true or false")
    elif isinstance(default, int | float) and not number:
        raise ConfigError(f"{key}={value}: must be a number")
    elif isinstance(default, tuple) and not (isinstance(value, Sequence) and len(value) == len(default)):
        raise ConfigError(f"{key}={value}: must be {len(default)} values, as in {key}={list(default)}")


def build(path: str, block: DictConfig, *args: Any, **kwargs: Any) -> Any:
    """Instantiate a block. Raises ConfigError with the block's path for an error of the target's own range checks."""
    try:
        return instantiate(OmegaConf.to_container(block, resolve=True), *args, **kwargs, _convert_="all")
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, ValueError | TypeError | OSError):
            raise ConfigError(f"{path} ({block['_target_']}): {cause}") from cause
        raise cause from None
