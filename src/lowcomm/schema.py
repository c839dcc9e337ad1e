"""The shape of a configuration as dataclasses: which keys there are and of which type. Values live in `conf/`.

A *block* is a node with `_target_` and keyword arguments; it is checked against the signature of its target (see
`lowcomm.blocks`), so here it is a plain dictionary.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


@dataclass
class ModelConfig:
    """One file of `conf/model`: the architecture, and where weights come from."""

    name: str = MISSING
    family: str = MISSING  # llama | qwen2 | gemma3 | vit
    weights: str = "random"  # random | hub | local | package | trained
    hub: str | None = None
    revision: str | None = None  # a commit hash: a branch name is refused
    path: str | None = None
    recipe: list[str] = field(default_factory=list)  # overrides of lowcomm.train, of weights=trained
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
    """One file of `conf/algorithm`: the blocks of which a method is made."""

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
    """One file of `conf/scale`: how long, how often evaluated, where."""

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
    """What is written beside `metrics.jsonl`."""

    wandb: str = "disabled"  # disabled | offline | online
    project: str = "lowcomm"
    progress: bool = True


@dataclass
class Config:
    """A whole run of `lowcomm.train`."""

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
