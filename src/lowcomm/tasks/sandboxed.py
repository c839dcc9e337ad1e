"""The process that runs generated code: standard library only, started by `sandbox` with `python -I -S -B`.

Reads one line of JSON (code, tests, limits) and, after the tests, a token; writes one line: the verdict and the token.
Code that ends the process by itself has not read the token, so it does not pass.
"""

import ctypes
import fcntl
import json
import os
import platform
import random
import resource
import signal
import sys

# Linux x86-64 system calls that are refused (EPERM): network, other processes, everything that changes files, other
# namespaces, other people's memory, and raising the limits again.
REFUSED = (29, 30, 41, 42, 49, 50, 53, 56, 57, 58, 59, 62, 76, 77, 82, 83, 84, 85, 86, 87, 88, 90, 91, 92, 93, 94, 101,
           129, 132, 133, 155, 160, 161, 165, 166, 167, 169, 175, 188, 189, 190, 197, 198, 199, 200, 234, 235, 240, 246,
           248, 249, 250, 258, 259, 260, 261, 263, 264, 265, 266, 268, 272, 280, 285, 297, 298, 302, 304, 308, 310, 311,
           313, 316, 319, 321, 322, 323, 424, 425, 434, 435, 437, 438, 452)  # fmt: skip
OPEN = {2: 1, 257: 2}  # open and openat: which argument holds the flags
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
HOOKED = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "os.kill",
          "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink",
          "os.truncate", "os.utime", "shutil.", "ctypes.", "pty.")  # fmt: skip


class Instruction(ctypes.Structure):
    """The kernel's `struct sock_filter`."""

    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class Program(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Instruction))]


def filter_calls() -> bool:
    """Let the kernel refuse system calls, for the rest of this process. False where it can't (not Linux x86-64)."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000
    lines = [(load, 0, 0, 4), (equal, 1, 0, 0xC000003E), (give, 0, 0, kill)]  # another architecture's numbers
    lines += [(load, 0, 0, 0), (at_least, 0, 1, 0x40000000), (give, 0, 0, refuse)]  # x32's
    for number in REFUSED:
        lines += [(equal, 0, 1, number), (give, 0, 0, refuse)]
    for number, argument in OPEN.items():
        lines += [(equal, 0, 4, number), (load, 0, 0, 16 + 8 * argument), (any_bit, 0, 1, WRITES),
                  (give, 0, 0, refuse), (give, 0, 0, allow)]  # fmt: skip
    lines.append((give, 0, 0, allow))
    program = Program(len(lines), (Instruction * len(lines))(*(Instruction(*line) for line in lines)))
    libc = ctypes.CDLL(None)
    return libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program)) == 0


def hook_calls() -> None:
    """Where the kernel does not help, let the interpreter refuse (PermissionError): against accidents, not malice."""

    def refuse(event: str, args: tuple) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & WRITES
        if writes or event.startswith(HOOKED):
            raise PermissionError(f"{event} is refused here")

    sys.addaudithook(refuse)


def limit(seconds: int, memory: int) -> None:
    """Limits of the kernel: CPU in ``seconds``, address space in bytes, no file that grows, few open, no processes."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # first a signal that tells why, then the end
    for what, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 128),
        (resource.RLIMIT_NPROC, 1),
    ):
        resource.setrlimit(what, (value, value))


def main() -> None:
    """One job: read it, give up what code must not have, run the code and its tests, say the verdict, end."""
    place = random.SystemRandom().randrange(20, 100)  # not where code looks for them
    commands, result = (fcntl.fcntl(fd, fcntl.F_DUPFD, place) for fd in (0, 1))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    reader = os.fdopen(commands, "rb", buffering=0)
    job = json.loads(reader.readline())
    limit(job["cpu_s"], job["memory"])
    signal.setitimer(signal.ITIMER_REAL, job["limit_s"] + 1)  # where nobody is left who watches the clock
    guard = "seccomp" if filter_calls() else "audit hook"
    if guard != "seccomp":
        hook_calls()
    names = {"__name__": "__main__"}
    try:
        exec(compile(job["code"], "<answer>", "exec"), names)
        exec(compile(job["tests"], "<tests>", "exec"), names)
        verdict = "passed"
    except BaseException:
        verdict = "failed"
    token = reader.readline().decode()
    os.write(result, json.dumps({"verdict": verdict, "token": token, "guard": guard}).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    main()
