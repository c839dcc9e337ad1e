"""The processes of a deployment and the links between them."""

import json
import os
import queue
import secrets
import subprocess
import sys
import threading
from pathlib import Path

from omegaconf import DictConfig

from lowcomm.deploy.link import Link, Relay, Shape
from lowcomm.deploy.namespaces import namespaces, tun

HTTP, PORTS = 8000, {"pulsesync": 9001, "dense": 9002}
WAIT_S = 1800.0  # for one line of the trainer


class Stage:
    """A trainer and its receivers, each in its namespace, each receiver at the end of its own link. A context manager.

    ``rows``: (receiver, line) of everything the receivers have said so far; ``status``, ``weights``: counters of the
    trainer's dispatchers and digest of its weights after the last `publish`.
    """

    def __init__(self, cfg: DictConfig, folder: Path):
        self.cfg, self.folder = cfg, folder
        self.rows: list[tuple[int, dict]] = []
        self.links: list[Link] = []
        self._lines: queue.SimpleQueue[dict | None] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen] = []
        self._fds: list[int] = []

    def __enter__(self) -> "Stage":
        self._namespaces = namespaces(self.cfg.receivers + 1)
        names = self._namespaces.__enter__()
        try:
            for i, name in enumerate(names[1:]):
                ends = f"10.77.{i}.1", f"10.77.{i}.2"
                near, far = tun(names[0], f"to{i}", *ends), tun(name, "up", *reversed(ends))
                self._fds += [near, far]
                self.links.append(Link(near, far, Shape(1e9), seed=self.cfg.seed + i))
            self._relay = Relay(self.links)
            self._relay.__enter__()
            self._start(names)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, names: list[str]) -> None:
        token, cfg = secrets.token_hex(16), self.cfg
        setting = {"folder": str(self.folder / "served"), "http": HTTP, "ports": PORTS, "parameters": cfg.parameters,
                   "delta": cfg.delta, "seed": cfg.seed, "codec": cfg.codec, "receivers": cfg.receivers}  # fmt: skip
        self._trainer = self._spawn(names[0], "trainer", setting, token)
        threading.Thread(target=self._hear_trainer, daemon=True).start()
        for i, name in enumerate(names[1:]):
            setting = {"host": f"10.77.{i}.1", "http": HTTP, "ports": PORTS, "parameters": cfg.parameters,
                       "name": f"receiver-{i}"}  # fmt: skip
            process = self._spawn(name, "receiver", setting, token)
            threading.Thread(target=self._hear_receiver, args=(i, process), daemon=True).start()
        self._next()  # ready

    def _spawn(self, namespace: str, what: str, setting: dict, token: str) -> subprocess.Popen:
        command = ["ip", "netns", "exec", namespace, sys.executable, "-m", f"lowcomm.deploy.{what}"]
        environment = os.environ | {"LOWCOMM_DEPLOY_TOKEN": token, "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{what}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, json.dumps(setting)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=environment,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _hear_trainer(self) -> None:
        for line in self._trainer.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _hear_receiver(self, number: int, process: subprocess.Popen) -> None:
        for line in process.stdout:
            self.rows.append((number, json.loads(line)))

    def _next(self) -> dict:
        try:
            line = self._lines.get(timeout=WAIT_S)
        except queue.Empty:
            line = None
        if line is None:
            tails = {f.name: f.read_text(errors="replace")[-1500:] for f in sorted(self.folder.glob("*.log"))}
            raise RuntimeError("the trainer has ended or hangs:\n" + "\n".join(f"{n}:\n{t}" for n, t in tails.items()))
        return line

    def shape(self, rate: float) -> None:
        """All links from now on; ``rate`` in Mbit/s."""
        for link in self.links:
            link.shape = Shape(1e6 * rate, self.cfg.delay_ms / 1e3, self.cfg.loss)

    def publish(self, method: str, versions: int) -> list[dict]:
        """What the trainer measured of each (`trainer.Trainer.run`)."""
        command = {"method": method, "versions": versions, "compute_s": self.cfg.compute_s}
        self._trainer.stdin.write(json.dumps(command) + "\n")
        self._trainer.stdin.flush()
        rows = []
        while "status" not in (line := self._next()):
            rows.append(line)
        self.status, self.weights = line["status"], line["weights"]
        return rows

    def received(self, method: str, version: int) -> list[dict]:
        """What the receivers said of a version, by receiver."""
        said = [(i, row) for i, row in list(self.rows) if (row["method"], row["version"]) == (method, version)]
        return [row for _, row in sorted(said, key=lambda pair: pair[0])]

    def __exit__(self, *_) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        if self._fds and hasattr(self, "_relay"):
            self._relay.__exit__()
        for fd in self._fds:
            os.close(fd)
        self._namespaces.__exit__(None, None, None)
