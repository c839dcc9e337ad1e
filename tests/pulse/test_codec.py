"""Both codecs, every dtype, every density: the decoded bits are the new bits."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from lowcomm.pulse import apply, decode, digest, encode, paper, receive, state
from lowcomm.pulse.dtypes import LAYOUTS, TORCH
from tests.pulse.cases import DTYPES, copy, flip, gaussian, same, words
from tests.reference import pulse as ref

CODECS = ["packed", "paper"]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 3, 4), (40, 50)]


@pytest.mark.parametrize("codec", [*CODECS, "full"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip(codec, dtype):
    rng = np.random.default_rng(0)
    for share in (0.0, 1e-9, 0.02, 0.3, 1.0):
        old = {f"t{i}": words(shape, dtype, rng) for i, shape in enumerate(SHAPES)}
        new = {name: flip(t, share, rng) for name, t in old.items()}
        patch = encode(old, new, codec)
        here = copy(old)
        apply(here, patch)
        assert same(here, new)
        assert decode(patch).changed == (
            sum(t.numel() for t in new.values())
            if codec == "full"
            else sum(int((state.Tensors._words(old[n]) != state.Tensors._words(new[n])).sum()) for n in new)
        )


@pytest.mark.parametrize("codec", CODECS)
def test_blocks(codec, monkeypatch):
    """Tensors of several blocks, the last one short; changes only in some; two threads and one give the same bytes."""
    monkeypatch.setattr(state, "BLOCK", 64)
    monkeypatch.setattr(paper, "BLOCK", 64)
    rng = np.random.default_rng(1)
    old = {"w": words((3, 100), torch.bfloat16, rng), "v": words((64,), torch.float32, rng)}
    for hits in ([0], [63, 64, 65], [299], [128, 191], list(range(64, 128)), list(range(300))):
        new = copy(old)
        new["w"].view(torch.int16).view(-1)[hits] += 1
        patch = encode(old, new, codec)
        assert patch == encode(old, new, codec, threads=2)
        for threads in (1, 2):
            here = copy(old)
            apply(here, patch, threads)
            assert same(here, new)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("delta", [1e-8, 4e-7, 1e-5, 1e-3])
def test_gaussian(codec, delta):
    old, new = gaussian(delta=delta)
    patch = encode(old, new, codec)
    here = copy(old)
    apply(here, patch)
    assert same(here, new)
    apply(here, encode(new, old, codec))
    assert same(here, old), "the inverse patch restores"


def test_size_targets():
    """At about 1 % density: the published layout costs about 25 bits a change, packed less than 0.32 of it, and no more
    than a tenth above the entropy given the old exponent (plus the header of a few hundred bytes)."""
    old, new = gaussian(delta=3.4e-7, rows=600, columns=1000)
    sizes = {codec: len(encode(old, new, codec)) for codec in CODECS}
    count = decode(encode(old, new)).changed
    assert 0.008 < count / 1.2e6 < 0.012
    assert 22 < 8 * sizes["paper"] / count < 28
    assert sizes["packed"] < 0.32 * sizes["paper"]
    assert sizes["packed"] < 1.1 * _entropy(old, new) / 8 + 400


def _entropy(old, new) -> float:
    """Bits to tell where and by how many units the weights changed, given each old exponent; one table for all."""
    a, b = (
        np.concatenate([t.view(torch.int16).numpy().view(np.uint16).ravel() for t in x.values()]) for x in (old, new)
    )
    order = [np.where(x < 32768, x.astype(np.int64), -1 - (x & 32767).astype(np.int64)) for x in (a, b)]
    step, exponent, total = order[1] - order[0], a >> 7 & 255, 0.0
    for e in np.unique(exponent):
        _, n = np.unique(step[exponent == e], return_counts=True)  # step 0 is "no change": positions and values at once
        total -= float((n * np.log2(n / n.sum())).sum())
    return total


@pytest.mark.parametrize("seed", range(3))
def test_published_layout(seed):
    rng = np.random.default_rng(seed)
    shapes = {"m": (30, 400), "v": (500,), "c": (4, 3, 5), "s": (), "wide": (2, 70000), "tall": (70000, 2)}
    old = {n: words(s, torch.bfloat16, rng) for n, s in shapes.items()}
    new = {n: flip(t, 0.0005 if t.numel() > 5000 else 0.05, rng) for n, t in old.items()}
    as_ints = [
        {n: t.contiguous().view(torch.int16).numpy().view(np.uint16).ravel().tolist() for n, t in x.items()}
        for x in (old, new)
    ]
    assert paper.blob(decode(encode(old, new, "paper"))) == ref.published_layout(*as_ints, shapes)


@pytest.mark.parametrize("codec", CODECS)
def test_bits_not_values(codec):
    old = {
        "w": torch.tensor([0.0, -0.0, 1.0, 2.0]).bfloat16(),
        "nan": torch.tensor([0x7FC0, 0x7FC0], dtype=torch.int16).view(torch.bfloat16),
    }
    new = copy(old)
    new["w"][0], new["w"][1] = -0.0, 0.0
    new["nan"].view(torch.int16)[1] = 0x7FC1
    patch = encode(old, new, codec)
    assert {r.name: r.changed for r in decode(patch).records} == {"nan": 1, "w": 2}
    here = copy(old)
    apply(here, patch)
    assert same(here, new)


@pytest.mark.parametrize("codec", CODECS)
def test_tied_tensors_travel_once(codec):
    """prime-rl#2823: a cloned head stayed behind. One owner is sent, every copy of it is set."""
    shared = torch.randn(20, 8).bfloat16()
    old = {"head": shared, "embedding": shared, "x": torch.ones(3)}
    moved = shared.clone()
    moved[3, 3] = 7.0
    patch = encode(old, {"head": moved, "embedding": moved, "x": torch.ones(3)}, codec)
    assert [r.name for r in decode(patch).records] == ["embedding", "x"]
    assert decode(patch).aliases == {"head": "embedding"}
    tied = shared.clone()
    for here in (
        {"head": tied, "embedding": tied, "x": torch.ones(3)},
        {"head": shared.clone(), "embedding": shared.clone(), "x": torch.ones(3)},
        {"embedding": shared.clone(), "x": torch.ones(3)},
        {"head": shared.clone(), "x": torch.ones(3)},
    ):
        apply(here, patch)
        assert all(torch.equal(here[n], moved) for n in here if n != "x")


@pytest.mark.parametrize("codec", CODECS)
def test_strided_and_mixed(codec):
    """A transposed view, and an FP32 buffer whose change BF16 could not see."""
    base = torch.randn(6, 50).bfloat16()
    old = {"w": base.clone().t(), "b": torch.ones(4)}
    new = {"w": base.clone().t(), "b": torch.ones(4) + 2**-20}
    new["w"][7, 2] = 3.0
    view = base.clone()
    here = {"w": view.t(), "b": torch.ones(4)}
    apply(here, encode(old, new, codec))
    assert same(here, new)
    assert view[2, 7] == 3.0, "written through the view"


@pytest.mark.parametrize("codec", [*CODECS, "full"])
def test_any_alignment(codec):
    """Slices that start anywhere in their storage."""
    for start in range(1, 4):
        storage = torch.randn(200).bfloat16()
        here = {"w": storage[start : start + 101]}
        old = copy(here)
        new = copy(here)
        new["w"][::9] += 1
        apply(here, encode({"w": old["w"]}, new, codec))
        assert same(here, new)
        assert encode(here, {"w": torch.cat([storage[:start], old["w"]])[start:]}, codec) == encode(new, old, codec)


def test_parameters_in_place():
    layer = torch.nn.Linear(5, 5)
    new = {n: p.detach() + 1 for n, p in layer.named_parameters()}
    pointer = layer.weight.data_ptr()
    apply(dict(layer.named_parameters()), encode(dict(layer.named_parameters()), new))
    assert layer.weight.data_ptr() == pointer
    assert same(dict(layer.state_dict()), new)


def test_large_stage_is_decoded_twice(monkeypatch):
    old, new = gaussian()
    monkeypatch.setattr(receive, "STAGED", 64)
    for codec in (*CODECS, "full"):
        here = copy(old)
        apply(here, encode(old, new, codec))
        assert same(here, new)


def test_beyond_two_to_the_31():
    """Positions and gaps of a tensor of more than 2^31 elements, without having one."""
    shape = (3, 3 << 30)
    columns = paper.columns_of(shape)
    flat = np.array([5, (1 << 31) + 7, (3 << 30) + 1, (9 << 30) - 1], np.int64)
    row, column, before = np.empty(4, np.int64), np.empty(4, np.int64), np.zeros(2, np.int64)
    paper.split_gaps(flat, 0, columns, before, row, column)
    assert paper.narrow([column], ("uint16", "int32", "int64"))[0] == "int64"
    out = np.empty(4, np.int64)
    assert paper.join_gaps(row, column, columns, 9 << 30, np.array((0, 0, -1)), out)
    assert out.tolist() == flat.tolist()
    assert state.Entry("BF16", shape).blocks()[-1][1] == 9 << 30


def test_misuse_is_named():
    a = {"w": torch.zeros(3)}
    with pytest.raises(ValueError, match="nothing to publish"):
        encode({}, {})
    with pytest.raises(ValueError, match="'v'"):
        encode(a, {"v": torch.zeros(3)})
    with pytest.raises(ValueError, match="'w'"):
        encode(a, {"w": torch.zeros(4)})
    with pytest.raises(ValueError, match="'w'"):
        encode(a, {"w": torch.zeros(3).bfloat16()})
    with pytest.raises(ValueError, match="codec"):
        encode(a, a, "zip")


def test_digest_sees_everything():
    a = {"w": torch.zeros(2, 3), "v": torch.zeros(3)}
    others = [
        {"w": torch.zeros(3, 2), "v": torch.zeros(3)},
        {"w": torch.zeros(2, 3), "u": torch.zeros(3)},
        {"w": torch.zeros(2, 3), "v": torch.zeros(3, dtype=torch.int32)},
        {"w": torch.zeros(2, 3), "v": -torch.zeros(3)},
    ]
    assert digest(a) == digest(dict(reversed(a.items())))
    assert len({digest(x) for x in (a, *others)}) == 5


def test_format_is_frozen():
    """Patches of earlier releases must decode for ever: a change here needs a new format version."""
    golden = json.loads((Path(__file__).parents[1] / "golden" / "pulse.json").read_text())
    assert {n: layout.code for n, layout in LAYOUTS.items()} == golden["dtypes"]
    for case in golden["patches"]:
        tensors = {n: torch.tensor(w, dtype=torch.int16).view(torch.bfloat16) for n, w in case["old"].items()}
        apply(tensors, bytes.fromhex(case["patch"]))
        assert {n: t.view(torch.int16).tolist() for n, t in tensors.items()} == case["new"]


def test_little_endian():
    patch = encode({"w": torch.zeros(3)}, {"w": torch.ones(3)}, base_version=258, version=259)
    assert patch[8:16] == struct.pack("<Q", len(patch))
    assert decode(patch).base_version == 258
    assert set(TORCH.values()) == set(LAYOUTS)
