"""A long chain whose publisher and readers are killed (SIGKILL) at random points, over a store that loses objects."""

import argparse
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lowcomm.pulse import Missing, PatchError, Publisher, Store, Subscriber
from tests.pulse.cases import same
from tests.pulse.test_sync import blank, weights

MOST_BETWEEN = 12  # versions between two anchors


def spawn(work: Callable[[], None]) -> int:
    """A forked child that does the work; any exception is its exit status 1."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def publish(path: Path, last: int, seed: int) -> None:
    rng = random.Random(seed)
    store = Store(path)
    publisher = Publisher(store, weights(0), anchor_every=rng.randint(1, MOST_BETWEEN), keep_anchors=10**6)
    latest = store.latest()
    for v in range(0 if latest is None else latest + 1, last + 1):
        publisher.publish(weights(v), v)
        if rng.random() < 0.1:
            publisher.publish(weights(v), v)  # a retry of what is there


def follow(path: Path, seed: int) -> None:
    """Reads newest and random versions for ever; every version it stands on must be the dense reference."""
    rng = random.Random(seed)
    reader = Subscriber(Store(path), blank())
    while True:
        try:
            versions = reader.store.versions("patch")
            reader.advance(rng.choice(versions) if versions and rng.random() < 0.3 else None)
        except Missing:
            pass
        except PatchError as e:
            print(f"reader {seed}: {e}", flush=True)
            raise
        if reader.version is not None:
            assert same(reader.tensors, weights(reader.version)), f"version {reader.version} is wrong"


def chain(path: Path, last: int, seed: int, slowest: float) -> int:
    """Returns how often a process was killed. ``slowest``: seconds that one may live, more while none gets on."""
    rng = random.Random(seed)
    kills, lives, idle, readers, store = 0, 0, 0, [], Store(path)
    try:
        while (before := store.latest()) != last:
            lives += 1
            readers += [spawn(lambda s=lives: follow(path, s)) for _ in range(2 - len(readers))]
            writer = spawn(lambda s=lives: publish(path, last, s))
            deadline = time.monotonic() + rng.uniform(0.01, slowest) * 1.2**idle
            while time.monotonic() < deadline and not finished(writer):
                time.sleep(0.001)
                if rng.random() < 0.002:
                    drop(store, rng)
            for pid in [writer, *([readers.pop(rng.randrange(2))] if rng.random() < 0.5 else [])]:
                kills += reap(pid)
            idle = idle + 1 if store.latest() == before else 0
    finally:
        for pid in readers:
            os.kill(pid, signal.SIGKILL)
    for pid in readers:
        reap(pid)
    return kills


def reap(pid: int) -> int:
    """Kill; 1 if it was alive. A child that failed by itself fails the test."""
    os.kill(pid, signal.SIGKILL)  # it is at least a zombie until we wait for it
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a process failed before it was killed"
    return int(os.WIFSIGNALED(status))


def finished(pid: int) -> bool:
    """Whether the child has ended by itself; its status stays to be read."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def drop(store: Store, rng: random.Random) -> None:
    """Lose an old object, not its marker, as a store does that forgets."""
    names = [n for n in store._names("patch") if n.endswith(".pulse")][:-5]
    if names:
        store.fs.rm_file(f"{store.root}/patches/{rng.choice(names)}")


def check_all(path: Path, last: int) -> int:
    """Every committed version in order: what can be reached is right; returns how many could not, since an object that
    `drop` took lies between them and the anchor before: at most MOST_BETWEEN for each."""
    store = Store(path)
    assert store.latest() == last
    assert set(store.versions("patch")) | set(store.versions("anchor")) == set(range(last + 1)), "a version was lost"
    reader, lost = Subscriber(store, blank()), 0
    for v in range(last + 1):
        try:
            reader.advance(v)
        except Missing:
            lost += 1
        if reader.version is not None:
            assert same(reader.tensors, weights(reader.version))
    names = store._names("patch")
    dropped = {n.removesuffix(".ready") for n in names if n.endswith(".ready")} - {n[:12] for n in names if "-" in n}
    assert lost <= MOST_BETWEEN * len(dropped)
    return lost


def warm() -> None:
    """Compile before forking."""
    from lowcomm.pulse import apply, encode

    for codec in ("packed", "full"):
        apply(weights(0), encode(weights(0), weights(3), codec))


def test_chain_with_kills(tmp_path):
    warm()
    kills = chain(tmp_path, 40, 0, 0.05)
    assert kills > 0
    check_all(tmp_path, 40)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousand_versions_with_kills(tmp_path):
    warm()
    kills = chain(tmp_path, 1000, 1, 1.0)
    check_all(tmp_path, 1000)
    assert kills > 50


def main(argv: list[str] | None = None) -> None:
    """The store holds all progress: started again, the chain goes on from its last version."""
    parser = argparse.ArgumentParser("python -m tests.pulse.test_crashes", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the store; kept")
    parser.add_argument("--versions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slowest", type=float, default=1.0, help="seconds that a process lives at most")
    args = parser.parse_args(argv)
    warm()
    before = Store(args.folder).latest()
    kills = chain(args.folder, args.versions, args.seed + (before or 0), args.slowest)
    lost, anchors = check_all(args.folder, args.versions), len(Store(args.folder).versions("anchor"))
    done = args.versions if before is None else args.versions - before
    print(f"{args.versions} versions, {anchors} anchors; {kills} kills over the {done} versions made in this start")
    print(f"every version read equals the dense reference bit for bit, no committed version is lost; {lost} of "
          f"{args.versions + 1} are out of reach because the store dropped their objects")  # fmt: skip


if __name__ == "__main__":
    main()
