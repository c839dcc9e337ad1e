"""The page of the papers' claims: what it points at, what each line says, what is counted."""

import re
from dataclasses import replace

import pytest

from lowcomm.results.claims import Verdict
from lowcomm.results.counts import count
from lowcomm.results.experiment import load, names, parse
from lowcomm.results.headlines import CLAIMS, Headline, line, read_headlines
from lowcomm.results.page import fields, remember
from lowcomm.results.readme import BEGIN, END, filled, row
from lowcomm.results.summary import summarise
from lowcomm.results.tables import markdown
from tests.results.synthetic import ending, fill, put

# Headlines may wait for these experiments and for no other. Strike out what is there.
STEPS = Headline(
    paper="gpa",
    text="GPA is faster",
    experiment="gpa/table2",
    claims=["GPA needs fewer steps than AdamW"],
    cells=["gpa-best/fewer_steps_pct"],
)


def show(headline: Headline, records):
    return line(headline, remember(records), records)


def test_every_headline_points_at_something():
    """`read_headlines` refuses what an experiment does not have; here: which experiments may be missing at all."""
    listed = read_headlines()
    wanted = {h.experiment for h in listed.headlines if h.experiment}
    assert wanted <= set(names()), "a headline lost its experiment"
    assert {n.partition("/")[0] for n in names()} <= {f for p in listed.papers.values() for f in p.folders}


def test_no_number_of_a_paper_is_typed_in_the_list():
    """Values stand in paper_figures/reported. A number in a text is a name, a dimension or part of a formula."""
    free = r"\b(BF16|fp8|mxfp4|zstd-1|0\.9\^\(1/H\)|1 / sqrt|\d+[MB])"
    for headline in read_headlines().headlines:
        assert not re.search(r"\d", re.sub(free, "", headline.text)), headline.text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("claims: [GPA ends below AdamW]", "claims: [GPA wins]", "gpa/table2 has no claim 'GPA wins'"),
        ("gpa-best/loss", "gpa-bets/loss", "has no row and measure 'gpa-bets/loss'"),
        ("gpa-best/loss", "gpa-best/accuracy", "has no row and measure 'gpa-best/accuracy'"),
        ("paper: gpa", "paper: gap", "paper 'gap' is none of gpa"),
        ("experiment: gpa/table2", "check: no/such.py", "there is no file no/such.py"),
        ("experiment: gpa/table2", "deployment: true, experiment: gpa/table2", "one of them"),
        ("experiment: gpa/table2", "experiment: isoloco/table2", "lies in none of gpa"),
        ("cells:", "cels:", "cels"),
        ("paper: gpa", "paper: gpa, readme_cells: [adamw/loss]", "'adamw/loss' is none of its cells"),
    ],
)
def test_a_mistake_in_the_list_is_named(tmp_path, old, new, message):
    text = """
    papers: {gpa: {title: t, folders: [gpa]}}
    headlines:
      - {paper: gpa, text: below, experiment: gpa/table2, claims: [GPA ends below AdamW], cells: [gpa-best/loss]}
    """
    path = tmp_path / "claims.yaml"
    path.write_text(text)
    assert read_headlines(path).headlines[0].text == "below"
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message) as caught:
        read_headlines(path)
    assert "claims.yaml" in str(caught.value)


def test_a_line_has_the_papers_value_ours_and_the_verdict_of_the_table(tmp_path):
    records = tmp_path / "paper_figures" / "records"
    fill(records, "gpa/table2", {"adamw": 3.0, "gpa-h8": 2.8})
    shown = show(STEPS, records)
    assert shown.paper.startswith("8.71 (abstract, v2, v3)")
    assert shown.measured == "fewer steps to the baseline's validation loss (%): GPA, best H"
    assert re.fullmatch(r"9\.\d\d ± \d\.\d\d", shown.ours)
    assert shown.held == "2 of 2 rows, 5 not run", "that of H = 8, and the best, which is the same"
    assert (shown.scale, shown.n, shown.status) == ("cpu", "3", "same order")
    table = "tables/gpa-table2.md"
    assert shown.more == f"[table]({table}), records [gpa-table2](records/cpu/gpa-table2), [command]({table}#scale-cpu)"
    page = markdown("gpa/table2", ["cpu"], records.parent / "tables", records)
    assert "## Scale: cpu" in page, "where the link to the command leads"
    assert "`python -m lowcomm.reproduce experiment=gpa/table2 scale=cpu`" in page

    fill(records, "gpa/table2", {"adamw": 3.0, "gpa-h8": 3.2})
    assert show(STEPS, records).status == "[differs](../DEVIATIONS.md#gpa-table2)"


def test_what_was_not_run_has_its_command_and_cost(tmp_path):
    shown = show(STEPS, tmp_path / "records")
    assert (shown.ours, shown.n, shown.status, shown.scale) == ("", "", "not run", "cpu")
    grid = load("gpa/table2").scales["cpu"]
    runs = sum(r.overrides != [] and r.row in grid.rows for r in load("gpa/table2").rows)
    runs *= len(grid.tune.values) + len(grid.seeds) - 1
    said = re.search(r"#scale-cpu\) \((\d+) runs, about ([\d.]+) h on one core\)$", shown.more)
    assert int(said[1]) == runs
    assert float(said[2]) == pytest.approx(runs * grid.seconds / 3600, abs=0.05)
    large = Headline(paper="gpa", text="t", experiment="gpa/table2-1b", claims=["GPA ends below AdamW"])
    assert "#scale-paper)" in show(large, tmp_path / "records").more, "not planned at a smaller scale"


def test_the_largest_scale_that_was_run_speaks(tmp_path):
    records = tmp_path / "records"
    fill(records, "gpa/table2", {"adamw": 3.0, "gpa-h8": 3.2})
    fill(records, "gpa/table2", {"adamw": 3.0, "gpa-h8": 2.8}, scale="paper")
    shown = show(STEPS, records)
    assert (shown.scale, shown.status) == ("paper", "same order")


@pytest.mark.parametrize("holds", [True, False])
def test_a_deployment_decides_by_its_own_record(tmp_path, monkeypatch, holds):
    live = Headline(paper="pulse", text="live", deployment=True)
    shown = show(live, tmp_path / "records")
    assert (shown.status, shown.ours) == ("not run", "")
    assert "make reproduce-deploy" in shown.more
    monkeypatch.setattr("lowcomm.deploy.report.said", lambda folder: (holds, str(folder)))
    shown = show(live, tmp_path / "records")
    assert (shown.status, shown.n) == ("same order" if holds else "differs", "1")
    assert shown.ours == str(tmp_path / "deployment")
    assert "[table](deployment/table.md), [figure](deployment/figure.svg)" in shown.more


def test_an_experiment_that_is_not_there_yet_is_said_and_is_alive_once_it_is(tmp_path, monkeypatch):
    waiting = Headline(paper="gpa", text="soon", experiment="gpa/soon")
    shown = show(waiting, tmp_path)
    assert (shown.status, shown.scale) == ("not run", "")
    assert "conf/experiment/gpa/soon.yaml" in shown.more
    soon = load("gpa/table6")
    monkeypatch.setattr("lowcomm.results.headlines.names", lambda: ["gpa/soon"])
    monkeypatch.setattr("lowcomm.results.headlines.load", lambda name: soon)
    shown = show(waiting, tmp_path)
    assert (shown.status, shown.n) == ("matches", "exact"), "all its claims, without a change of the list"


def test_pairs_are_counted_in_the_line(tmp_path):
    fill(tmp_path, "isoloco/table2", {"diloco-r1": 3.0, "isoloco-r1": 2.9, "diloco-r8": 3.0, "isoloco-r8": 3.2})
    text = "IsoLoCo ends below DiLoCo at the same R"
    shown = show(Headline(paper="isoloco", text="t", experiment="isoloco/table2", claims=[text]), tmp_path)
    assert shown.held == "1 of 2 pairs, 4 not run"
    assert shown.n == "3"


def test_of_several_claims_those_that_do_not_hold_are_named(tmp_path):
    """Values once, the paper's and ours in the order of the names; what fails with its count or its numbers."""
    fill(
        tmp_path,
        "isoloco/table2",
        {"diloco-r1": 3.0, "isoloco-r1": 2.9, "diloco-r8": 3.0, "isoloco-r8": 3.2, "dp": 2.95},
    )
    cells = [f"{rule}-{r}/loss" for rule in ("diloco", "isoloco") for r in ("r1", "r8", "r128")]
    texts = [f"IsoLoCo ends below {what}" for what in ("DiLoCo at the same R", "Iso-C at the same R")]
    texts += [
        "IsoLoCo with four workers or fewer ends below data parallel",
        "the gain of IsoLoCo over DiLoCo grows with R",
    ]
    headline = Headline(paper="isoloco", text="t", experiment="isoloco/table2", claims=texts, cells=cells)
    shown = show(headline, tmp_path)
    assert shown.measured == "final validation loss (nats): DiLoCo, R = 1 / 8 / 128; IsoLoCo, R = 1 / 8 / 128"
    assert shown.paper == "2.869 / 2.95 / 3.355; 2.842 / 2.889 / 3.16 (Table 2, v1)"
    assert shown.ours == "3.0100 ± 0.0100 / 3.0100 ± 0.0100 / —; 2.9100 ± 0.0100 / 3.2100 ± 0.0100 / —"
    lost = "not: IsoLoCo ends below DiLoCo at the same R (1 of 2 pairs, 4 not run)"
    gain = "gain of IsoLoCo, R = 1 / 8: 3.3 / -6.6 %, larger in 0 of 1 steps"
    assert shown.held == f"2 of 3 pairs, 12 not run; {lost}; {gain}"


def test_a_comparison_says_its_values_unless_they_stand_beside_it(tmp_path):
    fill(tmp_path, "gpa/table2", {"adamw": 3.0, "gpa-h8": 2.8})
    told = {}
    for cells in ([], ["gpa-best/loss", "adamw/loss"]):
        headline = Headline(
            paper="gpa", text="t", experiment="gpa/table2", claims=["GPA ends below AdamW"], cells=cells
        )
        told[len(cells)] = show(headline, tmp_path).held
    assert told[2] == "difference -0.2000 ± 0.0000, better with 3 of 3 seeds"
    assert told[0] == f"GPA, best H 2.8100, AdamW 3.0100; {told[2]}"


def test_the_readmes_table_has_the_numbers_alone_and_its_status(tmp_path):
    records = tmp_path / "paper_figures" / "records"
    fill(records, "gpa/table2", {"adamw": 3.0, "gpa-h8": 3.2})
    headline = replace(STEPS, claims=["GPA ends below AdamW"], cells=["gpa-best/loss", "adamw/loss"], readme="below")
    shown = row(headline, remember(records), "paper_figures")
    link = "[below](paper_figures/tables/gpa-table2.md)"
    assert shown == [link, "3.0908 / —", "3.2100 / 3.0100", "[differs](DEVIATIONS.md#gpa-table2)"]
    assert row(replace(headline, experiment="gpa/table2-1b"), remember(records), "p")[2:] == ["—", "not run"]


def test_the_readmes_table_needs_its_marks(tmp_path):
    summary = remember(tmp_path)
    text = filled(f"before\n{BEGIN}\nwhat was there\n{END}\nafter\n", summary, tmp_path / "paper_figures" / "records")
    assert text.startswith(f"before\n{BEGIN}\n| claim |")
    assert text.endswith(f"|\n{END}\nafter\n")
    assert "what was there" not in text
    with pytest.raises(ValueError, match="put both lines back"):
        filled("before\nafter\n", summary, tmp_path)


COUNTED = """
paper: gpa
table: small
title: t
measures: [loss, gap_pct]
baseline: a
scales:
  cpu: {seconds: 10, seeds: [0, 1], rows: [a, b]}
  paper: {seconds: 1000}
rows:
  - {row: a, method: A, overrides: [algorithm=adamw]}
  - {row: b, method: B, overrides: [algorithm=gpa]}
  - {row: c, method: C, overrides: [algorithm=diloco]}
claims:
  - {text: b below a, rows: [b, c], than: [a]}
  - {text: positive, kind: positive, rows: [b, c], measures: [gap_pct]}
"""


def test_cells_are_counted_once_over_scales(tmp_path, monkeypatch):
    """Cells: a, b, c by loss; b, c by gap (a is the baseline). Ours: a at cpu. Reported: a and c by loss."""
    experiment = parse(COUNTED, "gpa/small")
    reported = [type("R", (), {"row": row, "measure": "loss", "value": value}) for row, value in (("a", 3), ("c", 2))]
    reported.append(type("R", (), {"row": "b", "measure": "loss", "value": None}))
    monkeypatch.setattr("lowcomm.results.summary.reported", lambda _: reported)

    def summary(which, scale) -> tuple[list, list[Verdict]]:
        return summarise(which, scale, tmp_path)

    from lowcomm.results.grid import tuning_runs

    for run in tuning_runs(experiment, experiment.get("a"), "cpu"):
        put(tmp_path, run, ending(3.0))
    found = count([experiment, load("gpa/abstract")], ["cpu", "paper"], summary, tmp_path)
    assert (found.tables, found.cells, found.ours, found.reported, found.both) == (1, 5, 1, 2, 1)
    assert (found.not_run, found.planned) == (4, 2), "b at cpu by both measures, c only at the paper's scale"
    assert (found.runs, found.seconds) == (3, 30.0), "the second seed of a, both of b"
    assert fields(found)[-1] == "3 runs, 30 s on one core"


def test_the_list_lies_where_the_page_says():
    assert CLAIMS.name == "claims.yaml"
    assert CLAIMS.parent.name == "conf"
