"""One worker as the trainer sees it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lowcomm.rollout import wire
from lowcomm.rollout.generation import Completion, Job
from lowcomm.rollout.wire import Line, WireError

if TYPE_CHECKING:
    from lowcomm.rollout.dispatcher import Dispatcher

log = logging.getLogger(__name__)
REST_S = 30.0  # the longest pause of a worker that keeps failing


@dataclass
class Task:
    """A job on its way: who works on it, and its result once there is one."""

    id: str
    job: Job
    at_least: int
    at_most: int
    result: list[Completion] | None = None
    runners: list[Connection] = field(default_factory=list)
    since: float = 0.0  # when it was last given out


class Connection:
    """Reads in its thread and writes in another, so that a worker that stops reading blocks nobody."""

    def __init__(self, dispatcher: Dispatcher, line: Line, name: str):
        self.dispatcher, self.line, self.name = dispatcher, line, name
        self.outbox: queue.SimpleQueue[tuple[str, dict[str, Any]] | None] = queue.SimpleQueue()
        self.ready, self.task, self.since = False, None, 0.0
        self.failures, self.rests_until = 0, 0.0
        self.version: int | None = None  # acknowledged
        threading.Thread(target=self._write, name="rollout-write", daemon=True).start()
        with dispatcher.change:
            dispatcher.workers.append(self)
            if dispatcher.wanted is not None:
                self.outbox.put(("follow", {"version": dispatcher.wanted}))
            dispatcher.change.notify_all()

    def take(self, task: Task, now: float) -> None:
        """With the lock held."""
        self.ready, self.task, self.since = False, task, now
        task.runners.append(self)
        task.since = now
        fields = wire.job_fields(task.job)
        self.outbox.put(("job", {"id": task.id, **fields, "at_least": task.at_least, "at_most": task.at_most}))

    def serve(self) -> None:
        """Until the connection ends. Raises OSError, WireError."""
        take = {"ready": self._ready, "ack": self._ack, "done": self._done, "failed": self._failed}
        while True:
            message = self.line.receive()
            if message["type"] == "beat":
                continue
            if message["type"] not in take:
                raise WireError(f"{message['type']!r:.40} is no message of a worker")
            with self.dispatcher.change:
                take[message["type"]](message)
                self.dispatcher.assign()
                self.dispatcher.change.notify_all()

    def leave(self) -> None:
        """The connection is over: its job goes back."""
        self.outbox.put(None)
        self.line.close()
        with self.dispatcher.change:
            self.dispatcher.workers.remove(self)
            if self.task and self.task.result is None:
                self.dispatcher.counts["returned"] += 1
            self._drop_task()
            self.dispatcher.assign()
            self.dispatcher.change.notify_all()

    def _drop_task(self) -> None:
        if self.task:
            self.task.runners.remove(self)
            self.task = None

    def _ready(self, message: dict[str, Any]) -> None:
        if self.task:
            raise WireError("ready, but its job is not answered")
        self.ready = True

    def _ack(self, message: dict[str, Any]) -> None:
        version, digest = wire.integer(message, "version"), wire.digest_text(message)
        expected = self.dispatcher.expected.get(version)
        if expected is not None and digest != expected:
            raise WireError(f"its weights of version {version} have digest {digest}, the trainer's {expected}")
        self.version = version
        self.dispatcher.counts["acknowledged"] += 1
        if expected is not None:
            self.dispatcher.verified.add(version)

    def _done(self, message: dict[str, Any]) -> None:
        task = self._answered(message)
        completions = wire.parse_completions(message, task.job, task.at_least, task.at_most)
        if completions[0].version != self.version:
            raise WireError(f"completions of version {completions[0].version}, acknowledged is {self.version}")
        self.failures = 0
        self._drop_task()
        if task.result is not None or task.id not in self.dispatcher.tasks:
            self.dispatcher.counts["late"] += 1
            return
        task.result = completions
        self.dispatcher.counts["done"] += 1

    def _failed(self, message: dict[str, Any]) -> None:
        self._answered(message)
        self.failures += 1
        self.rests_until = time.monotonic() + min(0.5 * 2**self.failures, REST_S)
        self.dispatcher.counts["failed"] += 1
        self.dispatcher.last_failure = f"{self.name}: {wire.text(message, 'message', 2000)}"
        log.warning("worker %s could not do a job: %s", self.name, message["message"])
        self._drop_task()

    def _answered(self, message: dict[str, Any]) -> Task:
        if self.task is None or wire.text(message, "id") != self.task.id:
            raise WireError(f"{message['type']} for a job that it does not have")
        return self.task

    def _write(self) -> None:
        """Jobs and, in silence, beats."""
        try:
            while True:
                try:
                    item = self.outbox.get(timeout=self.dispatcher.heartbeat_s)
                except queue.Empty:
                    item = ("beat", {})
                if item is None:
                    return
                self.line.send(item[0], **item[1])
        except OSError:
            self.line.close()  # the reader tells
