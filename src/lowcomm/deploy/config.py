"""The settings of a deployment; their values live in conf/deploy.yaml."""

import hashlib
import json
from dataclasses import dataclass

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lowcomm.blocks import ConfigError, nearest
from lowcomm.config import CONF


@dataclass
class DeployConfig:
    """The keys of conf/deploy.yaml, which says what they mean."""

    rates: list[float] = MISSING
    delay_ms: float = MISSING
    loss: float = MISSING
    receivers: int = MISSING
    parameters: int = MISSING
    delta: float = MISSING
    versions: int = MISSING
    compute_s: float = MISSING
    cut_rate: float | None = MISSING
    cut_s: float = MISSING
    codec: str = MISSING
    seed: int = MISSING


def load(overrides: list[str]) -> DictConfig:
    """conf/deploy.yaml and the command line, checked. Raises ConfigError."""
    known = list(DeployConfig.__dataclass_fields__)
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals or key not in known:
            raise ConfigError(f"{override}: there is no key '{key}'{nearest(key, known)}; write key=value")
    try:
        file, given = OmegaConf.load(CONF / "deploy.yaml"), OmegaConf.from_dotlist(overrides)
        cfg = OmegaConf.merge(OmegaConf.structured(DeployConfig), file, given)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    checks = {
        "rates": (bool(cfg.rates) and min(cfg.rates) > 0, "Mbit/s, one or more, all positive"),
        "delay_ms": (cfg.delay_ms >= 0, "must not be negative"),
        "loss": (0 <= cfg.loss < 0.5, "a share of packets in [0, 0.5)"),
        "receivers": (1 <= cfg.receivers <= 200, "from 1 to 200"),
        "parameters": (cfg.parameters >= 1000, "at least 1000"),
        "delta": (cfg.delta > 0, "must be positive"),
        "versions": (cfg.versions >= 1, "at least 1"),
        "compute_s": (cfg.compute_s > 0, "must be positive"),
        "cut_rate": (cfg.cut_rate is None or cfg.cut_rate > 0, "Mbit/s, or null"),
        "cut_s": (cfg.cut_s > 0, "must be positive"),
        "codec": (cfg.codec in ("packed", "paper"), "packed or paper"),
        "seed": (0 <= cfg.seed < 2**32, "must lie in [0, 2**32)"),
    }
    for key, (fine, why) in checks.items():
        if not fine:
            raise ConfigError(f"{key}={cfg[key]}: {why}")
    return cfg


def digest(cfg: DictConfig) -> str:
    """SHA-256 of all settings."""
    return hashlib.sha256(json.dumps(OmegaConf.to_container(cfg), sort_keys=True).encode()).hexdigest()
