"""An engine of a few lines, workers in threads, and a client that speaks the protocol badly on purpose."""

import contextlib
import hashlib
import socket
import threading
from collections.abc import Iterator

from lowcomm.pulse import Missing
from lowcomm.rollout import wire
from lowcomm.rollout.dispatcher import Dispatcher
from lowcomm.rollout.generation import Completion, Job, Sampling
from lowcomm.rollout.worker import Refused, Worker

TOKEN = "0123456789abcdef"


def digest_of(version: int) -> str:
    return hashlib.md5(str(version).encode()).hexdigest()


class Hash:
    """Tokens are a function of (version, prompt, seed). ``newest``: what its store has."""

    def __init__(self, newest: int = 10**6, wrong_from: int = 10**6):
        self.version, self.newest, self.wrong_from = None, newest, wrong_from

    def advance(self, version):
        if version > self.newest:
            raise Missing(f"version {version} is not in the store")
        self.version = version
        return version

    def digest(self):
        return digest_of(self.version + 1 if self.version >= self.wrong_from else self.version)

    def generate(self, prompts, seeds, sampling):
        return [complete(self.version, p, s, sampling) for p, s in zip(prompts, seeds, strict=True)]


def complete(version: int, prompt: list[int], seed: int, sampling: Sampling) -> Completion:
    raw = hashlib.sha256(f"{version} {prompt} {seed}".encode()).digest()[: sampling.max_new_tokens]
    return Completion(list(raw), [-b / 7 for b in raw], raw[-1] % 2 == 0, version)


def jobs(count: int) -> list[Job]:
    return [Job([i, 2, 3], [10 * i, 10 * i + 1], Sampling(4)) for i in range(count)]


def answers(asked: list[Job], version: int) -> list[list[Completion]]:
    return [[complete(version, job.prompt, s, job.sampling) for s in job.seeds] for job in asked]


@contextlib.contextmanager
def dispatcher(**arguments) -> Iterator[Dispatcher]:
    made = Dispatcher(token=TOKEN, **({"wait_limit_s": 60.0} | arguments))
    try:
        yield made
    finally:
        made.close()


def start(address: str, engine=None, name: str = "w", token: str = TOKEN, wait_limit_s: float = 60.0):
    """A worker in a thread that ends some time after its dispatcher."""
    worker = Worker(engine or Hash(), address, token, name, "fake", wait_limit_s)

    def run():
        with contextlib.suppress(ConnectionError, Refused):
            worker.run()

    threading.Thread(target=run, daemon=True).start()
    return worker


class Rude:
    """A client that has shown the token and then does what a test wants."""

    def __init__(self, address: str, token: str = TOKEN, **hello):
        family, where = wire.endpoint(address)
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.connect(where)
        self.line = wire.Line(sock, 30.0, wire.LINE)
        nonce = self.line.receive()["nonce"]
        fields = {"protocol": wire.PROTOCOL, "name": "rude", "engine": "none", "proof": wire.proof(token, nonce)}
        self.line.send("hello", **(fields | hello))
        self.answer = self.line.receive()

    def next(self, kind: str) -> dict:
        while (message := self.line.receive())["type"] != kind:
            assert message["type"] == "beat"
        return message

    def take(self, version: int = 0) -> dict:
        """A job, with the version acknowledged."""
        self.line.send("ack", version=version, digest=digest_of(version))
        self.line.send("ready")
        return self.next("job")

    def closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            while self.line.receive()["type"] in ("beat", "refused"):
                pass
            return False
        return True
