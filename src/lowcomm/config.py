"""The configuration: its shape (dataclasses), its strict check, and what identifies a run.

Values live in `conf/`; this file holds no hyperparameter. A *block* is a node with `_target_` and keyword
arguments; it is checked against the signature of its target (see `lowcomm.blocks`).
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lowcomm.blocks import ConfigError, check_block, nearest

CONF = Path(__file__).resolve().parents[2] / "conf"


@dataclass
class ModelConfig:
    name: str = MISSING
    family: str = MISSING  # llama | qwen2 | gemma3 | vit
    weights: str = "random"  # random | hub | local
    hub: str | None = None
    revision: str | None = None  # a commit hash: a branch name is refused
    path: str | None = None
    dtype: str = "float32"  # float32 masters | bfloat16 parameters, a labelled option
    config: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the Hugging Face config class


@dataclass
class ScheduleConfig:
    """Learning rate over all inner steps of the run, as factors of `inner.lr`."""

    shape: str = MISSING  # cosine | linear | constant, after the warm-up
    warmup: float = 0.0  # fraction of all steps
    start: float = 0.0  # factor at the beginning of the warm-up
    final: float = 0.0  # factor at the last step


@dataclass
class AlgorithmConfig:
    name: str = MISSING
    inner: dict[str, Any] = field(default_factory=dict)  # block: (parameters, ...) -> torch optimizer
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    clip: float | None = None  # gradient norm of one inner step
    inner_steps: int | None = None  # H; null: synchronous training, gradients averaged at every step
    compressor: dict[str, Any] | None = None  # block, one per worker
    aggregator: dict[str, Any] | None = None  # block: (W, *shape) -> (*shape)
    outer: dict[str, Any] | None = None  # block: torch optimizer on theta


@dataclass
class ScaleConfig:
    name: str = MISSING
    batch: int = MISSING  # samples of one inner step, see `budget`
    steps: int | None = None  # inner steps of each worker
    tokens_per_parameter: float | None = None  # sets steps when they are null
    eval_every: int = MISSING  # steps
    eval_samples: int = MISSING
    eval_batch: int = MISSING
    checkpoint_every: int = MISSING  # steps
    device: str = "cpu"  # cpu | cuda
    precision: str = "fp32"  # fp32 | bf16 (autocast over FP32 weights)
    threads: int = 1  # OpenMP threads of a process; part of the run's identity, as it may move the last bit


@dataclass
class LoggerConfig:
    wandb: str = "disabled"  # disabled | offline | online
    project: str = "lowcomm"
    progress: bool = True


@dataclass
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    workload: dict[str, Any] = field(default_factory=dict)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    seed: int = 0
    workers: int = 1  # W logical workers, on any number of ranks that divides it
    budget: str = "shared"  # shared: `scale.batch` is split over the workers | per_worker: each has its own
    state: str = "device"  # where an idle worker's weights and moments rest: device | cpu | disk (in the run directory)
    run_dir: str | None = None  # default: runs/<run name>
    stop_after: int | None = None  # stop cleanly after so many inner steps of this process, to be resumed


ConfigStore.instance().store(name="schema", node=Config)

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

    groups = [o for o in overrides if is_group(o.partition("=")[0])]
    for group, _, option in (o.partition("=") for o in groups):
        options = sorted({path.stem for root in roots for path in (root / group).glob("*.yaml")})
        if option not in (*options, "null"):
            return f"{group}={option}: there is no such option{nearest(option, options)}; choose {', '.join(options)}"
    try:
        known = flat_keys(compose(primary, groups))
    except Exception:
        return message
    for override in overrides:
        key = override.lstrip("+~").split("=")[0]
        if "/" not in key and key not in known and not is_group(key):
            return f"{override}: there is no key '{key}'{nearest(key, known)}"
    return message


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
    check_values(merged)
    return merged


def conform(cfg: DictConfig, schema: type) -> DictConfig:
    """Resolve and merge onto the dataclass; keys are free in the workload, the model's config and algorithm blocks."""
    known = flat_keys(OmegaConf.structured(schema))
    try:
        plain = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
        for key in flat_keys(plain):
            parent = key.rpartition(".")[0]
            free = any(key.startswith(p) for p in ("workload.", "model.config.")) or is_block(plain, key)
            if not free and key not in known and (parent in known or not parent):
                raise ConfigError(f"+{key}={OmegaConf.select(plain, key)}: there is no such key{nearest(key, known)}")
        merged = OmegaConf.merge(OmegaConf.structured(schema), plain)
    except OmegaConfBaseException as error:
        why = str(error).splitlines()[0]
        if "'workload." in why:
            why = f"model and workload do not go together, a ViT takes images and the other models text ({why})"
        raise ConfigError(why) from error
    if missing := sorted(OmegaConf.missing_keys(merged)):
        raise ConfigError(f"{missing[0]}: has no value; leave out the ~ or give one")
    return merged


def is_block(cfg: DictConfig, key: str) -> bool:
    return any(key.startswith(f"algorithm.{name}.") for name in ("inner", "compressor", "aggregator", "outer"))


def check_values(cfg: DictConfig) -> None:
    """Ranges and combinations; raises ConfigError."""
    a, s = cfg.algorithm, cfg.scale

    def need(ok: bool, key: str, why: str) -> None:
        if not ok:
            raise ConfigError(f"{key}={OmegaConf.select(cfg, key)}: {why}")

    def one_of(key: str, *options: str) -> None:
        value = OmegaConf.select(cfg, key)
        need(value in options, key, f"must be one of {', '.join(options)}{nearest(str(value), options)}")

    one_of("budget", "shared", "per_worker")
    one_of("scale.device", "cpu", "cuda")
    one_of("state", "device", "cpu", "disk")
    one_of("scale.precision", "fp32", "bf16")
    one_of("model.dtype", "float32", "bfloat16")
    one_of("logger.wandb", "disabled", "offline", "online")
    one_of("algorithm.schedule.shape", "cosine", "linear", "constant")
    for key in ("workers", "scale.batch", "scale.eval_every", "scale.eval_samples", "scale.eval_batch",
                "scale.checkpoint_every", "scale.threads"):  # fmt: skip
        need(OmegaConf.select(cfg, key) >= 1, key, "must be at least 1")
    need(s.threads <= 1024, "scale.threads", "more than OpenMP can start; take at most the number of cores")
    need(0 <= cfg.seed < 2**32, "seed", "must lie in [0, 2**32)")
    need(a.inner_steps is None or a.inner_steps >= 1, "algorithm.inner_steps", "H must be at least 1")
    need(a.clip is None or a.clip > 0, "algorithm.clip", "must be positive, or null for no clipping")
    need(0 <= a.schedule.warmup < 1, "algorithm.schedule.warmup", "is a fraction of all steps, in [0, 1)")
    for key in ("start", "final"):
        need(0 <= a.schedule[key] <= 1, f"algorithm.schedule.{key}", "is a factor of the peak rate, in [0, 1]")
    need((cfg.model.family == "vit") == ("image_size" in cfg.workload), "model.family",
         f"does not go with workload={cfg.workload.name}: a ViT takes images, the other models text")  # fmt: skip
    for ours, theirs in {"vocab_size": "vocab_size", "image_size": "image_size", "num_channels": "channels",
                         "num_labels": "num_classes"}.items():  # fmt: skip
        value, data = cfg.model.config.get(ours), cfg.workload.get(theirs)
        if value is not None and data is not None:
            fits = value >= data if ours in ("vocab_size", "num_labels") else value == data
            need(fits, f"model.config.{ours}", f"does not fit workload.{theirs}={data}; leave it out")
    need(cfg.stop_after is None or cfg.stop_after >= 1, "stop_after", "must be at least 1, or null")
    need(s.steps is None or s.steps >= 1, "scale.steps", "must be at least 1")
    need(s.tokens_per_parameter is None or 0 < s.tokens_per_parameter < float("inf"), "scale.tokens_per_parameter",
         "must be positive")  # fmt: skip
    need((s.steps is None) != (s.tokens_per_parameter is None), "scale.steps",
         "set exactly one of scale.steps and scale.tokens_per_parameter (the other null)")  # fmt: skip
    if cfg.budget == "shared":
        need(s.batch % cfg.workers == 0, "workers",
             f"does not divide scale.batch={s.batch}; choose a divisor, or budget=per_worker")  # fmt: skip
    for name in ("aggregator", "outer", "compressor"):
        need((a.inner_steps is None) == (a[name] is None), f"algorithm.{name}",
             "rounds need inner_steps, compressor, aggregator and outer, synchronous training none")  # fmt: skip
    if a.outer:
        momentum, nesterov = a.outer.get("momentum", 0.0), a.outer.get("nesterov", False)
        need(isinstance(momentum, int | float) and 0 <= momentum < 1, "algorithm.outer.momentum", "must lie in [0, 1)")
        need(not (nesterov and momentum == 0), "algorithm.outer.nesterov",
             "Nesterov needs momentum > 0; for plain SGD take algorithm/outer=sgd")  # fmt: skip
        need(a.outer.get("lr", 1.0) >= 0, "algorithm.outer.lr", "must not be negative")


def identity(cfg: DictConfig) -> dict[str, Any]:
    """The part of a checked config that decides the result of a run, as plain JSON values."""
    plain = OmegaConf.to_container(cfg, resolve=True)
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
