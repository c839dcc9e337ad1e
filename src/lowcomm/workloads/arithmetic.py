"""Arithmetic problems with their answers as text: what a small model is pretrained on before reinforcement learning."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from lowcomm.byte_tokenizer import EOS, SIZE, byte_tokenizer
from lowcomm.tasks.arithmetic import LEVELS, RECIPE, check_levels, texts
from lowcomm.tasks.prompts import plain_text
from lowcomm.workloads.cache import digest
from lowcomm.workloads.causal import CausalText
from lowcomm.workloads.tokens import Windows


class ArithmeticText(CausalText):
    r"""Texts such as `What is 3 + 8?\n\boxed{11}`, in the form of the prompt style "none".

    A window holds as many whole texts as fit, each with its end-of-text token, and is filled up with that token, so
    that one text in four or five stands at the beginning, as a prompt does.

    Args:
        name: what the record calls it.
        levels: of difficulty, see `lowcomm.tasks.Arithmetic`.
        documents, heldout_documents: texts to train and to evaluate on; problems repeat, the more so at low levels.
        test_share: of `lowcomm.tasks.Arithmetic`; with the same one no text of a test problem is trained on.
        seq_len: tokens of a window, at least 24.
        vocab_size: of the model; the tokenizer has 264 entries.
        seed: order of the training windows. The texts do not depend on it.
    """

    def __init__(
        self,
        *,
        name: str,
        seed: int,
        levels: Sequence[int] = (1, 2, 3),
        documents: int = 32768,
        heldout_documents: int = 2048,
        test_share: float = 0.25,
        seq_len: int = 64,
        vocab_size: int = 264,
    ):
        check_levels(levels)
        if documents < 1 or heldout_documents < 1:
            raise ValueError(f"documents={documents}, heldout_documents={heldout_documents}: both must be at least 1")
        if not 0 < test_share < 1:
            raise ValueError(f"test_share={test_share}: a share of the problems, between 0 and 1")
        if seq_len < 24:
            raise ValueError(f"seq_len={seq_len}: at least 24, the tokens of the longest text")
        if vocab_size < SIZE:
            raise ValueError(f"vocab_size={vocab_size}: at least {SIZE}, the entries of the tokenizer")
        tokenizer = byte_tokenizer()
        self.vocab_size, self._levels, self._share = vocab_size, tuple(levels), test_share
        self._documents = {"train": documents, "heldout": heldout_documents}
        self._hashes, windows = {}, {}
        for split, count in self._documents.items():
            pairs = islice(texts(0, self._levels, test_share, split == "heldout"), count)
            encoded = tokenizer.encode_batch([plain_text(*pair) for pair in pairs])
            tokens = packed((text.ids for text in encoded), tokenizer.token_to_id(EOS), seq_len)
            self._hashes[f"{split}_sha256"] = digest(tokens.tolist())
            windows[split] = Windows([tokens], seq_len)
        super().__init__(name, windows["train"], windows["heldout"], seq_len, seed, "raise workload.documents")

    def describe(self) -> dict[str, Any]:
        return (
            super().describe()
            | {
                "revision": f"generated, recipe {RECIPE}",
                "levels": {level: LEVELS[level] for level in self._levels},
                "test_share": self._share,
                "documents": self._documents["train"],
                "heldout_documents": self._documents["heldout"],
                "vocab_size": self.vocab_size,
                "tokenizer": "bytes and six pieces",
            }
            | self._hashes
        )


def packed(texts: Iterable[list[int]], eos: int, length: int) -> np.ndarray:
    """uint16 `(windows * length,)`: whole texts, each followed by `eos`; what is left of a window is `eos` too."""
    rows, row = [], []
    for ids in texts:
        if len(row) + len(ids) + 1 > length:
            rows.append(row + [eos] * (length - len(row)))
            row = []
        row += [*ids, eos]
    rows.append(row + [eos] * (length - len(row)))
    return np.asarray(rows, dtype="<u2").reshape(-1)
