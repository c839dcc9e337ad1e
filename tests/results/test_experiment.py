import pytest

from lowcomm.reproduce import digest_of
from lowcomm.results.experiment import home, load, names, parse
from lowcomm.results.grid import at_scale, plan, tuning_runs
from lowcomm.results.reported import reported
from tests.results.synthetic import ending, put

SMALL = """
paper: gpa
table: small
title: t
measures: [loss]
scales: {cpu: {seconds: 1}}
rows:
  - {row: a, method: A, overrides: [algorithm=adamw]}
  - {row: b, method: B, overrides: [algorithm=gpa]}
claims: [{text: b below a, rows: [b], than: [a]}]
"""


@pytest.mark.parametrize("name", names())
def test_every_experiment_loads_and_cites_what_is_run(name):
    experiment = load(name)
    if not experiment.collection:
        reported(experiment)
    for row in experiment.rows:
        owner, cited = home(experiment, row)
        for scale in experiment.scales if row.cite and not experiment.collection else []:
            if row in at_scale(experiment, scale):
                assert cited in at_scale(owner, scale), f"{row.row} is not run at {scale}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("measures: [loss]", "measures: [lost]", "measure 'lost' does not exist"),
        ("measures: [loss]", "measures: [fewer_steps_pct]", "needs a baseline"),
        ("title: t", "tilte: t", "tilte"),
        ("row: b,", "row: a,", "two rows have one name"),
        ("rows: [b]", "rows: [c]", "'c' is no row"),
        ("than: [a]", "than: [b]", "row 'a', measure 'loss': no claim judges it"),
        (", than: [a]", "", "`than` goes with better"),
        ("overrides: [algorithm=gpa]", "x: 1", "exactly one of overrides, cite, best_of, literature"),
        ("seconds: 1", "seconds: soon", "soon"),
    ],
)
def test_a_mistake_is_named(old, new, message):
    parse(SMALL, "gpa/small")
    assert old in SMALL
    with pytest.raises(ValueError, match=message) as caught:
        parse(SMALL.replace(old, new), "gpa/small")
    assert "gpa/small.yaml" in str(caught.value)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="gpa/table2"):
        load("gpa/table9")


def test_plan_tunes_with_one_seed_and_goes_on_with_the_best(tmp_path):
    experiment = load("gpa/table2")
    adamw = experiment.get("adamw")
    rows, grid = at_scale(experiment, "cpu"), experiment.scales["cpu"]
    trained = [r for r in rows if r.overrides]

    def missing():
        return plan([experiment], "cpu", lambda run: (tmp_path / run.path).is_file(), tmp_path)

    finished, ready, waiting = missing()
    assert (len(finished), len(ready)) == (0, len(trained) * len(grid.tune.values))
    assert waiting == len(trained) * (len(grid.seeds) - 1)
    runs = tuning_runs(experiment, adamw, "cpu")
    losses = [3.0, 2.0, *range(4, 2 + len(runs))]
    for run, loss in zip(runs, losses, strict=True):
        put(tmp_path, run, ending(loss))
    finished, ready, waiting = missing()
    later = [r for r in ready if r.row == "adamw"]
    assert [(r.tuned, r.seed) for r in later] == [(grid.tune.values[1], 1), (grid.tune.values[1], 2)]
    assert len(finished) == len(runs)
    assert waiting == (len(trained) - 1) * 2
    assert later[0].path == f"cpu/gpa-table2/adamw-{grid.tune.values[1]:g}-seed1.json"
    assert f"algorithm.inner.lr={grid.tune.values[1]:g}" in later[0].command


def test_cited_rows_are_planned_once_at_their_home():
    never = lambda run: False  # noqa: E731
    alone = {r.path for r in plan([load("gpa/figure4")], "smoke", never)[1]}
    assert any("gpa-table2" in p for p in alone)
    both = [r.path for r in plan([load("gpa/figure4"), load("gpa/table2")], "smoke", never)[1]]
    assert len(both) == len(set(both))
    assert alone < set(both)


def test_a_collection_plans_the_tables_it_draws_from():
    runs = plan([load("gpa/abstract")], "smoke", lambda run: False)[1]
    assert {r.experiment for r in runs} >= {"gpa/table2", "gpa/vit-small"}


@pytest.mark.parametrize("name", names())
def test_every_row_of_every_scale_is_a_valid_configuration(name):
    experiment = load(name)
    for scale in experiment.scales:
        for row in at_scale(experiment, scale):
            for run in tuning_runs(experiment, row, scale)[:1] if row.overrides else []:
                digest_of(run.door, run.overrides)
