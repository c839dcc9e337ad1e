"""Published: the chain of a store, walked as a reader would."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lowcomm.patches.sources.need import need
from lowcomm.pulse import Missing, PatchError, Store, Subscriber, decode
from lowcomm.pulse.dtypes import TORCH


class Published:
    """The newest ``versions`` patches of a store, or its ``first``, and the version that they start from.

    ``zeros=False`` leaves out the weights that are exactly zero in the first of them. Raises Missing where the store
    does not hold so many versions.
    """

    def __init__(self, url: str, versions: int = 10, zeros: bool = True, first: bool = False, seed: int = 0):
        need(versions > 0, "versions", versions, "must be at least 1")
        self.store, self.versions, self.zeros, self.first = Store(url), versions, zeros, first

    def chain(self) -> Iterator[dict[str, Tensor]]:
        """The weights of each version, walked as a reader would; tensors are vectors where zeros are left out.

        Raises Missing.
        """
        known = sorted({*self.store.versions("anchor"), *self.store.versions("patch")})
        known = known[: self.versions + 1] if self.first else known[-self.versions - 1 :]
        if len(known) <= self.versions:
            raise Missing(f"the store holds {len(known)} versions, {self.versions + 1} are needed: lower versions")
        reader = Subscriber(self.store, self._blank())
        mask = None
        for version in known:
            reader.advance(version)
            now = {n: t.clone() for n, t in reader.tensors.items()}
            if mask is None:
                mask = {n: t.reshape(-1) != 0 for n, t in now.items()}
            yield now if self.zeros else {n: t.reshape(-1)[mask[n]] for n, t in now.items()}

    def _blank(self) -> dict[str, Tensor]:
        """Tensors of the names, shapes and dtypes of the store's first anchor."""
        dtypes = {name: dtype for dtype, name in TORCH.items()}
        first = self.store.versions("anchor")
        if not first:
            raise Missing("the store holds no anchor")
        patch = decode(self.store.fetch(self.store.marker("anchor", first[0])))
        return {r.name: torch.zeros(r.entry.shape, dtype=dtypes[r.entry.dtype]) for r in patch.records}

    def describe(self) -> dict[str, Any]:
        """For the record: the digest of the newest version, and what its publisher said of it."""
        last = self.store.latest()
        kind = "patch" if last in self.store.versions("patch") else "anchor"
        marker = self.store.marker(kind, last)
        try:
            meta = dict(decode(self.store.fetch(marker)).meta)
        except PatchError:
            meta = {}
        said = ", ".join(
            f"{k} {v}" for k, v in itertools.islice(sorted(meta.items()), 6) if not k.startswith("history")
        )
        text = f"{self.versions} published versions up to {last}{f' ({said})' if said else ''}"
        text += "" if self.zeros else ", without the weights that are zero at the start"
        return {"name": "store", "revision": marker.target_digest, "summary": text, "meta": meta}
