"""Which problems a step asks about: a function of (seed, step) alone, so that a resumed run needs no data state."""

import functools
from collections.abc import Sequence

import numpy as np
from datasets import Dataset
from omegaconf import DictConfig
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from lowcomm import models
from lowcomm.blocks import ConfigError
from lowcomm.rl import characters
from lowcomm.rollout import seed_of
from lowcomm.tasks import Problem
from lowcomm.tasks.prompts import rendered


def build_tokenizer(cfg: DictConfig) -> PreTrainedTokenizerBase:
    """The checkpoint's own, padding left; one token a character where the weights are random. Raises ConfigError."""
    if cfg.model.weights == "random":
        made = characters.tokenizer()
        size = cfg.model.config.get("vocab_size", len(made))
        if size < len(made):
            raise ConfigError(f"model.config.vocab_size={size}: a random model writes characters and needs {len(made)}")
        return made
    folder = models.checkpoint_folder(cfg.model)
    try:
        made = AutoTokenizer.from_pretrained(folder, padding_side="left")
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.name={cfg.model.name}: its folder has no tokenizer ({error})") from error
    if made.eos_token_id is None:
        raise ConfigError(f"model.name={cfg.model.name}: its tokenizer names no end token (eos_token)")
    if made.pad_token_id is None:
        made.pad_token = made.eos_token
    return made


class Prompts:
    """The training problems that fit, as token ids, and their order.

    A step of all ``workers`` takes the next problems of that order; trainer ``worker`` its own part of them, so that
    what the trainers of a run learn from together is what one trainer would of as many prompts.

    ``left_out``: problems longer than ``prompt.max_tokens`` tokens. Raises ValueError when too few are left for one
    batch of text, with which TRL would train nothing and say nothing.
    """

    def __init__(self, problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, cfg: DictConfig,
                 worker: int = 0):  # fmt: skip
        s = cfg.scale
        self.seed, self.per_step, self.worker, self.workers = cfg.seed, s.prompts_per_step, worker, cfg.workers
        self.rollout = s.prompts_per_step * s.updates_per_rollout  # prompts of one batch of text
        kept, self.left_out = rendered(problems, cfg.prompt.style, tokenizer, cfg.prompt.max_tokens)
        self.ids = {problem.id: ids for problem, ids in kept}
        self.problems = {problem.id: problem for problem, _ in kept}
        need = self.rollout * cfg.workers
        if len(self.problems) < need:
            raise ValueError(
                f"workload.name={cfg.workload.name}: {len(self.problems)} training problems ({self.left_out} longer "
                f"than prompt.max_tokens={cfg.prompt.max_tokens} left out), one batch of text asks for {need} "
                f"(prompts_per_step={s.prompts_per_step} x updates_per_rollout={s.updates_per_rollout} x "
                f"workers={cfg.workers})"
            )
        self.names = list(self.problems)
        self.longest = max(map(len, self.ids.values()))

    @functools.lru_cache(2)  # noqa: B019 one instance a run
    def permutation(self, epoch: int) -> np.ndarray:
        """Places of the problems in an epoch, (problems): a function of the run's seed and the epoch."""
        return np.random.Generator(np.random.Philox(key=seed_of(self.seed, "order", epoch))).permutation(
            len(self.names)
        )

    def at(self, position: int) -> str:
        """Id of the problem at a place of the endless order: one permutation after another."""
        epoch, place = divmod(position, len(self.names))
        return self.names[self.permutation(epoch)[place]]

    def dataset(self, begin: int, steps: int) -> Dataset:
        """This trainer's prompts of optimizer steps `begin` to `steps`, in order; TRL repeats each for its group."""
        batches = range(begin * self.per_step // self.rollout, steps * self.per_step // self.rollout)
        firsts = [(batch * self.workers + self.worker) * self.rollout for batch in batches]
        return Dataset.from_dict({"prompt": [self.at(first + i) for first in firsts for i in range(self.rollout)]})
