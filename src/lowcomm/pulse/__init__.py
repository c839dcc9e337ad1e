"""Sparse weight patches: which entries changed, as few bytes as possible, applied exactly or not at all (PULSE).

Stands alone: needs torch, numpy, numba, zstandard, xxhash and fsspec, and nothing of the trainer. The first patch on a
new machine waits some seconds for numba to compile; the result is cached beside the sources or in the user's cache.
"""

from lowcomm.pulse.codec import encode
from lowcomm.pulse.errors import Corrupt, Missing, PatchError, StaleBase, Unsupported, Untrusted
from lowcomm.pulse.history import History
from lowcomm.pulse.patch import Patch, decode
from lowcomm.pulse.publisher import Publisher
from lowcomm.pulse.receive import apply
from lowcomm.pulse.state import digest
from lowcomm.pulse.store import Store
from lowcomm.pulse.subscriber import Subscriber
from lowcomm.pulse.visibility import cast, changed, visible

__all__ = [
    "Corrupt",
    "History",
    "Missing",
    "Patch",
    "PatchError",
    "Publisher",
    "StaleBase",
    "Store",
    "Subscriber",
    "Unsupported",
    "Untrusted",
    "apply",
    "cast",
    "changed",
    "decode",
    "digest",
    "encode",
    "visible",
]
