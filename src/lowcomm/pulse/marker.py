"""The ready marker: a small JSON object, written last, that commits an anchor or a patch and says what it holds."""

import json
from dataclasses import asdict, dataclass

from lowcomm.pulse import signing
from lowcomm.pulse.errors import Corrupt
from lowcomm.pulse.patch import Patch

KINDS = ("anchor", "patch")


@dataclass(frozen=True)
class Marker:
    """One committed object. Its signature covers all other fields, and through sha256 the object itself."""

    kind: str  # "anchor": every weight; "patch": from base_version to version
    version: int
    base_version: int | None
    name: str  # of the object, beside the marker
    size: int  # bytes
    sha256: str
    base_digest: str
    target_digest: str
    signature: str = ""

    def signed(self) -> bytes:
        """What the signature covers: every other field, as JSON with sorted keys."""
        fields = asdict(self)
        del fields["signature"]
        return json.dumps(fields, sort_keys=True).encode()

    def to_json(self, private_key: bytes | None) -> bytes:
        """The marker as it is stored; unsigned (an empty signature) without a key."""
        signature = signing.sign(private_key, self.signed()).hex() if private_key else ""
        return json.dumps({**asdict(self), "signature": signature}, sort_keys=True, indent=1).encode()


def parse(raw: bytes, kind: str, version: int, public_key: bytes | None) -> Marker:
    """Raises Corrupt unless this is the marker of that object, Untrusted unless ``public_key`` (if given) signed it."""
    what = f"the marker of {kind} {version}"
    try:
        fields = json.loads(raw)
        marker = Marker(**fields)
        signature = bytes.fromhex(marker.signature)
        whole = [marker.version, marker.size] + ([] if marker.base_version is None else [marker.base_version])
        sound = (
            (marker.kind, marker.version) == (kind, version)
            and all(type(n) is int and n >= 0 for n in whole)
            and all(type(s) is str for s in (marker.name, marker.sha256, marker.base_digest, marker.target_digest))
            and (marker.base_version is None) == (kind == "anchor")
            and len(marker.sha256) == 64
            and set(marker.sha256) <= set("0123456789abcdef")
            and marker.name == object_name(version, marker.sha256)
        )
    except (ValueError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise Corrupt(f"{what} is damaged")
    if public_key:
        signing.check(public_key, signature, marker.signed(), what)
    return marker


def object_name(version: int, sha256: str) -> str:
    """Of an object in the store: its version, then the first digits of its hash (hex)."""
    return f"{version:012d}-{sha256[:16]}.pulse"


def describe(patch: Patch, name: str, size: int, sha256: str) -> Marker:
    """The marker, not yet signed, of a patch that is stored as ``name`` with ``size`` bytes; ``sha256`` in hex."""
    kind = "anchor" if patch.base_version is None else "patch"
    digests = patch.base_digest.hex(), patch.target_digest.hex()
    return Marker(kind, patch.version, patch.base_version, name, size, sha256, *digests)
