"""Generation with Hugging Face models, on weights that follow a store.

The weights are the published BF16 bits. On a CPU they are cast up and the arithmetic is FP32, since BF16 products are
slow on many CPUs; every FP32 weight is exactly its BF16 value. On an accelerator weights and arithmetic are BF16.
"""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, GenerationConfig, PreTrainedModel

from lowcomm.pulse import Store, Subscriber, digest
from lowcomm.rollout.generation import Completion, Sampling
from lowcomm.rollout.sampling import choose, log_probabilities, uniforms

log = logging.getLogger(__name__)
# transformers 5.24 calls it `cache`, those before do not know that name
warnings.filterwarnings("ignore", message="`past_key_values` is deprecated")


def skeleton(folder: str | Path, device: str = "cpu") -> PreTrainedModel:
    """The model of a folder's config.json and generation_config.json, with weights yet to come from an anchor.

    Raises ValueError without a config.json.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise ValueError(f"model={folder}: there is no config.json in it; give a folder as save_pretrained writes it")
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=dtype)
    if (path / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(path)
    return model


class TransformersEngine:
    """Takes ``model`` over: its weights are whatever version the store has.

    ``eos``: end tokens; None takes the full set of the model's generation config. ``batch``: sequences at once.
    A completion depends on (weights, prompt, seed, sampling) and not on its neighbours, but for the last bits of
    floating-point sums, which may move with the shape of a batch; calls of equal shape are bitwise equal. Weights
    change in `advance` only, so never within a call.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        store: Store,
        eos: Sequence[int] | None = None,
        batch: int = 64,
        threads: int | None = None,
    ):
        self.model = model.eval().requires_grad_(False)
        self.params = dict(model.named_parameters())
        bits = {n: torch.zeros_like(p, dtype=torch.bfloat16, device="cpu") for n, p in self.params.items()}
        self.subscriber, self.batch, self.threads = Subscriber(store, bits, threads=threads), batch, threads
        self.version: int | None = None
        self.eos = end_tokens(model) if eos is None else frozenset(eos)
        if not self.eos:
            log.warning("the model names no end token: every completion will be as long as it may")
        self._warned = False

    def advance(self, version: int | None = None) -> int:
        if version is not None and version == self.version:
            return version
        try:
            reached = self.subscriber.advance(version)
        finally:  # a failed advance may have ended on an earlier version, whole
            if self.subscriber.version is not None and self.subscriber.version != self.version:
                with torch.no_grad():
                    for name, tensor in self.subscriber.tensors.items():
                        self.params[name].copy_(tensor)
                self.version = self.subscriber.version
        return reached

    def digest(self) -> str:
        return digest({n: p.to(torch.bfloat16) for n, p in self.params.items()}, self.threads).hex()

    def generate(self, prompts: list[list[int]], seeds: list[int], sampling: Sampling) -> list[Completion]:
        """Raises ValueError for a prompt that is empty, outside the vocabulary or too long for the model."""
        if self.version is None:
            raise ValueError("the engine has no weights yet: call advance() first")
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts and {len(seeds)} seeds: one seed for each prompt")
        self._check(prompts, sampling)
        out: list[Completion] = []
        for at in range(0, len(prompts), self.batch):
            out += self._generate(prompts[at : at + self.batch], seeds[at : at + self.batch], sampling)
        return out

    def _check(self, prompts: list[list[int]], sampling: Sampling) -> None:
        config = self.model.config.get_text_config()
        vocabulary, positions = config.vocab_size, config.max_position_embeddings
        for i, prompt in enumerate(prompts):
            if not prompt or not 0 <= min(prompt) <= max(prompt) < vocabulary:
                raise ValueError(
                    f"prompt {i}: token ids from 0 to {vocabulary - 1}, at least one; is it another model?"
                )
            if len(prompt) + sampling.max_new_tokens > positions:
                total = f"{len(prompt)} tokens and max_new_tokens={sampling.max_new_tokens}"
                raise ValueError(f"prompt {i}: {total} exceed the model's {positions} positions; leave it out")
        if sampling.biased and not self._warned:
            self._warned = True
            log.warning("top_p or top_k truncate the sampler but not the trainer's log-probabilities: biased ratios")

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], seeds: list[int], sampling: Sampling) -> list[Completion]:
        count, limit = len(prompts), sampling.max_new_tokens
        noise = torch.from_numpy(np.stack([uniforms(seed, limit) for seed in seeds]))
        logits, cache, mask, position = self._prefill(prompts)
        tokens, logprobs = [[] for _ in range(count)], [[] for _ in range(count)]
        alive = list(range(count))  # rows of the batch -> sequences
        for t in range(limit):
            scores = log_probabilities(logits, sampling.temperature)
            drawn = choose(scores, noise[alive, t], sampling)
            values = scores.gather(-1, drawn[:, None])[:, 0].tolist()
            rows = []
            for row, (i, token, value) in enumerate(zip(alive, drawn.tolist(), values, strict=True)):
                if tokens[i] and tokens[i][-1] in self.eos:  # ended before, its row not yet dropped
                    continue
                tokens[i].append(token)
                logprobs[i].append(value)
                if token not in self.eos:
                    rows.append(row)
            if not rows or t + 1 == limit:
                break
            if len(rows) <= len(alive) // 2:  # enough have ended to be worth the copy
                keep = torch.tensor(rows, device=logits.device)
                cache.batch_select_indices(keep)
                drawn, position, mask = drawn[keep], position[keep], None if mask is None else mask[keep]
                alive = [alive[row] for row in rows]
            if mask is not None:
                mask = torch.cat([mask, mask.new_ones(len(alive), 1)], 1)
            logits = self._forward(drawn[:, None], cache, mask, position[:, None])
            position = position + 1
        return [Completion(tokens[i], logprobs[i], tokens[i][-1] in self.eos, self.version) for i in range(count)]

    def _prefill(self, prompts: list[list[int]]) -> tuple[Tensor, DynamicCache, Tensor | None, Tensor]:
        """Each different prompt once: (logits (B, V), cache, mask (B, L) or None without padding, next position (B,)).

        Padding is on the left, so that the last column is every prompt's last token.
        """
        unique = list(dict.fromkeys(map(tuple, prompts)))
        longest = max(map(len, unique))
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in unique], device=self.model.device)
        lengths = torch.tensor([len(p) for p in unique], device=ids.device)
        mask = None
        if (lengths != longest).any():
            mask = (torch.arange(longest, device=ids.device) >= longest - lengths[:, None]).long()
        place = torch.arange(longest, device=ids.device) - (longest - lengths[:, None])
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(ids, cache, mask, place.clamp(min=0))
        index = {p: i for i, p in enumerate(unique)}
        rows = torch.tensor([index[tuple(p)] for p in prompts], device=ids.device)
        cache.batch_select_indices(rows)
        return logits[rows], cache, None if mask is None else mask[rows], lengths[rows]

    def _forward(self, ids: Tensor, cache: DynamicCache, mask: Tensor | None, position: Tensor) -> Tensor:
        out = self.model(
            input_ids=ids, attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=True,
            logits_to_keep=1,
        )  # fmt: skip
        return out.logits[:, -1]


def end_tokens(model: PreTrainedModel) -> frozenset[int]:
    """All end tokens of the generation config (Gemma has two, chat models of other families too), else the config's."""
    for config in (model.generation_config, model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
