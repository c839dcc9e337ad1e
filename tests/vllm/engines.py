"""Tiny random models, engines on them, and what the runtime parameters must be: fused by hand, from vLLM's layout."""

import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from lowcomm.pulse import Publisher, Store
from vllm import LLM, SamplingParams, TokensPrompt

VOCABULARY = 512
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,  # heads of 32, the smallest that the CPU kernel has
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
PROMPT = [(7 * i + 3) % VOCABULARY for i in range(100)]  # three blocks of 32 can be cached
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
Weights = dict[str, torch.Tensor]


def tiny(folder: Path, family: str = "llama", tied: bool = False) -> Weights:
    """A random BF16 model with a word-per-id tokenizer in ``folder``; its tensors in checkpoint names."""
    config, model = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[family]
    torch.manual_seed(0)
    made = model(config(**SHAPE, tie_word_embeddings=tied))
    # random norms and biases as well: those of a fresh model are all alike
    for parameter in made.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.1)
    made.bfloat16().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="1", unk_token="0").save_pretrained(folder)
    weights = {n: p.detach().clone() for n, p in made.named_parameters()}
    assert ("lm_head.weight" in weights) != tied
    return weights


ENGINES: list[LLM] = []  # kept to the end: an engine that goes takes vLLM's process groups from the others


def start(folder: Path, **options) -> LLM:
    """An engine on a folder."""
    settings = {
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 256,
        "kv_cache_memory_bytes": 16 << 20,
        "max_num_seqs": 4,
        "block_size": 32,
        "seed": 0,
        "disable_log_stats": True,
        "weight_transfer_config": {"backend": "pulse"},
        "worker_extension_cls": "pulse_vllm.extension.Inspect",
    }
    ENGINES.append(LLM(model=str(folder), **(settings | options)))
    return ENGINES[-1]


def with_weights(source: Path, folder: Path, weights: Weights) -> Path:
    """A copy of a model's folder with other weights."""
    folder.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    save_file({n: t.contiguous() for n, t in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


class Rig:
    """An engine at version 0 of a new store, and the publisher of that store."""

    def __init__(self, llm: LLM, base: Weights, store: Path, **publisher):
        self.llm, self.store = llm, Store(store)
        self.weights = {n: t.clone() for n, t in base.items()}
        self.publisher = Publisher(self.store, self.weights, **publisher)
        self.marker = self.publisher.publish(self.weights, 0)
        self.initialize()
        if self.status()["version"] != 0:  # an earlier test left other weights in the engine
            self.update(full=True)
        assert self.status() | {"device": ""} == {
            "version": 0, "staged": 0, "poisoned": None, "in_place": True, "device": "",
        }  # fmt: skip

    def initialize(self, **info) -> None:
        self.llm.init_weight_transfer_engine({"init_info": {"store": self.store.root, **info}})

    def rpc(self, method: str, *args):
        (answer,) = self.llm.collective_rpc(method, args=args)
        return answer

    def status(self) -> dict:
        return self.rpc("pulse_status")

    def publish(self, weights: Weights, **meta) -> None:
        self.weights = {n: t.clone() for n, t in weights.items()}
        self.marker = self.publisher.publish(self.weights, self.publisher.version + 1, **meta)

    def stage(self, info: dict) -> str:
        """What came of fetching and verifying, in every worker: why it was refused, or ""."""
        assert self.rpc("pulse_stage", info) == {"error": ""}
        while None in (errors := [answer["error"] for answer in self.llm.collective_rpc("pulse_staged")]):
            time.sleep(0.01)
        assert len(set(errors)) == 1, errors
        return errors[0]

    def update(self, **info) -> None:
        """To what was published last, unless ``info`` says otherwise."""
        told = {"version": self.marker.version, "digest": self.marker.target_digest} | info
        self.llm.start_weight_update()
        self.llm.update_weights({"update_info": told})
        self.llm.finish_weight_update(str(told["version"]))
        assert self.llm.reset_prefix_cache(reset_running_requests=True)

    def answer(self, tokens: int = 8) -> tuple[list[int], list[float], int]:
        """(tokens, their log-probabilities, prompt tokens taken from the cache) for PROMPT."""
        return answer(self.llm, tokens)


def answer(llm: LLM, tokens: int = 8) -> tuple[list[int], list[float], int]:
    sampling = SamplingParams(temperature=0, max_tokens=tokens, logprobs=0, ignore_eos=True)
    (out,) = llm.generate([TokensPrompt(prompt_token_ids=PROMPT)], sampling, use_tqdm=False)
    first = out.outputs[0]
    chosen = [entry[t].logprob for entry, t in zip(first.logprobs, first.token_ids, strict=True)]
    return list(first.token_ids), chosen, out.num_cached_tokens


def change(weights: Weights, seed: int, share: float = 0.01, only: tuple[str, ...] = ("",)) -> Weights:
    """Other bits, small steps, at about ``share`` of the entries of tensors with one of ``only`` in their name."""
    g = torch.Generator().manual_seed(seed)
    out = {n: t.clone() for n, t in weights.items()}
    for name, tensor in out.items():
        if any(part in name for part in only):
            count = max(1, int(share * tensor.numel()))
            where = torch.randperm(tensor.numel(), generator=g)[:count]
            tensor.view(-1).view(torch.int16)[where] ^= torch.randint(1, 64, (count,), generator=g).to(torch.int16)
    return out


def runtime(weights: Weights, tied: bool) -> Weights:
    """What the running model must hold: q above k above v, gate above up, the head once more if tied."""
    out = dict(weights)
    for whole, parts in FUSED.items():
        for name in [n for n in weights if f".{parts[0]}." in n]:
            pieces = [out.pop(name.replace(parts[0], part)) for part in parts]
            out[name.replace(parts[0], whole)] = torch.cat(pieces)
    if tied:
        out["lm_head.weight"] = out["model.embed_tokens.weight"]
    return out


def changes(old: Weights, new: Weights) -> dict[str, list[int]]:
    """Flat indices of the entries with other bits."""
    where = {n: (old[n].view(torch.int16) != new[n].view(torch.int16)).flatten() for n in old}
    return {n: w.nonzero().flatten().tolist() for n, w in where.items() if w.any()}


def digests(weights: Weights) -> dict[str, str]:
    import hashlib

    return {n: hashlib.sha256(t.contiguous().view(torch.uint8).numpy()).hexdigest() for n, t in weights.items()}
