"""Measures of patches by hand, and what they say of a link."""

import numpy as np
import pytest

from lowcomm.results.cell import MEASURED, REPORTED
from lowcomm.results.claims import DIFFERS, SAME
from lowcomm.results.experiment import load, parse
from lowcomm.results.grid import Run, at_scale, plan, tuning_runs
from lowcomm.results.measures import MEASURES
from lowcomm.results.summary import summarise
from lowcomm.results.tables import table
from lowcomm.results.wire import gbits_for_90, link_seconds
from lowcomm.results.wire_figures import GBITS, best
from lowcomm.results.wire_page import chooser, numbers, recommendation
from tests.results.synthetic import patches, put

SPEED = {"dense": (0.1, 0.1, 1.0), "paper": (0.5, 0.6, 0.02), "packed": (1.0, 1.0, 0.005)}  # encode, apply, share


def speeds(root) -> None:
    """Seconds and shares of dense for one GB of weights."""
    for row in at_scale(load("pulsesync/speed"), "cpu"):
        if row.row in SPEED:
            made = patches(6.0)
            encode, apply, share = SPEED[row.row]
            made["outcome"]["metrics"] |= {"dense_bytes": 1e9, "bytes": share * 1e9}
            made["outcome"]["metrics"] |= {"encode_seconds": encode, "apply_seconds": apply}
            put(root, tuning_runs(load("pulsesync/speed"), row, "cpu")[0], made)


def test_measures_by_hand():
    outcome = patches(6.5)["outcome"]
    values = {n: MEASURES[n].of(outcome, None) for n in ("bits_per_change", "ratio", "ratio_coo", "of_published",
              "density_pct", "above_entropy_pct", "above_entropy_history_pct", "patch_mb", "changed_m")}  # fmt: skip
    assert values == pytest.approx({
        "bits_per_change": 6.5, "ratio": 4e6 / 16250, "ratio_coo": 200_000 / 16250, "of_published": 16250 / 60_000,
        "density_pct": 1.0, "above_entropy_pct": 0.0, "above_entropy_history_pct": 30.0, "patch_mb": 16250 / 2e6,
        "changed_m": 0.01,
    })  # fmt: skip
    del outcome["metrics"]["encode_seconds"]
    assert MEASURES["encode_mb_s"].of(outcome, None) is None


def test_the_papers_three_links():
    assert [round(gbits_for_90(s), 2) for s in (14, 0.14, 1.77)] == [20.16, 0.2, 2.55]
    # U = T / (T + 8 S / B) at that link
    assert 50 / (50 + 8 * 14 / gbits_for_90(14)) == pytest.approx(0.9)


def test_the_fastest_way_changes_where_the_times_cross(tmp_path):
    speeds(tmp_path)
    rows = recommendation("cpu", tmp_path)
    assert [r["fastest"] for r in rows] == ["packed", "paper", "dense"]
    metrics = {n: {"encode_seconds": e, "apply_seconds": a, "bytes": s * 1e9, "dense_bytes": 1e9}
               for n, (e, a, s) in SPEED.items()}  # fmt: skip
    spans = best({n: link_seconds(m, GBITS) for n, m in metrics.items()})
    # packed costs 0.9 s more than paper and saves 8 * 0.015 Gbit: level at 0.133 Gbit/s
    assert spans[0][1] == pytest.approx(8 * 0.015 / 0.9, rel=0.06)
    assert spans[1][1] == pytest.approx(8 * 0.98 / 0.9, rel=0.06)
    assert np.isclose(spans[0][0], GBITS[0])
    assert recommendation("cpu", tmp_path / "none") == []


def test_the_chooser_holds_its_numbers_and_says_where_they_are_from(tmp_path, monkeypatch):
    speeds(tmp_path)
    source, rows = numbers("cpu", tmp_path)
    assert source == "table speed, scale cpu"
    assert rows["packed"] == pytest.approx({"bytes": 0.005, "encode": 1e-9, "apply": 1e-9})
    monkeypatch.setattr("lowcomm.results.wire_page.numbers", lambda scale: (source, rows))
    page = chooser("paper", 10.0).data
    assert "<option selected>paper</option>" in page
    assert source in page
    assert not any(word in page for word in ("OPTIONS", "SOURCE", "DATA;"))
    monkeypatch.setattr("lowcomm.results.wire_page.numbers", lambda scale: ("", {}))
    assert "paper=pulsesync scale=cpu" in chooser().data


def test_sync_time_cites_the_speeds(tmp_path):
    speeds(tmp_path)
    cells, verdicts = summarise(load("pulsesync/sync-time"), "cpu", tmp_path)
    found = {(c.row.row, c.measure): c.mean for c in cells if c.values}
    assert found["packed", "sync_1"] == pytest.approx(2.0 + 8 * 0.005)
    assert found["dense", "sync_100"] == pytest.approx(0.2 + 0.08)
    assert {v.status for v in verdicts if v.measure == "sync_100"} >= {SAME}


def test_rows_of_the_literature_are_reported_and_never_run(tmp_path):
    lines = table("pulsesync/related", "cpu", tmp_path)
    nemo = lines[lines.method.str.startswith("NeMo-RL") & (lines.measure == "patch_mb")].iloc[0]
    assert (nemo.status, nemo.ours, nemo.record) == (REPORTED, "", "")
    assert "5800 (120B at lr 1e-6, pull request 2444)" in nemo["paper value"]
    assert not any("nemo" in r.path for r in plan([load("pulsesync/related")], "cpu", lambda run: False)[1])


def test_a_bound_is_reached_or_not_and_context_is_only_measured(tmp_path):
    experiment = load("pulsesync/density")
    for row, bits, status in (("packed-1", 6.0, SAME), ("packed-1", 9.0, DIFFERS)):
        put(tmp_path, tuning_runs(experiment, experiment.get(row), "cpu")[0], patches(bits))
        cells, verdicts = summarise(experiment, "cpu", tmp_path)
        verdict = next(v for v in verdicts if v.claim.kind == "reaches")
        assert (verdict.status, verdict.said.endswith("bound 0.320")) == (status, True)
        assert next(c.status for c in cells if (c.row.row, c.measure) == (row, "entropy")) == MEASURED


def test_the_door_is_in_the_command():
    run = Run("p/t", "r", "cpu", 0, None, ("codec=packed", "a=[1,2]"), 1.0, "patches")
    assert run.command == "python -m lowcomm.patches codec=packed 'a=[1,2]'"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("bound: 5", "tolerance: 5", "bound goes with reaches"), ("context: []", "context: [los]", "context 'los'")],
)
def test_a_mistake_is_named(old, new, message):
    text = """
paper: p
table: t
title: t
measures: [loss]
context: []
rows:
  - {row: a, method: A, overrides: [x=1]}
  - {row: b, method: B, literature: true}
claims: [{text: t, kind: reaches, rows: [a], bound: 5}]
"""
    parse(text, "p/t")
    with pytest.raises(ValueError, match=message):
        parse(text.replace(old, new), "p/t")
