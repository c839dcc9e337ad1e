"""Store, publisher, subscriber: what a reader holds is always exactly a version that was committed."""

import urllib.request

import pytest
import torch

from lowcomm.pulse import (
    Missing,
    Publisher,
    Store,
    Subscriber,
    Unsupported,
)
from tests.pulse.cases import same


def weights(version: int) -> dict[str, torch.Tensor]:
    """The dense reference: a pure function of the version; a few entries change from one to the next."""
    g = torch.Generator().manual_seed(0)
    w = torch.randn(30, 20, generator=g)
    for v in range(1, version + 1):
        step = torch.Generator().manual_seed(v)
        w.view(-1)[torch.randint(600, (20,), generator=step)] += 0.5 * torch.randn(20, generator=step)
    return {"w": w.bfloat16(), "b": torch.full((5,), float(version // 3))}


def blank() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(30, 20).bfloat16(), "b": torch.zeros(5)}


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request, tmp_path):
    if request.param == "folder":
        yield Store(tmp_path / "chain")
    elif request.param == "memory":
        yield Store(f"memory://{tmp_path.name}")
    else:
        yield Store(f"s3://{request.getfixturevalue('bucket')}/chain", options=request.getfixturevalue("s3"))


@pytest.fixture(scope="module")
def s3():
    """A real HTTP endpoint on loopback."""
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {
        "key": "k",
        "secret": "s",
        "client_kwargs": {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"},
    }
    server.stop()


@pytest.fixture
def bucket(s3, request):
    name = "".join(c for c in request.node.name.lower() if c.isalnum())[:40]
    url = f"{s3['client_kwargs']['endpoint_url']}/{name}"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
    return name


def test_chain(store):
    """Versions in order, a follower at every version, a slow one, a late joiner, and one asked to go back."""
    with pytest.raises(Missing, match="no version yet"):
        Subscriber(store, blank()).advance()
    publisher = Publisher(store, weights(0), anchor_every=4)
    near, slow = Subscriber(store, blank()), Subscriber(store, blank())
    for v in range(10):
        marker = publisher.publish(weights(v), v, step=v)
        assert marker.kind == ("anchor" if v == 0 else "patch")
        assert near.advance() == v
        assert same(near.tensors, weights(v))
        if v in (2, 7):
            assert slow.advance() == v
            assert same(slow.tensors, weights(v))
    late = Subscriber(store, blank())
    assert late.advance(6) == 6
    assert same(late.tensors, weights(6))
    assert late.advance() == 9
    assert late.advance(5) == 5, "back, by an anchor"
    assert same(late.tensors, weights(5))
    with pytest.raises(Missing, match="version 77"):
        late.advance(77)
    assert late.version == 5
    # the anchors follow their versions' patches, so that nobody near waits for them
    assert store.versions("anchor") == [0, 4, 8]
    assert store.versions("patch") == list(range(1, 10))


def test_retention_and_a_dead_reader(store):
    publisher = Publisher(store, weights(0), anchor_every=3, keep_anchors=2)
    dead = Subscriber(store, blank())
    publisher.publish(weights(0), 0)
    dead.advance()
    for v in range(1, 12):
        publisher.publish(weights(v), v)
    assert store.versions("anchor") == [6, 9]
    assert store.versions("patch") == [6, 7, 8, 9, 10, 11]
    assert len(store._names("patch")) == 12, "objects went with their markers"
    assert dead.advance() == 11
    assert same(dead.tensors, weights(11))


def test_sync_every_k_covers_all_steps(tmp_path):
    """trl#5937: changes of step 1 must be in a patch published after step 2."""
    store = Store(tmp_path)
    publisher = Publisher(store, weights(0))
    for v in (0, 5, 6, 20):
        publisher.publish(weights(v), v)
    reader = Subscriber(store, blank())
    assert reader.advance() == 20
    assert same(reader.tensors, weights(20))


def test_no_change_is_a_version(tmp_path):
    """trl#5932: an empty patch is a version; a failed one is not."""
    store = Store(tmp_path)
    publisher = Publisher(store, weights(0))
    reader = Subscriber(store, blank())
    first = publisher.publish(weights(0), 0)
    second = publisher.publish(weights(0), 1)
    assert reader.advance() == 1
    assert first.target_digest == second.target_digest == second.base_digest
    assert second.size < 400


@pytest.mark.parametrize("at", ["object", "marker"])
def test_failed_publish_leaves_the_baseline(tmp_path, monkeypatch, at):
    """prime-rl#3386, slime#2104: after a failure between write and commit, the next patch lacks nothing."""
    store = Store(tmp_path)
    publisher = Publisher(store, weights(0))
    publisher.publish(weights(0), 0)
    original = Store._write

    def broken(self, path, data):
        if path.endswith(".ready") == (at == "marker"):
            raise OSError("the link is down")
        original(self, path, data)

    monkeypatch.setattr(Store, "_write", broken)
    with pytest.raises(OSError, match="link"):
        publisher.publish(weights(1), 1)
    monkeypatch.undo()
    reader = Subscriber(store, blank())
    assert reader.advance() == 0, "what has no marker does not exist"
    publisher.publish(weights(2), 2)
    assert reader.advance() == 2
    assert same(reader.tensors, weights(2))


def test_commit_that_looked_like_a_failure(tmp_path, monkeypatch):
    """The marker arrived but the answer did not: the publisher finds out and goes on from it."""
    store = Store(tmp_path)
    publisher = Publisher(store, weights(0))
    publisher.publish(weights(0), 0)
    original = Store._write

    def late(self, path, data):
        original(self, path, data)
        if path.endswith(".ready"):
            raise TimeoutError("no answer")

    monkeypatch.setattr(Store, "_write", late)
    with pytest.raises(TimeoutError):
        publisher.publish(weights(1), 1)
    monkeypatch.undo()
    publisher.publish(weights(1), 1)
    assert publisher.publish(weights(2), 2).base_version == 1


def test_restart_continues(store):
    """prime-rl#2823: a restarted sender, even one whose training resumed further back, goes on from the store."""
    Publisher(store, weights(0)).publish(weights(0), 0)
    first = Publisher(store, weights(0), anchor_every=5)
    for v in range(1, 8):
        first.publish(weights(v), v)
    reader = Subscriber(store, blank())
    reader.advance()
    again = Publisher(store, weights(6), anchor_every=5)
    assert again.version == 7
    with pytest.raises(ValueError, match="continue with 8"):
        again.publish(weights(6), 6 + 1)
    assert again.publish(weights(7), 7).version == 7, "a retry"
    assert again.publish(weights(8), 8).base_version == 7
    assert reader.advance() == 8
    assert same(reader.tensors, weights(8))


def test_another_model_in_the_same_folder(tmp_path):
    store = Store(tmp_path)
    Publisher(store, weights(0)).publish(weights(0), 0)
    for other in ({**weights(0), "b": torch.zeros(6)}, {"another": torch.zeros(6)}, {"b": weights(0)["b"]}):
        with pytest.raises(
            ValueError, match=r"store .* holds what these weights can't follow \(.*; give another store"
        ):
            Publisher(store, other)
    assert store.versions("anchor") == [0], "nothing of it was retired"
    with pytest.raises(ValueError, match="nothing to publish"):
        Publisher(store, {})
    publisher = Publisher(store, weights(0))
    with pytest.raises(ValueError, match="made for"):
        publisher.publish({"w": weights(0)["w"]}, 1)


def test_receivers_are_independent(tmp_path):
    """NeMo-RL#2444: one receiver fails an apply, is asked again, and both end on the same bits."""
    store = Store(tmp_path)
    publisher = Publisher(store, weights(0))
    a, b = Subscriber(store, blank()), Subscriber(store, blank())
    publisher.publish(weights(0), 0)
    a.advance()
    b.advance()
    publisher.publish(weights(1), 1)
    b.tensors["b"] = torch.zeros(6)
    a.advance()
    with pytest.raises(Unsupported):
        b.advance()
    assert b.version == 0
    b.tensors["b"] = weights(0)["b"]
    assert a.advance() == b.advance() == 1
    assert same(a.tensors, b.tensors)
