"""The configuration: every option composes into a real GRPOConfig, every mistake is one message with key and remedy."""

import re

import pytest

from lowcomm.blocks import ConfigError
from lowcomm.config import CONF, digest, run_name
from lowcomm.rl.batch import grpo_config
from lowcomm.rl.config import ROOTS, checked, load_config
from lowcomm.rl.served import alone


def config(*overrides: str):
    return checked(load_config(list(overrides)))


def options(group: str) -> list[str]:
    return sorted(p.stem for p in (ROOTS[0] / group).glob("*.yaml"))


MODELS = [p.stem for p in (CONF / "model").glob("*.yaml") if not p.stem.startswith(("vit", "local"))]
PAIRS = [(m, s) for m in ("smollm2-135m", "llama-tiny-chars") for s in options("scale")]
PAIRS += [tuple(name.split("_")) for name in options("tuned")]


@pytest.mark.parametrize(("model", "scale"), sorted(set(PAIRS)))
def test_every_preset_makes_a_grpo_config(model, scale, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda *_: True)
    cfg = config(f"model={model}", f"scale={scale}", "workload=arithmetic")
    if cfg.scale.device == "cuda":
        cfg.scale.device, cfg.scale.precision = "cpu", "fp32"  # TRL refuses BF16 where there is no accelerator
    with alone():
        made = grpo_config(cfg, tmp_path)
    s = cfg.scale
    assert made.per_device_train_batch_size * made.gradient_accumulation_steps == s.prompts_per_step * s.group_size
    assert made.generation_batch_size == s.prompts_per_step * s.group_size * s.updates_per_rollout
    assert made.max_completion_length == s.max_completion
    assert made.world_size == 1
    assert not made.use_transformers_continuous_batching


@pytest.mark.parametrize(
    ("group", "option"),
    [(g, o) for g in ("algorithm", "sync", "rollout", "sampling") for o in options(g)],
)
def test_every_option_composes(group, option):
    assert config(f"{group}={option}")


def test_paper_presets_are_thirty_two_prompts_of_sixteen_for_four_hundred_steps():
    for model in ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "llama-3.2-3b", "gemma-3-4b"):
        cfg = config(f"model={model}", "scale=paper")
        assert (cfg.scale.steps, cfg.scale.prompts_per_step, cfg.scale.group_size) == (400, 32, 16)
        assert cfg.algorithm.inner.lr == 3e-6
        assert list(cfg.algorithm.inner.betas) == [0.9, 0.999]


def test_a_list_of_any_length_is_accepted_where_the_target_takes_a_sequence():
    assert list(config("workload=arithmetic", "workload.levels=[1]").workload.levels) == [1]


def test_blocks_of_pretraining_are_found_too():
    assert config("algorithm/inner=muon").algorithm.inner["_target_"] == "lowcomm.optim.MuonAdamW"


MISTAKES = [
    (["scale.micro_batch=3"], r"micro_batch=3.*8 completions.*prompts_per_step=2 x group_size=4, of each.*take 2"),
    (["scale.group_size=1"], r"group_size=1"),
    (["scale.updates_per_rollout=2", "scale.steps=3"], r"scale\.steps=3.*multiple of updates_per_rollout=2"),
    (["scale.updates_per_rollout=2", "scale.steps=4", "scale.checkpoint_every=3"], r"checkpoint_every=3.*multiple"),
    (["scale.stepz=3"], r"scale\.stepz.*scale\.steps"),
    (["+sync.foo=1"], r"\+sync\.foo"),
    (["+sead=1"], r"sead.*seed"),
    (["+algorithm.inner.lrr=1"], r"lrr.*algorithm\.inner\.lr"),
    (["+workload.levelz=1", "workload=arithmetic"], r"levelz.*levels"),
    (["algorithm=isoloco"], r"algorithm=isoloco.*lowcomm\.train.*pulsesync"),
    (["workload=pycode"], r"workload=pycode.*lowcomm\.train.*arithmetic"),
    (["rollout=vlm"], r"rollout=vlm.*vllm"),
    (["sync.codec=zstd"], r"codec=zstd.*packed"),
    (["sync=dense", "sync.codec=packed"], r"codec=packed.*full"),
    (["rollout=transformers", "sync=none"], r"sync\.kind=none.*published.*sync=pulse"),
    (["sync=none", "rollout.staleness=1"], r"staleness=1.*sync=pulse"),
    (["rollout.staleness=30"], r"keep_anchors=3.*raise it to 5"),
    (["rollout.engine=vllm"], r"engine=vllm.*rollout=vllm"),
    (["place.local_workers=2"], r"local_workers=2.*rollout=transformers"),
    (["rollout=vllm", "place.local_workers=1"], r"local_workers=1.*server.*README"),
    (["rollout=transformers", "place.local_workers=-1"], r"local_workers=-1"),
    (["rollout=transformers", "rollout.local_workers=2"], r"rollout\.local_workers.*place\.local_workers"),
    (["rollout=transformers", "scale.group_size=64", "scale.max_completion=32768"], r"1048576 tokens.*take 16384"),
    (["rollout=transformers", "rollout.wait_limit_s=0"], r"wait_limit_s=0"),
    (["rollout.strict=false"], r"rollout\.strict=False"),
    (["sampling.top_p=0.9"], r"top_p=0\.9.*sampling=clean"),
    (["sampling.temperature=0"], r"temperature=0.*greedy"),
    (["meters=[densty]"], r"densty.*'density'"),
    (["model=vit-tiny"], r"images"),
    (["loss.kind=ppo"], r"loss\.kind=ppo"),
    (["loss.epsilon=0"], r"loss\.epsilon=0"),
    (["model.dtype=float16"], r"model\.dtype=float16"),
    (["algorithm.inner_steps=4"], r"algorithm\.compressor.*outer loop"),
    (["algorithm=diloco", "algorithm.inner_steps=0"], r"inner_steps=0.*at least 1"),
    (
        ["algorithm=diloco", "algorithm.inner_steps=3", "scale.updates_per_rollout=2", "scale.steps=4"],
        r"inner_steps=3.*multiple of scale\.updates_per_rollout=2",
    ),
    (["algorithm=pulseloco", "rollout.staleness=1"], r"staleness=1.*inner_steps - 1"),
    (["algorithm=pulseloco", "meters=[bounds]"], r"meters.*one step of Adam"),
    (["algorithm=pulseloco", "algorithm.compressor.dtyp=bfloat16"], r"algorithm\.compressor\.dtyp"),
    (["algorithm=diloco", "algorithm/aggregator=ties", "algorithm.aggregator.density=2"], r"aggregator.*density=2"),
    (["algorithm=ddp", "workers=2", "loss.scale_rewards=batch"], r"scale_rewards=batch.*all trainers"),
    (["algorithm=ddp", "workers=2", "objective=sft"], r"objective=sft.*GRPO"),
    (["workers=0"], r"workers=0.*at least 1"),
]


@pytest.mark.parametrize(("overrides", "pattern"), MISTAKES, ids=[m[0][-1] for m in MISTAKES])
def test_a_mistake_is_one_message_with_key_and_remedy(overrides, pattern):
    with pytest.raises(ConfigError) as error:
        config(*overrides)
    assert re.search(pattern, str(error.value), re.DOTALL), str(error.value)


def test_where_things_are_does_not_change_what_a_run_is():
    a, b = config(), config("place.store=/tmp/x", "place.listen=127.0.0.1:9", "run_dir=/tmp/y", "stop_after=3")
    assert digest(a) == digest(b)
    workers = ["rollout=transformers", "place.local_workers=2"]
    assert digest(config(workers[0])) == digest(config(*workers))
    assert run_name(a) != run_name(config("rollout.staleness=1"))
