"""The trainer's end of the lines to its workers: a socket that listens."""

import contextlib
import errno
import logging
import socket
from pathlib import Path

from lowcomm.rollout import wire

log = logging.getLogger(__name__)


def listener(listen: str) -> tuple[socket.socket, str]:
    """A socket that listens at HOST:PORT (port 0: any free one) or unix:PATH, and its address for workers.

    Raises ValueError where that is not to be had.
    """
    family, where = wire.endpoint(listen)
    try:
        if family == socket.AF_UNIX:
            return _unix(where), listen
        if where[0] not in ("127.0.0.1", "::1", "localhost"):
            log.warning("rollout listens at %s in plain text: only for a private network", listen)
        made = socket.create_server(where, family=family)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while")[0]  # it says the address again
        raise ValueError(f"listen={listen}: {why}; choose another address (port 0: any free one)") from error
    bound = made.getsockname()
    host = f"[{bound[0]}]" if family == socket.AF_INET6 else bound[0]
    return made, f"{host}:{bound[1]}"


def _unix(path: str) -> socket.socket:
    """In place of the socket that a killed trainer has left, but not of a living one's, nor of another file."""
    if Path(path).is_socket():
        with contextlib.suppress(ConnectionRefusedError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(path)
            raise OSError(errno.EADDRINUSE, "another process listens there")
        Path(path).unlink()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(path)
    Path(path).chmod(0o600)
    made.listen()
    return made
