"""The byte ledger: one JSON line for each published version, from which every ratio can be rebuilt.

step, version, kind, base     kind: anchor | patch; base: the version a patch starts from
changed, numel                weights that differ from the base (an anchor: all)
bytes                         of the object that a follower fetches
anchor_bytes                  of the anchor that was due with a patch, for those who join late; else 0
dense_bf16, dense_fp32        of all weights: as a checkpoint holds them; as TRL sends FP32 masters
codec, lag, verified          lag: optimizer steps between these weights and the text of the last step
seconds                       cast; encode (diff, code and digest); store; fetch and apply (with digest) of the reader
                              in the trainer's process that checks every version
trainers                      bytes that each sent to the others since the last version (mean over them); behind a gate
                              sent (entries, mean), sparsity, sparsity_min, sparsity_max over them
"""

import json
import os
from pathlib import Path
from typing import Any

from lowcomm.rl.publishing import Sent


class Ledger:
    """`ledger.jsonl` in the run's folder. ``numel``: of all weights, tied ones once."""

    def __init__(self, folder: Path, numel: int, codec: str):
        self.path, self.numel, self.codec = folder / "ledger.jsonl", numel, codec
        self.file = self.path.open("ab")

    def resume(self, position: int) -> None:
        """Forget what was written after a checkpoint. Raises ValueError when the file is shorter than it knows."""
        if (size := os.fstat(self.file.fileno()).st_size) < position:
            raise ValueError(f"{self.path}: {size} bytes where the checkpoint knows of {position}; put the file back, "
                             "or delete the run's folder to begin again")  # fmt: skip
        self.file.truncate(position)

    def position(self) -> int:
        """Bytes of the file, all of them on the disk: what a checkpoint notes, and `resume` goes back to."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size

    def write(self, step: int, sent: Sent, lag: int, trainers: dict[str, float] | None = None) -> dict[str, float]:
        """One line; the values that go into the metrics. ``trainers``: what they have sent to each other before it."""
        line = {
            "step": step,
            "version": sent.version,
            "kind": sent.kind,
            "base": sent.base,
            "changed": sent.changed,
            "numel": self.numel,
            "bytes": sent.bytes,
            "anchor_bytes": sent.anchor_bytes,
            "dense_bf16": 2 * self.numel,
            "dense_fp32": 4 * self.numel,
            "codec": self.codec,
            "lag": lag,
            "verified": sent.verified,
            "seconds": {k: round(v, 4) for k, v in sent.seconds.items()},
        }
        if trainers:
            line["trainers"] = {k.removeprefix("comm/"): v for k, v in trainers.items() if k.startswith("comm/")}
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()
        return {
            "sync/bytes": sent.bytes,
            "sync/anchor_bytes": sent.anchor_bytes,
            "sync/density": sent.changed / self.numel,
            "sync/ratio_vs_bf16": 2 * self.numel / sent.bytes,
            "sync/ratio_vs_fp32": 4 * self.numel / sent.bytes,
            "sync/bits_per_change": 8 * sent.bytes / max(1, sent.changed),
            "sync/verified": float(sent.verified),
            **{f"time/sync_{k}": round(v, 4) for k, v in sent.seconds.items()},
        }

    def close(self) -> None:
        """No more lines."""
        self.file.close()


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's ledger; none where nothing was published."""
    path = folder / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def totals(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What a record says of a run's transfers; bytes, seconds a version. `rounds`: versions after the first."""
    after = lines[1:]
    if not after:
        return {"rounds": 0, "per_worker": 0, "last_round": 0}
    sent, anchors = sum(n["bytes"] for n in after), sum(n["anchor_bytes"] for n in after)
    changed, numel = sum(n["changed"] for n in after), after[0]["numel"]
    parts = {k: sum(n["seconds"].get(k, 0.0) for n in after) / len(after) for k in after[0]["seconds"]}
    return {
        "rounds": len(after),
        "per_worker": sent,
        "last_round": after[-1]["bytes"],
        "first_anchor": lines[0]["bytes"],
        "anchors": anchors,
        "per_version": sent / len(after),
        "per_version_with_anchors": (sent + anchors) / len(after),
        "dense_bf16": after[0]["dense_bf16"],
        "dense_fp32": after[0]["dense_fp32"],
        "ratio_vs_bf16": after[0]["dense_bf16"] * len(after) / sent,
        "ratio_vs_bf16_with_anchors": after[0]["dense_bf16"] * len(after) / (sent + anchors),
        "density": changed / numel / len(after),
        "bits_per_change": 8 * sent / max(1, changed),
        "verified": sum(n["verified"] for n in lines),
        "versions": len(lines),
        "seconds": {k: round(v, 4) for k, v in parts.items()},
    }
