"""TRL's own server mode, the dense baseline: TRL takes our file, which asks for what our GPU configuration asks for."""

from pathlib import Path

import pytest

from lowcomm.inner import rate
from lowcomm.rl.batch import grpo_config
from lowcomm.rl.config import checked, load_config

CONF = Path(__file__).parents[2] / "conf" / "trl-server.yaml"
SAME = [
    "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation",
    "num_generations", "num_iterations", "max_completion_length", "temperature", "top_p", "top_k", "loss_type",
    "epsilon", "epsilon_high", "beta", "scale_rewards", "importance_sampling_level", "mask_truncated_completions",
    "learning_rate", "max_grad_norm", "gradient_checkpointing", "bf16",
]  # fmt: skip


@pytest.fixture
def theirs():
    """What `trl grpo --config` makes of the file; on a CPU BF16 is refused, hence without."""
    from trl.scripts.grpo import make_parser

    return make_parser().parse_args_and_config(["--config", str(CONF), "--use_cpu", "true", "--bf16", "false"])


def test_the_numbers_are_those_of_our_own_configuration(theirs, tmp_path):
    _, args, model, _ = theirs
    cfg = checked(
        load_config(["model=qwen2.5-0.5b", "workload=math", "workload.path=nowhere", "scale=gpu", "rollout=vllm"])
    )
    cfg.scale.device, cfg.scale.precision = "cpu", "fp32"
    ours = grpo_config(cfg, tmp_path)
    assert {n: getattr(args, n) for n in SAME} == {n: getattr(ours, n) for n in SAME}
    assert (model.model_name_or_path, model.dtype) == (cfg.model.hub, cfg.model.dtype)
    inner = cfg.algorithm.inner
    assert (args.adam_beta1, args.adam_beta2, args.weight_decay) == (*inner.betas, inner.weight_decay)
    factors = [rate(cfg.algorithm.schedule, step=k, steps=args.max_steps) for k in range(args.max_steps)]
    assert factors[args.warmup_steps - 1] < 1 == min(factors[args.warmup_steps :])


def test_it_is_the_server_mode(theirs):
    _, args, *_ = theirs
    assert (args.use_vllm, args.vllm_mode) == (True, "server")
    assert (args.vllm_importance_sampling_correction, args.vllm_importance_sampling_mode) == (True, "token_truncate")
