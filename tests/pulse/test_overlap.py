"""Receivers whose tensors share memory, names of versions of any length, anchors whose answer is lost."""

import pytest
import torch

from lowcomm.pulse import Corrupt, Publisher, Store, Subscriber, Unsupported, apply, encode
from lowcomm.pulse.overlap import refuse_overlaps


def pair():
    """Two tensors of four BF16 weights, and a patch that changes the first of each."""
    old = {"a": torch.arange(4.0).bfloat16(), "b": torch.arange(4.0).bfloat16()}
    new = {n: t.clone() for n, t in old.items()}
    new["a"][0], new["b"][0] = 7.0, 9.0
    return old, new, encode(old, new)


def test_overlapping_receivers_are_refused_and_nothing_is_written():
    base = torch.tensor([0.0, 1, 2, 3, 2, 3, 0, 0]).bfloat16()
    old = {"a": base[:4].clone(), "b": base[2:6].clone()}
    new = {"a": old["a"] + 1, "b": old["b"] + 2}
    patch, here, before = encode(old, new), {"a": base[:4], "b": base[2:6]}, base.clone()
    with pytest.raises(Unsupported, match="'a' and 'b' overlap in memory"):
        apply(here, patch)
    assert torch.equal(base, before)


def test_an_expanded_receiver_is_refused_and_nothing_is_written():
    old = {"a": torch.arange(4.0).bfloat16(), "b": torch.ones(4).bfloat16()}
    patch = encode(old, {"a": old["a"] + 1, "b": old["b"] + 1})
    here = {"a": old["a"].clone(), "b": torch.ones(1).bfloat16().expand(4)}
    with pytest.raises(Unsupported, match="'b' is expanded"):
        apply(here, patch)
    assert torch.equal(here["a"], old["a"])


def test_what_is_tied_here_but_not_in_the_patch_is_refused():
    old, _, patch = pair()
    one = old["a"].clone()
    with pytest.raises(Unsupported, match="share storage here but not at the publisher"):
        apply({"a": one, "b": one}, patch)
    assert torch.equal(one, old["a"])


def test_tied_weights_and_slices_side_by_side_are_taken():
    tied = torch.arange(4.0).bfloat16()
    new = tied + 1
    here = {"a": tied.clone()}
    here["b"] = here["a"]
    apply(here, encode({"a": tied, "b": tied}, {"a": new, "b": new}))
    assert torch.equal(here["b"], new)
    fused = torch.arange(12.0).reshape(3, 4).bfloat16()
    parts = {"left": fused[:, :2], "right": fused[:, 2:]}
    after = {"left": parts["left"] + 1, "right": parts["right"] - 1}
    apply(parts, encode({n: t.clone() for n, t in parts.items()}, after))
    assert torch.equal(fused, torch.cat([after["left"], after["right"]], 1))
    with pytest.raises(Unsupported, match="overlap in memory"):
        refuse_overlaps({"left": fused[:, :3], "right": fused[:, 2:]})


def test_versions_of_any_number_of_digits_are_kept_and_dropped_in_order(tmp_path):
    weights = {"w": torch.zeros(8).bfloat16()}
    publisher = Publisher(Store(tmp_path), weights, anchor_every=1, keep_anchors=2)
    for version in (5, 999_999_999_999, 10**12, 1_764_460_000_000):
        weights["w"][0] += 1
        publisher.publish(weights, version)
    store = Store(tmp_path)
    assert store.versions("anchor") == [10**12, 1_764_460_000_000]
    reader = Subscriber(store, {"w": torch.zeros(8).bfloat16()})
    assert reader.advance() == 1_764_460_000_000
    assert torch.equal(reader.tensors["w"], weights["w"])


def test_an_anchor_whose_answer_is_lost_strands_no_late_reader_of_a_history(tmp_path):
    weights = {"w": torch.arange(64.0).bfloat16()}
    store = Store(tmp_path)
    publisher = Publisher(store, weights, anchor_every=3, codec="history")
    put, lost = store.put, []

    def answer_lost(patch, data):
        marker = put(patch, data)
        if patch.base_version is None and patch.version > 1 and not lost:
            lost.append(patch.version)
            raise OSError("no answer")
        return marker

    store.put = answer_lost
    for version in range(1, 8):
        weights["w"][version] += 1
        try:
            publisher.publish(weights, version)
        except OSError:
            publisher.publish(weights, version)
        late = Subscriber(Store(tmp_path), {"w": torch.zeros(64).bfloat16()})
        assert late.advance() == version
        assert torch.equal(late.tensors["w"], weights["w"])
    assert lost


@pytest.mark.parametrize("name", ["..", "", "a\0b", "000000000001-0000000000000000.pulse"])
def test_a_marker_that_names_another_object_is_corrupt(tmp_path, name):
    import json

    weights = {"w": torch.zeros(8).bfloat16()}
    Publisher(Store(tmp_path), weights).publish(weights, 1)
    path = tmp_path / "anchors" / "000000000001.ready"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"name": name}))
    with pytest.raises(Corrupt, match="marker of anchor 1"):
        Store(tmp_path).marker("anchor", 1)
