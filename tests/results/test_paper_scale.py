"""IsoLoCo's own setting, cell by cell, without training: configuration, steps, rounds, tokens, parameters, rates."""

import csv
from functools import cache
from types import SimpleNamespace

import pytest

from lowcomm import models
from lowcomm.assembly import total_steps
from lowcomm.config import checked, load_config
from lowcomm.results.experiment import home, load, names
from lowcomm.results.grid import at_scale, tuning_runs
from lowcomm.results.measures import MEASURES
from lowcomm.results.reported import REPORTED, reported

EXPERIMENTS = [load(name) for name in names("isoloco")]
CELLS = [(e, row) for e in EXPERIMENTS for row in at_scale(e, "paper") if row.overrides]
# 2607.03011 v1: parameters, tokens of one step, inner steps, tokens; rounds by H
PAPER = {
    "llama-178m": (177_622_016, 524_288, 6_775, 3_552_440_320, {30: 225, 60: 112, 120: 56, 240: 28}),
    "llama-512m": (512_398_848, 2_097_152, 4_886, 10_247_976_960, {30: 162}),
}


@cache
def parameter_count(model: str) -> int:
    return models.parameter_count(checked(load_config([f"model={model}", "workload=dclm"])).model)


@cache
def composed(overrides: tuple[str, ...]):
    return checked(load_config(list(overrides)))


def config_of(experiment, row):
    return composed(tuning_runs(experiment, row, "paper")[0].overrides)


@pytest.mark.parametrize(("experiment", "row"), CELLS, ids=[f"{e.table}-{r.row}" for e, r in CELLS])
def test_a_cell_has_the_papers_steps_rounds_tokens_and_parameters(experiment, row):
    cfg = config_of(experiment, row)
    count = parameter_count(cfg.model.name)
    size = SimpleNamespace(units_per_sample=cfg.workload.seq_len)
    steps = total_steps(cfg, {"all": SimpleNamespace(numel=lambda: count)}, size)
    assert cfg.scale.batch % cfg.workers == 0
    assert (cfg.workload.seq_len, cfg.budget, cfg.scale.eval_samples * cfg.workload.seq_len) == (
        2048,
        "shared",
        104857600,
    )
    a = cfg.algorithm
    if experiment.table != "combined":
        assert (a.schedule.warmup, a.schedule.start, a.schedule.final) == (0.1, 0.1, 0.1)
    if a.inner["_target_"] == "torch.optim.AdamW":
        assert (list(a.inner.betas), a.inner.eps) == ([0.9, 0.95], 1e-8)
        assert a.inner.weight_decay == (
            0.1 if a.inner_steps else {"llama-178m": 0.15, "llama-512m": 0.125}[cfg.model.name]
        )
    assert a.clip == (1.0 if a.inner_steps else None)
    if cfg.model.name == "llama-1b":  # the paper's shape is not known
        assert 0.95e9 < count < 1.05e9
        return
    parameters, step, inner, tokens, rounds = PAPER[cfg.model.name]
    assert count == parameters
    assert cfg.scale.batch * cfg.workload.seq_len == step
    assert steps == inner
    assert cfg.scale.tokens_per_parameter * count == tokens
    if a.inner_steps:
        assert steps // a.inner_steps == rounds[a.inner_steps]


def test_every_rate_of_tables_5_to_8_is_in_the_cell_that_it_belongs_to():
    checks = 0
    for experiment in EXPERIMENTS:
        if "inner_lr" not in experiment.measures:
            continue
        for value in reported(experiment):
            owner, row = home(experiment, experiment.get(value.row))
            config = {"config": {"algorithm": config_of(owner, row).algorithm}}
            assert MEASURES[value.measure].of(config, None) == value.value, (experiment.table, value)
            checks += 1
    assert checks == 6 * 2 + 16 * 3 + 16 * 2 + 14 * 3 + 8 * 3


def test_presets_and_tuned_files_agree_with_the_table_of_eight_workers():
    table1, table2 = load("isoloco/table1"), load("isoloco/table2")
    for experiment, row, algorithm, model in (
        (table2, "sgd-r8", "diloco-sgd", "178m"), (table2, "diloco-r8", "diloco", "178m"),
        (table2, "iso-c-r8", "iso-c", "178m"), (table2, "isoloco-r8", "isoloco", "178m"),
        (table1, "ties", "tiesloco", "178m"), (table1, "dare", "dareloco", "178m"), (table1, "tsv", "tsvloco", "178m"),
        (table1, "iso-cts", "isoctsloco", "178m"), (table2, "diloco-512m-r8", "diloco", "512m"),
        (table2, "isoloco-512m-r8", "isoloco", "512m"), (table2, "dp", "adamw", "178m"),
        (table2, "dp-512m", "adamw", "512m"),
    ):  # fmt: skip
        tuned = checked(load_config([f"model=llama-{model}", f"algorithm={algorithm}"]))
        assert tuned.algorithm == config_of(experiment, experiment.get(row)).algorithm, (algorithm, model)


def test_table_2_has_every_cell_of_the_paper():
    with (REPORTED / "isoloco" / "table2.csv").open() as file:
        rows = {line["row"]: float(line["value"]) for line in csv.DictReader(file)}
    assert set(rows) == {row.row for row in load("isoloco/table2").rows}
    gains = {8: 2.07, 128: 5.81}  # 2607.03011 v1, text: (larger - smaller) / larger
    for r, gain in gains.items():
        assert 100 * (1 - rows[f"isoloco-r{r}"] / rows[f"diloco-r{r}"]) == pytest.approx(gain, abs=0.005)


def test_both_values_of_the_cell_on_which_the_paper_disagrees_are_shown():
    values = {v.value for v in reported(load("isoloco/table9")) if v.row == "svd-mean"}
    assert values == {2.898, 2.889}
