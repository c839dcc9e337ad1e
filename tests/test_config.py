"""The configuration: every option composes, every mistake gets one message that names the key and the remedy."""

import re

import pytest
import torch
from omegaconf import OmegaConf

from lowcomm.assembly import inner_factory, swapped_under_tuned
from lowcomm.blocks import ConfigError, build
from lowcomm.config import CONF, Config, checked, digest, flat_keys, load_config, run_name


def options(group: str) -> list[str]:
    return sorted(p.stem for p in (CONF / group).glob("*.yaml"))


def config(*overrides: str):
    return checked(load_config(list(overrides)))


@pytest.mark.parametrize("algorithm", options("algorithm"))
def test_every_algorithm_composes_and_its_inner_optimizer_steps(algorithm):
    cfg = config(f"algorithm={algorithm}")
    model = torch.nn.ModuleDict({"layers": torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False))})
    weight = model["layers"][0].weight
    torch.nn.init.eye_(weight)
    optimizer = inner_factory(cfg.algorithm.inner, model, dict(model.named_parameters()))([weight])
    if hasattr(optimizer, "train"):
        optimizer.train()
    weight.grad = torch.eye(4)
    optimizer.step()
    assert (weight.diag() < 1).all()


@pytest.mark.parametrize("scale", options("scale"))
def test_every_scale_composes(scale):
    assert config(f"scale={scale}").scale.name == scale


@pytest.mark.parametrize(
    ("model", "workload"),
    [(m, "digits" if m.startswith("vit") else "pycode") for m in options("model") if m != "local"],
)
def test_every_model_composes(model, workload):
    assert config(f"model={model}", f"workload={workload}").model.name == model


def test_blocks_of_every_group_fit_their_targets():
    for group in ("inner", "outer", "compressor", "aggregator"):
        for option in options(f"algorithm/{group}"):
            config("algorithm=diloco", f"algorithm/{group}={option}", *no_conflict(group))


def no_conflict(group: str) -> list[str]:
    return ["algorithm.inner_steps=4"] if group == "inner" else []


MISTAKES = [
    # override, what the message must name
    (["scale.stepz=3"], r"scale\.stepz.*scale\.steps"),
    (["+scale.stepz=3"], r"scale\.stepz.*scale\.steps"),
    (["+sead=3"], r"sead.*seed"),
    (["algorithm.inner.lrr=1"], r"algorithm\.inner\.lrr.*algorithm\.inner\.lr"),
    (["+algorithm.inner.lrr=1"], r"algorithm\.inner\.lrr.*algorithm\.inner\.lr"),
    (["algorithm=gpa", "+algorithm.inner.mux=0.9"], r"mux.*mu_x"),
    (["+workload.seqlen=4"], r"workload\.seqlen.*workload\.seq_len"),
    (["algorithm=dilocco"], r"dilocco"),
    (["algorithm.inner.lr=fast"], r"algorithm\.inner\.lr=fast"),
    (["scale.steps=many"], r"scale\.steps"),
    (["scale.steps=0"], r"scale\.steps=0"),
    (["scale.steps=null"], r"scale\.steps.*tokens_per_parameter"),
    (["workers=3"], r"workers=3.*scale\.batch"),
    (["workers=0"], r"workers=0"),
    (["state=dsik"], r"state=dsik.*disk"),
    (["budget=split"], r"budget=split.*shared"),
    (["seed=-1"], r"seed=-1"),
    (["algorithm=diloco", "algorithm.inner_steps=0"], r"inner_steps=0"),
    (["algorithm=diloco", "algorithm.outer.momentum=1.0"], r"outer\.momentum=1\.0"),
    (["algorithm=diloco", "algorithm.outer.momentum=-0.1"], r"outer\.momentum=-0\.1"),
    (["algorithm=diloco", "algorithm.outer.momentum=0"], r"outer\.nesterov.*outer=sgd"),
    (["algorithm=diloco", "algorithm.outer.lr=-1"], r"outer\.lr=-1"),
    (["algorithm=diloco", "algorithm.inner_steps=null"], r"inner_steps"),
    (["algorithm.inner_steps=8"], r"algorithm\.(aggregator|outer|compressor)"),
    (["algorithm.schedule.warmup=1.5"], r"warmup=1\.5"),
    (["algorithm.schedule.shape=cosin"], r"cosin.*cosine"),
    (["algorithm.clip=0"], r"clip=0"),
    (["scale.precision=bf61"], r"bf61.*bf16"),
    (["scale.device=gpu"], r"scale\.device=gpu"),
    (["logger.wandb=on"], r"logger\.wandb=on"),
    (["seed=1.5"], r"seed=1\.5.*Integer"),
    (["algoritm=gpa"], r"algoritm.*'algorithm'"),
    (["algorithm=gpaa"], r"algorithm=gpaa.*'gpa'.*schedule-free"),
    (["notakey"], r"notakey: is no key=value"),
    (["algorithm", "gpa"], r"^algorithm: is no key=value"),
    (["seed", "=", "1"], r"^seed: is no key=value.*no blanks around the ="),
    (["optimizer=adamw"], r"no key 'optimizer'; --help lists"),
    (["+lr=0.1"], r"\+lr=0\.1: there is no such key; --help lists"),
    (["seed=0,1"], r"^seed=0,1: several values are a sweep; add -m.*seed=\[0,1\]"),
    (["algorithm=gpa,adamw"], r"^algorithm=gpa,adamw: several values are a sweep; add -m"),
    (["algorithms/outer=sgd"], r"no group 'algorithms/outer'; did you mean 'algorithm/outer'"),
    (["algorithm/outr=sgd"], r"no group 'algorithm/outr'; did you mean 'algorithm/outer'"),
    (["+algorithm.inner.momentumm=0.9"], r"takes no 'momentumm'; it takes params, lr, betas"),
    (["~scale.batch"], r"~scale\.batch.*deletion"),
    (["~workload.name"], r"workload\.name: missing"),
    (["+workload.seed=3"], r"workload\.seed=3.*set seed=3"),
    (["scale.threads=100000"], r"scale\.threads=100000.*cores"),
    (["scale.steps=null", "scale.tokens_per_parameter=nan"], r"tokens_per_parameter=nan.*positive"),
    (["scale.steps=null", "scale.tokens_per_parameter=-1"], r"tokens_per_parameter=-1.*positive"),
    (["algorithm.inner.lr=null"], r"algorithm\.inner\.lr=None.*number"),
    (["algorithm.inner.betas=[0.9]"], r"betas=\[0\.9\].*2 values"),
    (["algorithm=diloco", "algorithm.outer.lr=null"], r"algorithm\.outer\.lr=None.*number"),
    (["algorithm=tiesloco", "algorithm.aggregator.density=2"], r"algorithm\.aggregator.*density=2"),
    (["algorithm=tiesloco", "algorithm.aggregator.rule=papr"], r"algorithm\.aggregator.*rule='papr'.*original"),
    (["algorithm=dareloco", "algorithm.aggregator.drop=-0.1"], r"algorithm\.aggregator.*drop=-0\.1"),
    (["algorithm=isoctsloco", "algorithm.aggregator.common=1.5"], r"algorithm\.aggregator.*common=1\.5"),
    (["algorithm=isoloco", "algorithm.aggregator.method=gramm"], r"algorithm\.aggregator.*gramm.*newton-schulz"),
    (["algorithm=clip-high", "algorithm.aggregator.side=top"], r"algorithm\.aggregator.*top.*high"),
    (["model=vit-tiny"], r"ViT takes images"),
    (["model=llama-8b", "workload=digits"], r"model\.family=llama.*ViT takes images"),
    (["model.config.vocab_size=100"], r"model\.config\.vocab_size=100.*workload\.vocab_size=512"),
    (["model=vit-tiny", "workload=digits", "model.config.num_labels=5"], r"num_labels=5.*num_classes=10"),
]


@pytest.mark.parametrize(("overrides", "pattern"), MISTAKES, ids=[m[0][-1] for m in MISTAKES])
def test_a_mistake_is_one_message_with_key_and_remedy(overrides, pattern):
    with pytest.raises(ConfigError) as error:
        config(*overrides)
    assert re.search(pattern, str(error.value), re.DOTALL), str(error.value)


@pytest.mark.parametrize(
    "override", ["algorithm.inner.mu_x=1.5", "algorithm.inner.mu_y=0", "algorithm.inner.decay_at=w"]
)
def test_a_targets_own_range_check_comes_back_with_the_blocks_path(override):
    cfg = config("algorithm=gpa", override)
    with pytest.raises(ConfigError, match=r"algorithm\.inner.*" + override.split(".")[-1].split("=")[0]):
        build("algorithm.inner", cfg.algorithm.inner, [torch.nn.Parameter(torch.ones(2))])


def test_a_misspelt_key_of_the_model_is_found_before_a_corpus_is_prepared(tmp_path, monkeypatch):
    from lowcomm import train

    monkeypatch.setattr(train, "build_workload", lambda *_: pytest.fail("work was begun"))
    for override, message in (
        ("+model.config.hiden_size=8", r"hiden_size.*hidden_size"),
        ("model.config.hidden_size=0", r"hidden_size=0: must be at least 1"),
        ("model=llama-8b", r"model\.name.*GB"),
        ("scale.device=cuda", r"no CUDA device"),
    ):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 22}[name])
        with pytest.raises(ConfigError, match=message):
            train.run_overrides([override, f"run_dir={tmp_path / 'run'}"])
        assert not (tmp_path / "run" / "config.json").exists()


def test_identity_of_a_run():
    """Session keys do not enter the digest; everything else does; the name is the same for all seeds but its end."""
    base = config("seed=1")
    assert digest(base) == digest(config("seed=1", "logger.wandb=offline", "stop_after=3", "run_dir=x", "state=disk"))
    for override in ("seed=2", "algorithm.inner.lr=2e-3", "workers=2", "scale.threads=2"):
        assert digest(base) != digest(config("seed=1", override)), override
    assert run_name(base).replace("seed1", "seed2") == run_name(config("seed=2"))
    assert run_name(base) != run_name(config("seed=1", "algorithm.clip=null"))


def test_a_number_keeps_its_kind():
    """1e-3 in YAML is a string to YAML 1.1; a learning rate must be a number all the same."""
    cfg = config("algorithm.inner.lr=1e-3")
    assert cfg.algorithm.inner.lr == 1e-3
    for name in options("algorithm/inner"):
        assert isinstance(config("algorithm=diloco", f"algorithm/inner={name}").algorithm.inner.lr, float), name


PRESETS = {  # the paper's methods: aggregator, and whether there is outer momentum
    "diloco": ("mean", True), "diloco-sgd": ("mean", False), "iso-c": ("iso_c", False), "isoloco": ("iso_c", True),
    "tiesloco": ("ties", False), "dareloco": ("dare", False), "tsvloco": ("tsv", False),
    "isoctsloco": ("iso_cts", False), "clip-high": ("clip", True), "clip-low": ("clip", True),
    "muloco": ("mean", True), "isoloco-muon": ("iso_c", True),
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_isoloco_presets(name):
    rule, momentum = PRESETS[name]
    a = config(f"algorithm={name}").algorithm
    assert a.aggregator["_target_"] == f"lowcomm.outer.aggregate.{rule}"
    assert (a.outer.get("momentum", 0) > 0, a.outer.get("nesterov", False)) == (momentum, momentum)
    assert (a.name, a.inner_steps, a.clip) == (name, 30, 1.0)
    assert a.inner["_target_"] == ("lowcomm.optim.MuonAdamW" if "mu" in name else "torch.optim.AdamW")


def test_tuned_numbers_are_chosen_by_model_and_algorithm_and_a_swap_is_noted():
    cfg = config("model=llama-178m", "algorithm=isoloco")
    assert (cfg.algorithm.inner.lr, cfg.algorithm.outer.lr, cfg.algorithm.outer.momentum) == (0.00138, 1.8, 0.8)
    assert config("model=llama-178m", "algorithm=isoloco", "algorithm.inner.lr=1").algorithm.inner.lr == 1
    overrides = ["model=llama-178m", "algorithm=isoloco", "algorithm/aggregator=ties"]
    assert re.search("aggregator=ties.*llama-178m_isoloco.*tune", swapped_under_tuned(config(*overrides), overrides))
    assert swapped_under_tuned(cfg, overrides[:2]) is None
    assert swapped_under_tuned(config(*overrides[1:]), overrides[1:]) is None


def test_key_budget():
    """The grammar stays small enough to read: at most 60 keys in the schema."""
    assert len(flat_keys(OmegaConf.structured(Config))) <= 60


def test_numbers_of_tuned_files_name_their_source():
    for path in (CONF / "tuned").rglob("*.yaml"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r":\s*-?[\d.]", line):
                assert "#" in line, f"{path.name}:{number}: a number without a source"
