"""Why a patch was refused. Anything a patch, however damaged, can provoke is one of these."""


class PatchError(Exception):
    """A patch was refused; the weights were not touched."""


class StaleBase(PatchError):
    """The weights are not the ones the patch was made against. Remedy: start again from an anchor."""


class Corrupt(PatchError):
    """Bytes are damaged or contradict themselves. Remedy: fetch again, then start again from an anchor."""


class Untrusted(Corrupt):
    """A signature is absent or wrong. Remedy: check the publisher's key; never apply the object."""


class Missing(PatchError):
    """Something that must exist does not: an object in the store, or a tensor at the receiver."""


class Foreign(Missing):
    """The receiver lacks a tensor of the patch: most likely another model's. Remedy: another store."""


class Unsupported(PatchError):
    """Well formed, but this receiver cannot take it: another version, codec, dtype, shape or tensor name."""
