"""The hub, asked once: what is cached needs no network, and a hub that can't be reached is said at once."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants, snapshot_download

FILES = ["*.json", "*.safetensors", "*.jinja"]
INPUTS = ("tokenizer.json", "preprocessor_config.json")  # one is there unless others took the weights alone
PATIENCE_S = 10.0  # for the first answer; the hub's own client tries six times


def snapshot(hub: str, revision: str) -> Path:
    """The folder of a commit: as cached when the cache has all of it, else completed; without a tokenizer where the hub
    can't be reached. Raises OSError with the reason: offline, not to be reached, gated, unknown, a full disk.
    """
    weights = False
    try:
        cached = Path(snapshot_download(hub, revision=revision, allow_patterns=FILES, local_files_only=True))
        weights = absent(cached) is None
        if weights and any((cached / name).is_file() for name in INPUTS):
            return cached
    except FileNotFoundError:  # the hub's word for a snapshot that is not there, or not whole
        pass
    if (reason := unreachable()) is not None:
        if weights:
            return cached
        raise OSError(f"it is not in the cache {constants.HF_HUB_CACHE}, and {reason}")
    return Path(snapshot_download(hub, revision=revision, allow_patterns=FILES))


def absent(folder: Path) -> str | None:
    """The first file that a checkpoint folder lacks, config.json or one of its safetensors weights; None if whole."""
    index = folder / "model.safetensors.index.json"
    weights = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    return next((name for name in ("config.json", *sorted(weights)) if not (folder / name).is_file()), None)


@contextmanager
def asking(what: str, remedy: str) -> Iterator[None]:
    """Within it others look for a dataset or a tokenizer: a hub that can't be reached is asked once and what is cached
    will do. Raises OSError naming `what`, the reason and the remedy when it is not cached either.
    """
    offline, reason = constants.HF_HUB_OFFLINE, unreachable()
    constants.HF_HUB_OFFLINE = reason is not None
    try:
        yield
    except OSError as error:
        if reason is None:
            raise
        raise OSError(f"{what} is not in the cache, and {reason}; {remedy}") from error
    finally:
        constants.HF_HUB_OFFLINE = offline


def of_commit(data: Any, revision: str) -> Any:
    """The dataset itself: without the hub `datasets` takes what is newest in its cache, whatever commit was asked for.

    Raises OSError for another commit.
    """
    if other := [file["filename"] for file in data.cache_files if revision not in Path(file["filename"]).parts]:
        raise OSError(f"{other[0]} is not of commit {revision}; ask the hub once, which then has both in the cache")
    return data


def unreachable() -> str | None:
    """Why the hub can't be asked, after one connection instead of a series of attempts; None if it can.

    A proxy is left to whoever asks.
    """
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids to ask the hub"
    address = urlsplit(constants.ENDPOINT)
    if getproxies():
        return None
    try:
        port = address.port or {"http": 80}.get(address.scheme, 443)
        socket.create_connection((address.hostname, port), timeout=PATIENCE_S).close()
    except OSError as error:
        return f"{address.hostname} can't be reached: {error.strerror or error}"
    return None
