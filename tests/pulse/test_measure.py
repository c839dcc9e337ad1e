"""What is measured is what it says: entropy by hand, a chain to its end, memory that does not grow with the model."""

import importlib.util
import math
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lowcomm.pulse import History, measure, paper, receive, state, synthetic
from lowcomm.pulse import codec as codec_module
from lowcomm.pulse.__main__ import main
from lowcomm.pulse.checkpoint import Checkpoint
from lowcomm.pulse.codec import write
from lowcomm.pulse.patch import decode
from lowcomm.pulse.receive import apply

spec = importlib.util.spec_from_file_location("pulse_codec", Path(__file__).parents[2] / "bench" / "pulse_codec.py")
pulse_codec = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pulse_codec)


def chain(steps: int, n: int = 4096) -> list[dict[str, torch.Tensor]]:
    bits = synthetic.chain(n, steps, lr=3e-6)
    return [{"w": pulse_codec.bf16(b).reshape(-1, 64)} for b in bits]


def by_hand(old: torch.Tensor, new: torch.Tensor, context) -> float:
    """Bits of one symbol a weight (its step, or none) given the context, in loops."""
    groups: dict = {}
    words = (t.view(torch.int16).reshape(-1).tolist() for t in (old, new))
    for i, (a, b) in enumerate(zip(*words, strict=True)):
        low, high = (w if w >= 0 else -1 - (w & 0x7FFF) for w in (a, b))
        groups.setdefault((a >> 7 & 255, context(i)), Counter())[high - low] += 1
    return sum(n * math.log2(c.total() / n) for c in groups.values() for n in c.values())


def test_entropy_is_that_of_the_steps_given_exponent_and_memory():
    versions = chain(3)
    versions[1]["w"][0, :4] = -versions[1]["w"][0, :4]  # long steps, through zero
    memory = History(versions[0], 0)
    assert measure.entropy(versions[0], versions[1]) == pytest.approx(
        by_hand(versions[0]["w"], versions[1]["w"], lambda i: 0)
    )
    memory.commit(versions[0], versions[1])
    turn, marks = memory.meaning()[1], memory.block("w", 0, 4096)
    expected = by_hand(versions[1]["w"], versions[2]["w"], lambda i: int(turn[marks[i]]))
    assert measure.entropy(versions[1], versions[2], memory) == pytest.approx(expected)
    assert expected < measure.entropy(versions[1], versions[2])
    assert measure.entropy(versions[2], versions[2]) == 0


@pytest.mark.parametrize("names", [("paper", "packed", "history"), ("packed",), ("history", "paper")])
def test_a_chain_is_measured_to_its_end(names):
    rows = measure.chain(chain(4), names)
    assert [r["codec"] for r in rows] == list(names)
    assert len({r["given exponent, age, direction"] for r in rows}) == 1
    assert all(r["given exponent, age, direction"] <= r["entropy given exponent"] for r in rows)
    assert measure.chain(chain(4), ("paper",))[0]["density %"] == pytest.approx(rows[0]["density %"])
    with pytest.raises(ValueError, match="one version"):
        measure.chain(chain(0), names)


def test_the_bench_follows_a_chain_of_files(tmp_path, capsys, monkeypatch):
    for v, tensors in enumerate(chain(2)):
        save_file(tensors, tmp_path / f"{v}.safetensors")
    files = [str(tmp_path / f"{v}.safetensors") for v in range(3)]
    monkeypatch.setattr("sys.argv", ["pulse_codec.py", "--chain", *files])
    pulse_codec.main()
    text = capsys.readouterr().out
    assert all(name in text for name in ("paper", "packed", "history", "entropy given exponent"))


def traced(work) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ["paper", "packed"])
def test_memory_follows_the_largest_tensor_not_their_number(codec, tmp_path, monkeypatch):
    """`diff` and `apply` hold a tensor at a time, in blocks: 12 take hardly more than 3, and 6 times one is enough."""
    rows, columns = 256, 1024
    largest = rows * columns * 2
    for module in (state, paper):
        monkeypatch.setattr(module, "BLOCK", rows * columns // 8)
    monkeypatch.setattr(
        codec_module, "IN_MEMORY", 1 << 14
    )  # beyond these a patch and its changes do not stay in memory
    monkeypatch.setattr(receive, "STAGED", 1 << 14)
    monkeypatch.setattr(paper, "CHUNK", 1 << 14)  # of the finished patch on its way to the file
    peaks = {}
    for count in (3, 12):
        sides = {"old": {}, "new": {}}
        for i in range(count):
            bits = synthetic.weights(rows * columns, i)
            sides["old"][f"w{i}"] = pulse_codec.bf16(bits).reshape(rows, columns)
            sides["new"][f"w{i}"] = pulse_codec.bf16(synthetic.update(bits, 3.4e-7, 100 + i)).reshape(rows, columns)
        for side, tensors in sides.items():
            save_file(tensors, tmp_path / f"{side}{count}.safetensors")
        patch = tmp_path / f"{count}.pulse"
        with (
            Checkpoint(tmp_path / f"old{count}.safetensors", writable=True) as old,
            Checkpoint(tmp_path / f"new{count}.safetensors") as new,
        ):

            def diff(old=old, new=new, patch=patch):
                with patch.open("wb") as out:
                    write(out, old, new, codec, threads=1)

            made = traced(diff)
            data = patch.read_bytes()
            peaks[count] = made, traced(lambda old=old, data=data: apply(old, decode(data), 1))
            assert np.array_equal(old.read("w0", 0, 64), new.read("w0", 0, 64))
    for few, many in zip(peaks[3], peaks[12], strict=True):
        assert many < 1.5 * few + (64 << 10), "memory grows with the number of tensors"
        assert many < 6 * largest


def test_command_line_bench_takes_any_repeats(capsys):
    assert main(["bench", "--megabytes", "1", "--repeats", "1"]) == 0
    assert "xxh3-128" in capsys.readouterr().out
