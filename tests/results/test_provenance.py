import subprocess

import pytest

from lowcomm.results import provenance
from lowcomm.results.record import evidence_fault, leaves


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "src" / "a.py").write_text("x = 1\n")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "m"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    return tmp_path


def test_clean_then_changed_then_new_file(checkout):
    clean = provenance.source_state(checkout)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is None
    (checkout / "notes.md").write_text("evidence and notes do not make the code dirty")
    assert provenance.source_state(checkout) == clean
    (checkout / "src" / "a.py").write_text("x = 2\n")
    changed = provenance.source_state(checkout)
    assert changed["dirty"]
    assert changed["sources"] != clean["sources"]
    (checkout / "src" / "b.py").write_text("y = 1\n")
    assert provenance.source_state(checkout)["dirty"] not in (None, changed["dirty"])


def test_without_git_the_sources_still_identify_the_code(tmp_path, monkeypatch):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("x = 1\n")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    state = provenance.source_state(tmp_path)
    assert state["commit"] is None
    assert len(state["sources"]) == 64
    monkeypatch.setenv("PATH", "")
    assert provenance.source_state(tmp_path) == state


def test_environment_is_fit_for_evidence():
    made = provenance.environment(processes=2)
    assert made["processes"] == 2
    assert not [fault for key, value in leaves(made) if (fault := evidence_fault(key, value))]


def test_session_keys_leave_the_overrides():
    made = provenance.code({}, "0", ["seed=1", "run_dir=/tmp/x", "logger.wandb=offline", "+stop_after=3"])
    assert made["overrides"] == ["seed=1"]
