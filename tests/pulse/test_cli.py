"""The command line on real safetensors files, single and sharded, read back by the safetensors library."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lowcomm.pulse import Corrupt, Unsupported, encode, state
from lowcomm.pulse.__main__ import main
from lowcomm.pulse.checkpoint import Checkpoint
from tests.pulse.cases import flip, gaussian, same, words

DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int64,
    torch.bool,
]


@pytest.fixture
def files(tmp_path):
    old, new = gaussian(rows=40)
    rng = np.random.default_rng(0)
    for dtype in DTYPES:
        old[f"x.{dtype}"] = words((7, 11), dtype, rng)
        new[f"x.{dtype}"] = flip(old[f"x.{dtype}"], 0.1, rng)
    save_file(old, tmp_path / "old.safetensors", metadata={"format": "pt"})
    save_file(new, tmp_path / "new.safetensors", metadata={"format": "pt"})
    return tmp_path, old, new


def sharded(folder, tensors, parts=3):
    folder.mkdir()
    names = sorted(tensors)
    index = {"metadata": {}, "weight_map": {}}
    for i in range(parts):
        shard = f"model-{i + 1:05d}-of-{parts:05d}.safetensors"
        save_file({n: tensors[n] for n in names[i::parts]}, folder / shard, metadata={"format": "pt"})
        index["weight_map"].update(dict.fromkeys(names[i::parts], shard))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")


@pytest.mark.parametrize("codec", ["packed", "paper", "full"])
def test_file(files, codec, capsys):
    path, _, new = files
    o, n, p, out = (str(path / x) for x in ("old.safetensors", "new.safetensors", "p.pulse", "out.safetensors"))
    assert main(["diff", o, n, "-o", p, "--codec", codec]) == 0
    assert main(["verify", p, "--base", o, "--target", n]) == 0
    assert main(["apply", o, p, "-o", out]) == 0
    assert same(load_file(out), new)
    assert (path / "out.safetensors").read_bytes() == (path / "new.safetensors").read_bytes()
    assert "x)" in capsys.readouterr().out
    assert not list(path.glob(".partial*"))


def test_blocks_of_a_file(files, monkeypatch):
    path, _, new = files
    monkeypatch.setattr(state, "BLOCK", 1000)
    o, n, p, out = (str(path / x) for x in ("old.safetensors", "new.safetensors", "p.pulse", "out.safetensors"))
    assert main(["diff", o, n, "-o", p]) == 0
    assert main(["apply", o, p, "-o", out, "--threads", "2"]) == 0
    assert same(load_file(out), new)


def test_folders_and_a_chain(files):
    """Other shard layouts of the same weights are the same base; the output keeps the base's files."""
    path, old, new = files
    last = {n: t.clone() for n, t in new.items()}
    last["norm"][3] = 4.0
    save_file(last, path / "last.safetensors")
    sharded(path / "old", old)
    sharded(path / "new", new, parts=2)
    assert main(["diff", str(path / "old"), str(path / "new"), "-o", str(path / "1.pulse")]) == 0
    rest = [str(path / "last.safetensors"), "-o", str(path / "2.pulse"), "--base-version", "1"]
    assert main(["diff", str(path / "new"), *rest]) == 0
    patches = [str(path / "1.pulse"), str(path / "2.pulse")]
    assert main(["apply", str(path / "old"), *patches, "-o", str(path / "out")]) == 0
    assert sorted(f.name for f in (path / "out").iterdir()) == sorted(f.name for f in (path / "old").iterdir())
    found = {}
    for shard in (path / "out").glob("*.safetensors"):
        found.update(load_file(shard))
    assert same(found, last)
    # the wrong order leaves nothing behind
    assert main(["apply", str(path / "old"), patches[1], patches[0], "-o", str(path / "no")]) == 3
    assert not (path / "no").exists()
    assert not list(path.glob(".partial*"))


def test_exit_status(files, capsys):
    path, old, _ = files
    o, n, p = (str(path / x) for x in ("old.safetensors", "new.safetensors", "p.pulse"))
    out = ["-o", str(path / "out.safetensors")]
    assert main(["diff", o, n, "-o", p]) == 0
    assert main(["diff", o, n, "-o", p]) == 2, "no silent overwriting"
    assert main(["diff", o, n, "-o", p, "--force"]) == 0
    assert main(["diff", o, str(path / "none"), "-o", p, "--force"]) == 2
    assert main(["apply", n, p, *out]) == 3
    assert main(["verify", p, "--target", o]) == 3
    raw = bytearray((path / "p.pulse").read_bytes())
    raw[200] ^= 1
    (path / "bad.pulse").write_bytes(raw)
    assert main(["apply", o, str(path / "bad.pulse"), *out]) == 4
    assert main(["verify", str(path / "bad.pulse")]) == 4
    less = {k: v for k, v in old.items() if k != "norm"}
    save_file(less, path / "less.safetensors")
    assert main(["apply", str(path / "less.safetensors"), p, *out]) == 5
    assert main(["diff", o, str(path / "less.safetensors"), "-o", str(path / "q")]) == 2
    save_file({**old, "more": torch.zeros(2)}, path / "more.safetensors")
    assert main(["apply", str(path / "more.safetensors"), p, *out]) == 6
    assert not (path / "out.safetensors").exists()
    assert (path / "p.pulse").read_bytes() != bytes(raw)
    assert "error:" in capsys.readouterr().err


def test_inspect(files, capsys):
    path, _, _ = files
    o, n, p = (str(path / x) for x in ("old.safetensors", "new.safetensors", "p.pulse"))
    main(["diff", o, n, "-o", p])
    capsys.readouterr()
    for extra in ([], ["--base", o]):
        assert main(["inspect", p, *extra, "--picture", str(path / "p.svg")]) == 0
        assert (path / "p.svg").read_text().lstrip().startswith("<?xml")
    text = capsys.readouterr().out
    assert "a.weight" in text
    assert "bits per change" in text


def test_bench(capsys):
    assert main(["bench", "--megabytes", "2", "--repeats", "1"]) == 0
    assert "packed" in capsys.readouterr().out


def test_damaged_checkpoints(tmp_path):
    save_file({"w": torch.zeros(100)}, tmp_path / "w.safetensors")
    good = (tmp_path / "w.safetensors").read_bytes()
    for bad in (
        good[:-1],
        good[:20],
        b"\xff" * 8 + good[8:],
        good.replace(b"[0,400]", b"[0,404]"),
        good[:8] + b"[" + good[9:],
    ):
        (tmp_path / "bad.safetensors").write_bytes(bad)
        with pytest.raises(Corrupt):
            Checkpoint(tmp_path / "bad.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(good.replace(b'"F32"', b'"F99"'))
    with pytest.raises(Unsupported, match="F99"):
        Checkpoint(tmp_path / "bad.safetensors")
    with pytest.raises(FileNotFoundError):
        Checkpoint(tmp_path / "nowhere")


def test_tensors_that_overlap_and_an_index_that_is_none(tmp_path):
    """A write to one tensor would change the other: such a file is no base."""
    save_file({"v": torch.zeros(50), "w": torch.zeros(50)}, tmp_path / "m.safetensors")
    good = (tmp_path / "m.safetensors").read_bytes()
    assert good.count(b"[200,400]") == 1
    (tmp_path / "m.safetensors").write_bytes(good.replace(b"[200,400]", b"[100,300]"))
    with pytest.raises(Corrupt, match="'v' and 'w' overlap"):
        Checkpoint(tmp_path / "m.safetensors")
    (tmp_path / "m.safetensors").write_bytes(good)
    for bad in ("[]", "{}", '{"weight_map": 3}', '{"weight_map": {"v": 7}}', "no"):
        (tmp_path / "model.safetensors.index.json").write_text(bad)
        with pytest.raises(Corrupt, match="index"):
            Checkpoint(tmp_path)
        assert main(["verify", str(tmp_path / "none"), "--base", str(tmp_path)]) == 2


def test_an_output_that_is_an_input(files, capsys):
    """--force replaces an older output, never what is read."""
    path, *_ = files
    o, n, p = (str(path / x) for x in ("old.safetensors", "new.safetensors", "p.pulse"))
    before = (path / "new.safetensors").read_bytes()
    assert main(["diff", o, n, "-o", n, "--force"]) == 2
    assert main(["diff", o, n, "-o", p]) == 0
    assert main(["apply", o, p, "-o", p, "--force"]) == 2
    assert capsys.readouterr().err.count("the output would replace an input; choose another output") == 2
    assert (path / "new.safetensors").read_bytes() == before
    assert main(["apply", o, p, "-o", o, "--force"]) == 0  # the base goes on as the result
    assert (path / "old.safetensors").read_bytes() == before


def test_a_folder_does_not_make_way_for_a_file(files, capsys):
    """Nor for a folder, where it holds what is read."""
    path, *_ = files
    o, n, p = (str(path / x) for x in ("old.safetensors", "new.safetensors", "p.pulse"))
    assert main(["diff", o, n, "-o", p]) == 0
    there = sorted(path.iterdir())
    assert main(["diff", o, n, "-o", str(path), "--force"]) == 2
    assert main(["apply", o, p, "-o", str(path), "--force"]) == 2
    assert capsys.readouterr().err.count("is a folder, and one file is written: give its name") == 2
    shards = path / "shards"
    shards.mkdir()
    (shards / "model.safetensors").write_bytes((path / "old.safetensors").read_bytes())
    assert main(["apply", str(shards), p, "-o", str(path), "--force"]) == 2  # the base and the patch are in it
    assert "would replace an input" in capsys.readouterr().err
    assert sorted(path.iterdir()) == sorted([*there, shards])
    assert main(["apply", str(shards), p, "-o", str(shards), "--force"]) == 0
    assert (shards / "model.safetensors").read_bytes() == (path / "new.safetensors").read_bytes()


def test_a_refusal_names_the_file_it_was_given(files, capsys):
    path, *_ = files
    o, n, p = (str(path / x) for x in ("old.safetensors", "new.safetensors", "p.pulse"))
    save_file({"v": torch.zeros(4)}, path / "v.safetensors")
    save_file({"v": torch.zeros(3, dtype=torch.int8)}, path / "w.safetensors")
    assert main(["diff", o, n, "-o", p]) == 0
    for arguments, said in (
        (["apply", p, o, "-o", f"{p}2"], "p.pulse is not a safetensors file"),
        (["apply", o, n, "-o", f"{p}2"], f"{n}: not a patch"),
        (["apply", o, f"{p}9", "-o", f"{p}2"], f"{p}9: there is no such patch"),
        (["apply", f"{o}9", p, "-o", f"{p}2"], f"{o}9: no .safetensors file is there"),
        (["diff", str(path / "v.safetensors"), str(path / "w.safetensors"), "-o", f"{p}2"],
         "'v' is F32 (4,) in old and I8 (3,) in new: take two states of one model"),
    ):  # fmt: skip
        assert main(arguments) in (2, 4)
        assert said in capsys.readouterr().err
    assert not list(path.glob(".partial*"))


def test_alone():
    """The library needs nothing of the trainer."""
    others = ["hydra", "trl", "transformers", "datasets", "lowcomm.workloads", "lowcomm.train", "matplotlib", "s3fs"]
    code = (
        f"import sys, lowcomm.pulse, lowcomm.pulse.__main__; sys.exit(str([m for m in {others} if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


def test_same_bytes_as_the_library(files):
    """A patch of files is the patch of the tensors in them."""
    path, old, new = files
    main(["diff", str(path / "old.safetensors"), str(path / "new.safetensors"), "-o", str(path / "p")])
    assert (path / "p").read_bytes() == encode(old, new)
