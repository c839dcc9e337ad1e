"""Which values a configuration may have, alone and together; each mistake is one message with key, value and remedy."""

from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from lowcomm.blocks import ConfigError, nearest


@dataclass(frozen=True)
class Demand:
    """What is asked of the values of one configuration."""

    cfg: DictConfig

    def need(self, ok: bool, key: str, why: str) -> None:
        """Raises ConfigError `key=value: why` unless `ok`."""
        if not ok:
            raise ConfigError(f"{key}={OmegaConf.select(self.cfg, key)}: {why}")

    def one_of(self, key: str, *options: str) -> None:
        """Raises ConfigError with the options and the nearest one when the value is none of them."""
        value = OmegaConf.select(self.cfg, key)
        self.need(value in options, key, f"must be one of {', '.join(options)}{nearest(str(value), options)}")


def check_values(cfg: DictConfig) -> None:
    """Ranges and combinations; raises ConfigError."""
    a, s = cfg.algorithm, cfg.scale
    demand = Demand(cfg)
    need, one_of = demand.need, demand.one_of
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
