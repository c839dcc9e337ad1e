"""Running generated code: a process with limits, no network, no children, no writing, and a wall clock.

What holds: on Linux x86-64 the kernel refuses sockets, processes and changes of files (seccomp); elsewhere a hook of
the interpreter does, which stops accidents and not malice. CPU seconds, memory, file size and open files are limited by
the kernel everywhere. Code can read what the user can read; what it prints is thrown away, so that only the verdict
comes out. Tests are asserts: an answer that redefines equality passes them, as with every such scorer.
"""

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

MOST = 4096  # bytes of a verdict
VERDICTS = ("passed", "failed")


class Sandbox:
    """Runs code and its tests, one process each. From any thread.

    Args:
        limit_s: wall clock; the process group is then killed.
        cpu_s: seconds of CPU.
        memory_mb: address space in MiB.
    """

    def __init__(self, *, limit_s: float = 10.0, cpu_s: int = 5, memory_mb: int = 1024):
        if limit_s <= 0 or cpu_s < 1 or memory_mb < 64:
            raise ValueError(
                f"limit_s={limit_s}, cpu_s={cpu_s}, memory_mb={memory_mb}: positive, at least 1, and at least 64"
            )
        self._limit_s, self._job = limit_s, {"cpu_s": cpu_s, "memory": memory_mb << 20, "limit_s": limit_s}

    def run(self, code: str, tests: str) -> str:
        """ "passed", "failed" (an exception or an assert), "timeout", or "crashed" (ended without a verdict)."""
        return self._run(code, tests)[0]

    def guard(self) -> str:
        """What refuses network, processes and writing here: "seccomp" or "audit hook".

        Raises RuntimeError where not even an empty program runs.
        """
        verdict, guard = self._run("", "")
        if verdict != "passed":
            raise RuntimeError(f"the sandbox cannot run an empty program ({verdict}): `python -I -S -B` must work here")
        return guard

    def _run(self, code: str, tests: str) -> tuple[str, str]:
        token = secrets.token_hex(16)
        job = json.dumps(self._job | {"code": code, "tests": tests}) + f"\n{token}\n"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(Path(__file__).with_name("sandboxed.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PYTHONHASHSEED": "0"},  # no secrets, and sets in the same order each time
            start_new_session=True,
        )
        try:
            said = self._talk(process, job.encode())
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        if said is None:
            return "timeout", ""
        try:
            answer = json.loads(said)
        except (ValueError, RecursionError):  # nothing, or something else than a verdict
            return ("timeout" if process.returncode == -signal.SIGXCPU else "crashed"), ""
        if not isinstance(answer, dict) or str(answer.get("token")).strip() != token:
            return "crashed", ""
        if answer.get("verdict") not in VERDICTS or not isinstance(answer.get("guard"), str):
            return "crashed", ""
        return answer["verdict"], answer["guard"]

    def _talk(self, process: subprocess.Popen, job: bytes) -> bytes | None:
        """What the process says before it ends; None when time is up."""
        ends = time.monotonic() + self._limit_s
        try:
            process.stdin.write(job)
            process.stdin.close()
        except BrokenPipeError:
            return b""
        said = b""
        while len(said) < MOST and not said.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, ends - time.monotonic()))
            if not ready:
                return None
            part = os.read(process.stdout.fileno(), MOST)
            if not part:
                try:
                    process.wait(max(0.1, ends - time.monotonic()))
                except subprocess.TimeoutExpired:  # it has closed its end and goes on
                    return None
                break
            said += part
        return said
