"""The configuration of a measurement: where the weights come from, which codec, whether time is taken."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lowcomm.blocks import ConfigError, check_block, nearest
from lowcomm.config import load_config
from lowcomm.patches.codecs import names
from lowcomm.schema import ScaleConfig


@dataclass
class PatchesConfig:
    """A whole measurement of `lowcomm.patches`."""

    source: dict[str, Any] = field(default_factory=dict)  # block: (seed) -> versions of weights
    codec: str = MISSING  # packed | paper | history | full | dense | <layout>+<compressor>
    repeats: int = 0  # of every timing, of which the median counts; 0: no time is taken (a busy machine)
    scale: ScaleConfig = field(default_factory=ScaleConfig)  # only its name, and its threads
    seed: int = 0


ConfigStore.instance().store(name="patches_schema", node=PatchesConfig)


def checked(overrides: list[str]) -> DictConfig:
    """`conf/patches.yaml` with overrides, every key and value checked. Raises ConfigError."""
    cfg = load_config(overrides, "patches")
    try:
        plain = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
        cfg = OmegaConf.merge(OmegaConf.structured(PatchesConfig), plain)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from error
    check_block("source", cfg.source)
    if cfg.codec not in names():
        raise ConfigError(f"codec={cfg.codec}: choose one of {', '.join(names())}{nearest(cfg.codec, names())}")
    if cfg.repeats < 0:
        raise ConfigError(f"repeats={cfg.repeats}: must be 0 (no timing) or more")
    return cfg


def identity(cfg: DictConfig) -> dict[str, Any]:
    """What decides the result, as plain JSON values."""
    plain = OmegaConf.to_container(cfg, resolve=True)
    return plain | {"scale": {name: plain["scale"][name] for name in ("name", "threads")}}


def digest(cfg: DictConfig) -> str:
    """SHA-256 of the identity (64 hexadecimal digits)."""
    return hashlib.sha256(json.dumps(identity(cfg), sort_keys=True).encode()).hexdigest()
