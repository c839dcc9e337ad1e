"""From two sets of weights to a patch (2602.03839, Algorithm 1; its steps as published are in `paper`)."""

import io
import tempfile
from collections.abc import Callable, Mapping
from typing import BinaryIO

import numpy as np
import xxhash
from torch import Tensor

from lowcomm.pulse import paper
from lowcomm.pulse.blocks import Coded, Mode, encode_full, encode_packed, join
from lowcomm.pulse.history import History, Marks
from lowcomm.pulse.patch import CODECS, Patch, Record
from lowcomm.pulse.state import State, as_state, block_digest, ordered, state_digest, tensor_digest

IN_MEMORY = 128 << 20  # what a patch takes in memory while it is written; the rest waits in a temporary file


def encode(old: Mapping[str, Tensor] | None, new: Mapping[str, Tensor], codec: str = "packed", **meta) -> bytes:
    """The patch that turns ``old`` into ``new``, mappings of the same names, shapes and dtypes.

    ``codec`` is "packed" (smallest), "paper" (the published layout), or "full" (every weight; ``old`` is not needed),
    or "history" (smaller than packed, for a chain whose readers miss nothing).
    ``meta``: ``base_version`` (default 0) and ``version`` (default base_version + 1) bind the patch to a chain,
    ``threads`` sets how many to use, ``history`` is a `History` for the codec of that name; anything else (model, lr,
    step ...) is kept in the patch as it is, and must be a number, a string, a bool or None. Tied tensors are sent once.
    Raises ValueError where old and new do not fit.
    """
    out = io.BytesIO()
    write(out, None if old is None else as_state(old), as_state(new), codec, **meta)
    return out.getvalue()


def write(
    out: BinaryIO,
    old: State | None,
    new: State,
    codec: str = "packed",
    *,
    base_version: int = 0,
    version: int | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    history: History | None = None,
    **meta,
) -> Patch:
    """As `encode`, between any two states, into a file; a few blocks are in memory at a time.

    Memory beside the program: less than 6 times the largest tensor and 256 MB, of which IN_MEMORY for the patch;
    the rest of it waits in a temporary file. More tensors take no more.

    ``progress`` is called with the number of bytes of weights read. Returns the patch without its body. Raises
    ValueError for an unknown codec, versions that do not count up from 0, ``history`` without its codec or the
    codec without it, and states of other names, shapes or dtypes.
    """
    if codec not in CODECS:
        raise ValueError(f"codec={codec!r}: choose packed, paper, history or full")
    if (codec == "history") != (history is not None):
        raise ValueError("codec='history' and history= go together: both sides must remember the same patches")
    if codec == "full":
        old = None
    if history is not None:
        meta = {**meta, "history_start": history.start, "history": history.digest().hex()}
    _check_pair(old, new, codec)
    version = (0 if codec == "full" else base_version + 1) if version is None else version
    if not 0 <= (-1 if codec == "full" else base_version) + 1 <= version < 2**63:
        raise ValueError(f"base_version={base_version}, version={version}: versions count up from 0")
    with (
        tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as body,
        tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as streams,
    ):
        writer = paper.Writer(streams) if codec == "paper" else None
        records, digests = _encode_tensors(body, old, new, codec, writer, threads, progress, history)
        if writer:
            writer.finish(body)
        patch = Patch(
            codec,
            None if codec == "full" else base_version,
            version,
            b"\0" * 16 if old is None else state_digest({n: d[0] for n, d in digests.items()}),
            state_digest({n: d[1] for n, d in digests.items()}),
            tuple(records),
            dict(new.aliases),
            meta,
        )
        _assemble(out, patch, body)
    return patch


def _check_pair(old: State | None, new: State, codec: str) -> None:
    if not new.entries:
        raise ValueError("no tensors: there is nothing to publish")
    if old is None:
        if codec != "full":
            raise ValueError(f"codec={codec!r} needs old weights; codec='full' does not")
        return
    for name in sorted({*old.entries, *new.entries}):
        a, b = old.entries.get(name), new.entries.get(name)
        if a != b:
            why = f"tensor {name!r} is {a or 'absent'} in old and {b or 'absent'} in new"
            raise ValueError(f"{why}: take two states of one model, or publish an anchor")


def _encode_tensors(body, old, new, codec, writer, threads, progress, history):
    """Writes payloads; returns records and {name: (old digest, new digest)}."""
    tasks = [(name, span) for name, entry in new.entries.items() for span in entry.blocks() or [(0, 0)]]

    meaning = None if history is None else history.meaning()

    def work(task):
        name, span = task
        b = new.read(name, *span)
        a = None if old is None else old.read(name, *span)
        hashes = (b"" if a is None else block_digest(a), block_digest(b))
        layout = new.entries[name].layout
        if codec == "full":
            return hashes, encode_full(b, len(b)) if len(b) else Coded(Mode.SAME, 0, b"")
        if hashes[0] == hashes[1] and np.array_equal(a, b):
            return hashes, (np.empty(0, np.uint32), b[:0]) if codec == "paper" else Coded(Mode.SAME, 0, b"")
        if codec == "paper":
            position = paper.differences(a, b)
            return hashes, (position, b[position])
        known = None if history is None else Marks(history.block(name, *span), *meaning)
        return hashes, encode_packed(a, b, layout, known)

    records, digests = [], {}
    results = ordered(work, tasks, threads)
    for name, entry in new.entries.items():
        done = [next(results) for _ in entry.blocks() or [0]]
        parts = [part for _, part in done]
        blocks = len(entry.blocks())
        digests[name] = tuple(tensor_digest(name, entry, [h[i] for h, _ in done][:blocks]) for i in (0, 1))
        if writer:
            changed, length = sum(len(p) for p, _ in parts), 0
            if changed:
                writer.add(name, entry, parts)
        else:
            changed, payload = sum(p.changed for p in parts), join(parts)
            length = len(payload)
            body.write(payload)
        records.append(Record(name, entry, changed, length))
        if progress:
            progress(entry.numel * entry.layout.width)
    return records, digests


def _assemble(out: BinaryIO, patch: Patch, body) -> None:
    length = body.tell()
    head = patch.head(length)
    trailer = xxhash.xxh3_128()
    body.seek(0)
    chunk = head
    while chunk:
        trailer.update(chunk)
        out.write(chunk)
        chunk = body.read(paper.CHUNK)
    out.write(trailer.digest())
