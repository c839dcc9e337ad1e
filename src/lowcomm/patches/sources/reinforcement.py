"""Published by a run of `lowcomm.rl`, which is made when it is not there."""

import fcntl
import hashlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from lowcomm.patches.sources.need import need
from lowcomm.patches.sources.published import Published
from lowcomm.pulse import Missing, Store


class Reinforcement:
    """The first ``versions`` patches of a run of `lowcomm.rl`, kept in runs/ and shared with other tables.

    ``overrides``: of the run; it is made, or finished, when it is not there. ``zeros``: as for `Published`. Raises
    Missing where the run publishes fewer versions, or its store holds them no more.
    """

    def __init__(self, overrides: list[str], versions: int = 10, zeros: bool = True, seed: int = 0):
        need(versions > 0, "versions", versions, "must be at least 1")
        self.overrides, self.versions, self.zeros = [*overrides, f"seed={seed}"], versions, zeros

    def chain(self) -> Iterator[dict[str, Tensor]]:
        """The weights of the first version, then of each one after it.

        Raises Missing where the store no longer has the first, or has too few.
        """
        from lowcomm.rl import run_overrides
        from lowcomm.rl.config import checked, load_config
        from lowcomm.run_dir import ROOT, run_dir_of

        ROOT.mkdir(parents=True, exist_ok=True)
        with (ROOT / ".patches-rl").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several rows read the same run: one makes it, the others wait
            run_overrides(self.overrides)
        cfg = checked(load_config(self.overrides))
        store = cfg.place.store or run_dir_of(cfg) / "store"
        if 0 not in Store(str(store)).versions("anchor"):
            raise Missing("the run's store has dropped its first version: raise sync.keep_anchors among the overrides")
        yield from Published(store, self.versions, self.zeros, first=True).chain()

    def describe(self) -> dict[str, Any]:
        """The record's entries; the revision is that of the overrides, 16 hexadecimal digits."""
        text = f"{self.versions} steps of lowcomm.rl {' '.join(self.overrides)}"
        text += "" if self.zeros else ", without the weights that are zero at the start"
        revision = hashlib.sha256("\n".join(self.overrides).encode()).hexdigest()[:16]
        return {"name": "rl", "revision": revision, "summary": text}
