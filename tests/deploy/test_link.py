"""The link, without namespaces: packets through socket pairs, and the arithmetic on a clock of our own."""

import random
import socket
import time

import pytest

from lowcomm.deploy.link import Direction, Link, Relay, Shape


class Sink:
    """A file descriptor's stand-in: what `os.write` would have got."""

    def __init__(self, monkeypatch):
        self.got: list[bytes] = []
        monkeypatch.setattr("lowcomm.deploy.link.os.write", lambda fd, packet: self.got.append(packet))


def send(direction: Direction, count: int, size: int, now: float, shape: Shape, seed: int = 0) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        direction.offer(b"x" * size, now, shape, chance)


def test_rate_and_delay(monkeypatch):
    sink, direction, shape = Sink(monkeypatch), Direction(0, 1), Shape(rate=8e5, delay=0.5)
    send(direction, 10, 1000, now=100.0, shape=shape)  # 10 ms each
    for now, there in ((100.505, 0), (100.5101, 1), (100.5501, 5), (100.6001, 10)):
        direction.deliver(now, up=True)
        assert len(sink.got) == there
    assert (direction.delivered, direction.lost) == (10000, 0)
    send(direction, 1, 1000, now=200.0, shape=shape)  # the wire was idle: no debt, no credit
    assert direction.queue[0][0] == pytest.approx(200.51)


def test_a_full_queue_drops_what_comes_last(monkeypatch):
    sink, direction = Sink(monkeypatch), Direction(0, 1)
    send(direction, 200, 1000, now=0.0, shape=Shape(rate=8e5))  # 20 kB fit into 0.2 s
    direction.deliver(100.0, up=True)
    assert len(sink.got) + direction.lost == 200
    assert len(sink.got) in (20, 21, 22)


def test_loss_is_a_share_of_packets(monkeypatch):
    Sink(monkeypatch)
    direction = Direction(0, 1)
    send(direction, 4000, 10, now=0.0, shape=Shape(rate=1e9, loss=0.1))
    assert 340 < direction.lost < 460


def test_a_cut_loses_what_is_under_way_and_heals(monkeypatch):
    sink = Sink(monkeypatch)
    link = Link(0, 1, Shape(rate=8e6))  # 1 ms a packet
    link.cut(after=3000, seconds=5.0)
    send(link.down, 10, 1000, now=0.0, shape=link.shape)
    for tick in range(1, 12):
        link.step(tick * 1e-3 + 1e-4)
    assert (len(sink.got), link.down.lost, link.cuts) == (3, 7, 1)
    send(link.up, 1, 1000, now=1.0, shape=link.shape)
    link.step(1.5)
    assert link.up.lost == 1  # both ways
    send(link.down, 1, 1000, now=6.0, shape=link.shape)
    link.step(6.1)
    assert len(sink.got) == 4


def test_the_relay_carries_packets_both_ways():
    (near, a), (far, b) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    with Relay([Link(a.fileno(), b.fileno(), Shape(rate=1e8, delay=0.01))]):
        begin = time.monotonic()
        for i in range(20):
            near.send(bytes([i]) * 100)
        assert [far.recv(1000)[0] for _ in range(20)] == list(range(20))
        assert time.monotonic() - begin > 0.01
        far.send(b"back")
        assert near.recv(1000) == b"back"
    for s in (near, a, far, b):
        s.close()


@pytest.mark.parametrize("arguments", [{"rate": 0}, {"rate": 1, "delay": -1}, {"rate": 1, "loss": 1.0}])
def test_impossible_links_are_refused(arguments):
    with pytest.raises(ValueError, match="rate=|delay="):
        Shape(**arguments)
