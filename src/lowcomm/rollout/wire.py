"""The lines between trainer and worker: one JSON object each, of limited length, every field checked, nothing pickled.

    trainer: challenge {protocol, nonce}      worker: hello {protocol, name, engine, proof}
    trainer: welcome {heartbeat_s, lost_after_s} or refused {message}
    worker:  ready                            idle, wants a job
    trainer: job {id, prompt, seeds, sampling, at_least, at_most}
    worker:  ack {version, digest}            stands on a version, before it answers with it
    worker:  done {id, completions} or failed {id, message}
    trainer: follow {version}                 take it now, between jobs; answered by an ack
    trainer: refused {message}                the worker broke the protocol, or has other weights; it should end
    both:    beat                             still there

The proof is an HMAC of the nonce under the shared token, so the token itself is never sent. The lines are plain text:
use loopback, a Unix socket or a private network.
"""

import contextlib
import hashlib
import hmac
import json
import socket
import sys
import threading
from typing import Any

from lowcomm.rollout.generation import Completion, Job, Sampling

PROTOCOL = 1
LINE = 32 << 20  # bytes a message may have
GREETING = 4096  # before the other side has shown that it knows the token


class WireError(ValueError):
    """The other side does not speak the protocol: the connection is closed, its job goes elsewhere."""


class Line:
    """A socket as a line of messages. Any thread may send, one receives. Silence of ``timeout`` s raises OSError."""

    def __init__(self, sock: socket.socket, timeout: float, limit: int = GREETING):
        self.sock, self.limit = sock, limit
        self._buffer = bytearray()
        self._sending = threading.Lock()
        sock.settimeout(timeout)
        if sock.family != socket.AF_UNIX:  # else what follows a message waits 40 ms for its ACK
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, kind: str, **fields: Any) -> None:
        """One message; raises OSError."""
        data = json.dumps({"type": kind, **fields}, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            self.sock.sendall(data)

    def receive(self) -> dict[str, Any]:
        """The next message. Raises ConnectionError at the end of the stream, OSError on silence, WireError."""
        start = 0
        while (end := self._buffer.find(b"\n", start)) < 0:
            start = len(self._buffer)
            if start > self.limit:
                raise WireError(f"a line of more than {self.limit} bytes")
            chunk = self.sock.recv(1 << 16)
            if not chunk:
                raise ConnectionError("the other side closed the connection")
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        if end > self.limit:
            raise WireError(f"a line of more than {self.limit} bytes")
        try:
            message = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise WireError(f"not JSON: {error}") from None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise WireError("not an object with a type")
        return message

    def close(self) -> None:
        """End it in both directions, whatever other threads do with it."""
        with contextlib.suppress(OSError):  # not connected any more
            self.sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in recv
        self.sock.close()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def proof(token: str, nonce: str) -> str:
    """That the token is known: HMAC-SHA256, hexadecimal."""
    return hmac.new(token.encode(), nonce.encode(), hashlib.sha256).hexdigest()


def endpoint(address: str) -> tuple[socket.AddressFamily, Any]:
    """(family, address) of ``HOST:PORT`` or ``unix:PATH``. Raises ValueError."""
    if address.startswith("unix:"):
        return socket.AF_UNIX, address.removeprefix("unix:")
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"address={address}: is none; write HOST:PORT or unix:PATH")
    host = host.strip("[]")
    return (socket.AF_INET6 if ":" in host else socket.AF_INET), (host, int(port))


def text(message: dict[str, Any], key: str, limit: int = 200) -> str:
    """A field that is a printable text. Raises WireError."""
    value = message.get(key)
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise WireError(f"{message['type']}.{key}: not a printable text of at most {limit} characters")
    return value


def integer(message: dict[str, Any], key: str, low: int = 0, high: int = 2**63 - 1) -> int:
    """A field that is an integer from ``low`` to ``high``, no truth value. Raises WireError."""
    value = message.get(key)
    if type(value) is not int or not low <= value <= high:
        raise WireError(f"{message['type']}.{key}={value!r:.40}: not an integer in [{low}, {high}]")
    return value


def number(message: dict[str, Any], key: str, low: float, high: float) -> float:
    """A field that is a number from ``low`` to ``high``. Raises WireError."""
    value = message.get(key)
    if type(value) not in (int, float) or not low <= value <= high:
        raise WireError(f"{message['type']}.{key}={value!r:.40}: not a number in [{low}, {high}]")
    return float(value)


def integers(message: dict[str, Any], key: str, high: int) -> list[int]:
    """A field that is a list of integers from 0 to below ``high``. Raises WireError."""
    value = message.get(key)
    if not isinstance(value, list) or not all(type(v) is int and 0 <= v < high for v in value):
        raise WireError(f"{message['type']}.{key}: not a list of integers in [0, {high})")
    return value


def digest_text(message: dict[str, Any]) -> str:
    """The field ``digest``: 32 hexadecimal digits. Raises WireError."""
    value = text(message, "digest", 32)
    if len(value) != 32 or not set(value) <= set("0123456789abcdef"):
        raise WireError("ack.digest: not 32 hexadecimal digits")
    return value


def job_fields(job: Job) -> dict[str, Any]:
    """The fields of a message that carry a job."""
    return {"prompt": list(job.prompt), "seeds": list(job.seeds), "sampling": vars(job.sampling)}


def parse_job(message: dict[str, Any]) -> Job:
    """The inverse of `job_fields`. Raises WireError."""
    how = message.get("sampling")
    if not isinstance(how, dict) or set(how) != {"max_new_tokens", "temperature", "top_p", "top_k"}:
        raise WireError("job.sampling: not max_new_tokens, temperature, top_p and top_k")
    how = {"type": "job.sampling", **how}
    try:
        sampling = Sampling(
            integer(how, "max_new_tokens"), number(how, "temperature", 0, 1e6), number(how, "top_p", 0, 1),
            integer(how, "top_k"),
        )  # fmt: skip
        return Job(integers(message, "prompt", 2**31), integers(message, "seeds", 2**63), sampling)
    except WireError:
        raise
    except ValueError as error:
        raise WireError(f"job: {error}") from None


def completion_fields(completions: list[Completion]) -> list[dict[str, Any]]:
    """The field ``completions`` of an answer."""
    return [vars(c) for c in completions]


def parse_completions(message: dict[str, Any], job: Job, at_least: int, at_most: int) -> list[Completion]:
    """As many as the job asked for, all of one allowed version. Raises WireError."""
    given = message.get("completions")
    if not isinstance(given, list) or len(given) != len(job.seeds):
        raise WireError(f"done.completions: not a list of {len(job.seeds)}")
    out = []
    for item in given:
        if not isinstance(item, dict):
            raise WireError("done.completions: not objects")
        item = {"type": "completion", **item}
        tokens, logprobs = integers(item, "tokens", 2**31), item.get("logprobs")
        if not 1 <= len(tokens) <= job.sampling.max_new_tokens:
            raise WireError(f"completion.tokens: {len(tokens)} of them, max_new_tokens={job.sampling.max_new_tokens}")
        fine = isinstance(logprobs, list) and len(logprobs) == len(tokens)
        if not fine or not all(type(v) in (int, float) and -sys.float_info.max <= v <= 1e-3 for v in logprobs):
            raise WireError("completion.logprobs: not one finite logarithm of a probability for each token")
        if not isinstance(item.get("finished"), bool):
            raise WireError("completion.finished: not true or false")
        version = integer(item, "version", at_least, at_most)
        out.append(Completion(tokens, [float(v) for v in logprobs], item["finished"], version))
    if len({c.version for c in out}) != 1:
        raise WireError("done.completions: of several versions")
    return out
