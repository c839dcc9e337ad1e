"""Network namespaces joined by TUN devices, and what is needed for them. Linux, root, iproute2."""

import contextlib
import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PREFIX = "lowcomm"
MTU = 1500


def missing() -> str | None:
    """Why no links can be made here, in one line; None where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root: run it with sudo"
    if not shutil.which("ip"):
        return "the command ip is not there: install iproute2"
    if not os.path.exists("/dev/net/tun"):
        return "/dev/net/tun is not there: load the kernel module tun"
    name = f"{PREFIX}-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None


def ip(*args: str) -> None:
    """Raises RuntimeError with what `ip` says."""
    done = subprocess.run(["ip", *args], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(args)}: {done.stderr.strip()}")


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """``count`` fresh namespaces with their loopback up; removed at the end."""
    names = [f"{PREFIX}-{os.getpid()}-{i}" for i in range(count)]
    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            ip("netns", "del", name)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread is in the namespace for a while. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(fd: int) -> None:
        if libc.setns(fd, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")

    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        enter(there)
        try:
            yield
        finally:
            enter(home)
    finally:
        os.close(home)
        os.close(there)


def tun(namespace: str, device: str, address: str, peer: str) -> int:
    """A new TUN device in the namespace, up, with ``address`` and a route to ``peer``; its file descriptor here."""
    with inside(namespace):
        fd = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    ip("-n", namespace, "addr", "add", address, "peer", peer, "dev", device)
    ip("-n", namespace, "link", "set", "dev", device, "mtu", str(MTU), "up")
    return fd
