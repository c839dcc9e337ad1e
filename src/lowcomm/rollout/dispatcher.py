"""The trainer's side: jobs go to whichever workers are there, answers come back in order, no worker is relied on."""

import contextlib
import hmac
import logging
import secrets
import socket
import threading
import time
from collections import Counter
from pathlib import Path

from lowcomm.rollout import wire
from lowcomm.rollout.connection import Connection, Task
from lowcomm.rollout.generation import Completion, Job
from lowcomm.rollout.wire import Line, WireError

log = logging.getLogger(__name__)
CONNECTIONS = 256
COUNTS = ("done", "late", "returned", "failed", "refused", "acknowledged")


class RolloutError(RuntimeError):
    """No completions can be had; nothing of the training state was touched."""


class Dispatcher:
    """Listens for workers from the start; `generate` blocks until all jobs are answered.

    Workers pull, so that one may join at any time. A job whose worker closes, falls silent for ``lost_after_s`` or
    breaks the protocol is given to another; one that has run for ``hedge_after_s`` is given to an idle worker as well
    and the first answer counts, which is the same bit for bit on workers of one kind. ``job_limit_s``: a worker that
    needs longer for one job is dropped. With no worker that gets anything done for ``wait_limit_s``, RolloutError.

    ``listen``: HOST:PORT (port 0: any free one) or unix:PATH; ``token``: the workers' shared secret.
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        token: str = "",
        wait_limit_s: float = 600.0,
        heartbeat_s: float = 2.0,
        lost_after_s: float = 15.0,
        hedge_after_s: float = 60.0,
        job_limit_s: float = 3600.0,
    ):
        if len(token) < 16:
            raise ValueError("token: at least 16 characters; make one with secrets.token_hex(16)")
        if not 0 < heartbeat_s < lost_after_s:
            raise ValueError(f"heartbeat_s={heartbeat_s}: must be positive and below lost_after_s={lost_after_s}")
        for name, value in (
            ("wait_limit_s", wait_limit_s),
            ("hedge_after_s", hedge_after_s),
            ("job_limit_s", job_limit_s),
        ):
            if not value > 0:
                raise ValueError(f"{name}={value}: must be positive")
        self.token, self.wait_limit_s, self.job_limit_s = token, wait_limit_s, job_limit_s
        self.heartbeat_s, self.lost_after_s, self.hedge_after_s = heartbeat_s, lost_after_s, hedge_after_s
        self.change = threading.Condition()  # guards all below
        self.workers: list[Connection] = []
        self.tasks: dict[str, Task] = {}  # open or running, in order
        self.wanted: int | None = None  # what workers are asked to follow to
        self.expected: dict[int, str] = {}  # version -> digest that the trainer published
        self.counts: Counter[str] = Counter()
        self.verified: set[int] = set()  # versions that some worker has held bit for bit
        self.last_failure = ""
        family, where = wire.endpoint(listen)
        if family == socket.AF_UNIX:
            Path(where).unlink(missing_ok=True)  # of a trainer that was killed
        elif where[0] not in ("127.0.0.1", "::1", "localhost"):
            log.warning("rollout listens at %s in plain text: only for a private network", listen)
        try:
            self._socket = socket.create_server(where, family=family) if family != socket.AF_UNIX else _unix(where)
        except OSError as error:  # in use, not this machine's, not allowed
            why = str(error).partition(" (while")[0]
            raise ValueError(f"listen={listen}: {why}; take another, such as 127.0.0.1:0 for any free port") from error
        bound = self._socket.getsockname()
        host = f"[{bound[0]}]" if family == socket.AF_INET6 else bound[0]
        self.address = listen if family == socket.AF_UNIX else f"{host}:{bound[1]}"
        threading.Thread(target=self._accept, name="rollout-accept", daemon=True).start()

    def announce(self, version: int, digest: str) -> None:
        """What `lowcomm.pulse.digest` gives for the published weights: workers must stand on exactly these bits."""
        with self.change:
            self.expected[version] = digest

    def follow(self, version: int, wait_s: float = 0.0, at_least: int = 0) -> int:
        """Ask all workers, and those that join later, to take ``version`` between their jobs; until `generate`.

        Waits until all that are here stand on it, and ``at_least`` so many. Returns how many do.
        """
        with self.change:
            self.wanted = version
            for worker in self.workers:
                if worker.version != version:
                    worker.outbox.put(("follow", {"version": version}))
            self.change.wait_for(lambda: self._standing(version) >= max(at_least, len(self.workers)), timeout=wait_s)
            return self._standing(version)

    def _standing(self, version: int) -> int:
        return sum(w.version == version for w in self.workers)

    def generate(self, jobs: list[Job], at_least: int, at_most: int) -> list[list[Completion]]:
        """Completions of every job in order, from weights of ``at_least`` to ``at_most``, stated in each of them.

        Equal versions make the result a function of the jobs alone. Raises RolloutError, ValueError.
        """
        if not 0 <= at_least <= at_most:
            raise ValueError(f"versions {at_least} to {at_most}: none is allowed")
        tasks = [Task(secrets.token_hex(8), job, at_least, at_most) for job in jobs]
        with self.change:
            self.wanted, self.tasks = None, {t.id: t for t in tasks}
            try:
                self._wait(tasks)
            finally:
                self.tasks = {}  # what still comes is late
        for task in tasks:
            self.counts[f"lag {at_most - task.result[0].version}"] += len(task.result)
        return [task.result for task in tasks]

    def status(self) -> dict[str, int]:
        """Counters since the start: done, late, returned, failed, refused, acknowledged, ``lag k`` (completions made k
        versions behind the newest allowed); and now: workers, verified (versions held bit for bit by some worker)."""
        with self.change:
            counts = dict.fromkeys(COUNTS, 0) | self.counts
            return {**counts, "workers": len(self.workers), "verified": len(self.verified)}

    def close(self) -> None:
        """Stop listening and cut all connections; workers look for the next trainer."""
        status = self.status()
        status["versions held bit for bit"] = status.pop("verified")
        log.info("rollout workers: %s", ", ".join(f"{name} {count}" for name, count in status.items()))
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts, which would keep the port
        self._socket.close()
        with self.change:
            workers = list(self.workers)
        for worker in workers:
            worker.line.close()
        if self.address.startswith("unix:"):
            Path(self.address.removeprefix("unix:")).unlink(missing_ok=True)

    def _wait(self, tasks: list[Task]) -> None:
        hope, said, done = time.monotonic(), 0.0, 0
        while open_tasks := [t for t in tasks if t.result is None]:
            self.assign()
            now = time.monotonic()
            answered = len(tasks) - len(open_tasks)
            if answered > done or any(w.task and not w.failures for w in self.workers):
                hope, done = now, answered
            why = f"the last failure: {self.last_failure}" if self.last_failure else "none has failed"
            here = f"{len(self.workers)} workers at {self.address}"
            state = f"{len(open_tasks)} of {len(tasks)} rollout jobs are open, {here}"
            if now - hope > self.wait_limit_s:
                raise RolloutError(
                    f"{state}, nothing done for {self.wait_limit_s:g} s; {why}; start a worker and resume"
                )
            if now - hope > 2 and now - said > 30:
                said = now
                log.warning("waiting: %s; %s; giving up in %.0f s", state, why, self.wait_limit_s - (now - hope))
            for worker in self.workers:
                if worker.task and now - worker.since > self.job_limit_s:
                    log.warning("worker %s: no answer in job_limit_s=%g, dropped", worker.name, self.job_limit_s)
                    worker.line.close()
            self.change.wait(timeout=0.5)

    def assign(self) -> None:
        """Give every idle worker a job, with the lock held: open ones first, then a copy of the longest running."""
        now = time.monotonic()
        for worker in self.workers:
            if not worker.ready or now < worker.rests_until:
                continue
            unanswered = [t for t in self.tasks.values() if t.result is None]
            waiting = [t for t in unanswered if not t.runners]
            slow = [t for t in unanswered if len(t.runners) == 1 and now - t.since > self.hedge_after_s]
            if waiting or slow:
                worker.take((waiting or slow)[0], now)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:  # closed
                return
            with self.change:
                crowded = len(self.workers) >= CONNECTIONS
            if crowded:
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock,), name="rollout-worker", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        line = Line(sock, self.lost_after_s)
        try:
            worker = self._greet(line)
        except (WireError, OSError) as error:
            log.warning("rollout: a connection was refused: %s", error)
            self.counts["refused"] += 1
            line.close()
            return
        try:
            worker.serve()
        except WireError as error:
            log.warning("worker %s broke the protocol and was dropped: %s", worker.name, error)
            self.counts["refused"] += 1
            with contextlib.suppress(OSError):
                line.send("refused", message=str(error))
        except OSError as error:
            log.warning("worker %s is gone: %s", worker.name, error or "silence")
        finally:
            worker.leave()

    def _greet(self, line: Line) -> Connection:
        nonce = secrets.token_hex(16)
        line.send("challenge", protocol=wire.PROTOCOL, nonce=nonce)
        hello = line.receive()
        if hello["type"] != "hello" or hello.get("protocol") != wire.PROTOCOL:
            line.send("refused", message=f"this trainer speaks protocol {wire.PROTOCOL}: use one version of the code")
            raise WireError("another protocol")
        if not hmac.compare_digest(wire.text(hello, "proof").encode(), wire.proof(self.token, nonce).encode()):
            line.send("refused", message="the token is not this trainer's")
            raise WireError("wrong token")
        name = f"{wire.text(hello, 'name', 60)} ({wire.text(hello, 'engine', 60)})"
        line.limit = wire.LINE
        line.send("welcome", heartbeat_s=self.heartbeat_s, lost_after_s=self.lost_after_s)
        log.info("worker %s joined", name)
        return Connection(self, line, name)


def _unix(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(path)
    Path(path).chmod(0o600)
    made.listen()
    return made
