"""From logits to tokens: one uniform number per token and sequence, so that no sequence disturbs another."""

import numpy as np
import torch
from torch import Tensor

from lowcomm.rollout.generation import Sampling


def uniforms(seed: int, count: int) -> np.ndarray:
    """``count`` numbers in [0, 1), float64, a function of the seed alone; more of them begin with the same."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


def log_probabilities(logits: Tensor, temperature: float) -> Tensor:
    """(B, V) of any dtype -> (B, V) float32, of the whole vocabulary, divided by the temperature unless it is 0."""
    logits = logits.float()
    return torch.log_softmax(logits / temperature if temperature > 0 else logits, -1)


def choose(logprobs: Tensor, u: Tensor, sampling: Sampling) -> Tensor:
    """(B, V) and (B,) float64 -> (B,) int64: the token whose share of [0, 1) holds u; the likeliest if greedy."""
    if sampling.temperature == 0:
        return logprobs.argmax(-1)
    if sampling.biased:
        logprobs = truncated(logprobs, sampling)
    cumulative = logprobs.double().exp().cumsum(-1)
    # the first entry above the target: never a token of probability 0
    target = u.to(cumulative.device)[:, None] * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return index.clamp(max=logprobs.shape[-1] - 1)


def truncated(logprobs: Tensor, sampling: Sampling) -> Tensor:
    """(B, V) -> (B, V): -inf outside the ``top_k`` likeliest, then outside the smallest set of them with ``top_p``."""
    ranked, order = logprobs.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if sampling.top_k:
        keep[:, sampling.top_k :] = False
    if sampling.top_p < 1:
        share = torch.softmax(ranked.masked_fill(~keep, -torch.inf).double(), -1)
        keep &= share.cumsum(-1) - share < sampling.top_p  # the mass before a token; the first is always kept
    return torch.full_like(logprobs, -torch.inf).scatter(-1, order, ranked.masked_fill(~keep, -torch.inf))
