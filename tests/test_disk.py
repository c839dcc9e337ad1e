"""A full disk is said with its place; other errors are left as they are."""

import errno

import pytest

from lowcomm.disk import DENIED, writable


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_full_and_read_only(number):
    message = r"the store can't be written \(no more\); free some space"
    with pytest.raises(OSError, match=message) as seen, writable("the store", "free some space"):
        raise OSError(number, "no more")
    assert seen.value.errno is None  # said once, however many rooms it passes


def test_what_is_denied_only_where_it_is_asked_for():
    with pytest.raises(PermissionError, match="shard"), writable("the cache", "set it"):
        raise PermissionError(errno.EACCES, "denied", "shard")
    with pytest.raises(OSError, match="the cache can't be written"), writable("the cache", "set it", *DENIED):
        raise PermissionError(errno.EACCES, "denied")
    with pytest.raises(FileNotFoundError), writable("the cache", "set it", *DENIED):
        raise FileNotFoundError(errno.ENOENT, "not there")
