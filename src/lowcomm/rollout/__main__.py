"""An inference worker: follows the published weights and generates for a trainer. Several may serve one trainer.

    python -m lowcomm.rollout store=URL trainer=HOST:PORT model=FOLDER token_file=FILE

It may start before the trainer, after it, or in the middle of a run; it survives the trainer's restart. Stop it with
SIGTERM or Ctrl-C: its job goes to another worker. All keys and their defaults: conf/rollout.yaml.
"""

import logging
import os
import signal
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lowcomm.blocks import ConfigError, nearest

CONF = Path(__file__).resolve().parents[3] / "conf" / "rollout.yaml"
TOKEN = "LOWCOMM_ROLLOUT_TOKEN"
log = logging.getLogger("lowcomm.rollout")


@dataclass
class RolloutConfig:
    """The keys of conf/rollout.yaml, which says what they mean."""

    store: str = MISSING
    store_options: dict[str, Any] = field(default_factory=dict)
    public_key: str | None = None
    trainer: str = MISSING
    token_file: str | None = None
    engine: str = MISSING
    model: str | None = None
    vllm: str = MISSING
    base: str | None = None
    device: str = MISSING
    threads: int = MISSING
    name: str | None = None
    parent: int | None = None
    wait_limit_s: float = MISSING


class Stop(BaseException):
    """SIGTERM or SIGINT; no failure of a job, hence no Exception."""


def load(overrides: list[str]) -> DictConfig:
    """conf/rollout.yaml and the command line, checked. Raises ConfigError."""
    known = list(RolloutConfig.__dataclass_fields__)
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals or key.split(".")[0] not in known:
            raise ConfigError(f"{override}: there is no key '{key}'{nearest(key, known)}; write key=value")
    # a text as it stands: YAML ends a path at " #", and [::1]:7117 is no list
    plain = {f.name for f in fields(RolloutConfig) if f.type in (str, str | None)}
    said = {key: value for key, _, value in (o.partition("=") for o in overrides) if key in plain}
    texts = {key: None if value in ("", "null") else value for key, value in said.items()}
    others = OmegaConf.from_dotlist([o for o in overrides if o.partition("=")[0] not in plain])
    try:
        cfg = OmegaConf.merge(OmegaConf.structured(RolloutConfig), OmegaConf.load(CONF), others, texts)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(f"{missing[0]}: has no value; see conf/rollout.yaml")
    for key, options in {"engine": ("transformers", "vllm"), "device": ("cpu", "cuda")}.items():
        if cfg[key] not in options:
            raise ConfigError(f"{key}={cfg[key]}: one of {', '.join(options)}{nearest(cfg[key], options)}")
    for key in ("threads", "wait_limit_s"):
        if cfg[key] <= 0:
            raise ConfigError(f"{key}={cfg[key]}: must be positive")
    if cfg.engine == "transformers" and cfg.model is None:
        raise ConfigError("model=null: the folder with the model's config.json")
    return cfg


def secret(cfg: DictConfig) -> str:
    """The token. Raises ConfigError."""
    if cfg.token_file is None and not os.environ.get(TOKEN):
        raise ConfigError(f"token_file=null: give the trainer's token file, or set {TOKEN}")
    where = "; give the one that the trainer's rollout.json names"
    return os.environ[TOKEN] if cfg.token_file is None else _read("token_file", cfg.token_file, where)


def _read(key: str, path: str, remedy: str = "") -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError(f"{key}={path}: {error.strerror}{remedy}") from error


def engine(cfg: DictConfig):
    """The engine of the configuration, without weights yet. Raises ConfigError."""
    try:
        key = bytes.fromhex(_read("public_key", cfg.public_key)) if cfg.public_key else None
        options = OmegaConf.to_container(cfg.store_options)
        if cfg.engine == "vllm":
            from lowcomm.rollout.vllm_engine import VllmEngine

            return VllmEngine(cfg.vllm, cfg.store, key, options or None, cfg.base)
        import torch

        from lowcomm.pulse import Store
        from lowcomm.rollout.transformers_engine import TransformersEngine, skeleton

        torch.set_num_threads(cfg.threads)
        store = Store(cfg.store, public_key=key, options=options)
        return TransformersEngine(skeleton(cfg.model, cfg.device), store, threads=cfg.threads)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error


def main(overrides: list[str]) -> None:
    """Serve until stopped; returns on SIGTERM and SIGINT."""
    from lowcomm.rollout.local import end_with
    from lowcomm.rollout.worker import Refused, Worker

    def stop(number: int, frame: Any) -> None:
        raise Stop

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    worker = None
    try:
        cfg = load(overrides)
        if cfg.parent is not None:
            end_with(cfg.parent)
        name = cfg.name or f"worker-{os.getpid()}"
        worker = Worker(engine(cfg), cfg.trainer, secret(cfg), name, cfg.engine, cfg.wait_limit_s)
        worker.run()
    except Stop:
        log.info("stopped after %d jobs", worker.jobs if worker else 0)
    except (ConfigError, Refused, RuntimeError, ConnectionError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        raise SystemExit(f"{__doc__}\n{CONF.read_text()}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    main(sys.argv[1:])
