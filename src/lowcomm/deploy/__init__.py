"""Door: weights go live from a trainer to receivers over thin links, each in a network namespace of its own.

    python -m lowcomm.deploy rates=[1,10,100] delay_ms=20

Needs root, iproute2 and /dev/net/tun (`namespaces.missing` tells). `run_overrides` and `digest_of` are what
`lowcomm.reproduce` asks of a door.
"""

from typing import Any


def run_overrides(overrides: list[str], claim: dict[str, Any] | None = None) -> dict[str, Any]:
    """Measure one configuration and return its record (`lowcomm.results.record`)."""
    from lowcomm.deploy.door import run

    return run(overrides, claim)


def digest_of(overrides: list[str]) -> str:
    """Digest of the configuration that `run_overrides` would measure. Raises ConfigError."""
    from lowcomm.deploy.config import digest, load

    return digest(load(overrides))
