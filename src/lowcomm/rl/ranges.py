"""Which values the configuration of an RL run may have, alone and together, as in `lowcomm.ranges`."""

from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf

from lowcomm.blocks import ConfigError, nearest
from lowcomm.ranges import Demand
from lowcomm.rollout.wire import LINE

BLOCKS = ("algorithm.compressor", "algorithm.aggregator", "algorithm.outer")
METERS = ("density", "groups", "horizons", "formats", "bounds", "codecs")
TOKEN = 32  # bytes of a token with its log-probability in a worker's answer, at most
Need = Callable[[bool, str, str], None]  # `Demand.need`


def check_values(cfg: DictConfig) -> None:
    """Ranges and combinations; raises ConfigError."""
    a, s, r, y = cfg.algorithm, cfg.scale, cfg.rollout, cfg.sync
    demand = Demand(cfg)
    need, one_of = demand.need, demand.one_of
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
    local = cfg.place.local_workers
    need(local >= 0, "place.local_workers", "must not be negative")
    need(not local or r.where == "workers", "place.local_workers",
         "text comes from the trainer's own process; take rollout=transformers")  # fmt: skip
    need(not local or r.engine == "transformers", "place.local_workers",
         "a vLLM worker needs a server: start both by the commands under 'Into vLLM' in README.md, or take "
         "rollout=transformers")  # fmt: skip
    most, group = LINE // TOKEN, max(s.group_size, s.eval_samples)
    need(r.where == "inline" or group * s.max_completion <= most, "scale.max_completion",
         f"a worker answers at most {most} tokens at once, {group} completions of a prompt may have "
         f"{group * s.max_completion}; take {most // group} or less")  # fmt: skip
    need(r.where == "inline" or r.wait_limit_s > 0, "rollout.wait_limit_s", "must be positive")
    need(r.staleness == 0 or y.kind != "none", "rollout.staleness", "older weights are only in a store: sync=pulse")
    need(r.strict or r.where == "workers", "rollout.strict", "the trainer's own process is always at one version")
    need(y.anchor_every >= 1 and y.keep_anchors >= 1, "sync.anchor_every", "and keep_anchors must be 1 or more")
    held, asked = y.anchor_every * (y.keep_anchors - 1), s.checkpoint_every + r.staleness
    need(r.staleness == 0 or held >= asked, "sync.keep_anchors",
         f"a resumed run goes back up to {asked} versions (scale.checkpoint_every + rollout.staleness), the store "
         f"keeps {held}; raise it to {1 - (-asked // y.anchor_every)}")  # fmt: skip


def check_trainers(cfg: DictConfig, need: Need) -> None:
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


def check_sampling(cfg: DictConfig, need: Need) -> None:
    """How text is drawn; truncated sampling only where it is said to be biased. Raises ConfigError through `need`."""
    g = cfg.sampling
    need(g.temperature > 0, "sampling.temperature", "must be positive: greedy groups are all alike")
    need(0 < g.top_p <= 1, "sampling.top_p", "is a share of the probability, in (0, 1]")
    need(g.top_k >= 0, "sampling.top_k", "must not be negative; 0 keeps all tokens")
    need(g.biased or (g.top_p == 1 and g.top_k == 0), "sampling.biased",
         f"top_p={g.top_p} top_k={g.top_k} truncate what the trainer's log-probabilities do not; set it to true to "
         "train with biased ratios, or take sampling=clean")  # fmt: skip
