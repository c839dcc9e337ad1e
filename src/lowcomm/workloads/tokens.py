"""Text to tokens to windows: tokenizers, token files (flat `.npy`), and reading fixed-length windows from them."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EOS = "<|endoftext|>"  # of tokenizers trained here
TRAIN_BYTES_PER_ENTRY = 8192  # text shown to the BPE trainer for each entry: beyond, merges hardly change, time grows
GROUP = 1 << 20  # characters tokenized at once: bounds memory, feeds every thread


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE: 256 bytes, `EOS`, and merges up to `vocab_size`. Every text can be encoded; deterministic.

    Takes texts until they make 8 KiB for each entry of the vocabulary.

    Raises ValueError.
    """
    if vocab_size < 257:
        raise ValueError(f"vocab_size={vocab_size}: byte-level BPE needs 256 bytes and an end-of-text token, so 257")
    shown, total = [], 0
    for text in texts:
        shown.append(text)
        total += len(text)
        if total >= vocab_size * TRAIN_BYTES_PER_ENTRY:
            break
    if not total:
        raise ValueError("no text to train a tokenizer on: every document is empty or held out; lower workload.holdout")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        shown,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[EOS],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return tokenizer


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer for whole documents: nothing cut or padded, text that spells a special token stays text."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def token_dtype(vocab_size: int) -> np.dtype:
    """Little-endian unsigned integers of 2 bytes, or of 4 where the vocabulary needs them."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class TokenFile:
    """Writes a flat `.npy` token by token in bounded memory; the header is written again when the count is known."""

    def __init__(self, path: Path, dtype: np.dtype):
        self._file, self._dtype, self.count = path.open("wb"), dtype, 0
        self._header()

    def append(self, ids: list[int]) -> None:
        """Tokens of one document."""
        self._file.write(np.asarray(ids, dtype=self._dtype).tobytes())
        self.count += len(ids)

    def close(self) -> None:
        """Write the count into the header."""
        self._file.seek(0)
        self._header()
        self._file.close()

    def _header(self) -> None:  # NumPy pads headers so that the count can grow in place
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.count,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def write_tokens(
    documents: Iterable[tuple[str, bool]],
    tokenizer: Tokenizer,
    eos: int,
    folder: Path,
    dtype: np.dtype,
    limit: int | None = None,
) -> dict[str, int | bool]:
    """Tokenizes (text, is held out) into `train.npy` and `heldout.npy`: no BOS, `eos` after each document.

    Stops after the document with which the training side reaches `limit` tokens. Returns the counts and whether
    every document was read.
    """
    train, heldout = TokenFile(folder / "train.npy", dtype), TokenFile(folder / "heldout.npy", dtype)
    texts = {False: 0, True: 0}
    complete = True
    for ids, held in _encode(documents, tokenizer):
        (heldout if held else train).append([*ids, eos])
        texts[held] += 1
        if limit is not None and train.count >= limit:
            complete = False
            break
    train.close()
    heldout.close()
    return {
        "train_tokens": train.count,
        "heldout_tokens": heldout.count,
        "train_documents": texts[False],
        "heldout_documents": texts[True],
        "complete": complete,
    }


def _encode(documents: Iterable[tuple[str, bool]], tokenizer: Tokenizer) -> Iterator[tuple[list[int], bool]]:
    group: list[tuple[str, bool]] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document[0])
        if size >= GROUP:
            yield from _encode_group(group, tokenizer)
            group, size = [], 0
    yield from _encode_group(group, tokenizer)


def _encode_group(group: list[tuple[str, bool]], tokenizer: Tokenizer) -> Iterator[tuple[list[int], bool]]:
    encodings = tokenizer.encode_batch_fast([text for text, _ in group], add_special_tokens=False)
    return ((encoding.ids, held) for encoding, (_, held) in zip(encodings, group, strict=True))


def open_tokens(path: Path, count: int) -> np.ndarray:
    """`(count,)` tokens, mapped from the file and not read into memory. Raises ValueError."""
    expected = f"{path.parent.name}/{path.name}: a damaged token file (expected {count} tokens); delete its folder"
    try:
        tokens = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:  # ValueError: cut short, or no .npy
        raise ValueError(expected) from error
    if tokens.shape != (count,):
        raise ValueError(expected)
    return np.asarray(tokens)  # a plain view of the map: slicing np.memmap is several times slower


def file_sha256(path: Path) -> str:
    """Of a file's bytes, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Windows:
    """Windows of `length` tokens of the files' tokens read as one stream: window i is tokens i*length to (i+1)*length.

    `limit`: use the first `limit` tokens only. What does not fill a window at the end is not used.
    """

    def __init__(self, files: list[np.ndarray], length: int, limit: int | None = None):
        files = [tokens for tokens in files if len(tokens)]
        self._ends = np.cumsum([len(tokens) for tokens in files], dtype=np.int64)
        self._files, self._length = files, length
        self.tokens = int(self._ends[-1]) if files else 0
        if limit is not None:
            self.tokens = min(self.tokens, limit)

    def __len__(self) -> int:
        return self.tokens // self._length

    def rows(self, index: np.ndarray) -> np.ndarray:
        """int64 `(len(index), length)`."""
        out = np.empty((len(index), self._length), dtype=np.int64)
        starts = index * self._length
        for row, start, file in zip(out, starts, np.searchsorted(self._ends, starts, side="right"), strict=True):
            filled = 0
            while filled < self._length:
                tokens = self._files[file]
                offset = start + filled - (self._ends[file] - len(tokens))
                part = tokens[offset : offset + self._length - filled]
                row[filled : filled + len(part)] = part
                filled += len(part)
                file += 1
        return out
