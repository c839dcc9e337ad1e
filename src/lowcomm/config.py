"""The configuration: composed from `conf/`, checked strictly against `lowcomm.schema`; and what identifies a run."""

import hashlib
import json
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lowcomm.blocks import ConfigError, build, check_block, nearest
from lowcomm.ranges import check_values
from lowcomm.schema import Config

CONF = Path(__file__).resolve().parents[2] / "conf"


# What may differ between two sessions of one run.
SESSION_KEYS = ("run_dir", "stop_after", "logger", "state", "place")


def load_config(overrides: list[str], primary: str = "train", roots: tuple[Path, ...] = (CONF,)) -> DictConfig:
    """Compose `<first root>/<primary>.yaml` with command-line overrides, without starting Hydra's machinery.

    `roots`: where groups are looked for, in this order. Raises ConfigError with the nearest valid key when an override
    does not fit.
    """
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(roots[0]), version_base="1.3"):
        try:
            return compose(primary, overrides)
        except Exception as error:
            raise ConfigError(explain(error, overrides, primary, roots)) from error


def explain(error: Exception, overrides: list[str], primary: str, roots: tuple[Path, ...]) -> str:
    """One message for a failed composition: Hydra's first lines and, for a key, the nearest existing ones."""
    message = " ".join(str(error).split())
    if isinstance(error.__cause__, OmegaConfBaseException):  # it knows what is wrong with the value
        message += f": {str(error.__cause__).splitlines()[0]}"

    def is_group(name: str) -> bool:
        return any((root / name).is_dir() for root in roots)

    if mistake := misshapen(overrides, message, roots):
        return mistake
    groups = [o for o in overrides if is_group(o.partition("=")[0])]
    for group, _, option in (o.partition("=") for o in groups):
        folders = [root / group for root in roots]
        files = [(f, path) for f in folders for path in [*f.glob("*.yaml")] or f.glob("*/*.yaml")]  # or gpa/table2
        options = sorted({path.relative_to(f).with_suffix("").as_posix() for f, path in files})
        if option not in (*options, "null"):
            if primary == "train" and (CONF / "rl" / group / f"{option}.yaml").is_file():
                return f"{group}={option}: belongs to lowcomm.rl; here choose {', '.join(options)}"
            return f"{group}={option}: there is no such option{nearest(option, options)}; choose {', '.join(options)}"
    try:
        known = flat_keys(compose(primary, groups))
    except Exception:
        return message
    for override in overrides:
        key = override.lstrip("+~").split("=")[0]
        if "/" not in key and key not in known and not is_group(key):
            return f"{override}: there is no key '{key}'{nearest(key, known) or '; --help lists them'}"
    return message


def misshapen(overrides: list[str], message: str, roots: tuple[Path, ...]) -> str | None:
    """What is wrong with the form of an override or the name of a group, whatever the value; `message` is Hydra's."""
    folders = {folder.relative_to(root).as_posix() for root in roots for folder in root.rglob("*/")}
    for override in overrides:
        key, equals, value = override.lstrip("+~").partition("=")
        if not (equals and key) and not override.startswith("~"):
            return f"{override}: is no key=value; write it so, with no blanks around the ="
        if f"'{override}'" in message and "--multirun" in message:
            return f"{override}: several values are a sweep; add -m, or give one value (a list is {key}=[{value}])"
        if "/" in key and key not in folders and not key.startswith("hydra/"):
            return f"{override}: there is no group '{key}'{nearest(key, folders) or '; --help lists them'}"
    return None


def flat_keys(cfg: DictConfig, prefix: str = "") -> list[str]:
    """All dotted keys of a config, inner nodes included."""
    keys = []
    for key in cfg:
        keys.append(f"{prefix}{key}")
        if not OmegaConf.is_missing(cfg, key) and isinstance(OmegaConf.select(cfg, key), DictConfig):
            keys += flat_keys(cfg[key], f"{prefix}{key}.")
    return keys


def checked(cfg: DictConfig) -> DictConfig:
    """Resolve and merge again onto the dataclasses, so that a misspelt key fails even when given with `+`.

    Raises ConfigError naming the key, its value and the remedy, for every mistake that can be seen without data.
    """
    merged = conform(cfg, Config)
    check_block("workload", merged.workload)
    for name in ("inner", "compressor", "aggregator", "outer"):
        if merged.algorithm[name]:
            check_block(f"algorithm.{name}", merged.algorithm[name])
    check_aggregator(merged)
    check_values(merged)
    return merged


def check_aggregator(cfg: DictConfig) -> None:
    """Options of a merging rule, which it would refuse only at the first outer step. Raises ConfigError."""
    block = cfg.algorithm.aggregator
    if not block:
        return
    from lowcomm.outer.aggregate import try_out

    try:
        try_out(build("algorithm.aggregator", block))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"algorithm.aggregator ({block['_target_']}): {error}") from error


def conform(cfg: DictConfig, schema: type) -> DictConfig:
    """Resolve and merge onto the dataclass; keys are free in the workload, the model's config and algorithm blocks.

    Raises ConfigError.
    """
    known = flat_keys(OmegaConf.structured(schema))
    try:
        plain = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
        for key in flat_keys(plain):
            parent = key.rpartition(".")[0]
            free = any(key.startswith(p) for p in ("workload.", "model.config.")) or in_block(key)
            if not free and key not in known and (parent in known or not parent):
                hint = nearest(key, known) or "; --help lists them"
                raise ConfigError(f"+{key}={OmegaConf.select(plain, key)}: there is no such key{hint}")
        merged = OmegaConf.merge(OmegaConf.structured(schema), plain)
    except OmegaConfBaseException as error:
        why = str(error).splitlines()[0]
        if "'workload." in why:
            why = f"model and workload do not go together, a ViT takes images and the other models text ({why})"
        raise ConfigError(why) from error
    if missing := sorted(OmegaConf.missing_keys(merged)):
        raise ConfigError(f"{missing[0]}: has no value; leave out the ~ or give one")
    return merged


def in_block(key: str) -> bool:
    """Whether the key lies inside a block of the algorithm, whose keys are its target's."""
    return any(key.startswith(f"algorithm.{name}.") for name in ("inner", "compressor", "aggregator", "outer"))


def identity(cfg: DictConfig) -> dict[str, Any]:
    """The part of a checked config that decides the result of a run, as plain JSON values."""
    plain = OmegaConf.to_container(cfg, resolve=True)
    if not plain["model"].get("recipe"):
        plain["model"].pop("recipe", None)  # most models have none; records from before it are still those of today
    return {k: v for k, v in plain.items() if k not in SESSION_KEYS}


def digest(cfg: DictConfig) -> str:
    """SHA-256 of the run's identity, seed included (64 hexadecimal digits)."""
    return hashlib.sha256(json.dumps(identity(cfg), sort_keys=True).encode()).hexdigest()


def run_name(cfg: DictConfig) -> str:
    """Deterministic, equal on all ranks: the choices, a digest of everything but the seed, the seed."""
    rest = {k: v for k, v in identity(cfg).items() if k != "seed"}
    short = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:6]
    choices = [cfg.model.name, cfg.algorithm.name, cfg.workload.name, cfg.scale.name]
    return f"{'_'.join(choices)}-{short}/seed{cfg.seed}"
