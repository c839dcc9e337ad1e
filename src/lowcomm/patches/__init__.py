"""Door: how many bytes and seconds the patches between versions of some weights take (no training of its own).

    python -m lowcomm.patches source=gaussian source.delta=3.4e-7 codec=packed
    python -m lowcomm.patches source=training source.lr=3e-6 codec=history
    python -m lowcomm.patches source=store source.url=FOLDER codec=paper repeats=5

`run_overrides` and `digest_of` are what `lowcomm.reproduce` asks of a door.
"""

from typing import Any


def run_overrides(overrides: list[str], claim: dict[str, Any] | None = None) -> dict[str, Any]:
    """Measure one configuration and return its record (`lowcomm.results.record`)."""
    from lowcomm.patches.door import run

    return run(overrides, claim)


def digest_of(overrides: list[str]) -> str:
    """Digest of the configuration that `run_overrides` would measure, composed and checked. Raises ConfigError."""
    from lowcomm.patches.config import checked, digest

    return digest(checked(overrides))
