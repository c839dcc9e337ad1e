"""Generated code: what passes, what is refused, what ends it. Seconds of CPU time are the child's own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowcomm.tasks import sandboxed
from lowcomm.tasks.sandbox import Sandbox


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(limit_s=120, cpu_s=1, memory_mb=256)


def refused(action: str, error: str = "OSError") -> str:
    return f"import os\ntry:\n    {action}\n    done = True\nexcept {error}:\n    done = False\n"


HOLDS = {
    "passes": ("def f(x):\n    return x + 1", "assert f(1) == 2"),
    "prints": ("print('x' * 10**6)", "assert True"),
    "modules": ("import re, heapq, math, collections, itertools, functools, bisect, random", "assert True"),
    "socket": (refused("import socket; socket.socket()"), "assert not done"),
    "fork": (refused("os.fork()"), "assert not done"),
    "program": (refused("os.execv('/bin/true', ['true'])"), "assert not done"),
    "shell": ("import os\nstatus = os.system('true')", "assert status != 0"),
    "remove": (refused("os.remove(VICTIM)"), "assert not done"),
    "write": (refused("open(VICTIM, 'w')"), "assert not done"),
    "append": (refused("open(VICTIM, 'a')"), "assert not done"),
    "folder": (refused("os.mkdir(VICTIM + '.d')"), "assert not done"),
    "mode": (refused("os.chmod(VICTIM, 0)"), "assert not done"),
    "parent": (refused("os.kill(os.getppid(), 9)"), "assert not done"),
    "limits": (
        refused("import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))", "(OSError, ValueError)"),
        "assert not done",
    ),
    "memory": (refused("bytearray(1 << 30)", "MemoryError"), "assert not done"),
    "environment": ("import os", "assert set(os.environ) <= {'PYTHONHASHSEED', 'LC_CTYPE'}"),
}
FAILS = {
    "wrong": ("def f(x):\n    return x", "assert f(1) == 2", "failed"),
    "syntax": ("def f(", "assert True", "failed"),
    "exception": ("1 / 0", "assert True", "failed"),
    "exits": ("import sys; sys.exit(0)", "assert True", "failed"),
    "vanishes": ("import os; os._exit(0)", "assert True", "crashed"),
    "abort": ("import os; os.abort()", "assert True", "crashed"),
    "forges": (
        'import os\nfor fd in range(3, 128):\n    try:\n        os.write(fd, b\'{"verdict": "passed"}\\n\')\n'
        "    except OSError:\n        pass\nos._exit(0)",
        "assert False",
        "crashed",
    ),
    "floods": (
        "import os\nfor fd in range(3, 128):\n    try:\n        os.write(fd, b'x' * 50000)\n"
        "    except OSError:\n        pass\nos._exit(0)",
        "assert False",
        "crashed",
    ),
    "nests": (
        "import os\nfor fd in range(3, 128):\n    try:\n        os.write(fd, b'[' * 4000 + b'\\n')\n"
        "    except OSError:\n        pass",
        "assert False",
        "crashed",
    ),
    "loops": ("while True:\n    pass", "assert True", "timeout"),
}


@pytest.mark.skipif(sandboxed.platform.machine() != "x86_64", reason="the kernel's guard is for x86-64")
@pytest.mark.parametrize("name", HOLDS)
def test_what_holds(sandbox, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("here")
    code, tests = HOLDS[name]
    assert sandbox.run(f"VICTIM = {str(victim)!r}\n{code}", tests) == "passed"
    assert victim.read_text() == "here"
    assert os.listdir(tmp_path) == ["victim"]


@pytest.mark.parametrize("name", FAILS)
def test_what_does_not_pass(sandbox, name):
    *program, verdict = FAILS[name]
    assert sandbox.run(*program) == verdict


def test_a_sleeper_is_killed_and_reaped():
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before, begun = set(children.read_text().split()), time.monotonic()
    assert Sandbox(limit_s=2.0).run("import time; time.sleep(600)", "") == "timeout"
    assert time.monotonic() - begun < 300
    assert set(children.read_text().split()) <= before, "it is alive, or waits for its parent"


def test_a_sleeper_that_has_closed_every_pipe_is_killed_too():
    """It was an exception in the trainer."""
    closes = "import os, time\nos.closerange(3, 128)\n"
    assert Sandbox(limit_s=2.0).run(closes + "time.sleep(600)", "") == "timeout"


def test_without_the_kernel_the_interpreter_refuses(tmp_path):
    """The other guard, in a process of its own as it cannot be taken off again."""
    import subprocess
    import sys

    program = (
        "import sys, os; sys.path.insert(0, sys.argv[1]); import sandboxed; sandboxed.hook_calls()\n"
        "for call in (lambda: open(sys.argv[2], 'w'), lambda: os.system('true'), lambda: os.remove(sys.argv[1]),\n"
        "             lambda: __import__('socket').socket(), lambda: os.fork()):\n"
        "    try:\n        call()\n    except PermissionError:\n        print('refused')\n"
        "open(os.devnull).close()\n"
    )
    folder = os.path.dirname(sandboxed.__file__)
    out = subprocess.run([sys.executable, "-I", "-S", "-c", program, folder, str(tmp_path / "new")],
                         capture_output=True, text=True, check=True)  # fmt: skip
    assert out.stdout.split() == ["refused"] * 5
    assert not (tmp_path / "new").exists()


def test_the_guard_is_named(sandbox):
    assert sandbox.guard() in ("seccomp", "audit hook")


@pytest.mark.parametrize("changes", [{"limit_s": 0}, {"cpu_s": 0}, {"memory_mb": 1}])
def test_what_is_refused(changes):
    key, value = next(iter(changes.items()))
    with pytest.raises(ValueError, match=f"{key}={value}"):
        Sandbox(**changes)


def test_what_sleeps_ends_although_its_trainer_was_killed():
    job = {"cpu_s": 5, "memory": 1 << 30, "limit_s": 0.1, "code": "import time\ntime.sleep(600)", "tests": ""}
    command = [sys.executable, "-I", "-S", "-B", sandboxed.__file__]
    done = subprocess.run(command, input=f"{json.dumps(job)}\n".encode(), capture_output=True)
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, b"")
