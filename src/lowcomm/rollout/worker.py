"""The worker's side: asks for jobs, takes the weights a job wants, generates, answers; comes back when cut off."""

import logging
import math
import socket
import threading
import time
from typing import Any

from lowcomm.rollout import wire
from lowcomm.rollout.generation import Engine, generate_job
from lowcomm.rollout.wire import Line, WireError

log = logging.getLogger(__name__)
GREETING_S = 30.0  # for the first answer of a trainer
PAUSE_S = 5.0  # the longest between two attempts to connect


class Refused(RuntimeError):
    """The trainer does not want this worker: trying again would not help."""


class Worker:
    """Serves one trainer with one engine, until stopped. ``wait_limit_s``: how long to look for a trainer."""

    def __init__(self, engine: Engine, trainer: str, token: str, name: str, kind: str, wait_limit_s: float):
        if not wait_limit_s > 0:
            raise ValueError(f"wait_limit_s={wait_limit_s}: must be positive")
        self.family, self.where = wire.endpoint(trainer)
        self.engine, self.trainer, self.token = engine, trainer, token
        self.name, self.kind, self.wait_limit_s = name, kind, wait_limit_s
        self.jobs = 0

    def run(self) -> None:
        """Raises Refused, or ConnectionError when no trainer was to be had for ``wait_limit_s``."""
        met, pause, last = time.monotonic(), 0.1, ""
        while True:
            try:
                with socket.socket(self.family, socket.SOCK_STREAM) as sock:
                    sock.settimeout(GREETING_S)
                    sock.connect(self.where)
                    line, beat_s = self._greet(sock)
                    log.info("joined the trainer at %s", self.trainer)
                    before = self.jobs
                    try:
                        self._session(line, beat_s)
                    finally:
                        met = time.monotonic()
                        pause = 0.1 if self.jobs > before else pause
            except (OSError, WireError) as error:
                last = str(error) or "silence"
                log.info("trainer at %s: %s", self.trainer, last)
            if time.monotonic() - met > self.wait_limit_s:
                raise ConnectionError(
                    f"trainer={self.trainer}: not to be reached for {self.wait_limit_s:g} s ({last}); is it running? "
                    "Its address stands in rollout.json in its run folder"
                )
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_S)

    def _greet(self, sock: socket.socket) -> tuple[Line, float]:
        line = Line(sock, GREETING_S)
        challenge = line.receive()
        if challenge["type"] != "challenge" or challenge.get("protocol") != wire.PROTOCOL:
            raise Refused(f"trainer={self.trainer}: not a trainer of protocol {wire.PROTOCOL}")
        nonce = wire.text(challenge, "nonce")
        line.send(
            "hello", protocol=wire.PROTOCOL, name=self.name, engine=self.kind, proof=wire.proof(self.token, nonce)
        )
        answer = line.receive()
        if answer["type"] == "refused":
            raise Refused(f"trainer={self.trainer}: {wire.text(answer, 'message', 1000)}; see its rollout.json")
        if answer["type"] != "welcome":
            raise WireError(f"{answer['type']!r:.40} instead of a welcome")
        line.limit = wire.LINE
        line.sock.settimeout(wire.number(answer, "lost_after_s", 0, 1e6))
        return line, wire.number(answer, "heartbeat_s", 0, 1e6)

    def _session(self, line: Line, beat_s: float) -> None:
        over = threading.Event()
        threading.Thread(target=_beat, args=(line, beat_s, over), name="rollout-beat", daemon=True).start()
        try:
            if self.engine.version is not None:
                self._acknowledge(line)
            line.send("ready")
            while True:
                message = line.receive()
                if message["type"] == "job":
                    self._job(line, message)
                    line.send("ready")
                elif message["type"] == "refused":
                    raise Refused(f"trainer={self.trainer}: {wire.text(message, 'message', 1000)}")
                elif message["type"] == "follow":
                    self._follow(line, wire.integer(message, "version"))
                elif message["type"] != "beat":
                    raise WireError(f"{message['type']!r:.40} is no message of a trainer")
        finally:
            over.set()
            line.close()

    def _job(self, line: Line, message: dict[str, Any]) -> None:
        number, job = wire.text(message, "id"), wire.parse_job(message)
        at_least = wire.integer(message, "at_least")
        at_most = wire.integer(message, "at_most", at_least)
        before, failure = self.engine.version, None
        try:
            self._take(at_least, at_most)
            completions = generate_job(self.engine, job)
            if not all(math.isfinite(value) for c in completions for value in c.logprobs):
                raise ValueError(f"version {self.engine.version} gives log-probabilities that are not finite")
        except Exception as error:  # file systems and engines raise their own kinds; another worker may do the job
            log.warning("job %s failed: %s", number, error)
            failure = _printable(f"{type(error).__name__}: {error}")
        if self.engine.version != before:
            self._acknowledge(line)
        if failure is not None:
            line.send("failed", id=number, message=failure)
            return
        self.jobs += 1
        log.info("job %s: %d completions of version %d", number, len(completions), self.engine.version)
        line.send("done", id=number, completions=wire.completion_fields(completions))

    def _take(self, at_least: int, at_most: int) -> None:
        """The newest allowed version; any allowed one where that cannot be had."""
        if self.engine.version == at_most:
            return
        try:
            self.engine.advance(at_most)
        except Exception as error:  # a PatchError, or whatever the store's file system raises
            if self.engine.version is None or not at_least <= self.engine.version <= at_most:
                raise
            log.warning("staying at version %d: %s", self.engine.version, error)

    def _follow(self, line: Line, version: int) -> None:
        try:
            self._take(version, version)
        except Exception as error:
            log.warning("version %d: %s", version, error)
        if self.engine.version is not None:
            self._acknowledge(line)

    def _acknowledge(self, line: Line) -> None:
        line.send("ack", version=self.engine.version, digest=self.engine.digest())


def _beat(line: Line, every: float, over: threading.Event) -> None:
    try:
        while not over.wait(every):
            line.send("beat")
    except OSError:
        line.close()  # the session sees it


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:2000]
