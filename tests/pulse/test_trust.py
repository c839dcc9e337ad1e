"""Damaged, half-written, stale and forged objects in a store."""

import io
import json

import pytest

from lowcomm.pulse import Corrupt, Missing, Publisher, Store, Subscriber, Untrusted, encode, signing
from lowcomm.pulse import store as store_module
from lowcomm.pulse.patch import decode
from tests.pulse.cases import copy, same
from tests.pulse.test_sync import blank, weights


def objects(store: Store, kind: str) -> dict[int, str]:
    """version -> path of the object."""
    folder = f"{store.root}/{store_module.FOLDERS[kind]}"
    return {v: f"{folder}/{store.marker(kind, v).name}" for v in store.versions(kind)}


def test_damaged_objects_are_walked_around(tmp_path):
    store = Store(tmp_path)
    publisher = Publisher(store, weights(0), anchor_every=4)
    reader = Subscriber(store, blank())
    publisher.publish(weights(0), 0)
    reader.advance()
    for v in range(1, 10):
        publisher.publish(weights(v), v)
    patches, anchors = objects(store, "patch"), objects(store, "anchor")
    raw = bytearray(store.fs.cat_file(patches[3]))
    raw[len(raw) // 2] ^= 1
    store.fs.pipe_file(patches[3], bytes(raw))
    assert reader.advance() == 9, "patch 3 is damaged: by way of anchor 8"
    assert same(reader.tensors, weights(9))
    other = Subscriber(store, blank())
    other.advance(2)
    with pytest.raises(Corrupt):
        other.advance(3)
    assert other.version == 2
    assert same(other.tensors, weights(2))
    store.fs.rm_file(anchors[8])
    store.fs.rm_file(patches[9])
    assert other.advance() == 8, "the newest that can be reached, by way of anchor 4"
    with pytest.raises(Missing):
        other.advance()
    assert same(other.tensors, weights(8))


def test_half_written_marker_and_object(tmp_path):
    """verl#6794: a reader polls while the writer is between two files, or in the middle of one."""
    store = Store(tmp_path)
    publisher = Publisher(store, weights(0))
    publisher.publish(weights(0), 0)
    patch = encode(weights(0), weights(1), base_version=0, version=1)
    (tmp_path / "patches" / "000000000001-aaaa.pulse").write_bytes(patch[:50])
    (tmp_path / "patches" / "000000000001.ready.partial").write_text("{")
    reader = Subscriber(store, blank())
    assert reader.advance() == 0
    (tmp_path / "patches" / "000000000001.ready").write_text('{"kind": "patch"')
    with pytest.raises(Corrupt, match="marker"):
        reader.advance(1)
    assert reader.version == 0


def test_weights_changed_behind_our_back(tmp_path):
    store = Store(tmp_path)
    publisher = Publisher(store, weights(0))
    for v in range(3):
        publisher.publish(weights(v), v)
    reader = Subscriber(store, blank())
    reader.advance(1)
    reader.tensors["w"][0, 0] = 5.0
    assert reader.advance() == 2, "stale weights start again from the anchor"
    assert same(reader.tensors, weights(2))
    wrong = Subscriber(store, blank(), version=1)
    assert wrong.advance() == 2
    assert same(wrong.tensors, weights(2))


def test_signatures(tmp_path):
    private, public = signing.generate()
    other, _ = signing.generate()
    signed = Store(tmp_path / "signed", private_key=private)
    publisher = Publisher(signed, weights(0))
    for v in range(3):
        publisher.publish(weights(v), v)
    trusting = Store(tmp_path / "signed", public_key=public)
    reader = Subscriber(trusting, blank())
    assert reader.advance() == 2
    # an attacker with write access: a whole other patch, unsigned, signed by another key, or an old one as a new one
    evil = copy(weights(2))
    evil["w"][0, 0] = 66.0
    data = encode(weights(2), evil, base_version=2, version=3)
    for key in (None, other):
        Store(tmp_path / "signed", private_key=key).put(decode(data), io.BytesIO(data))
        with pytest.raises(Untrusted):
            reader.advance()
        (tmp_path / "signed" / "patches" / "000000000003.ready").unlink()
    ready = tmp_path / "signed" / "patches"
    fields = json.loads((ready / "000000000002.ready").read_text())
    for change in ({}, {"version": 3}, {"version": 3, "base_version": 2}):
        (ready / "000000000003.ready").write_text(json.dumps({**fields, **change}))
        with pytest.raises(Corrupt):
            reader.advance(3)
    (ready / "000000000003.ready").unlink()
    (ready / fields["name"]).write_bytes(data)
    fresh = Subscriber(trusting, blank())
    with pytest.raises(Corrupt):
        fresh.advance(2)
    assert same(reader.tensors, weights(2))


def test_large_objects_do_not_pass_through_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "IN_MEMORY", 100)
    store = Store(tmp_path)
    publisher = Publisher(store, weights(0))
    for v in range(2):
        publisher.publish(weights(v), v)
    reader = Subscriber(store, blank())
    assert reader.advance() == 1
    assert same(reader.tensors, weights(1))
    path = objects(store, "anchor")[0]
    store.fs.pipe_file(path, b"")
    with pytest.raises(Corrupt, match="size"):
        Subscriber(store, blank()).advance()
    store.fs.rm_file(path)
    with pytest.raises(Missing, match="no object"):
        Subscriber(store, blank()).advance()
