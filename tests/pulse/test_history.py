"""The codec that remembers: smaller along a chain, and safe when the two memories differ."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lowcomm.pulse import History, Publisher, StaleBase, Store, Subscriber, Unsupported, apply, encode, synthetic
from lowcomm.pulse.history import grew
from tests.pulse.cases import copy, same


def chain(steps: int, n: int = 1 << 19):
    return [
        {
            "w": torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).reshape(-1, 256),
            "f": torch.full((3,), float(v)),
        }
        for v, bits in enumerate(synthetic.chain(n, steps, lr=1e-6))
    ]


def test_chain_is_exact_and_smaller():
    versions = chain(12)
    ours, here = History(versions[0], 0), copy(versions[0])
    theirs = History(here)
    total = {"packed": 0, "history": 0}
    for v in range(1, len(versions)):
        old, new = versions[v - 1], versions[v]
        patch = encode(old, new, "history", base_version=v - 1, history=ours)
        ours.commit(old, new)
        apply(here, patch, history=theirs)
        assert same(here, new)
        assert ours.digest() == theirs.digest()
        if v > 5:
            total["history"] += len(patch)
            total["packed"] += len(encode(old, new, base_version=v - 1))
    assert total["history"] < 0.95 * total["packed"]


def test_memories_that_differ():
    versions = chain(3, 1 << 10)
    ours = History(versions[0], 0)
    first = encode(versions[0], versions[1], "history", history=ours)
    ours.commit(versions[0], versions[1])
    second = encode(versions[1], versions[2], "history", base_version=1, history=ours)
    here = copy(versions[1])
    with pytest.raises(Unsupported, match="history="):
        apply(here, second)
    with pytest.raises(StaleBase, match="remembers"):
        apply(here, second, history=History(here))
    assert same(here, versions[1])
    here, theirs = copy(versions[0]), History(here)
    apply(here, first, history=theirs)
    before = theirs.digest()
    with pytest.raises(StaleBase):
        apply(here, first, history=theirs)
    assert theirs.digest() == before, "a refused patch is not remembered"
    apply(here, second, history=theirs)
    assert same(here, versions[2])
    with pytest.raises(ValueError, match="go together"):
        encode(versions[0], versions[1], "history")


def test_publisher_and_readers(tmp_path):
    """Near and late readers, restarts of the publisher, another codec in between: all read every version."""
    versions, store = chain(24, 1 << 10), Store(tmp_path)
    near = Subscriber(store, copy(versions[0]))
    publisher = Publisher(store, versions[0], anchor_every=5, codec="history")
    for v, tensors in enumerate(versions):
        if v in (8, 13, 14):
            publisher = Publisher(store, versions[0], anchor_every=5, codec="packed" if v == 13 else "history")
        publisher.publish(tensors, v)
        assert near.advance() == v
        assert same(near.tensors, tensors)
        late = Subscriber(store, {n: torch.zeros_like(t) for n, t in tensors.items()})
        assert late.advance() == v
        assert same(late.tensors, tensors)
    wrong = Subscriber(store, copy(versions[22]), version=22)
    assert wrong.advance() == 24, "a reader without the memory goes by the anchor"
    assert same(wrong.tensors, versions[24])


def test_long_chain_saturates():
    old = {"w": torch.zeros(40).bfloat16()}
    ours, here, theirs = History(old, 0), copy(old), History(old)
    for v in range(1, 140):
        new = copy(old)
        new["w"][v % 40] += 1
        apply(here, encode(old, new, "history", base_version=v - 1, history=ours), history=theirs)
        ours.commit(old, new)
        old = new
    assert same(here, old)
    assert ours.number == 127
    assert ours.digest() == theirs.digest()


def test_grew():
    values = torch.tensor([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0]).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert grew(values[:-1], values[1:], True).all()
    assert not grew(values[1:], values[:-1], True).any()
    assert grew(np.array([3], np.uint8), np.array([200], np.uint8), False).all()


GOLDEN = Path(__file__).parents[1] / "golden" / "pulse_history.json"


def golden_chain() -> list[dict[str, torch.Tensor]]:
    """Small versions whose weights change early and late, again and for the first time, up and down."""
    rng = np.random.default_rng(7)
    bits = synthetic.weights(96, 7)
    out = [bits]
    for v in range(1, 13):
        bits = bits.copy()
        for _ in range(6):
            i = int(rng.integers(0, 24 if v % 3 else 96))
            bits[i] = int(bits[i]) + (int(rng.choice((-1, 1, 1, 3))) if i % 5 else 70)
        out.append(bits)
    return [{"w": torch.from_numpy(b.view(np.int16)).view(torch.bfloat16).reshape(8, 12)} for b in out]


def test_format_is_frozen():
    """A chain of an earlier release must decode for ever, patch after patch with the memory it leaves."""
    golden = json.loads(GOLDEN.read_text())
    versions = [torch.tensor(w, dtype=torch.int16).view(torch.bfloat16).reshape(8, 12) for w in golden["versions"]]
    here = {"w": versions[0].clone()}
    theirs = History(here)
    for patch, memory, version in zip(golden["patches"], golden["memories"], versions[1:], strict=True):
        apply(here, bytes.fromhex(patch), history=theirs)
        assert same(here, {"w": version})
        assert theirs.digest().hex() == memory


def write_golden() -> None:
    """`python -c "from tests.pulse.test_history import write_golden as w; w()"`, with a new format version only."""
    versions = golden_chain()
    ours = History(versions[0], 0)
    patches, memories = [], []
    for v in range(1, len(versions)):
        patches.append(encode(*versions[v - 1 : v + 1], "history", base_version=v - 1, history=ours).hex())
        ours.commit(*versions[v - 1 : v + 1])
        memories.append(ours.digest().hex())
    words = [v["w"].reshape(-1).view(torch.int16).tolist() for v in versions]
    GOLDEN.write_text(json.dumps({"versions": words, "patches": patches, "memories": memories}, separators=(",", ":")))
