"""The trainer's side: what changed since the last committed version goes out; only then is it the new baseline."""

import tempfile
from collections.abc import Mapping

import torch
from torch import Tensor

from lowcomm.pulse.codec import IN_MEMORY, write
from lowcomm.pulse.errors import Corrupt, Foreign, Missing, Unsupported, Untrusted
from lowcomm.pulse.history import History
from lowcomm.pulse.marker import Marker
from lowcomm.pulse.state import Tensors, digest
from lowcomm.pulse.store import Store
from lowcomm.pulse.subscriber import Subscriber


class Publisher:
    """Publishes versions of one set of weights.

    ``tensors``: the weights as they are served (see `cast`), for their names, shapes and dtypes; a copy of the last
    committed bits is kept on the CPU. Over a store that holds versions already the chain goes on: the baseline is the
    newest version there, wherever training resumed. ``anchor_every``: an anchor follows after so many versions;
    ``keep_anchors``: how many, with the patches after the oldest, retention leaves. ``codec``: see `encode`.
    Raises ValueError over another model's store.
    """

    def __init__(
        self,
        store: Store,
        tensors: Mapping[str, Tensor],
        anchor_every: int = 10,
        keep_anchors: int = 3,
        codec: str = "packed",
        threads: int | None = None,
    ):
        if anchor_every < 1 or keep_anchors < 1:
            raise ValueError(f"anchor_every={anchor_every}, keep_anchors={keep_anchors}: both must be 1 or more")
        if not tensors:
            raise ValueError("no tensors: there is nothing to publish")
        self.store, self.anchor_every, self.keep_anchors = store, anchor_every, keep_anchors
        self.codec, self.threads = codec, threads
        self.baseline = _copy(tensors)
        self.history = History(self.baseline) if codec == "history" else None
        self.version = self._resume()

    def _resume(self) -> int | None:
        """Bring the baseline to the newest version of the store and return it; None where an anchor must come next."""
        latest = self.store.latest()
        if latest is None:
            return None
        try:
            same = digest(self.baseline, self.threads).hex() == self._marker(latest).target_digest
            if same and self.history is None:
                return latest
            reader = Subscriber(self.store, self.baseline, threads=self.threads, history=self.history)
            version = reader.advance(latest)
        except Untrusted:
            raise
        except (Foreign, Unsupported) as error:  # going on would end with the other's versions retired
            why = f"holds what these weights can't follow ({error})"
            raise ValueError(f"store {self.store.root} {why}; give another store, or delete it") from error
        except (Missing, Corrupt):  # the chain is broken: whoever follows needs an anchor anyway
            return None
        # a chain of another codec has left no memory that the readers share
        return None if self.history is not None and self.history.start is None else version

    def publish(self, tensors: Mapping[str, Tensor], version: int, **meta) -> Marker:
        """Commit ``tensors`` as ``version``, greater than all before. Returns the marker of what was committed.

        Whatever fails leaves the baseline, so that the next patch covers more steps. The same version with the same
        weights again is accepted (a retry). ``meta`` (step, lr ...) is kept in the object. Raises ValueError for a
        version that is not new.
        """
        if Tensors(tensors).entries != Tensors(self.baseline).entries:
            raise ValueError("names, shapes or dtypes are not those the publisher was made for: make a new one")
        latest = self.store.latest()
        if latest != self.version and latest is not None:  # a commit that looked like a failure, or a broken chain
            self.version = self._resume()
        if latest is not None and version <= latest:
            return self._published_before(tensors, version, latest)
        if self.version is None:
            marker = self._put(None, tensors, version, meta)
        else:
            marker = self._put(self.baseline, tensors, version, meta)
        # committed: from here on the readers have it
        if self.history is not None and marker.kind == "anchor":
            self.history.reset(version)
        elif self.history is not None:
            self.history.commit(self.baseline, tensors)
        with torch.no_grad():
            for name, tensor in tensors.items():
                self.baseline[name].copy_(tensor)
        self.version = version
        if marker.kind == "patch" and self._anchor_due():
            if self.history is not None:
                self.history.reset(version)  # first: an anchor whose answer is lost is there all the same
            self._put(None, self.baseline, version, meta)
        self.store.retain(self.keep_anchors)
        return marker

    def _published_before(self, tensors: Mapping[str, Tensor], version: int, latest: int) -> Marker:
        if any(version in self.store.versions(kind) for kind in ("patch", "anchor")):
            marker = self._marker(version)
            if marker.target_digest == digest(tensors, self.threads).hex():
                return marker
        raise ValueError(f"version={version}: the store is at version {latest}; continue with {latest + 1} or more")

    def _marker(self, version: int) -> Marker:
        return self.store.marker("patch" if version in self.store.versions("patch") else "anchor", version)

    def _put(self, old: Mapping[str, Tensor] | None, new: Mapping[str, Tensor], version: int, meta: dict) -> Marker:
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as file:
            codec = "full" if old is None else self.codec
            states = None if old is None else Tensors(old), Tensors(new)
            numbers = {"base_version": self.version or 0, "version": version, "threads": self.threads}
            history = self.history if codec == "history" else None
            patch = write(file, *states, codec, history=history, **numbers, **meta)
            return self.store.put(patch, file)

    def _anchor_due(self) -> bool:
        last = self.store.versions("anchor")[-1:]
        since = [v for v in self.store.versions("patch") if not last or v > last[0]]
        return not last or len(since) >= self.anchor_every


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU; ties kept."""
    state = Tensors(tensors)
    own = {n: tensors[n].detach().to("cpu", copy=True).contiguous() for n in state.entries}
    return {n: own[state.aliases.get(n, n)] for n in tensors}
