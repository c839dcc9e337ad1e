"""Generated arithmetic: deterministic, true, disjoint, graded in difficulty; its rewards."""

import json
from itertools import islice

import pytest

from lowcomm.tasks import Arithmetic
from lowcomm.tasks.arithmetic import drawn, held_out, problem, right_digits, texts
from lowcomm.tasks.prompts import SHOTS

FIXED = {"name": "arithmetic", "train_size": 200, "test_size": 60}


@pytest.fixture(scope="module")
def task():
    return Arithmetic(**FIXED, seed=1)


def value(question: str) -> int:
    return eval(question.removeprefix("What is ").removesuffix("?"))


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_answers_are_true(level):
    found = list(islice(drawn("train", 3, [level]), 100))
    assert all(p.level == level and str(value(p.question)) == p.answer for p in found)
    assert len({p.question for p in found}) > 50


def test_problems_are_a_function_of_seed_and_index():
    assert problem("train", 1, 7, 2) == problem("train", 1, 7, 2)
    texts = {problem(stream, seed, 7, 5).question for stream in ("train", "test", "text") for seed in (1, 2)}
    assert len(texts) == 6


def test_golden_problems():
    """A change here changes every recorded run: raise RECIPE."""
    assert [problem("train", 1, i, level).question for i, level in enumerate((1, 2, 3, 4, 5))] == GOLDEN


GOLDEN = ["What is 3 + 9?", "What is 1 - 10?", "What is 91 - 46?", "What is 90 + 95 + 12?", "What is 94 * 4?"]


def test_two_tasks_agree_and_seeds_share_the_test_problems(task):
    again, other = Arithmetic(**FIXED, seed=1), Arithmetic(**FIXED, seed=2)
    assert task.problems("train") == again.problems("train")
    assert task.problems("train") != other.problems("train")
    assert task.problems("test") == again.problems("test") == other.problems("test")
    assert [len(task.problems(split)) for split in ("train", "test")] == [200, 60]


def test_no_problem_is_on_both_sides(task):
    train, test = ({p.question for p in task.problems(split)} for split in ("train", "test"))
    assert not train & test
    assert len(test) == 60
    pretrained = {question for question, _ in islice(texts(0, (1, 2), 0.25, test=False), 2000)}
    assert not pretrained & test
    assert not any(held_out(p, 0.25) for p in islice(drawn("train", 9, [1, 2]), 500) if p.question in train)


def test_examples_in_prompts_are_no_test_problems(task):
    for question, answer in SHOTS:
        assert answer == f"\\boxed{{{value(question)}}}"
        shown = problem("train", 0, 0, 1).__class__("", question, answer, 1, "")
        assert not held_out(shown, 0.25), question


def test_exact_reward(task):
    p = next(p for p in task.problems("train") if p.answer == "12")
    assert task.reward(p, r"It is \boxed{12}.").value == 1
    assert task.reward(p, "It is 12.").value == 1
    assert not task.reward(p, "It is 12.").boxed
    assert task.reward(p, r"It is \boxed{13}.").value == 0
    assert task.reward(p, "").verdict == "no box"


def test_boxed_only():
    task = Arithmetic(**FIXED, seed=1, accept="boxed")
    p = task.problems("train")[0]
    assert task.reward(p, p.answer).value == 0
    assert task.reward(p, f"\\boxed{{{p.answer}}}").value == 1


def test_dense_reward_grows_with_the_digits():
    task = Arithmetic(**FIXED, seed=1, reward="digits", accept="boxed")
    p = next(p for p in task.problems("train") if len(p.answer) == 2 and p.answer[0] not in "-1")
    tens, ones = p.answer
    other = "1" if ones != "1" else "2"
    values = [task.reward(p, text).value for text in ("12", f"\\boxed{{1{other}}}", f"\\boxed{{1{ones}}}",
                                                      f"\\boxed{{{tens}{ones}}}")]  # fmt: skip
    assert values == pytest.approx([0.0, 0.1, 0.5, 1.0])
    assert not task.reward(p, f"\\boxed{{1{ones}}}").correct
    assert task.describe()["reward"] == "digits"


def test_right_digits():
    assert right_digits("123", "123") == 1
    assert right_digits("123", "23") == pytest.approx(2 / 3)
    assert right_digits("23", "9923") == pytest.approx(2 / 4)
    assert right_digits("-89", "89") == pytest.approx(2 / 3)
    assert right_digits("5", "") == 0


def test_description_is_json_and_knows_the_problems(task):
    about = json.loads(json.dumps(task.describe()))
    assert (about["train_problems"], about["test_problems"]) == (200, 60)
    other = Arithmetic(**FIXED, seed=2).describe()
    assert about["train_sha256"] != other["train_sha256"]
    assert about["test_sha256"] == other["test_sha256"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": []}, r"levels=\[\]: one or more of 1, 2, 3, 4, 5"),
        ({"levels": [1, 6]}, r"levels=\[1, 6\]"),
        ({"levels": [1], "test_size": 60}, r"test_size=60: levels=\[1\] have only about \d+ different"),
        ({"train_size": 0}, "train_size=0"),
        ({"test_share": 1.0}, "test_share=1.0"),
        ({"reward": "dense"}, "reward=dense: must be exact or digits"),
        ({"accept": "all"}, "accept=all: must be boxed or number"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Arithmetic(**FIXED | changes, seed=1)


def test_unknown_split(task):
    with pytest.raises(ValueError, match="split=val: must be train or test"):
        task.problems("val")
