"""Optional Ed25519 signatures. Keys are the 32 raw bytes; needs the package `cryptography` only when used.

A signature says who wrote an object, not for which run: use one key for one store. In a store whose readers ask for
signatures one object without stops them all, also when it is newer than what they could have read.
"""

from lowcomm.pulse.errors import Untrusted


def generate() -> tuple[bytes, bytes]:
    """A new (private key, public key)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def sign(private_key: bytes, message: bytes) -> bytes:
    """The Ed25519 signature (64 bytes) of a message."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private_key).sign(message)


def check(public_key: bytes, signature: bytes, message: bytes, what: str) -> None:
    """Raises Untrusted unless ``signature`` (64 bytes, or empty for none) is the key holder's."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not signature:
        raise Untrusted(f"{what} is not signed, and this store accepts signed objects only")
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except InvalidSignature:
        raise Untrusted(f"{what} is not signed by the trusted key: do not use it") from None
