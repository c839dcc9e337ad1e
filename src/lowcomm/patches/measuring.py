"""A codec along a chain of versions: bytes, what is left to tell, and if wanted seconds and memory."""

import copy
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import xxhash
from torch import Tensor

from lowcomm.patches.codecs import Blobs, Codec, make
from lowcomm.pulse import History, encode
from lowcomm.pulse.measure import entropy
from lowcomm.pulse.paper import differences
from lowcomm.pulse.state import Tensors
from lowcomm.session import peak_memory, reset_peak_memory

Weights = dict[str, Tensor]
TIMES = ("encode_seconds", "encode_cpu_seconds", "apply_seconds", "apply_cpu_seconds", "pack_seconds", "unpack_seconds")


def follow(versions: Iterable[Weights], name: str, repeats: int, threads: int) -> list[dict[str, Any]]:
    """One row a patch: bytes, changed, numel, dense_bytes, coo_bytes (int32 row, int32 column, value for every change),
    published_bytes (codec `paper`), entropy_bits, entropy_history_bits (both null unless all is BF16); with ``repeats``
    also medians of seconds and, of the first patch, memory in bytes. Every version is checked bit for bit.

    Raises ValueError where the chain has no second version.
    """
    versions = iter(versions)
    old = next(versions)
    codec = make(name, old, threads)
    memory = History(old, 0)  # for the entropy
    here = {n: t.clone() for n, t in old.items()}
    bf16 = all(t.dtype == torch.bfloat16 for t in old.values())
    rows = []
    if repeats:
        warm_up(name, threads)
    for version, new in enumerate(versions, 1):
        row: dict[str, Any] = {"step": version, **counts(old, new)}
        row["published_bytes"] = len(encode(old, new, "paper", threads=threads))
        row["entropy_bits"] = entropy(old, new) if bf16 else None
        row["entropy_history_bits"] = entropy(old, new, memory) if bf16 else None
        data, spent = timed(lambda o=old, n=new, v=version: codec.encode(o, n, v), repeats)
        begun = time.perf_counter(), time.process_time()
        codec.committed(old, new)
        spent = [
            s + now - b for s, now, b in zip(spent, (time.perf_counter(), time.process_time()), begun, strict=True)
        ]
        row["bytes"] = size(data)
        received = receive(codec, here, old, data, repeats)
        if repeats:
            row |= dict(zip(TIMES, [*spent, *received], strict=False))
            if isinstance(codec, Blobs):
                row |= {f"{k}_seconds": v for k, v in codec.seconds.items()} | {"raw_bytes": codec.raw_bytes}
            if version == 1 and name != "dense":
                row |= peaks(codec, old, new, data)
        same(here, new, name, version)
        memory.commit(old, new)
        rows.append(row)
        old = new
    if not rows:
        raise ValueError("the source yields one version: there is nothing to send")
    return rows


def counts(old: Weights, new: Weights) -> dict[str, int]:
    """Elements that changed, elements, bytes of all, and bytes of row, column (int32) and value of each change."""
    a, b = Tensors(old), Tensors(new)
    changed = coo = 0
    for name, entry in b.entries.items():
        n = len(differences(a.read(name, 0, entry.numel), b.read(name, 0, entry.numel)))
        changed, coo = changed + n, coo + n * (8 + entry.layout.width)
    dense = sum(e.numel * e.layout.width for e in b.entries.values())
    return {"changed": changed, "numel": sum(e.numel for e in b.entries.values()), "dense_bytes": dense,
            "coo_bytes": coo}  # fmt: skip


def size(data: bytes | list) -> int:
    """Bytes of what a codec made: one object, or one a tensor."""
    return len(data) if isinstance(data, bytes) else sum(d.nbytes if hasattr(d, "nbytes") else len(d) for d in data)


def timed(work: Callable[[], Any], repeats: int) -> tuple[Any, list[float]]:
    """The result, and medians of wall and CPU seconds."""
    wall, cpu = [], []
    for _ in range(max(repeats, 1)):
        begun = time.perf_counter(), time.process_time()
        result = work()
        wall.append(time.perf_counter() - begun[0])
        cpu.append(time.process_time() - begun[1])
    return result, [statistics.median(wall), statistics.median(cpu)]


def receive(codec: Codec, here: Weights, old: Weights, data: bytes | list, repeats: int) -> list[float]:
    """Apply to ``here``, which holds ``old``; again from the same start for every further repetition."""
    wall, cpu = [], []
    for left in reversed(range(max(repeats, 1))):
        memory = copy.deepcopy(codec.theirs) if left else codec.theirs
        begun = time.perf_counter(), time.process_time()
        codec.apply(here, data, memory)
        wall.append(time.perf_counter() - begun[0])
        cpu.append(time.process_time() - begun[1])
        if left:
            for n, t in old.items():
                here[n].copy_(t)
    return [statistics.median(wall), statistics.median(cpu)]


def peaks(codec: Codec, old: Weights, new: Weights, data: bytes | list) -> dict[str, int]:
    """Bytes that encoding and applying held at their peak beside the weights and the finished patch."""
    out = {}
    again = {n: t.clone() for n, t in old.items()}
    fresh = None if codec.theirs is None else History(old)
    works = {"encode": lambda: codec.encode(old, new, 1), "apply": lambda: codec.apply(again, data, fresh)}
    if codec.ours is not None:  # its memory is one patch further already
        del works["encode"]
    for what, work in works.items():
        reset_peak_memory()
        before = peak_memory()
        work()
        out[f"{what}_memory"] = max(0, peak_memory() - before)
    return out


def warm_up(name: str, threads: int) -> None:
    """Compile, and touch every path once, before anything is timed."""
    old = {"w": torch.arange(4096.0).bfloat16()}
    new = {"w": old["w"].clone()}
    new["w"][::50] += 64
    codec = make(name, old, threads)
    data = codec.encode(old, new, 1)
    codec.apply({"w": old["w"].clone()}, data, codec.theirs)


def same(here: Weights, new: Weights, name: str, version: int) -> None:
    """Every bit of ``here`` is that of ``new``. Raises AssertionError: a codec that is not exact."""
    for n, t in new.items():
        if not torch.equal(here[n].reshape(-1).view(torch.uint8), t.reshape(-1).view(torch.uint8)):
            raise AssertionError(f"codec {name} is not exact: tensor {n!r} of version {version}")


def fingerprint(weights: Weights) -> str:
    """xxh3-128 of all bits in the order of the names."""
    total = xxhash.xxh3_128()
    for n in sorted(weights):
        total.update(n.encode())
        total.update(weights[n].contiguous().reshape(-1).view(torch.uint8).numpy())
    return total.hexdigest()
