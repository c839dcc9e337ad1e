"""GSM8K, MATH and MBPP from local files of every form, and from the hub as far as it can be asked without one."""

import json

import pytest

from lowcomm.tasks import Gsm8k, Math, Mbpp, rows
from tests.tasks.files import SUBJECTS, gsm8k, jsonl, math500_row, math_row, mbpp_row, parquet

SHA = "0123456789abcdef0123456789abcdef01234567"


class Table(list):
    """What stands in for a dataset."""

    cache_files = [{"filename": f"/cache/main/0.0.0/{SHA}/test.arrow"}]


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """`hub[name, config, split]`: the rows of a dataset on a hub that is not there."""
    tables: dict[tuple[str, str, str], list[dict]] = {}

    def names(hub, revision):
        assert revision == SHA
        return list(dict.fromkeys(config for name, config, _ in tables if name == hub))

    def load(hub, name, revision, split):
        assert revision == SHA
        return Table(tables[hub, name, split])

    import datasets

    monkeypatch.setattr(datasets, "get_dataset_config_names", names)
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr("lowcomm.hub.unreachable", lambda: None)
    return tables


# GSM8K


def test_gsm8k(tmp_path):
    task = Gsm8k(name="gsm8k", seed=0, path=str(gsm8k(tmp_path)))
    assert [p.answer for p in task.problems("train")] == ["1000", "2000", "3000", "4000"]
    assert [p.id for p in task.problems("test")] == ["test/0", "test/1"]
    assert task.reward(task.problems("train")[0], r"\boxed{1000}").value == 1
    assert task.reward(task.problems("train")[0], r"\boxed{1001}").value == 0
    assert task.reward(task.problems("train")[0], "1000").verdict == "no box"
    about = json.loads(json.dumps(task.describe()))
    assert about["train"]["problems"] == 4
    assert str(tmp_path) not in json.dumps(about)
    lenient = Gsm8k(name="gsm8k", seed=0, path=str(tmp_path), accept="number")
    assert lenient.reward(task.problems("train")[0], "It is 1,000.").value == 1


def test_gsm8k_leaves_out_and_counts(tmp_path):
    gsm8k(tmp_path)
    bad = [{"question": "x", "answer": "no mark"}, {"question": "", "answer": "#### 1"}, {"question": "y"}]
    jsonl(tmp_path / "train.jsonl", [*bad, {"question": "z", "answer": "#### -3.50"}])
    task = Gsm8k(name="gsm8k", seed=0, path=str(tmp_path))
    assert task.describe()["train"]["skipped"] == {"no answer": 2, "no question": 1}
    assert [(p.id, p.answer) for p in task.problems("train")] == [("train/3", "-3.50")]


def test_gsm8k_from_the_hub(hub, tmp_path):
    for split in ("train", "test"):
        hub["openai/gsm8k", "main", split] = rows.read_file(gsm8k(tmp_path) / f"{split}.jsonl")
        hub["openai/gsm8k", "socratic", split] = []
    task = Gsm8k(name="gsm8k", seed=0, hub="openai/gsm8k", revision=SHA)
    local = Gsm8k(name="gsm8k", seed=0, path=str(tmp_path))
    assert task.problems("train") == local.problems("train")
    assert task.describe()["train"]["rows_sha256"] == local.describe()["train"]["rows_sha256"]


def test_gsm8k_from_the_cache_without_the_hub(hub, tmp_path, monkeypatch):
    """Where the hub can't be asked `datasets` names one configuration, "default", whatever the cache has."""
    hub["openai/gsm8k", "main", "train"] = [{"question": "x", "answer": "#### 1"}]
    monkeypatch.setattr("lowcomm.hub.unreachable", lambda: "nobody is there")
    monkeypatch.setattr("datasets.get_dataset_config_names", lambda hub, revision: ["default"])
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    (tmp_path / "openai___gsm8k/main/0.0.0" / SHA).mkdir(parents=True)
    (tmp_path / "openai___gsm8k/socratic/0.0.0" / SHA).mkdir(parents=True)
    assert rows.read(None, "openai/gsm8k", SHA, "train")[0] == [{"question": "x", "answer": "#### 1"}]
    (tmp_path / "openai___gsm8k/main/0.0.0" / SHA).rmdir()
    with pytest.raises(OSError, match=r"not in the cache, and nobody is there; give a copy with workload.path=FOLDER"):
        rows.read(None, "openai/gsm8k", SHA, "train")


def test_another_commit_that_is_in_the_cache_does_not_stand_in(hub, monkeypatch):
    hub["openai/gsm8k", "main", "train"] = [{"question": "x", "answer": "#### 1"}]
    monkeypatch.setattr("lowcomm.tasks.rows.configurations", lambda hub, revision: ["main"])
    monkeypatch.setattr(Table, "cache_files", [{"filename": f"/cache/main/0.0.0/{'a' * 40}/test.arrow"}])
    monkeypatch.setattr("lowcomm.hub.unreachable", lambda: "nobody is there")
    with pytest.raises(OSError, match=r"hub=openai/gsm8k is not in the cache, and nobody is there; give a copy with"):
        rows.read(None, "openai/gsm8k", SHA, "train")
    monkeypatch.setattr("lowcomm.hub.unreachable", lambda: None)
    with pytest.raises(OSError, match=f"is not of commit {SHA}"):
        rows.read(None, "openai/gsm8k", SHA, "train")


# MATH


def original(folder, count=20):
    for split in ("train", "test"):
        for subject in SUBJECTS:
            jsonl(folder / f"{split}/{subject}.jsonl", [math_row(n, split, subject) for n in range(1, count + 1)])
    return folder


def test_math_original(tmp_path, caplog):
    task = Math(name="math", seed=0, path=str(original(tmp_path)))
    assert len(task.problems("train")) == len(task.problems("test")) == 60
    first = task.problems("train")[0]
    assert (first.answer, first.level, first.subject) == (r"\frac{1}{2}", 2, "Algebra")
    assert task.reward(first, r"so $\boxed{\frac12}$").value == 1
    assert "convention=original: 60 rows to train, not 7500" in caplog.text
    about = json.loads(json.dumps(task.describe()))
    assert (about["train"]["complete"], about["convention"]) == (False, "original")
    with pytest.raises(ValueError, match=r"split=validation: one of train, test \(convention=original\)"):
        task.problems("validation")


def test_math_forms_of_files_agree(tmp_path):
    lines = original(tmp_path / "lines")
    for split in ("train", "test"):
        for subject in SUBJECTS:
            found = [math_row(n, split, subject) for n in range(1, 21)]
            parquet(tmp_path / f"clone/{subject}/{split}-00000-of-00001.parquet", found)
            for n, row in enumerate(found, 1):  # the archive: a problem a file
                file = tmp_path / f"archive/{split}/{subject}/{n}.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(row))
    tasks = [Math(name="math", seed=0, path=str(p)) for p in (lines, tmp_path / "clone", tmp_path / "archive")]
    assert tasks[0].problems("train") == tasks[1].problems("train") == tasks[2].problems("train")


def test_math_joins_the_seven_configurations(hub):
    for split in ("train", "test"):
        for subject in SUBJECTS:
            hub["EleutherAI/hendrycks_math", subject, split] = [math_row(n, split, subject) for n in range(3)]
    task = Math(name="math", seed=0, hub="EleutherAI/hendrycks_math", revision=SHA)
    assert [p.subject for p in task.problems("test")] == [s.title() for s in SUBJECTS for _ in range(3)]


def test_math_prm800k(hub, tmp_path):
    hub["rasbt/math_full_minus_math500", "default", "train"] = [math_row(n) for n in range(1, 9)]
    hub["HuggingFaceH4/MATH-500", "default", "test"] = [math500_row(n) for n in range(1, 5)]
    task = Math(name="math", seed=0, convention="prm800k", hub="rasbt/math_full_minus_math500", revision=SHA,
                test_hub="HuggingFaceH4/MATH-500", test_revision=SHA)  # fmt: skip
    assert [len(task.problems(split)) for split in ("train", "test")] == [8, 4]
    assert task.problems("test")[0].id == "test/algebra/1.json"
    assert task.problems("test")[2].level == 4


def test_math_trains_on_no_tested_problem(tmp_path):
    test = [math500_row(n) for n in range(1, 5)]
    leaked = math_row(9) | {"problem": test[1]["problem"].replace(" ", "\n")}
    jsonl(tmp_path / "train.jsonl", [math_row(1), leaked])
    jsonl(tmp_path / "test.jsonl", test)
    task = Math(name="math", seed=0, convention="prm800k", path=str(tmp_path))
    assert len(task.problems("train")) == 1
    assert task.describe()["train"]["also_tested"] == 1


def test_math_grail_holds_out_a_share_of_each_kind(tmp_path):
    jsonl(tmp_path / "train.jsonl", [math_row(n, subject=s) for s in SUBJECTS for n in range(500)])
    jsonl(tmp_path / "test.jsonl", [math_row(n, "test") for n in range(3)])
    task = Math(name="math", seed=0, convention="grail", path=str(tmp_path))
    train, validation = task.problems("train"), task.problems("validation")
    assert (len(train), len(validation)) == (1000, 500)
    assert not {p.question for p in train} & {p.question for p in validation}
    for subject in SUBJECTS:
        for level in range(1, 6):
            assert abs(sum((p.subject, p.level) == (subject.title(), level) for p in validation) - 500 / 15) < 1


def test_math_leaves_out_and_counts(tmp_path):
    bad = [{"problem": "a", "solution": "no box", "level": "Level 1"}, {"problem": "b", "answer": " ", "level": 2},
           {"problem": "c", "answer": "1", "level": "Level ?"}, {"problem": "d", "answer": "1", "difficulty": 0},
           {"problem": " ", "answer": "1", "level": 1}, {"problem": "e", "answer": "1"}]  # fmt: skip
    jsonl(tmp_path / "train.jsonl", [*bad, math_row(1), math_row(3)])
    jsonl(tmp_path / "test.jsonl", [math_row(n, "test") for n in range(5)])
    task = Math(name="math", seed=0, path=str(tmp_path))
    assert task.describe()["train"]["skipped"] == {"no answer": 2, "no level": 3, "no problem": 1}
    assert len(task.problems("train")) == 2
    hard = Math(name="math", seed=0, path=str(tmp_path), levels=[3, 4, 5])
    assert [p.level for p in hard.problems("train")] == [4]
    with pytest.raises(ValueError, match="train: no problem is left of levels=\\[1\\]"):
        Math(name="math", seed=0, path=str(tmp_path), levels=[1])


# MBPP


@pytest.fixture(scope="module")
def mbpp_file(tmp_path_factory):
    found = [mbpp_row(n) for n in (*range(8, 13), 511, 601, 974)]
    return str(jsonl(tmp_path_factory.mktemp("mbpp") / "mbpp.jsonl", found))


def test_mbpp(mbpp_file):
    task = Mbpp(name="mbpp", seed=0, path=mbpp_file, tests_shown=1, limit_s=120)
    found = {split: [p.id for p in task.problems(split)] for split in ("train", "validation", "test")}
    assert found == {"train": ["mbpp/601", "mbpp/974"], "validation": ["mbpp/511"], "test": ["mbpp/11", "mbpp/12"]}
    p = task.problems("test")[0]
    assert "assert f(1) == 12" in p.question
    assert "assert f(0)" not in p.question
    code = "```python\ndef f(x):\n    return x + {}\n```"
    assert task.reward(p, f"wrong first: {code.format(1)} right: {code.format(11)}").verdict == "passed"
    scores = [task.reward(p, text) for text in (code.format(12), "def f(x): return x + 11", "```python\ndef f(x")]
    assert [s.verdict for s in scores] == ["failed", "no code", "no code"]
    assert [(s.value, s.correct) for s in scores] == [(0.0, False)] * 3
    assert task.metrics() == {"grade/failed": 1, "grade/no_code": 2, "grade/passed": 1}
    assert json.loads(json.dumps(task.describe()))["guard"] in ("seccomp", "audit hook")


def test_mbpp_from_the_hub_has_its_splits_apart(hub, mbpp_file):
    for split, numbers in (("train", (601,)), ("validation", (511,)), ("test", (11, 12))):
        hub["google-research-datasets/mbpp", "full", split] = [mbpp_row(n) for n in numbers]
        hub["google-research-datasets/mbpp", "sanitized", split] = []
    task = Mbpp(name="mbpp", seed=0, hub="google-research-datasets/mbpp", revision=SHA)
    assert task.problems("test") == Mbpp(name="mbpp", seed=0, path=mbpp_file).problems("test")


def test_mbpp_leaves_out_and_counts(tmp_path):
    bad = [mbpp_row(13) | {"test_list": []}, mbpp_row(14) | {"text": None}, mbpp_row(15) | {"task_id": "15"}]
    file = jsonl(tmp_path / "mbpp.jsonl", [*bad, mbpp_row(16), mbpp_row(700)])
    task = Mbpp(name="mbpp", seed=0, path=str(file))
    assert task.describe()["skipped"] == {"no tests": 1, "no text": 1, "no task_id": 1}


# all


BUILD = {"gsm8k": Gsm8k, "math": Math, "mbpp": Mbpp}


@pytest.mark.parametrize("name", BUILD)
def test_a_source_must_be_given_and_pinned(name, tmp_path):
    with pytest.raises(ValueError, match="workload.path=None, workload.hub=None: give one"):
        BUILD[name](name=name, seed=0)
    with pytest.raises(ValueError, match="workload.revision=main: the dataset a/b must be pinned"):
        BUILD[name](name=name, seed=0, hub="a/b", revision="main")
    with pytest.raises(ValueError, match="no such file or folder"):
        BUILD[name](name=name, seed=0, path=str(tmp_path / "none"))


def test_one_file_is_not_two_splits(tmp_path):
    file = jsonl(tmp_path / "train.jsonl", [math_row(1)])
    with pytest.raises(ValueError, match="one file, which cannot hold train and test"):
        Math(name="math", seed=0, path=str(file))
    with pytest.raises(ValueError, match="no file for the split test"):
        Math(name="math", seed=0, path=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.jsonl", '{"a": 1}\n{"b"\n', r"train.jsonl, line 2: not JSON"),
        ("train.jsonl", "[1]\n", r"train.jsonl, row 1: not an object with fields, but list"),
        ("train.json", '[{"a": 1}, 2]', r"train.json, row 2: not an object"),
        ("train.jsonl", "\n", "no rows in the split train"),
    ],
)
def test_files_that_are_not_rows(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        rows.read(str(tmp_path), None, None, "train")


def test_a_line_separator_inside_a_string_is_no_new_line(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"a": "x\u2028y"}\n')
    assert rows.read(str(tmp_path), None, None, "train")[0] == [{"a": "x\u2028y"}]


def test_prefixes_are_whole_words(tmp_path):
    for name in ("train.jsonl", "training_notes.json", "test.jsonl"):
        (tmp_path / name).write_text(json.dumps({"from": name}))
    assert rows.read_local(tmp_path, "train") == [{"from": "train.jsonl"}]


def test_levels_and_conventions_are_checked():
    with pytest.raises(ValueError, match="convention=math500: one of original, prm800k, grail"):
        Math(name="math", seed=0, convention="math500")
    with pytest.raises(ValueError, match=r"levels=\[0\]"):
        Math(name="math", seed=0, levels=[0])
    with pytest.raises(ValueError, match="test_hub=a/b: needs hub"):
        Math(name="math", seed=0, path="x", test_hub="a/b")
