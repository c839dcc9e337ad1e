"""Supervised fine-tuning on the gold answers, all else as in GRPO: what the paper compares GRPO's sparsity with.

A step learns from `prompts_per_step * group_size` different problems; the loss is on the answer's tokens alone.
"""

import torch
from datasets import Dataset
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback
from trl import GRPOConfig

from lowcomm.rl.data import Prompts
from lowcomm.rl.outer import Together
from lowcomm.rl.trainer import Begun, StepSeeds, check_alone

IGNORED = -100  # label of a token that the loss leaves out


class SftTrainer(Begun, Trainer):
    """``args``: the GRPO run's, for the same batch arithmetic."""

    def __init__(self, model: nn.Module, args: GRPOConfig, cfg: DictConfig, prompts: Prompts,
                 tokenizer: PreTrainedTokenizerBase, callbacks: list[TrainerCallback], begun: int,
                 together: Together, state: dict | None):  # fmt: skip
        self.begin(begun, together, state, cfg)
        self.rollout_values: dict[str, float] = {}
        rows = examples(prompts, tokenizer, cfg, begun)
        super().__init__(
            model=model, args=args, train_dataset=rows, processing_class=tokenizer,
            data_collator=lambda batch: collate(batch, tokenizer.pad_token_id),
            callbacks=[StepSeeds(cfg.seed, prompts.worker), *callbacks],
        )  # fmt: skip
        check_alone(self, cfg)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> SequentialSampler:
        return SequentialSampler(dataset or self.train_dataset)


def examples(prompts: Prompts, tokenizer: PreTrainedTokenizerBase, cfg: DictConfig, begun: int) -> Dataset:
    """Token ids and labels of steps `begun` to the last, in order."""
    batch = cfg.scale.prompts_per_step * cfg.scale.group_size
    rows: dict[str, list] = {"input_ids": [], "labels": []}
    for place in range(begun * batch, cfg.scale.steps * batch):
        name = prompts.at(place)
        answer = tokenizer.encode(gold(cfg.prompt.style, prompts.problems[name].answer), add_special_tokens=False)
        answer = [*answer[: cfg.scale.max_completion - 1], tokenizer.eos_token_id]
        rows["input_ids"].append([*prompts.ids[name], *answer])
        rows["labels"].append([IGNORED] * len(prompts.ids[name]) + answer)
    return Dataset.from_dict(rows)


def gold(style: str, answer: str) -> str:
    """What a right answer says: the number alone where the prompt asks for it, else a box."""
    return answer if style == "number" else f"\\boxed{{{answer}}}"


def collate(batch: list[dict[str, list[int]]], pad: int) -> dict[str, Tensor]:
    """(B, L) of the longest, padded on the right."""
    longest = max(len(row["input_ids"]) for row in batch)

    def padded(key: str, value: int) -> Tensor:
        return torch.tensor([row[key] + [value] * (longest - len(row[key])) for row in batch])

    mask = torch.tensor([[1] * len(r["input_ids"]) + [0] * (longest - len(r["input_ids"])) for r in batch])
    return {"input_ids": padded("input_ids", pad), "labels": padded("labels", IGNORED), "attention_mask": mask}
