"""The configuration of an RL run: its shape and its strict check. Values live in `conf/rl/` and `conf/`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from lowcomm.blocks import ConfigError, check_block, nearest
from lowcomm.config import CONF, AlgorithmConfig, LoggerConfig, ModelConfig, conform
from lowcomm.config import load_config as load

ROOTS = (CONF / "rl", CONF)  # groups are looked for in this order
BLOCKS = ("algorithm.compressor", "algorithm.aggregator", "algorithm.outer")
METERS = ("density", "groups", "horizons", "formats", "bounds", "codecs")


@dataclass
class PromptConfig:
    style: str = MISSING  # see lowcomm.tasks.prompts
    max_tokens: int = MISSING  # longer problems are left out, and counted


@dataclass
class RlScaleConfig:
    name: str = MISSING
    steps: int = MISSING  # optimizer steps
    prompts_per_step: int = MISSING  # of each trainer
    group_size: int = MISSING  # G completions of each prompt
    micro_batch: int = MISSING  # completions of one forward and backward pass
    updates_per_rollout: int = 1  # optimizer steps that one batch of text is cut into
    max_completion: int = MISSING  # tokens
    eval_every: int = MISSING  # optimizer steps
    eval_problems: int = MISSING  # of the test split, from its start
    eval_samples: int = 1  # k sampled answers of each beside the greedy one; 1: the greedy one alone
    checkpoint_every: int = MISSING  # optimizer steps
    device: str = "cpu"  # cpu | cuda
    precision: str = "fp32"  # fp32 | bf16 (autocast over the parameters)
    threads: int = 1
    gradient_checkpointing: bool = False


@dataclass
class LossConfig:
    """As in TRL's GRPOConfig, under its own names there."""

    kind: str = MISSING  # loss_type: dapo | grpo | dr_grpo | bnpo
    epsilon: float = MISSING
    epsilon_high: float | None = None
    scale_rewards: str = "group"  # group | batch | none
    level: str = "token"  # importance_sampling_level: token | sequence
    mask_truncated: bool = False


@dataclass
class SamplingConfig:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    biased: bool = False  # must be true to train on truncated sampling, whose ratios are biased


@dataclass
class RolloutConfig:
    name: str = MISSING
    where: str = MISSING  # inline | workers
    engine: str = MISSING  # transformers | vllm
    staleness: int = 0  # text of step t is by the weights of step t - staleness
    strict: bool = True  # exactly those weights; false: those or newer
    wait_limit_s: float = 600.0  # without any worker


@dataclass
class SyncConfig:
    name: str = MISSING
    kind: str = MISSING  # none | dense | pulse
    codec: str = MISSING
    anchor_every: int = MISSING  # versions
    keep_anchors: int = MISSING
    verify: bool = True  # a reader in the trainer's process follows and checks every version


@dataclass
class PlaceConfig:
    """Where things are; nothing of it decides a result."""

    store: str | None = None  # path or URL of the published weights; default: `store` in the run directory
    listen: str = "127.0.0.1:0"  # where rollout workers reach the trainer; port 0: any, see rollout.json


@dataclass
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    workload: dict[str, Any] = field(default_factory=dict)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    scale: RlScaleConfig = field(default_factory=RlScaleConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    objective: str = "grpo"  # grpo | sft (on the gold answers: what it is compared with)
    meters: list[str] = field(default_factory=list)  # of METERS
    horizons: list[int] = field(default_factory=list)  # k of the k-step sparsity
    seed: int = 0
    workers: int = 1  # trainers, one a process: torchrun --nproc-per-node <workers>
    place: PlaceConfig = field(default_factory=PlaceConfig)
    run_dir: str | None = None  # default: runs/<run name>
    stop_after: int | None = None  # stop cleanly after so many optimizer steps of this process, to be resumed


ConfigStore.instance().store(name="rl_schema", node=Config)
OmegaConf.register_new_resolver("lowcomm_conf", lambda: str(CONF), replace=True)


def load_config(overrides: list[str]) -> DictConfig:
    """Compose `conf/rl/rl.yaml` with command-line overrides. Raises ConfigError."""
    for override in overrides:
        group, _, option = override.partition("=")
        if group in ("algorithm", "scale", "workload") and (CONF / group / f"{option}.yaml").is_file():
            options = sorted(path.stem for path in (ROOTS[0] / group).glob("*.yaml"))
            if option not in options:
                raise ConfigError(f"{override}: belongs to lowcomm.train; here choose {', '.join(options)}")
    return load(overrides, "rl", ROOTS)


def checked(cfg: DictConfig) -> DictConfig:
    """As `lowcomm.config.checked`: every mistake that can be seen without data is a ConfigError with key and remedy."""
    cfg = conform(cfg, Config)
    for key in ("workload", "algorithm.inner", *BLOCKS):
        if key not in BLOCKS or OmegaConf.select(cfg, key):
            check_block(key, OmegaConf.select(cfg, key))
    check_values(cfg)
    return cfg


def check_values(cfg: DictConfig) -> None:
    """Ranges and combinations; raises ConfigError."""
    a, s, r, y = cfg.algorithm, cfg.scale, cfg.rollout, cfg.sync

    def need(ok: bool, key: str, why: str) -> None:
        if not ok:
            raise ConfigError(f"{key}={OmegaConf.select(cfg, key)}: {why}")

    def one_of(key: str, *options: str) -> None:
        value = OmegaConf.select(cfg, key)
        need(value in options, key, f"must be one of {', '.join(options)}{nearest(str(value), options)}")

    one_of("objective", "grpo", "sft")
    one_of("model.dtype", "float32", "bfloat16")
    need(cfg.model.family != "vit", "model.family", "writes no text; take a language model")
    one_of("scale.device", "cpu", "cuda")
    one_of("scale.precision", "fp32", "bf16")
    one_of("logger.wandb", "disabled", "offline", "online")
    one_of("algorithm.schedule.shape", "cosine", "linear", "constant")
    one_of("loss.kind", "dapo", "grpo", "dr_grpo", "bnpo")
    one_of("loss.scale_rewards", "group", "batch", "none")
    one_of("loss.level", "token", "sequence")
    one_of("rollout.where", "inline", "workers")
    one_of("rollout.engine", "transformers", "vllm")
    one_of("sync.kind", "none", "dense", "pulse")
    one_of("sync.codec", *({"pulse": ("packed", "paper", "history")}.get(y.kind, ("full",))))
    for key in ("steps", "prompts_per_step", "micro_batch", "updates_per_rollout", "max_completion",
                "eval_every", "eval_problems", "eval_samples", "checkpoint_every", "threads"):  # fmt: skip
        need(s[key] >= 1, f"scale.{key}", "must be at least 1")
    need(s.group_size >= 2, "scale.group_size", "an advantage compares at least 2 completions of a prompt")
    check_trainers(cfg, need)
    need(a.clip is None or a.clip > 0, "algorithm.clip", "must be positive, or null for no clipping")
    need(0 <= a.schedule.warmup < 1, "algorithm.schedule.warmup", "is a fraction of all steps, in [0, 1)")
    for key in ("start", "final"):
        need(0 <= a.schedule[key] <= 1, f"algorithm.schedule.{key}", "is a factor of the peak rate, in [0, 1]")
    need(0 <= cfg.seed < 2**32, "seed", "must lie in [0, 2**32)")
    need(cfg.stop_after is None or cfg.stop_after >= 1, "stop_after", "must be at least 1, or null")
    need(0 < cfg.loss.epsilon < 1, "loss.epsilon", "must lie in (0, 1)")
    need(cfg.loss.epsilon_high is None or cfg.loss.epsilon_high > 0, "loss.epsilon_high", "must be positive, or null")
    for meter in cfg.meters:
        need(meter in METERS, "meters", f"'{meter}' is none of {', '.join(METERS)}{nearest(meter, METERS)}")
    need("horizons" not in cfg.meters or (cfg.horizons and min(cfg.horizons) >= 1), "horizons", "each k at least 1")
    check_batches(cfg)
    check_sampling(cfg, need)
    need(r.staleness >= 0, "rollout.staleness", "must not be negative")
    need(r.where == "inline" or y.kind != "none", "sync.kind", "rollout workers need published weights: sync=pulse")
    need(r.where == "workers" or r.engine == "transformers", "rollout.engine", "vLLM runs as a worker: rollout=vllm")
    need(r.staleness == 0 or y.kind != "none", "rollout.staleness", "older weights are only in a store: sync=pulse")
    need(r.strict or r.where == "workers", "rollout.strict", "the trainer's own process is always at one version")
    need(y.anchor_every >= 1 and y.keep_anchors >= 1, "sync.anchor_every", "and keep_anchors must be 1 or more")
    held, asked = y.anchor_every * (y.keep_anchors - 1), s.checkpoint_every + r.staleness
    need(r.staleness == 0 or held >= asked, "sync.keep_anchors",
         f"a resumed run goes back up to {asked} versions (scale.checkpoint_every + rollout.staleness), the store "
         f"keeps {held}; raise it to {1 - (-asked // y.anchor_every)}")  # fmt: skip


def check_trainers(cfg: DictConfig, need: Callable[[bool, str, str], None]) -> None:
    """Several trainers, and outer steps, also of one. Raises ConfigError through `need`."""
    a, h = cfg.algorithm, cfg.algorithm.inner_steps
    need(cfg.workers >= 1, "workers", "must be at least 1")
    for key in BLOCKS:
        need(bool(OmegaConf.select(cfg, key)) == (h is not None), key,
             "an outer loop has inner_steps, compressor, aggregator and outer; take algorithm=diloco")  # fmt: skip
    if h is None and cfg.workers == 1:
        return
    need(cfg.objective == "grpo", "objective", "several trainers, and outer steps, are for GRPO")
    need(cfg.rollout.staleness == 0, "rollout.staleness",
         "is of one trainer; between outer steps text is up to inner_steps - 1 steps old anyway")  # fmt: skip
    if h is None:
        need(cfg.loss.scale_rewards != "batch", "loss.scale_rewards", "is over all trainers: take group or none")
        return
    need(h >= 1, "algorithm.inner_steps", "must be at least 1")
    need(h % cfg.scale.updates_per_rollout == 0, "algorithm.inner_steps",
         f"must be a multiple of scale.updates_per_rollout={cfg.scale.updates_per_rollout}: trainers join between "
         "batches of text")  # fmt: skip
    need("bounds" not in cfg.meters, "meters", f"bounds are of one step of Adam, {a.name} shows the sum of {h}")


def check_batches(cfg: DictConfig) -> None:
    """What TRL would refuse, or silently round down, said in the numbers of this configuration. Raises ConfigError."""
    s = cfg.scale
    completions = s.prompts_per_step * s.group_size
    if completions % s.micro_batch:
        fitting = [d for d in range(1, completions + 1) if completions % d == 0]
        below = max(d for d in fitting if d <= s.micro_batch)
        raise ConfigError(
            f"scale.micro_batch={s.micro_batch}: does not divide the {completions} completions of a step "
            f"(prompts_per_step={s.prompts_per_step} x group_size={s.group_size}, of each trainer); take {below}"
        )
    for key in ("steps", "checkpoint_every"):
        if s[key] % s.updates_per_rollout:
            raise ConfigError(
                f"scale.{key}={s[key]}: must be a multiple of updates_per_rollout={s.updates_per_rollout}, as a run "
                "pauses only between batches of text"
            )


def check_sampling(cfg: DictConfig, need) -> None:
    g = cfg.sampling
    need(g.temperature > 0, "sampling.temperature", "must be positive: greedy groups are all alike")
    need(0 < g.top_p <= 1, "sampling.top_p", "is a share of the probability, in (0, 1]")
    need(g.top_k >= 0, "sampling.top_k", "must not be negative; 0 keeps all tokens")
    need(g.biased or (g.top_p == 1 and g.top_k == 0), "sampling.biased",
         f"top_p={g.top_p} top_k={g.top_k} truncate what the trainer's log-probabilities do not; set it to true to "
         "train with biased ratios, or take sampling=clean")  # fmt: skip
