import json
import math

import pytest

from lowcomm.results import record
from lowcomm.results.record import RecordError
from tests.results.synthetic import make


def change(made: dict, key: str, value) -> dict:
    *parents, last = key.split(".")
    node = made
    for parent in parents:
        node = node[parent]
    node[last] = value
    return made


def test_round_trip_and_layout(tmp_path):
    path = record.write(tmp_path / "deep" / "a.json", make())
    assert record.read(path) == make()
    assert '"loss": [ 5.0, 4.0, 3.0 ]' in path.read_text(), "a curve takes one line a column"
    assert [p.name for p in path.parent.iterdir()] == ["a.json"], "nothing is left aside"


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("data.revision", "unknown", "nothing in a record is unknown"),
        ("data.revision", "N/A", "nothing in a record is unknown"),
        ("data.source", "https://example.org/x", "no address"),
        ("code.overrides", ["model.path=/data/llama"], "absolute path"),
        ("data.note", "read from ~/corpus", "absolute path"),
        ("data.note", "C:\\corpus", "absolute path"),
        ("environment.hostname", "box", "no machine and no person"),
        ("outcome.metrics.loss", math.nan, "not a finite number"),
        ("outcome.curve.loss", [5.0, 4.0], "one length"),
        ("outcome.curve", {"step": [], "loss": []}, "one evaluation at least"),
        ("code.commit", None, "evidence names a commit"),
        ("schema", 2, "schema 1"),
    ],
)  # fmt: skip
def test_refuses_naming_the_field(tmp_path, key, value, fault):
    with pytest.raises(RecordError, match=fault) as caught:
        record.write(tmp_path / "a.json", change(make(), key, value))
    assert key in str(caught.value) or key.startswith("outcome.curve") or key == "schema"
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("key", ["code.digest", "environment.lock", "outcome.weights", "identity.seed", "claim.row"])
def test_refuses_a_missing_field(key):
    made = make()
    part, name = key.split(".")
    del made[part][name]
    with pytest.raises(RecordError, match=key):
        record.check(made)


def test_a_missing_part_and_a_strange_one():
    made = make()
    made["extra"] = made.pop("data")
    with pytest.raises(RecordError, match="data, extra"):
        record.check(made)


def test_names_of_this_machine_are_refused(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node17")
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    for value in ("node17", "ada"):
        with pytest.raises(RecordError, match="no machine and no person"):
            record.check(change(make(), "data.note", value))


def test_smoke_needs_no_commit_and_a_run_by_hand_may_be_private():
    made = change(make(), "code.commit", None)
    made["claim"]["scale"] = "smoke"
    record.check(made)
    record.check(change(change(make(), "data.note", "/data/x"), "claim", None))


def test_paths_with_slashes_inside_are_fine():
    record.check(change(make(), "code.overrides", ["algorithm/outer=sgd", "run=a/b", "x: 3/4"]))


def test_a_torn_file_is_named(tmp_path):
    path = tmp_path / "torn.json"
    path.write_text(json.dumps(make())[:100])
    with pytest.raises(RecordError, match=r"torn\.json.*delete it"):
        record.read(path)


def test_load_records_is_a_frame_with_metrics(tmp_path):
    assert record.load_records(root=tmp_path).empty
    for seed in (0, 1):
        made = make()
        made["identity"]["seed"] = seed
        record.write(tmp_path / "cpu" / "gpa-table2" / f"adamw-seed{seed}.json", made)
    frame = record.load_records("cpu", "gpa/table2", tmp_path)
    assert frame.seed.tolist() == [0, 1]
    assert frame.loss.tolist() == [3.0, 3.0]
    assert record.load_records("smoke", root=tmp_path).empty
    assert record.load_records(experiment="gpa/figure4", root=tmp_path).empty
