"""What is committed in paper_figures: valid evidence of today's configurations, and pages that say what it says."""

import re
import shutil

import pytest

from lowcomm.reproduce import digest_of
from lowcomm.results.experiment import load, names
from lowcomm.results.grid import plan
from lowcomm.results.record import RECORDS, ROOT, read
from lowcomm.results.render import render

EVIDENCE = sorted(p for p in RECORDS.glob("*/*/*.json") if p.parts[-3] != "smoke")
HEADLINES = [ROOT / "paper_figures" / "README.md", ROOT / "README.md"]
PAGES = [*HEADLINES, *sorted((ROOT / "paper_figures" / "tables").glob("*.md"))]


def test_pages_and_figures_equal_those_made_from_the_records(tmp_path):
    (tmp_path / "paper_figures").mkdir()
    records = tmp_path / "paper_figures" / "records"
    records.symlink_to(RECORDS)
    shutil.copy(ROOT / "README.md", tmp_path)
    written = render(records=records)
    assert tmp_path / "README.md" in written, "README.md lost the marks of its table"
    for path in written:
        committed = ROOT / path.relative_to(tmp_path)
        assert committed.is_file(), f"{committed.name} is not committed: python -m lowcomm.results"
        assert path.read_bytes() == committed.read_bytes(), f"{committed.name}: python -m lowcomm.results"


def test_records_are_where_their_claim_says_and_no_run_is_there_twice():
    seen = {}
    for path in EVIDENCE:
        record = read(path)
        claim = record["claim"]
        assert path.parent.name == f"{claim['paper']}-{claim['table']}"
        assert path.parents[1].name == claim["scale"]
        other = seen.setdefault(record["code"]["digest"], path)
        assert other is path, f"{path.name} and {other.name} are the same run"


def test_records_belong_to_todays_grid_and_configuration():
    """A changed default or grid makes evidence stale: run `python -m lowcomm.reproduce scale=cpu` again."""
    for scale in sorted({p.parts[-3] for p in EVIDENCE}):
        runs = plan([load(n) for n in names()], scale, lambda run: (RECORDS / run.path).is_file())[0]
        assert {RECORDS / r.path for r in runs} == {p for p in EVIDENCE if p.parts[-3] == scale}
        for run in runs:
            stale = f"{run.path} was made with another configuration"
            assert read(RECORDS / run.path)["code"]["digest"] == digest_of(run.door, run.overrides), stale


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_difference_is_explained(page):
    anchors = {
        re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
        for line in (ROOT / "DEVIATIONS.md").read_text().splitlines()
        if line.startswith("#")
    }
    for anchor in re.findall(r"DEVIATIONS\.md#([\w-]+)", page.read_text()):
        assert anchor in anchors, f"DEVIATIONS.md has no heading '{anchor}'"


@pytest.mark.parametrize("page", HEADLINES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_of_the_results_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(((?!https:)[^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_training_with_patches_ended_at_the_weights_of_training_with_all():
    """SmolLM2-135M, 32 steps of GRPO: whole weights in one run, patches in the other."""
    dense, patches = (read(RECORDS / "cpu" / name)["outcome"]
                      for name in ("pulse-curves/dense-seed0.json", "pulse-sparsity/masters-seed0.json"))  # fmt: skip
    assert dense["weights"] == patches["weights"]
    assert dense["steps_of"]["train/reward"] == patches["steps_of"]["train/reward"]
    assert patches["bytes"]["verified"] == patches["bytes"]["versions"] == 33
