"""A receiver: follows the trainer's versions over its link, by patches and, for comparison, by whole files.

Started by `door` in a network namespace; prints one JSON line for each version that it took.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import time

import aiohttp
import fsspec
from torch import Tensor

from lowcomm.deploy.weights import blank, take
from lowcomm.pulse import Store, Subscriber, digest
from lowcomm.pulse.marker import Marker
from lowcomm.rollout.worker import Worker

SILENCE_S = 5.0  # a transfer without a byte for so long has failed


def http_options() -> dict:
    """Time-outs for the HTTP file system: none in all, since a thin link takes what it takes, but one for silence."""
    return {
        "client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)}
    }


class Timed(Store):
    """Counts the bytes of objects and the seconds that fetching them takes."""

    nbytes, seconds = 0, 0.0

    def fetch(self, marker: Marker) -> memoryview:
        """As `Store.fetch`, timed."""
        begin = time.monotonic()
        try:
            return super().fetch(marker)
        finally:
            self.nbytes += marker.size
            self.seconds += time.monotonic() - begin


class Follower:
    """What a `Worker` needs of an engine, without the generation."""

    method: str

    def __init__(self, parameters: int):
        self.tensors: dict[str, Tensor] = blank(parameters)
        self.version: int | None = None

    def digest(self) -> str:
        """Of the weights as they are here, for the acknowledgement."""
        return digest(self.tensors, threads=1).hex()

    def advance(self, version: int) -> int:
        """Take a version and print what it took."""
        begin = time.monotonic()
        nbytes, fetch_s = self.fetch(version)
        self.version = version
        total = time.monotonic() - begin
        said = {"method": self.method, "version": version, "bytes": nbytes, "fetch_s": fetch_s, "total_s": total}
        print(json.dumps(said), flush=True)
        return version


class ByPatches(Follower):
    """PULSESync: the store's patches, verified before they are applied."""

    method = "pulsesync"

    def __init__(self, parameters: int, url: str):
        super().__init__(parameters)
        self.store = Timed(f"{url}/store", options=http_options())
        self.subscriber = Subscriber(self.store, self.tensors, threads=1)

    def fetch(self, version: int) -> tuple[int, float]:
        """(bytes of objects, seconds to fetch them)."""
        self.store.nbytes, self.store.seconds = 0, 0.0
        self.subscriber.advance(version)
        return self.store.nbytes, self.store.seconds


class ByFiles(Follower):
    """Dense: one file with every weight for each version."""

    method = "dense"

    def __init__(self, parameters: int, url: str):
        super().__init__(parameters)
        self.url, self.fs = url, fsspec.filesystem("http", **http_options())

    def fetch(self, version: int) -> tuple[int, float]:
        """(bytes of objects, seconds to fetch them)."""
        begin = time.monotonic()
        data = self.fs.cat_file(f"{self.url}/dense/{version}.bin")
        seconds = time.monotonic() - begin
        take(self.tensors, data)
        return len(data), seconds


def main(setting: dict) -> None:
    """``setting``: host, http, ports {method: port}, parameters, name. The token is in the environment."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    url = f"http://{setting['host']}:{setting['http']}"
    threads = []
    for engine in (ByPatches(setting["parameters"], url), ByFiles(setting["parameters"], url)):
        address = f"{setting['host']}:{setting['ports'][engine.method]}"
        worker = Worker(engine, address, os.environ["LOWCOMM_DEPLOY_TOKEN"], setting["name"], engine.method, 60.0)
        threads.append(threading.Thread(target=serve, args=(worker,), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()


def serve(worker: Worker) -> None:
    """Until the trainer is gone for good."""
    with contextlib.suppress(ConnectionError):
        worker.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
