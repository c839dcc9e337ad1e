from dataclasses import replace

import pytest

from lowcomm.results.cell import DIFFERS, MATCHES, MEASURED, NOT_RUN, SAME
from lowcomm.results.claims import single
from lowcomm.results.experiment import Claim, load
from lowcomm.results.grid import tuning_runs
from lowcomm.results.render import render
from lowcomm.results.summary import summarise
from lowcomm.results.tables import COLUMNS, markdown, table
from tests.results.synthetic import ending, fill, put

AS_THE_PAPER = {"adamw": 3.0, "schedule-free": 2.95, "diloco-h8": 2.9, "gpa-h4": 2.85, "gpa-h8": 2.8}


def cell(lines, method, measure="loss"):
    return lines[(lines.method == method) & (lines.measure == measure)].iloc[0]


def test_columns_words_and_numbers(tmp_path):
    fill(tmp_path, "gpa/table2", AS_THE_PAPER)
    lines = table("gpa/table2", "cpu", tmp_path)
    assert lines.columns.tolist() == ["measure", *COLUMNS]
    best = cell(lines, "GPA, best H")
    assert best.ours == "2.8100 ± 0.0100 (n = 3, GPA, H = 8)"
    assert best["paper value"].startswith("3.0908 (Table 2, v3)")
    assert best.status == SAME
    assert cell(lines, "GPA, H = 16").status == NOT_RUN
    assert cell(lines, "AdamW")["paper value"] == "", "what is not known stays empty"
    assert set(lines.scale) == {"cpu"}


def test_speedup_pairs_seeds_and_shows_both_readings(tmp_path):
    fill(tmp_path, "gpa/table2", AS_THE_PAPER)
    best = cell(table("gpa/table2", "cpu", tmp_path), "GPA, best H", "fewer_steps_pct")
    # linear falls from 5: AdamW's 3 is reached at 20 * 2 / 2.2 steps, seed by seed
    assert best.ours.startswith("9.13 ")
    assert "[10.0" in best.ours
    assert "8.71 (abstract, v2, v3)" in best["paper value"]


def test_a_reversed_order_differs_with_a_link(tmp_path):
    fill(tmp_path, "gpa/table2", AS_THE_PAPER | {"gpa-h4": 3.3, "gpa-h8": 3.2})
    lines = table("gpa/table2", "cpu", tmp_path, links_from=tmp_path)
    assert cell(lines, "GPA, H = 8").status.startswith(f"[{DIFFERS}](")
    assert cell(lines, "GPA, H = 8").status.endswith("DEVIATIONS.md#gpa-table2)")
    assert cell(lines, "DiLoCo, H = 8").status == SAME, "it still beats AdamW"
    assert cell(lines, "GPA, best H", "fewer_steps_pct").ours.startswith("not reached (0 of 3 seeds")


def test_an_average_over_seeds_that_missed_the_target_is_not_shown(tmp_path):
    fill(tmp_path, "gpa/table2", {"adamw": 3.0, "gpa-h8": 2.8})
    experiment = load("gpa/table2")
    cells, _ = summarise(experiment, "cpu", tmp_path)
    run = next(c for c in cells if c.row.row == "gpa-h8" and c.measure == "fewer_steps_pct")
    assert len(run.values) == 3
    run.values[2] = None
    assert run.mean is None


def test_scales_do_not_mix(tmp_path):
    fill(tmp_path, "gpa/table2", {"adamw": 3.0}, scale="smoke")
    fill(tmp_path, "gpa/table2", {"gpa-h8": 2.0}, scale="cpu")
    assert cell(table("gpa/table2", "cpu", tmp_path), "GPA, H = 8").status == MEASURED, "nothing to compare with"
    assert cell(table("gpa/table2", "smoke", tmp_path), "AdamW").ours == "3.0000 (n = 1)"
    page = markdown("gpa/table2", ["cpu", "paper"], tmp_path, tmp_path)
    assert "3.0000" not in page
    assert "`python -m lowcomm.reproduce experiment=gpa/table2 scale=paper`" in page


def test_the_best_at_the_edge_of_the_grid_is_said(tmp_path):
    fill(tmp_path, "gpa/table2", {"adamw": 3.0}, best=0)
    assert "(edge of its grid)" in cell(table("gpa/table2", "cpu", tmp_path), "AdamW").record


@pytest.mark.parametrize(("copies", "status"), [(3, MATCHES), (4, DIFFERS)])
def test_a_value_is_held_against_the_papers(tmp_path, copies, status):
    experiment = load("gpa/table2")
    for run in tuning_runs(experiment, experiment.get("gpa-h8"), "cpu"):
        put(tmp_path, run, ending(3.0, copies))
    assert cell(table("gpa/table4", "cpu", tmp_path), "GPA", "state_copies").status == status


def test_computed_rows_need_no_record():
    lines = table("gpa/table6")
    assert lines.status.tolist() == [MATCHES] * 7
    assert lines.record.tolist() == ["computed"] * 7


def test_collection_takes_numbers_and_status_from_their_tables(tmp_path):
    fill(tmp_path, "gpa/table2", AS_THE_PAPER)
    lines = table("gpa/abstract", "cpu", tmp_path)
    ours = cell(lines, "Llama-160M, GPA", "fewer_steps_pct")
    there = cell(table("gpa/table2", "cpu", tmp_path), "GPA, best H", "fewer_steps_pct")
    assert (ours.ours, ours.status, ours["paper value"]) == (there.ours, there.status, there["paper value"])
    assert cell(lines, "ViT, large batch, GPA", "fewer_steps_accuracy_pct")["paper value"].startswith("25.5 (abstract")


def test_rendering_twice_gives_the_same_bytes(tmp_path):
    fill(tmp_path / "records", "gpa/table2", AS_THE_PAPER)
    fill(tmp_path / "records", "gpa/vit-small", {"adamw": 2.0, "gpa-h4": 1.0})
    chosen = [load(n) for n in ("gpa/table2", "gpa/table4", "gpa/vit-small")]
    first = {p: p.read_bytes() for p in render(chosen, "cpu", tmp_path / "records")}
    assert {p.suffix for p in first} == {".md", ".svg"}
    for path in render(chosen, "cpu", tmp_path / "records"):
        assert path.read_bytes() == first[path]
        assert str(tmp_path).encode() not in first[path]


def test_claims_about_pairs_and_about_a_gain_that_grows(tmp_path):
    """A verdict for each pair that was run, with the row it is about; the gain of each pair against the one before."""
    losses = {"diloco-r1": 3.0, "isoloco-r1": 2.9, "diloco-r8": 3.2, "isoloco-r8": 3.0, "iso-c-r8": 2.95}
    fill(tmp_path, "isoloco/table2", losses)
    verdicts = summarise(load("isoloco/table2"), "cpu", tmp_path)[1]
    pair = {v.claim.rows[0]: v.status for v in verdicts if v.claim.text.startswith("IsoLoCo ends below DiLoCo at the")}
    assert (pair["isoloco-r1"], pair["isoloco-r8"], pair["isoloco-r2"]) == (SAME, SAME, NOT_RUN)
    assert "isoloco-r64" not in pair, "not planned at this scale"
    lost = next(v for v in verdicts if v.claim.rows == ["isoloco-r8"] and v.claim.than == ["iso-c-r8"])
    assert lost.status == DIFFERS
    grows = next(v for v in verdicts if v.claim.kind == "widens")
    assert grows.status == SAME
    assert "IsoLoCo, R = 1 3.3" in grows.said
    assert "IsoLoCo, R = 8 6.2" in grows.said
    lines = table("isoloco/table2", "cpu", tmp_path)
    assert cell(lines, "IsoLoCo, R = 8")["paper value"] == "2.889 (Table 2, v1)"


def test_a_row_may_tune_a_key_of_its_own(tmp_path):
    fill(tmp_path, "isoloco/table9", {"ns-spectral": 3.0, "ns-rms": 2.9})
    lines = table("isoloco/table9", "cpu", tmp_path)
    assert "outer.lr=" in str(tuning_runs(load("isoloco/table9"), load("isoloco/table9").get("ns-spectral"), "cpu")[0])
    assert cell(lines, "Newton-Schulz 5, sqrt(out/in)").record.startswith("outer.lr 0.03")
    said = "in place of it `algorithm.outer.lr` chosen from 0.01, 0.03, 0.1, 0.3 for Newton-Schulz 5, sqrt(out/in)"
    assert said in markdown("isoloco/table9", ["cpu"], tmp_path, tmp_path)


def test_a_gain_that_grows_only_from_the_first_pair_to_the_last_differs(tmp_path):
    losses = {"diloco-r1": 3.0, "isoloco-r1": 2.9, "diloco-r8": 3.0, "isoloco-r8": 2.7, "diloco-r16": 3.0}
    fill(tmp_path, "isoloco/table2", losses | {"isoloco-r16": 2.8})
    grows = next(v for v in summarise(load("isoloco/table2"), "cpu", tmp_path)[1] if v.claim.kind == "widens")
    assert grows.status == DIFFERS
    assert grows.said.endswith("larger than before in 1 of 2 steps, seeds shared by all: 3")


def test_rows_of_other_seeds_are_compared_on_those_that_both_have(tmp_path):
    """3.00, 3.01, 3.02 against one 3.005: worse in the mean of all, better with the seed that both have."""
    fill(tmp_path, "isoloco/table2", {"sgd-r8": 3.0})
    fill(tmp_path, "isoloco/table1", {"ties": 3.005})
    verdicts = summarise(load("isoloco/table1"), "cpu", tmp_path)[1]
    found = next(v for v in verdicts if v.claim.rows == ["sgd"] and v.claim.than == ["ties"])
    assert found.status == SAME
    assert found.said == ("DiLoCo-SGD 3.0000, TIES 3.0050; difference -0.0050, better with 1 of 1 seeds that both have")


def test_a_row_whose_value_the_paper_does_not_print_is_measured_and_equals_nothing():
    for name, row in (("isoloco/table5", "DiLoCo-SGD"), ("isoloco/table6", "DiLoCo-SGD, R = 8")):
        assert cell(table(name), row, "outer_momentum").status == MEASURED
    assert cell(table("isoloco/table6"), "IsoLoCo, R = 8", "outer_momentum").status == MATCHES


def test_pairs_of_one_claim_are_counted_under_one_line(tmp_path):
    fill(tmp_path, "isoloco/table2", {"diloco-r1": 3.0, "isoloco-r1": 2.9, "diloco-r8": 3.0, "isoloco-r8": 3.2})
    page = markdown("isoloco/table2", ["cpu"], tmp_path, tmp_path)
    text = "IsoLoCo ends below DiLoCo at the same R (final validation loss): **differs**, 1 of 2 pairs, 4 not run"
    assert f"- {text}\n  - same order. IsoLoCo, R = 1 2.9100" in page
    assert page.count("IsoLoCo ends below DiLoCo at the same R (final validation loss)") == 1
    assert "Iso-C gets worse with every doubling of R (final validation loss): **not run**, 5 pairs\n" in page


@pytest.mark.parametrize(("loss", "status"), [(3.02, SAME), (3.2, DIFFERS)])
def test_close_allows_a_fraction_and_no_more(tmp_path, loss, status):
    fill(tmp_path, "isoloco/table2", {"isoloco-r8": 3.0})
    fill(tmp_path, "isoloco/table9", {"ns-rms": loss})
    verdicts = summarise(load("isoloco/table9"), "cpu", tmp_path)[1]
    assert next(v.status for v in verdicts if v.claim.kind == "close") == status


def test_a_number_without_a_unit_has_none_in_its_heading(tmp_path):
    page = markdown("isoloco/table6", ["paper"], tmp_path, tmp_path)
    assert "### Outer momentum\n" in page
    assert "(1)" not in page


def test_what_a_run_did_not_take_is_not_measured_and_no_target_missed(tmp_path, monkeypatch):
    """Two of three seeds measured it: their mean; none did: the status says so, and nothing reads as a failure."""
    from lowcomm.results import summary
    from lowcomm.results.cell import UNMEASURED

    fill(tmp_path, "gpa/table2", AS_THE_PAPER)
    seen = []

    def some(outcome, _):
        seen.append(outcome)
        return None if len(seen) % 3 == 0 else outcome["metrics"]["loss"]

    for of, n in ((some, 2), (lambda outcome, _: None, 0)):
        plain = replace(summary.MEASURES["fewer_steps_pct"], of=of, relative=False, target=False, ratio=None)
        monkeypatch.setitem(summary.MEASURES, "fewer_steps_pct", plain)
        cells, _ = summarise(load("gpa/table2"), "cpu", tmp_path)
        row = next(c for c in cells if c.row.row == "gpa-h8" and c.measure == "fewer_steps_pct")
        assert (row.status == UNMEASURED, len(row.values)) == (n == 0, n)
        assert "not reached" not in cell(table("gpa/table2", "cpu", tmp_path), "GPA, H = 8", "fewer_steps_pct").ours


def test_each_row_of_a_bound_or_of_a_sign_is_judged(tmp_path):
    """Of two rows one reaches the baseline's loss, one does not: 1 of 2, and each cell says which."""
    fill(tmp_path, "gpa/table2", {"adamw": 3.0, "gpa-h8": 2.8, "gpa-h16": 3.2})
    experiment = load("gpa/table2")
    verdicts = [v for v in summarise(experiment, "cpu", tmp_path)[1] if v.claim.kind == "positive"]
    found = {v.claim.rows[0]: v.status for v in verdicts if v.status != NOT_RUN}
    assert found == {"gpa-best": SAME, "gpa-h8": SAME, "gpa-h16": DIFFERS}
    lines = table("gpa/table2", "cpu", tmp_path)
    assert cell(lines, "GPA, H = 8", "fewer_steps_pct").status == SAME
    assert cell(lines, "GPA, H = 16", "fewer_steps_pct").status.startswith(DIFFERS)
    assert "2 of 3 rows, " in markdown("gpa/table2", ["cpu"], tmp_path, tmp_path)


def test_close_goes_by_partners_or_by_one_row_with_each():
    claim = Claim(text="t", kind="close", rows=["a", "b"], than=["c", "d"])
    here = {"a", "b", "c", "d"}
    pairs = lambda claim: [(*c.rows, *c.than) for c in single(claim, here)]  # noqa: E731
    assert pairs(claim) == [("a", "c"), ("b", "d")]
    assert pairs(replace(claim, rows=["a"])) == [("a", "c"), ("a", "d")]
    assert pairs(replace(claim, than=["c"])) == [("a", "c"), ("b", "c")]
    assert single(claim, {"a", "b", "c"})[0].rows == ["a"], "only pairs that the scale has"
