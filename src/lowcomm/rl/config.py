"""The configuration of an RL run: its shape, and how it is composed. Values live in `conf/rl/` and `conf/`."""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from lowcomm.blocks import ConfigError, check_block
from lowcomm.config import CONF, check_aggregator, conform
from lowcomm.config import load_config as load
from lowcomm.rl.ranges import BLOCKS, check_values
from lowcomm.schema import AlgorithmConfig, LoggerConfig, ModelConfig

ROOTS = (CONF / "rl", CONF)  # groups are looked for in this order


@dataclass
class PromptConfig:
    """How a problem is put to the model."""

    style: str = MISSING  # see lowcomm.tasks.prompts
    max_tokens: int = MISSING  # longer problems are left out, and counted


@dataclass
class RlScaleConfig:
    """One file of `conf/rl/scale`: how long, how much text, how often evaluated, where."""

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
    """How completions are drawn in training. Evaluation is greedy, and if asked also at this temperature."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    biased: bool = False  # must be true to train on truncated sampling, whose ratios are biased


@dataclass
class RolloutConfig:
    """Who writes the text, and how old its weights may be."""

    name: str = MISSING
    where: str = MISSING  # inline | workers
    engine: str = MISSING  # transformers | vllm
    staleness: int = 0  # text of step t is by the weights of step t - staleness
    strict: bool = True  # exactly those weights; false: those or newer
    wait_limit_s: float = 600.0  # without any worker


@dataclass
class SyncConfig:
    """How the weights are published."""

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
    local_workers: int = 0  # rollout workers that this command starts and ends itself, beside any that join


@dataclass
class Config:
    """A whole run of `lowcomm.rl`."""

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
    meters: list[str] = field(default_factory=list)  # of lowcomm.rl.ranges.METERS
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
    check_aggregator(cfg)
    check_values(cfg)
    return cfg
