"""Shards of web text, local or from the hub, tokenized one by one into a cache that an interrupted build resumes."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from lowcomm.workloads import cache, tokens
from lowcomm.workloads.corpora import held_out, text_sha256
from lowcomm.workloads.shards import Skips, documents, find_shards, text_of

RECIPE = 1  # raise it when the same shards would give other tokens
HUB_ROWS = 100_000  # rows of the hub's stream that make a shard of the cache


@dataclass(frozen=True)
class Shard:
    """`identity` tells its contents from others without reading them; `rows`: how many it has if another may follow."""

    name: str
    identity: list[Any]
    texts: Callable[[Skips], Iterator[str]]
    path: Path | None = None
    rows: int | None = None


class Local:
    """The shards of a folder, in the order of their names."""

    def __init__(self, path: str, field: str, max_line_bytes: int):
        self._found, self._field, self._max_line_bytes = find_shards(Path(path).absolute()), field, max_line_bytes

    def shards(self) -> Iterator[Shard]:
        """Each with the file's name, size and time as its identity."""
        for name, path in self._found:
            status = path.stat()
            identity = [name, status.st_size, status.st_mtime_ns, self._field, self._max_line_bytes]
            yield Shard(name, identity, partial(documents, path, name, self._field, self._max_line_bytes), path=path)


class Hub:
    """The rows of a dataset on the hub, in portions of `HUB_ROWS`; streamed once if the portions are read in order."""

    def __init__(self, hub: str, revision: str | None, field: str):
        self._hub, self._revision, self._field = hub, pinned(revision, "workload.revision", f"the dataset {hub}"), field
        self._stream, self._next = iter(()), None

    def shards(self) -> Iterator[Shard]:
        """Portions of rows without an end: a portion that is not full is the last."""
        for k in count():
            identity = [self._hub, self._revision, self._field, k, HUB_ROWS]
            yield Shard(f"rows-{k:06d}", identity, partial(self._texts, k), rows=HUB_ROWS)

    def _texts(self, k: int, skips: Skips) -> Iterator[str]:
        if self._next != k:
            import datasets  # slow to import, and of no use to local text

            from lowcomm.hub import asking

            with asking(f"workload.hub={self._hub}", "give a copy with workload.path=FOLDER"):
                rows = datasets.load_dataset(self._hub, revision=self._revision, split="train", streaming=True)
            self._stream = iter(rows.skip(k * HUB_ROWS))
        self._next = None  # until the portion is read to its end
        for number, row in enumerate(islice(self._stream, HUB_ROWS), k * HUB_ROWS):
            text = text_of(row, self._field, f"{self._hub}, row {number}", skips)
            if text is not None:
                yield text
        self._next = k + 1


@dataclass(frozen=True)
class Entry:
    """A tokenized shard: `train.npy`, `heldout.npy` and what was counted."""

    folder: Path
    counts: dict[str, Any]

    def open(self, split: str) -> np.ndarray:
        """`(tokens,)` of a split, mapped from the file. Raises ValueError when it is damaged."""
        return tokens.open_tokens(self.folder / f"{split}.npy", self.counts[f"{split}_tokens"])


class ShardCache:
    """Tokenized shards. What an entry holds depends on its key alone, never on what was built before it."""

    def __init__(self, root: Path, tokenizer: Tokenizer, eos: int, vocab_size: int, holdout: float, on_error: str):
        self._root, self._tokenizer, self._eos = root, tokenizer, eos
        self._dtype, self._holdout, self._on_error = tokens.token_dtype(vocab_size), holdout, on_error
        self._key = [RECIPE, tokenizers.__version__, tokenizer.to_str(), eos, self._dtype.str, holdout, on_error]

    def collect(self, source: Local | Hub, limit: int | None) -> list[Entry]:
        """The entries of the shards in order, up to the one with which the training side reaches `limit` tokens."""
        found, left = [], limit
        for shard in source.shards():
            entry = self.entry(shard, left)
            found.append(entry)
            if left is not None:
                left -= entry.counts["train_tokens"]
            if (left is not None and left <= 0) or (shard.rows is not None and entry.counts["rows"] < shard.rows):
                break
        return found

    def entry(self, shard: Shard, limit: int | None) -> Entry:
        """The shard, tokenized now or before: all of it, or up to the document that reaches `limit`."""
        key = cache.digest([self._key, shard.identity])[:16]
        whole, cut = self._root / f"shard-{key}", self._root / f"shard-{key}-{limit}"
        with cache.locked(self._root / f"shard-{key}.lock"):
            if whole.is_dir():
                entry = _read(whole)
                if limit is None or entry.counts["train_tokens"] < limit:
                    return entry
            if limit is not None and cut.is_dir():
                return _read(cut)
            with cache.part(whole) as aside:
                finished = whole if self._build(shard, limit, aside) else cut
                aside.rename(finished)
            return _read(finished)

    def _build(self, shard: Shard, limit: int | None, folder: Path) -> bool:
        skips = Skips(self._on_error)
        split = ((text, held_out(text_sha256(text), self._holdout)) for text in shard.texts(skips))
        counts = tokens.write_tokens(split, self._tokenizer, self._eos, folder, self._dtype, limit)
        kept = counts["train_documents"] + counts["heldout_documents"]
        counts |= {"name": shard.name, "skipped": dict(skips.counts), "rows": kept + skips.counts.total()}
        counts["sha256"] = tokens.file_sha256(shard.path) if shard.path else None
        for side in ("train", "heldout"):
            counts[f"{side}_sha256"] = tokens.file_sha256(folder / f"{side}.npy")
        (folder / "counts.json").write_text(json.dumps(counts, indent=1))
        return counts["complete"]


def _read(folder: Path) -> Entry:
    return Entry(folder, json.loads((folder / "counts.json").read_text()))


def pinned(revision: str | None, key: str, what: str) -> str:
    """The revision, if it is the hash of a commit. Raises ValueError naming the key."""
    if revision is None or not re.fullmatch("[0-9a-f]{40}", revision):
        raise ValueError(f"{key}={revision}: {what} must be pinned to a commit of the hub, 40 hexadecimal digits")
    return revision
