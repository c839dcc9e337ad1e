"""Text workloads: `PyCode` needs nothing but Python, `Dclm` reads web text from a folder or the hub."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from lowcomm.workloads import cache, corpora, encoders, web
from lowcomm.workloads.causal import CausalText
from lowcomm.workloads.tokens import (
    EOS,
    Windows,
    file_sha256,
    open_tokens,
    plain,
    token_dtype,
    train_tokenizer,
    write_tokens,
)

RECIPE = 1  # raise it when the same sources would give other tokens
LICENCE = "that of the shards; DCLM-Baseline: CC-BY-4.0, its pages under their authors' and Common Crawl's terms"


class PyCode(CausalText):
    """Python sources, byte-level BPE trained on them, EOS after each file, files concatenated and cut to `seq_len`.

    Args:
        name: what the record calls it.
        seq_len: tokens of a window; at least 2.
        vocab_size: of the tokenizer, 257 to 65536.
        corpus: "stdlib", the standard library without tests (12 MB; 5.7 M tokens at vocab 512), or "stdlib+packages",
            also sympy, torch and transformers as installed (see `corpora`).
        holdout: share of the files held out, chosen by the hash of their contents; the tokenizer never sees them.
        cache_dir: where tokens are kept; null: $LOWCOMM_CACHE, else `.cache/lowcomm` under the current folder.
        seed: order of the training windows. The split and the evaluation windows do not depend on it.

    The tokens are byte for byte the same for one exact Python (and package) version: see `manifest_sha256`.
    """

    def __init__(
        self,
        *,
        name: str,
        seq_len: int,
        vocab_size: int,
        seed: int,
        corpus: str = "stdlib",
        holdout: float = 0.05,
        cache_dir: str | None = None,
    ):
        _check(seq_len, vocab_size, holdout)
        if vocab_size > 1 << 16:
            raise ValueError(f"vocab_size={vocab_size}: at most 65536, Python sources do not fill more")
        if corpus not in corpora.LICENCES:
            raise ValueError(f"corpus={corpus}: must be one of {', '.join(corpora.LICENCES)}")
        sources = corpora.read_sources(corpus)
        self._manifest = {
            "recipe": RECIPE,
            "corpus": corpus,
            "holdout": holdout,
            "versions": corpora.versions(corpus),
            "files": [[s.name, s.sha256, corpora.held_out(s.sha256, holdout)] for s in sources],
        }
        self._manifest_sha256 = cache.digest(self._manifest)
        self._corpus, self.vocab_size = corpus, vocab_size
        key = cache.digest([self._manifest_sha256, vocab_size])[:16]
        folder = cache.build_once(cache.root(cache_dir) / f"pycode-{key}", lambda aside: self._build(aside, sources))
        self._counts = json.loads((folder / "counts.json").read_text())
        train, heldout = (Windows([self._open(folder, split)], seq_len) for split in ("train", "heldout"))
        remedy = "set workload.corpus=stdlib+packages" if corpus == "stdlib" else "lower workload.seq_len"
        super().__init__(name, train, heldout, seq_len, seed, remedy)

    def _build(self, folder: Path, sources: list[corpora.Source]) -> None:
        held = {sha256 for _, sha256, out in self._manifest["files"] if out}
        # In the order of their hashes, so that the trainer sees every part of the corpus even if it stops early.
        shuffled = sorted(sources, key=lambda source: source.sha256)
        trained = train_tokenizer((s.text for s in shuffled if s.sha256 not in held), self.vocab_size)
        trained.save(str(folder / "tokenizer.json"))
        documents = ((s.text, s.sha256 in held) for s in sources)
        dtype = token_dtype(self.vocab_size)
        counts = write_tokens(documents, plain(trained), trained.token_to_id(EOS), folder, dtype)
        for file in ("train.npy", "heldout.npy", "tokenizer.json"):
            counts[file.split(".")[0] + "_sha256"] = file_sha256(folder / file)
        (folder / "manifest.json").write_text(json.dumps(self._manifest, indent=1))
        (folder / "counts.json").write_text(json.dumps(counts, indent=1))

    def _open(self, folder: Path, split: str) -> np.ndarray:
        path = folder / f"{split}.npy"
        if file_sha256(path) != self._counts[f"{split}_sha256"]:
            raise ValueError(f"{path}: damaged since it was written; delete its folder")
        return open_tokens(path, self._counts[f"{split}_tokens"])

    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "revision": f"{self._corpus} of Python {self._manifest['versions']['python']}",
            "versions": self._manifest["versions"],
            "licence": corpora.LICENCES[self._corpus],
            "manifest_sha256": self._manifest_sha256,
            "vocab_size": self.vocab_size,
            "files": self._counts["train_documents"],
            "heldout_files": self._counts["heldout_documents"],
            "train_sha256": self._counts["train_sha256"],
            "heldout_sha256": self._counts["heldout_sha256"],
            "tokenizer": "byte-level BPE trained on the training files",
            "tokenizer_sha256": self._counts["tokenizer_sha256"],
        }


class Dclm(CausalText):
    """DCLM-Baseline or any other text in its form: no BOS, EOS after each document, documents concatenated and cut to
    `seq_len` with no document mask (IsoLoCo, section 3.2 and public code).

    Args:
        name: what the record calls it.
        path: folder with `.jsonl`, `.jsonl.zst`, `.jsonl.zstd` or `.parquet` shards, read in the order of their names.
        hub: instead of `path`, a dataset on the hub, of which the split "train" is streamed.
        revision: commit of `hub`, 40 hexadecimal digits.
        field: of a row, the text.
        tokenizer: local folder, `tokenizer.json`, hub id, or "train:N", a BPE of N entries trained on the first shard.
        tokenizer_revision: commit of the tokenizer on the hub, 40 hexadecimal digits.
        eos_token: what ends a document; null: what the tokenizer says.
        vocab_size: of the model; the tokenizer may have fewer entries.
        seq_len: tokens of a window; at least 2.
        tokens: training tokens to prepare and use; null: every local shard. `hub` needs a number.
        holdout: share of the documents held out, chosen by the hash of their text, so that copies stay together.
        on_error: "raise" at the first unusable document or shard, or "skip" and count them in the record.
        max_line_bytes: longest line of JSON that is read.
        cache_dir: where tokens are kept; null: $LOWCOMM_CACHE, else `.cache/lowcomm` under the current folder.
        seed: order of the training windows. The split and the evaluation windows do not depend on it.

    Each shard is tokenized once, in bounded memory, and kept; an interrupted build goes on with the next shard.
    """

    def __init__(
        self,
        *,
        name: str,
        seq_len: int,
        vocab_size: int,
        tokenizer: str,
        seed: int,
        path: str | None = None,
        hub: str | None = None,
        revision: str | None = None,
        field: str = "text",
        tokenizer_revision: str | None = None,
        eos_token: str | None = None,
        tokens: int | None = None,
        holdout: float = 0.05,
        on_error: str = "raise",
        max_line_bytes: int = 1 << 24,
        cache_dir: str | None = None,
    ):
        _check(seq_len, vocab_size, holdout)
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error={on_error}: must be raise or skip")
        if max_line_bytes < 1:
            raise ValueError(f"max_line_bytes={max_line_bytes}: must be at least 1")
        if tokens is not None and tokens < seq_len:
            raise ValueError(f"tokens={tokens}: less than one window of seq_len={seq_len}")
        if (path is None) == (hub is None):
            raise ValueError(f"path={path}, hub={hub}: give one, a local folder of shards or a dataset on the hub")
        if hub is not None and tokens is None:
            raise ValueError(
                "tokens=null: streaming from the hub needs the number of training tokens to prepare; set it"
            )
        source = web.Local(path, field, max_line_bytes) if hub is None else web.Hub(hub, revision, field)
        root = cache.root(cache_dir)
        if tokenizer.startswith(encoders.TRAIN):
            encoder, eos = encoders.train_tokenizer(tokenizer, source, root, holdout, on_error)
        else:
            encoder, eos = encoders.load_tokenizer(tokenizer, tokenizer_revision, eos_token)
        if encoder.get_vocab_size() > vocab_size:
            raise ValueError(
                f"vocab_size={vocab_size}: the tokenizer {tokenizer} has {encoder.get_vocab_size()} entries; "
                "set workload.vocab_size to that or more"
            )
        shards = web.ShardCache(root, encoder, eos, vocab_size, holdout, on_error)
        self._entries = shards.collect(source, tokens)
        self._source = {
            "hub": hub,
            "revision": revision,
            "field": field,
            "licence": LICENCE,
            "vocab_size": vocab_size,
            "tokenizer": Path(tokenizer).name if Path(tokenizer).exists() else tokenizer,
            "tokenizer_revision": tokenizer_revision,
            "tokenizer_sha256": cache.digest(encoder.to_str()),
        }
        self.vocab_size = vocab_size
        train, heldout = (
            Windows([entry.open(split) for entry in self._entries], seq_len, limit)
            for split, limit in (("train", tokens), ("heldout", None))
        )
        if tokens is not None and train.tokens < tokens:
            raise ValueError(f"tokens={tokens}: the training side has only {train.tokens}; add shards or lower it")
        remedy = "raise workload.tokens" if tokens is not None else "add shards"
        super().__init__(name, train, heldout, seq_len, seed, remedy)

    def describe(self) -> dict[str, Any]:
        counts = [entry.counts for entry in self._entries]
        skipped = sum((Counter(c["skipped"]) for c in counts), Counter())
        return (
            super().describe()
            | self._source
            | {
                "shards": len(counts),
                "skipped": dict(skipped),
                "documents": sum(c["train_documents"] for c in counts),
                "heldout_documents": sum(c["heldout_documents"] for c in counts),
                "manifest_sha256": cache.digest([[c["name"], c["sha256"]] for c in counts]),
                "train_sha256": cache.digest([c["train_sha256"] for c in counts]),
                "heldout_sha256": cache.digest([c["heldout_sha256"] for c in counts]),
            }
        )


def _check(seq_len: int, vocab_size: int, holdout: float) -> None:
    if seq_len < 2:
        raise ValueError(f"seq_len={seq_len}: at least 2, the first token of a window is given and not predicted")
    if vocab_size < 1:
        raise ValueError(f"vocab_size={vocab_size}: must be at least 1")
    if not 0 < holdout < 1:
        raise ValueError(f"holdout={holdout}: a share of the documents, between 0 and 1")
