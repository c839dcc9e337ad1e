"""The inference side: find a way to a version, walk it, never stand on half a step."""

from collections.abc import Mapping

from torch import Tensor

from lowcomm.pulse.errors import Corrupt, Missing, PatchError, StaleBase, Untrusted
from lowcomm.pulse.history import History
from lowcomm.pulse.marker import Marker
from lowcomm.pulse.patch import decode
from lowcomm.pulse.receive import apply
from lowcomm.pulse.store import Store


class Subscriber:
    """Follows a store with ``tensors``, which are overwritten in place and always hold exactly ``version``.

    ``version`` is None until the first `advance`, which then starts from an anchor; give it where the tensors are known
    to hold one (their digest is checked in any case).
    """

    def __init__(
        self,
        store: Store,
        tensors: Mapping[str, Tensor],
        version: int | None = None,
        threads: int | None = None,
        history: History | None = None,
    ):
        self.store, self.tensors, self.version, self.threads = store, tensors, version, threads
        self.history = history  # made when the first patch asks for it
        self._bad: set[tuple[str, int]] = set()  # objects that failed; ways around them are preferred

    def advance(self, version: int | None = None) -> int:
        """Bring the tensors to ``version`` (None: the newest that can be reached) and return it.

        Damaged objects are fetched again once, then avoided by an anchor; objects that retention removed under our feet
        make us look again. Raises Missing where no way leads there, else what the first attempt met; the tensors then
        still hold ``self.version``.
        """
        self._bad.clear()
        start, first = self.version, None
        while True:
            before = (len(self._bad), self.version)
            try:
                for marker in self._route(version):
                    self._take(marker)
                return self.version
            except Untrusted:
                raise
            except (Missing, Corrupt, StaleBase) as e:
                first = first or e
            if (len(self._bad), self.version) == before:  # nothing new was learnt: no other way is left
                break
        if version is None and self.version is not None and (start is None or self.version > start):
            return self.version
        raise first

    def _take(self, marker: Marker) -> None:
        key = (marker.kind, marker.version)
        try:
            patch = decode(self._fetch(marker))
            stated = (patch.version, patch.base_version, patch.base_digest.hex(), patch.target_digest.hex())
            if stated != (marker.version, marker.base_version, marker.base_digest, marker.target_digest):
                raise Corrupt(f"{marker.kind} {marker.version} is not what its marker says")
            if patch.codec == "history" and self.history is None:
                self.history = History(self.tensors)
            apply(self.tensors, patch, self.threads, self.history)
        except StaleBase:
            self.version = None  # these are not the weights we thought: only an anchor helps
            raise
        except PatchError:
            self._bad.add(key)
            raise
        self.version = marker.version

    def _fetch(self, marker: Marker) -> memoryview:
        try:
            return self.store.fetch(marker)
        except Corrupt:
            return self.store.fetch(marker)

    def _route(self, version: int | None) -> list[Marker]:
        """Objects to apply, in order, to reach the version by the fewest bytes."""
        anchors, patches = (set(self.store.versions(kind)) for kind in ("anchor", "patch"))
        known = sorted(anchors | patches, reverse=True)
        if not known:
            raise Missing(f"the store {self.store.root} holds no version yet; wait for its publisher, or give another")
        if version is not None and version not in known:
            raise Missing(f"version {version} is not in the store; it has {known[-1]} to {known[0]}")
        error: PatchError | None = None
        for target in known if version is None else [version]:
            if target == self.version:
                if error is not None:
                    raise error  # there is something newer, but no way to it
                return []
            if version is None and self.version is not None and target < self.version:
                break
            try:
                return self._way(target, anchors, patches)
            except Untrusted:
                raise
            except PatchError as e:
                error = error or e
        raise error or Missing(f"no version newer than {self.version} can be reached")

    def _way(self, target: int, anchors: set[int], patches: set[int]) -> list[Marker]:
        """Back from the target along the patches' bases, to where we are or to an anchor, whichever is fewer bytes."""
        back: list[Marker] = []
        best: list[Marker] | None = None
        at, failure = target, None
        while True:
            if at in anchors and ("anchor", at) not in self._bad and best is None:
                try:
                    best = [self.store.marker("anchor", at), *reversed(back)]
                except Untrusted:
                    raise
                except PatchError as e:
                    failure = e
            if self.version is not None and at == self.version:
                direct = list(reversed(back))
                return direct if best is None or _size(direct) <= _size(best) else best
            here_is_ahead = self.version is None or self.version >= at
            if at not in patches or ("patch", at) in self._bad or (best is not None and here_is_ahead):
                break
            try:
                back.append(self.store.marker("patch", at))
            except Untrusted:
                raise
            except PatchError as e:
                failure = e
                break
            if back[-1].base_version >= at:
                raise Corrupt(f"patch {at} claims version {back[-1].base_version} as its base")
            at = back[-1].base_version
        if best is None:
            raise failure or Missing(f"no way to version {target}: patch or anchor {at} is missing or damaged")
        return best


def _size(markers: list[Marker]) -> int:
    return sum(m.size for m in markers)
