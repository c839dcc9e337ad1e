"""How a source refuses its numbers."""


def need(ok: bool, name: str, value: object, why: str) -> None:
    """Raises ValueError `name=value: why` unless `ok`."""
    if not ok:
        raise ValueError(f"{name}={value}: {why}")
