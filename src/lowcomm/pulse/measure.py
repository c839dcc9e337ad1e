"""Bytes, seconds and memory of the codecs on one pair of weights, beside a plain copy and a plain hash of the same."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
import xxhash
from torch import Tensor

from lowcomm.pulse import synthetic
from lowcomm.pulse.codec import encode
from lowcomm.pulse.history import History
from lowcomm.pulse.patch import decode
from lowcomm.pulse.receive import apply
from lowcomm.pulse.state import digest


def gaussian(megabytes: int, delta: float = 3.4e-7, seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Old and new BF16 weights of so many MB in matrices of 4096 columns; the default ``delta`` changes about 1 %."""
    old, new = {}, {}
    left, i = megabytes * 500_000 // 4096, 0
    while left:
        rows = min(left, 4096)
        before = synthetic.weights(rows * 4096, seed + i)
        after = synthetic.update(before, delta, seed + 1000 + i)
        for side, bits in ((old, before), (new, after)):
            side[f"layers.{i}.weight"] = torch.from_numpy(bits.view("<i2")).view(torch.bfloat16).reshape(rows, 4096)
        left, i = left - rows, i + 1
    return old, new


def codecs(
    old: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
    names: tuple[str, ...],
    repeats: int = 3,
    threads: int | None = None,
) -> list[dict]:
    """One row a codec, medians of ``repeats`` after a warm-up; rates are MB of dense weights a second."""
    dense = sum(t.numel() * t.element_size() for t in new.values())
    rows = []
    for name in names:
        patch = encode(old, new, name, threads=threads)
        here = {n: t.clone() for n, t in old.items()}

        def receive(here=here, patch=patch):
            for n, t in old.items():
                here[n].copy_(t)
            start = time.perf_counter()
            apply(here, patch, threads)
            return time.perf_counter() - start

        receive()
        if digest(here) != digest(new):
            raise AssertionError(f"codec {name} is not exact")
        changed = decode(patch).changed
        rows.append(
            {
                "codec": name,
                "bytes": len(patch),
                "ratio": dense / len(patch),
                "bits/change": 8 * len(patch) / max(changed, 1),
                "density %": 100 * changed / sum(t.numel() for t in new.values()),
                "diff+encode MB/s": dense / 1e6 / _median(lambda n=name: encode(old, new, n, threads=threads), repeats),
                "apply+verify MB/s": dense / 1e6 / statistics.median(receive() for _ in range(repeats)),
            }
        )
    return rows


def chain(
    versions: Iterable[Mapping[str, Tensor]], names: Sequence[str] = ("paper", "packed", "history")
) -> list[dict]:
    """The codecs along one chain of BF16 weights, from its first version as the anchor: one row a codec, with totals
    of bytes and CPU seconds (one thread), and what `entropy` says is left to tell.

    Raises ValueError for a chain of one version.
    """
    versions = iter(versions)
    old = next(versions)
    rows = {n: {"codec": n, "bytes": 0, "encode CPU s": 0.0, "apply CPU s": 0.0} for n in names}
    ours, theirs, here = History(old, 0), History(old, 0), {n: t.clone() for n, t in old.items()}
    count, steps, dense, bits = 0, 0, 0, np.zeros(2)
    for steps, new in enumerate(versions, 1):
        bits += entropy(old, new), entropy(old, new, ours)
        for name in names:
            for n, t in old.items():
                here[n].copy_(t)
            start = time.process_time()
            memory = ours if name == "history" else None
            patch = encode(old, new, name, base_version=steps - 1, threads=1, history=memory)
            middle = time.process_time()
            apply(here, patch, 1, theirs if memory else None)
            rows[name]["bytes"] += len(patch)
            rows[name]["encode CPU s"] += middle - start
            rows[name]["apply CPU s"] += time.process_time() - middle
        start = time.process_time()
        ours.commit(old, new)
        if "history" in names:
            rows["history"]["encode CPU s"] += time.process_time() - start
        parsed = decode(patch)
        count, dense, old = count + parsed.changed, dense + parsed.dense_nbytes, new
    if not steps:
        raise ValueError("the chain has one version: there is nothing to send")
    for row in rows.values():
        row |= {
            "bits/change": 8 * row["bytes"] / max(count, 1),
            "ratio": dense / row["bytes"],
            "density %": 200 * count / dense,
        }
        row |= {
            "entropy given exponent": bits[0] / max(count, 1),
            "given exponent, age, direction": bits[1] / max(count, 1),
        }
    return list(rows.values())


def entropy(old: Mapping[str, Tensor], new: Mapping[str, Tensor], history: History | None = None) -> float:
    """Bits to tell which BF16 weights changed and by how many units, given each old exponent, tensor by tensor; with a
    history also given age and direction of the last change. What a coder with those contexts can reach at best."""
    total = 0.0
    for name, before in old.items():
        a, b = (t.reshape(-1).view(torch.int16).numpy().view(np.uint16) for t in (before, new[name]))
        group = (a >> 7 & 255).astype(np.int64)
        if history is not None:
            group += 256 * history.meaning()[1][history.block(name, 0, len(a))]
        hit = np.flatnonzero(a != b)
        whole, changed = np.bincount(group), np.bincount(group[hit])
        still = whole.copy()
        still[: len(changed)] -= changed
        # one symbol a weight: its step in units of the last place, none for "no change"
        was, now = (np.where(w & 32768, -1 - (w & 32767).astype(np.int64), w) for w in (a[hit], b[hit]))
        _, pairs = np.unique(group[hit] << 17 | (now - was) + (1 << 16), return_counts=True)
        total += _nlogn(whole) - _nlogn(still) - _nlogn(pairs)
    return total


def _nlogn(counts: np.ndarray) -> float:
    counts = counts[counts > 0].astype(np.float64)
    return float((counts * np.log2(counts)).sum())


def plain(tensors: Mapping[str, Tensor], repeats: int = 3) -> dict[str, float]:
    """MB/s of a copy and of xxh3-128 over the same weights, one thread."""
    dense = sum(t.numel() * t.element_size() for t in tensors.values())
    there = {n: torch.empty_like(t) for n, t in tensors.items()}
    flat = [t.reshape(-1).view(torch.uint8).numpy() for t in tensors.values()]
    copying = _median(lambda: [there[n].copy_(t) for n, t in tensors.items()], repeats)
    hashing = _median(lambda: [xxhash.xxh3_128_digest(x) for x in flat], repeats)
    return {"copy MB/s": dense / 1e6 / copying, "xxh3-128 MB/s": dense / 1e6 / hashing}


def _median(function: Callable[[], object], repeats: int) -> float:
    """Seconds."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def show(rows: list[dict]) -> str:
    """Rows of equal keys as lines of text, columns aligned, under their keys."""
    cells = [
        list(rows[0]),
        *(
            [f"{v:,.2f}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else v for v in r.values()]
            for r in rows
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells)
