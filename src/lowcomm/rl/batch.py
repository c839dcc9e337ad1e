"""From our numbers to TRL's: `prompts_per_step`, `group_size` and `micro_batch` become its batch arithmetic."""

from pathlib import Path

from omegaconf import DictConfig
from trl import GRPOConfig


def accumulation(cfg: DictConfig) -> int:
    """Micro batches of one optimizer step."""
    s = cfg.scale
    return s.prompts_per_step * s.group_size // s.micro_batch


def grpo_config(cfg: DictConfig, folder: Path) -> GRPOConfig:
    """Everything TRL is told, written out: its defaults moved between releases.

    Our own code sets the optimizer, the rates, the order of the data, the checkpoints and the logging.
    """
    s, loss = cfg.scale, cfg.loss
    return GRPOConfig(
        output_dir=str(folder / "trl"),
        seed=cfg.seed,
        max_steps=s.steps,
        per_device_train_batch_size=s.micro_batch,
        per_device_eval_batch_size=s.group_size,
        gradient_accumulation_steps=accumulation(cfg),
        steps_per_generation=accumulation(cfg) * s.updates_per_rollout,
        num_generations=s.group_size,
        num_iterations=1,
        max_completion_length=s.max_completion,
        temperature=cfg.sampling.temperature,
        top_p=cfg.sampling.top_p,
        top_k=cfg.sampling.top_k,
        loss_type=loss.kind,
        epsilon=loss.epsilon,
        epsilon_high=loss.epsilon_high,
        beta=0.0,  # no reference model
        scale_rewards=loss.scale_rewards,
        importance_sampling_level=loss.level,
        mask_truncated_completions=loss.mask_truncated,
        learning_rate=cfg.algorithm.inner.get("lr", 0.0),  # shown only: our optimizer has its own
        max_grad_norm=cfg.algorithm.clip or 0.0,
        use_vllm=False,
        use_transformers_continuous_batching=False,  # it would cast the masters to BF16 for good
        use_cpu=s.device == "cpu",
        bf16=s.precision == "bf16",
        fp16=False,
        gradient_checkpointing=s.gradient_checkpointing,
        shuffle_dataset=False,  # the order is ours
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=s.device == "cuda",
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        save_strategy="no",
        eval_strategy="no",
        disable_tqdm=True,
    )
