"""Arithmetic as text: whole problems in every window, true answers, no tested problem."""

import json

import numpy as np
import pytest

from lowcomm.byte_tokenizer import byte_tokenizer
from lowcomm.tasks import Arithmetic
from lowcomm.workloads import ArithmeticText
from lowcomm.workloads.arithmetic import packed

SMALL = {"name": "arithmetic", "documents": 300, "heldout_documents": 60, "levels": (1, 2)}


@pytest.fixture(scope="module")
def workload():
    return ArithmeticText(**SMALL, seed=1)


def problems(ids) -> list[tuple[str, str]]:
    """(question, answer) of the windows' texts; fails on a text that is cut."""
    text = byte_tokenizer().decode(ids, skip_special_tokens=False)
    found = [part.split("?\n\\boxed{") for part in text.split("<|endoftext|>") if part]
    return [(question + "?", answer.removesuffix("}")) for question, answer in found]


def test_windows_hold_whole_true_problems(workload):
    rows = workload.batch(0, 1, 0, 40)["input_ids"]
    assert rows.shape == (40, 64)
    found = [pair for row in rows.tolist() for pair in problems(row)]
    assert len(found) > 120
    for question, answer in found:
        assert str(eval(question.removeprefix("What is ").removesuffix("?"))) == answer


def test_no_tested_problem_is_trained_on(workload):
    size = len(workload._train)
    trained = {q for row in workload._train.rows(np.arange(size)).tolist() for q, _ in problems(row)}
    tested = {p.question for p in Arithmetic(name="a", seed=5, test_size=150).problems("test")}
    heldout = {q for row in workload._heldout.rows(np.arange(4)).tolist() for q, _ in problems(row)}
    assert not trained & (tested | heldout)
    assert len(trained) > 150


def test_texts_do_not_depend_on_the_seed_and_their_order_does(workload):
    again = ArithmeticText(**SMALL, seed=2)
    about, other = (json.loads(json.dumps(w.describe())) for w in (workload, again))
    assert about["train_sha256"] == other["train_sha256"]
    assert not np.array_equal(workload.batch(0, 1, 0, 8)["input_ids"], again.batch(0, 1, 0, 8)["input_ids"])


def test_packing():
    assert packed([[5, 6], [7], [8, 9, 10]], 0, 6).tolist() == [5, 6, 0, 7, 0, 0, 8, 9, 10, 0, 0, 0]
    assert packed([[5, 6], [7, 8]], 0, 6).tolist() == [5, 6, 0, 7, 8, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": [7]}, r"levels=\[7\]"),
        ({"documents": 0}, "documents=0"),
        ({"test_share": 0.0}, "test_share=0.0"),
        ({"seq_len": 16}, "seq_len=16: at least 24"),
        ({"vocab_size": 256}, "vocab_size=256: at least 264"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ArithmeticText(**SMALL | changes, seed=1)
