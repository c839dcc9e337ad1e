"""The evaluator: numbers from completions that are known, files, and the paired test."""

import math
from types import SimpleNamespace

import pytest

from lowcomm.tasks import Problem, Score
from lowcomm.tasks.evaluate import Evaluation, compare, evaluate
from lowcomm.tasks.problem import check_split
from tests.tasks.words import Characters


class Letters:
    """A completion is right when it is the answer; an `x` in it passes for a box."""

    name = "letters"

    def __init__(self, count=6):
        self.count = count

    def problems(self, split):
        check_split(split)
        return [Problem(f"{split}/{n}", "q" * (n + 1), chr(97 + n), 1 + n % 2, "") for n in range(self.count)]

    def reward(self, problem, completion):
        right = completion.strip("x") == problem.answer
        return Score(float(right), right, "x" in completion, "string" if right else "different")


def generate(texts):
    """Answers problem n, sample i with texts[n][i]; a final ~ marks one that was cut off. Keeps what was asked."""
    asked = []

    def run(jobs, temperature):
        asked.append((jobs, temperature))
        return [
            [
                SimpleNamespace(tokens=[ord(c) for c in text.rstrip("~")], finished=not text.endswith("~"))
                for text in group
            ]
            for group in texts[: len(jobs)]
        ]

    run.asked = asked
    return run


def run(texts, **arguments):
    return evaluate(Letters(len(texts)), generate(texts), Characters(), style="none", **arguments | {
        "max_prompt_tokens": arguments.get("max_prompt_tokens", 50)})  # fmt: skip


def test_greedy():
    found = run([["ax"], ["no"], ["c~"], ["dx"]])
    assert found.summary["metric"] == "pass@1, greedy"
    assert found.summary["accuracy"] == found.summary["reward"] == 0.75
    assert found.summary["standard_error"] == pytest.approx(math.sqrt(0.75 * 0.25 / 3))
    assert (found.summary["truncated"], found.summary["boxless"], found.summary["problems"]) == (0.25, 0.5, 4)
    assert found.summary["by_level"] == {"1": 1.0, "2": 0.5}
    assert found.rows[1] == {"id": "test/1", "level": 2, "answer": "b", "sample": 0, "text": "no", "tokens": 2,
                             "truncated": False, "value": 0.0, "correct": False, "boxed": False,
                             "verdict": "different"}  # fmt: skip


def test_mean_and_pass_at_k():
    found = run([["a", "a", "x", "x"], ["b", "x", "x", "x"], ["x"] * 4], samples=4, k=[1, 2, 4], temperature=1.0)
    assert found.summary["metric"] == "mean@4"
    assert found.summary["accuracy"] == found.summary["pass@1"] == pytest.approx((2 / 4 + 1 / 4) / 3)
    assert found.summary["pass@2"] == pytest.approx((5 / 6 + 1 / 2) / 3)
    assert found.summary["pass@4"] == pytest.approx(2 / 3)
    assert len(found.rows) == 12


def test_seeds_belong_to_problem_and_sample():
    asked = []
    for count in (3, 2):
        model = generate([["x", "x"]] * 3)
        evaluate(Letters(), model, Characters(), style="none", max_prompt_tokens=50, problems=count, samples=2,
                 temperature=0.5, seed=7)  # fmt: skip
        (jobs, temperature), *more = model.asked
        assert (temperature, more) == (0.5, [])
        asked.append(jobs)
    assert asked[0][:2] == asked[1]
    seeds = [seed for _, group in asked[0] for seed in group]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_long_prompts_are_counted():
    found = run([["a"], ["b"], ["c"]], max_prompt_tokens=3)
    assert (found.summary["problems"], found.summary["left_out"]) == (2, 1)


def test_written_and_read_again(tmp_path):
    found = run([["a"], ["\u2028 é"]])
    found.write(tmp_path / "answers.jsonl.zst")
    again = Evaluation.read(tmp_path / "answers.jsonl.zst")
    assert (again.summary, again.rows) == (found.summary, found.rows)
    assert [f.name for f in tmp_path.iterdir()] == ["answers.jsonl.zst"]


def test_one_problem_has_no_standard_error():
    assert run([["a"]]).summary["standard_error"] is None  # JSON has no infinity


def test_paired_test():
    before = run([["a"], ["x"], ["x"], ["x"], ["x"], ["x"]])
    after = run([["x"], ["b"], ["c"], ["d"], ["e"], ["f"]])
    assert compare(before, after) == {"problems": 6, "before": 1 / 6, "after": 5 / 6, "lost": 1, "won": 5, "p": 0.21875}
    with pytest.raises(ValueError, match="not of the same problems: 1 differ, such as test/5"):
        compare(before, run([["a"]] * 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 4}, "samples=4: greedy samples are all the same"),
        ({"samples": 2, "k": [3], "temperature": 1.0}, "k=3: pass@k needs"),
        ({"samples": 0}, "samples=0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"problems": 0}, "problems=0"),
        ({"split": "dev"}, "split=dev"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        run([["a"]], **arguments)
