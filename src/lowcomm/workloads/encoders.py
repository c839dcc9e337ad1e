"""Where the tokenizer of web text comes from: a file, a folder, the hub, or the text itself."""

from pathlib import Path

import tokenizers
from tokenizers import Tokenizer

from lowcomm.workloads import cache, tokens
from lowcomm.workloads.corpora import held_out, text_sha256
from lowcomm.workloads.shards import Skips
from lowcomm.workloads.web import RECIPE, Hub, Local, pinned

TRAIN = "train:"


def load_tokenizer(spec: str, revision: str | None, eos_token: str | None) -> tuple[Tokenizer, int]:
    """Tokenizer and end-of-text id from a `tokenizer.json`, a local folder, or the hub at the commit `revision`.

    Raises ValueError.
    """
    path = Path(spec)
    if path.is_file():
        tokenizer = Tokenizer.from_file(spec)
    else:
        if not path.is_dir():
            pinned(
                revision,
                "workload.tokenizer_revision",
                f"the tokenizer {spec} (no such local file or folder; {TRAIN}512 trains one)",
            )
        from transformers import AutoTokenizer  # slow to import, and of no use to a file

        from lowcomm.hub import asking

        with asking(f"workload.tokenizer={spec}", f"give a local tokenizer.json, or {TRAIN}512 to train one"):
            loaded = AutoTokenizer.from_pretrained(spec, revision=revision)
        if not loaded.is_fast:
            raise ValueError(f"workload.tokenizer={spec}: it has no tokenizer.json, so it is too slow to use")
        tokenizer, eos_token = loaded.backend_tokenizer, eos_token or loaded.eos_token
    if eos_token is None:
        raise ValueError(f"workload.tokenizer={spec} does not say which token ends a text; set workload.eos_token")
    eos = tokenizer.token_to_id(eos_token)
    if eos is None:
        raise ValueError(f"workload.eos_token={eos_token}: not in the vocabulary of {spec}")
    return tokens.plain(tokenizer), eos


def train_tokenizer(spec: str, source: Local | Hub, root: Path, holdout: float, on_error: str) -> tuple[Tokenizer, int]:
    """train:N, a byte-level BPE of N entries from the training side of the first shard's texts; kept under `root`.

    Raises ValueError.
    """
    size = spec.removeprefix(TRAIN)
    if not size.isdecimal():
        raise ValueError(f"workload.tokenizer={spec}: after {TRAIN} comes the number of entries, such as {TRAIN}512")
    shard = next(source.shards())

    def write(folder: Path) -> None:
        texts = (text for text in shard.texts(Skips(on_error)) if not held_out(text_sha256(text), holdout))
        tokens.train_tokenizer(texts, int(size)).save(str(folder / "tokenizer.json"))

    key = cache.digest([RECIPE, tokenizers.__version__, shard.identity, size, holdout, on_error])[:16]
    folder = cache.build_once(root / f"tokenizer-{key}", write)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokens.plain(tokenizer), tokenizer.token_to_id(tokens.EOS)
