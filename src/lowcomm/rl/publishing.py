"""Weights on their way out: cast, diff against the last version, store; what each part took.

Versions are `epoch * EPOCH + step`. The epoch counts how often a resumed run met versions that are not its own weights
(a run that is not reproducible bit for bit): the numbers only ever rise, so that a worker which is ahead goes on.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lowcomm.pulse import Publisher, Store, Subscriber, cast, digest
from lowcomm.pulse.codec import IN_MEMORY, write
from lowcomm.pulse.marker import Marker
from lowcomm.pulse.patch import decode
from lowcomm.pulse.state import Tensors

EPOCH = 10**9


class TimedStore(Store):
    """A store that says how long it took: `put_s` and `fetch_s`, seconds since `reset`."""

    put_s = fetch_s = 0.0

    def reset(self) -> None:
        """Count from nothing."""
        self.put_s = self.fetch_s = 0.0

    def put(self, patch, data) -> Marker:
        """As `Store.put`; its seconds go to `put_s`."""
        begun = time.perf_counter()
        try:
            return super().put(patch, data)
        finally:
            self.put_s += time.perf_counter() - begun

    def fetch(self, marker: Marker) -> memoryview:
        """As `Store.fetch`; its seconds go to `fetch_s`."""
        begun = time.perf_counter()
        try:
            return super().fetch(marker)
        finally:
            self.fetch_s += time.perf_counter() - begun


class DensePublisher:
    """As `lowcomm.pulse.Publisher`, with every weight in every version."""

    def __init__(self, store: Store, keep: int, threads: int):
        self.store, self.keep, self.threads = store, keep, threads

    def publish(self, tensors: Mapping[str, Tensor], version: int, **meta) -> Marker:
        """Commit every weight as an anchor of ``version``; ``meta`` is kept in the object. Returns its marker."""
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as file:
            patch = write(file, None, Tensors(tensors), "full", version=version, threads=self.threads, **meta)
            marker = self.store.put(patch, file)
        self.store.retain(self.keep)
        return marker


@dataclass(frozen=True)
class Sent:
    """One published version. Seconds: cast; diff, encode and digest; store; fetch and apply of the checking reader."""

    version: int
    kind: str  # anchor | patch
    base: int | None
    changed: int
    bytes: int  # of what a follower fetches
    anchor_bytes: int  # of an anchor that was due with a patch
    verified: bool
    seconds: dict[str, float]


class Publishing:
    """Publishes the BF16 casts of a model's parameters after every step.

    ``sync``: the configuration's node. ``params``: name -> parameter, tied ones once.
    """

    def __init__(self, store: TimedStore, params: Mapping[str, Tensor], sync, threads: int):
        self.store, self.params, self.sync, self.threads = store, params, sync, threads
        served = cast(params)
        if sync.kind == "dense":
            self.publisher = DensePublisher(store, sync.keep_anchors, threads)
        else:
            self.publisher = Publisher(store, served, sync.anchor_every, sync.keep_anchors, sync.codec, threads)
        self.reader = Subscriber(store, {n: torch.zeros_like(t) for n, t in served.items()}) if sync.verify else None
        self.epoch = (store.latest() or 0) // EPOCH
        self.on_version: Callable[[int, str], None] = lambda version, digest: None  # called when one is there

    def version(self, step: int) -> int:
        """The number under which the weights of `step` are, or would be, published."""
        return self.epoch * EPOCH + step

    def for_text(self, step: int, staleness: int) -> int:
        """The version whose weights write the text of `step`: `staleness` steps old, or the oldest of this epoch."""
        wanted = self.version(max(0, step - staleness))
        if staleness == 0:
            return wanted
        return min(v for kind in ("anchor", "patch") for v in self.store.versions(kind) if v >= wanted)

    def digests(self, first: int, last: int) -> dict[int, str]:
        """Of the versions from `first` to `last` that the store has, as their markers say."""
        found = {}
        for kind in ("anchor", "patch"):
            held = [version for version in self.store.versions(kind) if first <= version <= last]
            found |= {version: self.store.marker(kind, version).target_digest for version in held}
        return found

    def publish(self, step: int, **meta) -> Sent:
        """Publish the weights as those of `step`; a version that is there already with the same bits is left."""
        begun = time.perf_counter()
        served = cast(self.params)
        casted = time.perf_counter()
        self._claim(step, served)
        self.store.reset()
        version = self.version(step)
        marker = self.publisher.publish(served, version, step=step, **meta)
        self.on_version(version, marker.target_digest)
        encoded = time.perf_counter()
        seconds = {"cast": casted - begun, "encode": encoded - casted - self.store.put_s, "store": self.store.put_s}
        if self.reader:
            self.reader.advance(version)  # raises unless the digest is the marker's
            seconds |= {"fetch": self.store.fetch_s}
            seconds["apply"] = time.perf_counter() - encoded - self.store.fetch_s
        anchored = marker.kind == "patch" and version in self.store.versions("anchor")
        numel = sum(t.numel() for t in served.values())
        changed = numel if marker.kind == "anchor" else decode(self.store.fetch(marker)).changed
        extra = self.store.marker("anchor", version).size if anchored else 0
        return Sent(version, marker.kind, marker.base_version, changed, marker.size, extra, bool(self.reader), seconds)

    def _claim(self, step: int, served: Mapping[str, Tensor]) -> None:
        """Begin a new epoch where the store is ahead with other weights than these."""
        latest, version = self.store.latest(), self.version(step)
        if latest is None or version > latest:
            return
        kinds = [k for k in ("patch", "anchor") if version in self.store.versions(k)]
        same = kinds and self.store.marker(kinds[0], version).target_digest == digest(served, self.threads).hex()
        if not same:
            self.epoch += 1
