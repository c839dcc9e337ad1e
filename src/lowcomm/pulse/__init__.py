"""Sparse weight patches: which entries changed, as few bytes as possible, applied exactly or not at all (PULSE).

Stands alone: needs torch, numpy, numba, zstandard, xxhash and fsspec, and nothing of the trainer.
"""

from lowcomm.pulse.visibility import changed, visible

__all__ = ["changed", "visible"]
