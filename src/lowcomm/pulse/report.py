"""What a patch changes and where: a table, a picture."""

from pathlib import Path

import numpy as np

from lowcomm.pulse.patch import Patch
from lowcomm.pulse.receive import decoded, match
from lowcomm.pulse.state import BLOCK, State

BINS = 64


def summary(patch: Patch, nbytes: int) -> str:
    """One line: versions, codec, size and share changed. ``nbytes``: of the whole object, header included."""
    kind = "anchor" if patch.base_version is None else f"patch {patch.base_version} -> {patch.version}"
    change = f", {8 * nbytes / patch.changed:.2f} bits per change" if patch.changed else ""
    return (
        f"{kind}, codec {patch.codec}: {nbytes:,} bytes for {patch.dense_nbytes:,} of weights"
        f" ({patch.dense_nbytes / nbytes:.1f}x), {patch.changed:,} of {patch.numel:,} changed"
        f" ({100 * patch.changed / max(patch.numel, 1):.4f} %){change}"
    )


def table(patch: Patch, every: bool = False) -> str:
    """One line a tensor, the most changed first; unchanged ones are counted, and listed with ``every``."""
    rows = [("tensor", "type", "shape", "changed", "share %", "bytes", "bits/change")]
    quiet = [r for r in patch.records if not r.changed]
    for r in sorted(patch.records, key=lambda r: -r.changed):
        if r.changed or every:
            share = f"{100 * r.changed / max(r.entry.numel, 1):.4f}"
            # in the published layout all tensors share one frame
            size, bits = (str(r.length), f"{8 * r.length / r.changed:.2f}") if r.length else ("", "")
            rows.append((r.name, r.entry.dtype, "x".join(map(str, r.entry.shape)), str(r.changed), share, size, bits))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    lines.append(f"{len(quiet)} of {len(patch.records)} tensors unchanged")
    lines += [f"{alias} is tied to {owner}" for alias, owner in patch.aliases.items()]
    lines += [f"{key}: {value}" for key, value in patch.meta.items()]
    return "\n".join(lines)


def positions(patch: Patch, base: State) -> np.ndarray:
    """Share changed, (tensors, BINS): each tensor's elements in order, cut into BINS parts."""
    names = match(patch, base)
    row = {r.name: i for i, r in enumerate(patch.records)}
    out = np.zeros((len(patch.records), BINS))
    for (record, block), update, _ in decoded(patch, base, names):
        start, stop = record.entry.blocks()[block]
        where = np.arange(stop - start) if update.position is None else update.position.astype(np.int64)
        out[row[record.name]] += np.bincount((where + block * BLOCK) * BINS // record.entry.numel, minlength=BINS)
    sizes = np.array([max(r.entry.numel, 1) for r in patch.records])
    return out / (sizes[:, None] / BINS)


def picture(patch: Patch, file: str | Path, base: State | None = None) -> None:
    """Heat map of tensors x place in the tensor (with a base), else bars of the share changed. Format by suffix."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [r.name for r in patch.records]
    height = max(2.0, 0.16 * len(names) + 1)
    figure, axes = plt.subplots(figsize=(9, min(height, 60)), layout="constrained")
    if base is not None:
        share = 100 * np.maximum(positions(patch, base), 0)
        image = axes.imshow(share, aspect="auto", interpolation="nearest", cmap="magma_r", vmin=0)
        figure.colorbar(image, label="changed, %")
        axes.set_xlabel(f"place in the tensor ({BINS} equal parts)")
    else:
        axes.barh(range(len(names)), [100 * r.changed / max(r.entry.numel, 1) for r in patch.records], color="#FF3A3A")
        axes.invert_yaxis()
        axes.set_xlabel("changed, %")
    axes.set_yticks(range(len(names)), names, fontsize=5)
    figure.savefig(file)
    plt.close(figure)
