"""Starts a vLLM server that follows patches, from any Python, also one without vLLM:

    python -m pulse_vllm.server FOLDER --python .venv-vllm/bin/python --port 8000 [options of vLLM]

FOLDER holds the weights to begin with, in the dtype that is published. Log-probabilities are those that it drew with.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the routes that pause and update
    "VLLM_PLUGINS": "pulse",
    "PULSE_VLLM_NO_PREPACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
# log-probabilities after temperature and the like, without which the trainer's ratios are wrong
SAMPLED = ("--logprobs-mode", "processed_logprobs")


class Server:
    """`vllm.entrypoints.openai.api_server` on a folder, on loopback; a context manager that stops it at the end.

    ``python``: of the environment that has vLLM. ``args``: further options of the server. ``log``: where it writes.
    The server and the engine processes that it starts are a process group of their own.
    """

    def __init__(self, python: Path | str, model: Path | str, log: Path, args: Sequence[str] = (), port: int = 0):
        self.port = port or _free_port()
        self.url, self.log = f"http://127.0.0.1:{self.port}", log
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--weight-transfer-config", '{"backend": "pulse"}']
        command += ["--worker-extension-cls", "pulse_vllm.extension.Inspect", "--enable-prompt-tokens-details", *args]
        # compiled code stays with the environment that made it: numba of another version would discard it
        own = {"NUMBA_CACHE_DIR": str(Path(python).absolute().parent.parent / ".numba")}
        with log.open("wb") as out:
            environment = os.environ | ENVIRONMENT | own
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def wait(self, seconds: float = 300) -> None:
        """Until it answers. Raises RuntimeError with the end of its log if it ends before, or takes longer."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        tail = self.log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"the server ended or did not answer in {seconds:g} s; the end of {self.log}:\n{tail}")

    def join(self) -> int:
        """Wait until it ends by itself; its exit status."""
        return self._process.wait()

    def stop(self, seconds: float = 30) -> None:
        """Ask it to end, and after ``seconds`` at the latest kill what is left of it, its engine processes included."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        with contextlib.suppress(ProcessLookupError):  # nothing is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main(argv: list[str] | None = None) -> None:
    """Run a server until it ends or SIGINT or SIGTERM comes; ``argv`` None: that of the process."""
    parser = argparse.ArgumentParser("python -m pulse_vllm.server", description=__doc__.partition(",")[0])
    parser.add_argument("folder", type=Path, help="of the model that it begins with")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the environment that has vLLM")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--log", type=Path, default=Path("vllm.log"))
    args, options = parser.parse_known_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = ["--dtype", "bfloat16", *SAMPLED, *options]
    with (
        contextlib.suppress(KeyboardInterrupt),
        Server(args.python, args.folder, args.log, options, args.port) as server,
    ):
        server.wait(float("inf"))
        print(f"{server.url} is up; it writes {args.log}", flush=True)
        raise SystemExit(server.join())


if __name__ == "__main__":
    main()
