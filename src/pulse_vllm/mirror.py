"""The receiver's own copy of the weights, on the host and in checkpoint names, which follows the store."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from lowcomm.pulse import Corrupt, Missing, PatchError, Store, Subscriber, Untrusted, digest
from lowcomm.pulse.marker import Marker
from lowcomm.pulse.state import Tensors, block_digests, tensor_digest

INDEX = "model.safetensors.index.json"


def read(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every tensor of a Hugging Face folder, floating ones in ``dtype``. Raises FileNotFoundError."""
    if (folder / INDEX).is_file():
        files = sorted({folder / f for f in json.loads((folder / INDEX).read_text())["weight_map"].values()})
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"base={folder}: no .safetensors file is there; give the folder that the engine loaded")
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}


class Mirror:
    """Goes ahead of the model: `advance` fetches and verifies, `changed` names what the model lacks, `commit` says that
    it has it now. ``tensors`` is what goes into the model; nothing here touches the model.
    """

    def __init__(self, base: Path, store: Store, dtype: torch.dtype):
        self.store, self.tensors = store, read(base, dtype)
        self.subscriber = Subscriber(store, self.tensors, version=self._base_version())
        self._here = self._digests()
        self.held = dict(self._here)  # digests of the model's tensors, as far as they are known
        self._verified: tuple[int, str] | None = None  # version and digest that `advance` has reached

    @property
    def version(self) -> int | None:
        """None until it holds a version of the store."""
        return self.subscriber.version

    def _base_version(self) -> int | None:
        """Of the anchor that these weights are; None where none is, and the first way then begins at an anchor."""
        here = digest(self.tensors).hex()
        for version in reversed(self.store.versions("anchor")):
            try:
                if self.store.marker("anchor", version).target_digest == here:
                    return version
            except Untrusted:
                raise
            except PatchError:  # damaged, or just retired: not the one we look for
                continue
        return None

    def _marker(self, version: int) -> Marker:
        for kind in ("anchor", "patch"):
            if version in self.store.versions(kind):
                return self.store.marker(kind, version)
        raise Missing(f"version {version} is not in the store")

    def advance(self, version: int, expected: str) -> None:
        """Bring the tensors to ``version`` whose digest is ``expected`` (hex, as in its marker).

        Raises Corrupt if the store's marker states another digest, and other PatchErrors. Every bit is verified before
        any is replaced (see `lowcomm.pulse.apply`).
        """
        if self._verified == (version, expected):  # staged ahead: the pause does not wait for the store
            return
        stated = self._marker(version).target_digest
        if stated != expected:
            raise Corrupt(f"version {version} has digest {stated} in the store, not {expected}, which was asked for")
        if self.version != version:
            self._verified = None
            try:
                self.subscriber.advance(version)
            finally:  # it may have got half the way
                self._here = self._digests()
        self._verified = version, expected

    def changed(self) -> list[str]:
        """Names of tensors whose bits are not those of the model, or of which that is not known."""
        return [name for name, value in self._here.items() if self.held.get(name) != value]

    def commit(self) -> None:
        """The model holds these tensors now."""
        self.held = dict(self._here)

    def _digests(self) -> dict[str, bytes]:
        state = Tensors(self.tensors)
        blocks = block_digests(state)
        own = {name: tensor_digest(name, entry, blocks[name]) for name, entry in state.entries.items()}
        return own | {alias: own[owner] for alias, owner in state.aliases.items()}
