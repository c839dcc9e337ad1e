"""Where patches live: a local folder, memory://, s3://, anything fsspec opens.

    anchors/000000000010-9f3c….pulse    every weight of version 10
    anchors/000000000010.ready          its marker, written last: what has no marker does not exist
    patches/000000000011-1b77….pulse    version 10 to 11
    patches/000000000011.ready

Objects are named by their contents and never change; a marker names its object. One publisher writes a store.
"""

import hashlib
import math
import mmap
import os
import tempfile
from typing import BinaryIO

import fsspec

from lowcomm.disk import DENIED, writable
from lowcomm.pulse import marker as markers
from lowcomm.pulse.errors import Corrupt, Missing
from lowcomm.pulse.marker import Marker
from lowcomm.pulse.patch import Patch

FOLDERS = {"anchor": "anchors", "patch": "patches"}
IN_MEMORY = 64 << 20  # larger objects are fetched to a temporary file
CHUNK = 4 << 20
MARKER = 1 << 16  # bytes that a marker may have


class Store:
    """A place for the chain of one model.

    ``url``: path or fsspec URL. ``private_key`` signs what is put, ``public_key`` refuses what its owner did not sign
    (see `signing.generate`). ``options`` go to the file system (endpoint, credentials ...).
    """

    def __init__(
        self,
        url: str,
        private_key: bytes | None = None,
        public_key: bytes | None = None,
        options: dict | None = None,
    ):
        try:
            self.fs, root = fsspec.core.url_to_fs(str(url), **(options or {}))
        except ValueError as error:
            raise ValueError(f"store {url}: {error}; give a folder, or an address that fsspec knows") from error
        self.root = root.rstrip("/")
        self.private_key, self.public_key = private_key, public_key
        with writable(f"store {self.root}", "choose another place", *DENIED):
            for folder in FOLDERS.values():
                self.fs.makedirs(f"{self.root}/{folder}", exist_ok=True)

    def put(self, patch: Patch, data: BinaryIO) -> Marker:
        """Write the object, then its marker. A version that is there already with the same weights is left alone.

        Raises ValueError if it is there with other weights.
        """
        data.seek(0)
        size, sha = 0, hashlib.sha256()
        while chunk := data.read(CHUNK):
            size += len(chunk)
            sha.update(chunk)
        name = markers.object_name(patch.version, sha.hexdigest())
        marker = markers.describe(patch, name, size, sha.hexdigest())
        if patch.version in self.versions(marker.kind):
            there = self.marker(marker.kind, patch.version)
            if there.target_digest != marker.target_digest:
                raise ValueError(
                    f"{marker.kind} {patch.version} is in the store with other weights: versions are final"
                )
            return there
        data.seek(0)
        self._write(f"{FOLDERS[marker.kind]}/{name}", data)
        self._write(self._ready(marker.kind, patch.version), marker.to_json(self.private_key))
        return marker

    def _write(self, path: str, data: BinaryIO | bytes) -> None:
        """Whole or not at all: object stores publish at the end by themselves, in a folder we rename."""
        final = f"{self.root}/{path}"
        aside = f"{final}.partial" if "file" in self.fs.protocol else final
        with writable(f"store {self.root}", "free some space there"), self.fs.open(aside, "wb") as out:
            if isinstance(data, bytes):
                out.write(data)
            else:
                while chunk := data.read(CHUNK):
                    out.write(chunk)
        if aside != final:
            self.fs.mv(aside, final)

    @staticmethod
    def _ready(kind: str, version: int) -> str:
        return f"{FOLDERS[kind]}/{version:012d}.ready"

    def _names(self, kind: str) -> list[str]:
        self.fs.invalidate_cache()
        try:
            return [p.rsplit("/", 1)[-1] for p in self.fs.ls(f"{self.root}/{FOLDERS[kind]}", detail=False)]
        except FileNotFoundError:  # an empty folder of an object store
            return []

    def versions(self, kind: str) -> list[int]:
        """Committed versions of a kind ("anchor" or "patch"), ascending."""
        stems = (n.removesuffix(".ready") for n in self._names(kind) if n.endswith(".ready"))
        return sorted(int(s) for s in stems if s.isdecimal())

    def latest(self) -> int | None:
        """The newest committed version; None in an empty store."""
        return max((*self.versions("anchor"), *self.versions("patch")), default=None)

    def marker(self, kind: str, version: int) -> Marker:
        """Raises Missing, Corrupt or Untrusted."""
        return markers.parse(self._read(self._ready(kind, version), MARKER), kind, version, self.public_key)

    def fetch(self, marker: Marker) -> memoryview:
        """The object's bytes, checked against its marker. Raises Missing or Corrupt."""
        path = f"{FOLDERS[marker.kind]}/{marker.name}"
        what = f"{marker.kind} {marker.version}"
        if marker.size <= IN_MEMORY:
            data = memoryview(self._read(path, marker.size + 1))
        else:
            with tempfile.NamedTemporaryFile() as file:
                try:
                    self.fs.get_file(f"{self.root}/{path}", file.name)
                except FileNotFoundError:
                    raise Missing(f"{what} has a marker but no object") from None
                if os.path.getsize(file.name) != marker.size:
                    raise Corrupt(f"{what} has another size than its marker says: fetch it again, else use an anchor")
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if len(data) != marker.size or hashlib.sha256(data).hexdigest() != marker.sha256:
            raise Corrupt(f"{what} is not the object that its marker names: fetch it again, else use an anchor")
        return data

    def _read(self, path: str, at_most: int) -> bytes:
        try:
            return self.fs.cat_file(f"{self.root}/{path}", start=0, end=at_most)
        except FileNotFoundError:
            raise Missing(f"{path} is not in the store") from None

    def retain(self, anchors: int) -> None:
        """Keep the newest ``anchors`` anchors and every patch from the oldest of them on, so that any reader can reach
        the newest version; delete the rest, markers first, and what crashed writers left behind."""
        kept = self.versions("anchor")[-anchors:]
        if not kept:
            return
        for kind in FOLDERS:
            names = self._names(kind)
            ready = {_number(n) for n in names if n.endswith(".ready")}
            stale = [n for n in names if _number(n) < kept[0]]
            # an object without marker, older than the newest commit of its kind, was never committed and never will be
            newest = max(ready, default=-1)
            orphans = [n for n in names if not n.endswith(".ready") and _number(n) not in ready and _number(n) < newest]
            for name in sorted({*stale, *orphans}, key=lambda n: (not n.endswith(".ready"), n)):
                try:
                    self.fs.rm_file(f"{self.root}/{FOLDERS[kind]}/{name}")
                except FileNotFoundError:  # a retention before this one got it, and was killed
                    continue


def _number(name: str) -> float:
    """The version in the name of an object or a marker, however many digits it has; of other files infinity."""
    head = name.split("-")[0].split(".")[0]
    return int(head) if head.isdecimal() else math.inf
