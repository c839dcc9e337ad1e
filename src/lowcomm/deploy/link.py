"""A point-to-point link of set rate, delay and loss, packet by packet, in user space.

Two TUN devices are its ends; what one namespace sends is read here, kept as long as a wire would, and written to the
other. The namespaces' own TCP runs over it. In user space since many kernels lack netem; good for some hundred Mbit/s.
"""

import contextlib
import os
import random
import selectors
import threading
import time
from collections import deque
from dataclasses import dataclass, field

PACKET = 1 << 16
QUEUE_S = 0.2  # a full queue takes so long to send; what comes on top is dropped, as routers do
QUEUE_MIN = 16 << 10  # bytes


@dataclass
class Shape:
    """``rate`` in bit/s, ``delay`` in s one way, ``loss`` as a share of packets."""

    rate: float
    delay: float = 0.0
    loss: float = 0.0

    def __post_init__(self):
        if not self.rate > 0:
            raise ValueError(f"rate={self.rate}: bits per second, must be positive")
        if self.delay < 0 or not 0 <= self.loss < 1:
            raise ValueError(f"delay={self.delay}, loss={self.loss}: seconds from 0, a share in [0, 1)")


@dataclass
class Direction:
    """One way: ``source`` and ``sink`` are file descriptors."""

    source: int
    sink: int
    free: float = 0.0  # when the wire is idle again
    queue: deque = field(default_factory=deque)  # (due, packet)
    delivered: int = 0  # bytes
    lost: int = 0  # packets: by chance, by a full queue, by a cut

    def offer(self, packet: bytes, now: float, shape: Shape, chance: random.Random) -> None:
        """A packet comes to the near end: it waits for the wire, or is lost."""
        start = max(now, self.free)
        backlog = (start - now) * shape.rate / 8
        if chance.random() < shape.loss or backlog > max(QUEUE_MIN, QUEUE_S * shape.rate / 8):
            self.lost += 1
            return
        self.free = start + 8 * len(packet) / shape.rate
        self.queue.append((self.free + shape.delay, packet))

    def deliver(self, now: float, up: bool) -> None:
        """Hand over what is due; on a broken wire it is lost."""
        while self.queue and self.queue[0][0] <= now:
            _, packet = self.queue.popleft()
            if not up:
                self.lost += 1
                continue
            self.delivered += len(packet)
            with contextlib.suppress(OSError):  # the device is down or full: a lost packet
                os.write(self.sink, packet)


class Link:
    """``near`` and ``far``: file descriptors of its ends. ``down``: near to far, ``up``: far to near."""

    def __init__(self, near: int, far: int, shape: Shape, seed: int = 0):
        self.shape, self.chance = shape, random.Random(seed)
        self.down, self.up = Direction(near, far), Direction(far, near)
        self._cut_at: float | None = None  # delivered bytes at which it breaks
        self._cut_for = 0.0
        self.broken_until = 0.0
        self.cuts = 0

    def cut(self, after: int, seconds: float) -> None:
        """Break it, both ways, once ``after`` more bytes have gone down, and heal it ``seconds`` later."""
        self._cut_for, self._cut_at = seconds, self.down.delivered + after

    def step(self, now: float) -> None:
        """Deliver what is due in both directions; break and heal."""
        if self._cut_at is not None and self.down.delivered >= self._cut_at:
            self._cut_at, self.broken_until = None, now + self._cut_for
            self.cuts += 1
        up = now >= self.broken_until
        for direction in (self.down, self.up):
            direction.deliver(now, up)

    def next_due(self) -> float:
        """When the next packet is due, infinity for none."""
        return min((d.queue[0][0] for d in (self.down, self.up) if d.queue), default=float("inf"))


class Relay:
    """Moves the packets of some links in a thread of its own, until closed. A context manager."""

    def __init__(self, links: list[Link]):
        self.links, self._over = links, threading.Event()
        self._thread = threading.Thread(target=self._run, name="link-relay", daemon=True)

    def __enter__(self) -> "Relay":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready:
            for link in self.links:
                for direction in (link.down, link.up):
                    os.set_blocking(direction.source, False)
                    ready.register(direction.source, selectors.EVENT_READ, (link, direction))
            while not self._over.is_set():
                wait = min(link.next_due() for link in self.links) - time.monotonic()
                for key, _ in ready.select(min(max(wait, 0.0), 0.05)):
                    link, direction = key.data
                    now = time.monotonic()
                    with contextlib.suppress(BlockingIOError):
                        for _ in range(64):
                            direction.offer(os.read(direction.source, PACKET), now, link.shape, link.chance)
                now = time.monotonic()
                for link in self.links:
                    link.step(now)
