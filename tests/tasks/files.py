"""Small files in the forms that the published datasets have, with made-up rows."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet

SUBJECTS = ("algebra", "geometry", "number_theory")


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def gsm8k(folder: Path, train: int = 4, test: int = 2) -> Path:
    for split, count in (("train", train), ("test", test)):
        jsonl(folder / f"{split}.jsonl", [
            {"question": f"{split}: a crate holds {n} pens, how many do 1000 hold?",
             "answer": f"{n} * 1000 = <<{n}*1000={n * 1000}>>{n * 1000}\n#### {n},000"} for n in range(1, count + 1)
        ])  # fmt: skip
    return folder


def math_row(n: int, split: str = "train", subject: str = "algebra") -> dict:
    """As in the original archive."""
    return {
        "problem": f"{split} {subject}: what is ${n}/2$?",
        "level": f"Level {n % 5 + 1}",
        "type": subject.title(),
        "solution": f"It is not $\\boxed{{0}}$ but $\\boxed{{\\frac{{{n}}}{{2}}}}$.",
    }


def math500_row(n: int) -> dict:
    return {"problem": f"MATH-500: ${n}/3$?", "solution": "…", "answer": f"\\frac{{{n}}}{{3}}", "subject": "Algebra",
            "level": n % 5 + 1, "unique_id": f"test/algebra/{n}.json"}  # fmt: skip


def mbpp_row(task_id: int) -> dict:
    return {"task_id": task_id, "text": f"Write a function to add {task_id}.", "code": f"def f(x): return x+{task_id}",
            "test_list": [f"assert f(1) == {1 + task_id}", f"assert f(0) == {task_id}", "assert f(K) == f(0) + K"],
            "test_setup_code": "K = 7", "challenge_test_list": []}  # fmt: skip
