"""The trainer's side of a deployment: versions at a set pace, published as patches or as whole files.

Started by `door` in a network namespace; reads one JSON command a line and prints one JSON line for each version:
see `Trainer.run`. It computes (sleeps), publishes, and waits until
every receiver has acknowledged the version with the digest of the very weights published.
"""

import functools
import http.server
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from lowcomm.deploy import weights as synthetic
from lowcomm.pulse import Publisher, Store, digest
from lowcomm.rollout.dispatcher import Dispatcher

AGAIN_S = 5.0  # after which receivers that are not there yet are asked again


class Files(http.server.SimpleHTTPRequestHandler):
    """A folder over HTTP/1.1, connections kept, nothing logged."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are written apart: the body would wait 40 ms for an ACK

    def log_message(self, *_) -> None:
        """Nothing."""


def serve(folder: Path, host: str, port: int) -> http.server.ThreadingHTTPServer:
    """In threads of its own until it is shut down."""
    server = http.server.ThreadingHTTPServer((host, port), functools.partial(Files, directory=str(folder)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Trainer:
    """``setting``: folder, http, ports {method: port}, parameters, delta, seed, codec, receivers. Both methods send the
    same versions, each over its own connections.
    """

    def __init__(self, setting: dict, token: str, host: str = "0.0.0.0"):
        self.setting, folder = setting, Path(setting["folder"])
        self.dense = folder / "dense"
        self.dense.mkdir(parents=True)
        self.weights = {m: synthetic.start(setting["parameters"], setting["seed"]) for m in setting["ports"]}
        store = Store(str(folder / "store"))
        self.publisher = Publisher(
            store, self.weights["pulsesync"], anchor_every=10**6, codec=setting["codec"], threads=1
        )
        self.server = serve(folder, host, setting["http"])
        self.doors = {
            method: Dispatcher(f"{host}:{port}", token, heartbeat_s=1.0, lost_after_s=5.0)
            for method, port in setting["ports"].items()
        }
        self.version = dict.fromkeys(self.doors, 0)
        for method in self.doors:  # every weight, to begin with; not measured
            self._publish(method)
            self._arrive(method)

    def run(self, method: str, versions: int, compute_s: float) -> Iterator[dict]:
        """What was measured of each version."""
        for _ in range(versions):
            begin = time.monotonic()
            self.version[method] += 1
            old, seed = self.weights[method], 1000 * self.setting["seed"] + self.version[method]
            new = self.weights[method] = synthetic.step(old, self.setting["delta"], seed)
            changed = synthetic.changes(old, new)
            time.sleep(max(0.0, begin + compute_s - time.monotonic()))
            stopped = time.monotonic()
            nbytes = self._publish(method)
            published = time.monotonic()
            self._arrive(method)
            yield {
                "method": method,
                "version": self.version[method],
                "bytes": nbytes,
                "changed": changed,
                "compute_s": stopped - begin,
                "publish_s": published - stopped,
                "blocked_s": time.monotonic() - stopped,
            }

    def _publish(self, method: str) -> int:
        """Bytes that each receiver has to fetch."""
        version, weights = self.version[method], self.weights[method]
        self.doors[method].announce(version, digest(weights, threads=1).hex())
        if method == "pulsesync":
            return self.publisher.publish(weights, version).size
        data = synthetic.to_bytes(weights)
        aside = self.dense / f"{version}.partial"
        aside.write_bytes(data)
        aside.rename(self.dense / f"{version}.bin")
        (self.dense / f"{version - 2}.bin").unlink(missing_ok=True)
        return len(data)

    def _arrive(self, method: str) -> None:
        need = self.setting["receivers"]
        while self.doors[method].follow(self.version[method], AGAIN_S, need) < need:
            pass

    def status(self) -> dict[str, dict[str, int]]:
        """Counters of the dispatchers: which versions the receivers held bit for bit."""
        return {method: door.status() for method, door in self.doors.items()}

    def close(self) -> None:
        """Stop serving; receivers see it."""
        self.server.shutdown()
        self.server.server_close()
        for door in self.doors.values():
            door.close()


def main(setting: dict) -> None:
    """Commands from standard input until it ends; ``setting`` as `Trainer` has it. The token is in the environment."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    trainer = Trainer(setting, os.environ["LOWCOMM_DEPLOY_TOKEN"])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        for row in trainer.run(command["method"], command["versions"], command["compute_s"]):
            print(json.dumps(row), flush=True)
        final = digest(trainer.weights[command["method"]], threads=1).hex()
        print(json.dumps({"status": trainer.status(), "weights": final}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
