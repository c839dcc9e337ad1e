"""A disk that takes no more is said with the place and the remedy."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
DENIED = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)  # of a folder or file to be made


@contextmanager
def writable(place: str, remedy: str, *more: int) -> Iterator[None]:
    """Within it the errors FULL, and `more` error numbers, become one line: raises OSError, without a number."""
    try:
        yield
    except OSError as error:
        if error.errno not in (*FULL, *more):
            raise
        raise OSError(f"{place} can't be written ({error.strerror}); {remedy}") from error
