import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lowcomm.workloads import tokens
from tests.workloads.conftest import prose


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokens.plain(tokens.train_tokenizer([prose(i) for i in range(20)], 300))


def eos(tokenizer: Tokenizer) -> int:
    return tokenizer.token_to_id(tokens.EOS)


def read(folder, side: str) -> list[int]:
    return np.load(folder / f"{side}.npy").tolist()


def test_any_text_can_be_encoded_and_decoded(tokenizer):
    for text in ("ü\u0000\U0001f600\r\n\t x", " leading", "x" * 300, "a  b\n\n\n"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_training_is_deterministic_and_fills_the_vocabulary():
    texts = [prose(i) for i in range(20)]
    first, second = tokens.train_tokenizer(texts, 300), tokens.train_tokenizer(texts, 300)
    assert first.to_str() == second.to_str()
    assert first.get_vocab_size() == 300


def test_training_stops_reading_when_it_has_enough():
    read = []

    def texts():
        for i in range(1000):
            read.append(i)
            yield "word " * 20_000

    tokens.train_tokenizer(texts(), 300)
    assert len(read) == -(-300 * tokens.TRAIN_BYTES_PER_ENTRY // 100_000)


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [
        (["a"], 256, "vocab_size=256"),
        ([], 300, "no text"),
        ([""], 300, "no text"),
    ],
)
def test_tokenizers_that_cannot_be_trained(texts, size, message):
    with pytest.raises(ValueError, match=message):
        tokens.train_tokenizer(texts, size)


def test_each_document_ends_with_eos_and_nothing_else_does(tokenizer, tmp_path):
    """No BOS, one EOS a document, also when the text spells the token; split by the flag."""
    documents = [(f"one {tokens.EOS} two", False), ("three", True), (tokens.EOS, False)]
    counts = tokens.write_tokens(documents, tokenizer, eos(tokenizer), tmp_path, np.dtype("<u2"))
    train, heldout = read(tmp_path, "train"), read(tmp_path, "heldout")
    assert [train.count(eos(tokenizer)), heldout.count(eos(tokenizer))] == [2, 1]
    assert tokenizer.decode(train, skip_special_tokens=False) == f"one {tokens.EOS} two" + 3 * tokens.EOS
    assert tokenizer.decode(heldout) == "three"
    assert counts == {
        "train_tokens": len(train),
        "heldout_tokens": len(heldout),
        "train_documents": 2,
        "heldout_documents": 1,
        "complete": True,
    }


def test_a_tokenizer_that_cuts_and_pads_does_not_here(tmp_path):
    trained = tokens.train_tokenizer([prose(i) for i in range(20)], 300)
    trained.enable_truncation(4)
    trained.enable_padding(length=50)
    text = prose(1)
    tokens.write_tokens([(text, False)], tokens.plain(trained), 0, tmp_path, np.dtype("<u2"))
    assert tokens.plain(trained).decode(read(tmp_path, "train")[:-1]) == text


def test_the_limit_cuts_after_a_document(tokenizer, tmp_path):
    documents = [(prose(i), False) for i in range(10)]
    lengths = [len(tokenizer.encode(text).ids) + 1 for text, _ in documents]
    counts = tokens.write_tokens(documents, tokenizer, 0, tmp_path, np.dtype("<u2"), limit=lengths[0] + lengths[1])
    assert (counts["train_documents"], counts["complete"]) == (2, False)
    counts = tokens.write_tokens(documents, tokenizer, 0, tmp_path, np.dtype("<u2"), limit=lengths[0] + lengths[1] + 1)
    assert (counts["train_documents"], counts["complete"]) == (3, False)


def test_groups_do_not_change_the_tokens(tokenizer, tmp_path, monkeypatch):
    documents = [(prose(i), i % 3 == 0) for i in range(10)]
    tokens.write_tokens(documents, tokenizer, 0, tmp_path, np.dtype("<u2"))
    whole = read(tmp_path, "train"), read(tmp_path, "heldout")
    monkeypatch.setattr(tokens, "GROUP", 1)
    tokens.write_tokens(documents, tokenizer, 0, tmp_path, np.dtype("<u2"))
    assert (read(tmp_path, "train"), read(tmp_path, "heldout")) == whole


def test_large_vocabularies_take_four_bytes():
    assert tokens.token_dtype(65536) == np.uint16
    assert tokens.token_dtype(65537) == np.uint32


@settings(max_examples=60)
@given(st.lists(st.integers(0, 30), max_size=6), st.integers(2, 9), st.data())
def test_windows_read_the_files_as_one_stream(lengths, length, data):
    stream = np.arange(sum(lengths))
    ends = np.cumsum(lengths)
    files = [stream[end - n : end].astype(np.uint16) for n, end in zip(lengths, ends, strict=True)]
    windows = tokens.Windows(files, length)
    assert (windows.tokens, len(windows)) == (len(stream), len(stream) // length)
    if len(windows):
        index = np.array(data.draw(st.lists(st.integers(0, len(windows) - 1), min_size=1, max_size=5)))
        rows = windows.rows(index)
        assert rows.dtype == np.int64
        assert np.array_equal(rows, stream[: len(windows) * length].reshape(-1, length)[index])


def test_windows_stop_at_the_limit():
    assert len(tokens.Windows([np.arange(100)], 10, limit=35)) == 3
    assert len(tokens.Windows([np.arange(20)], 10, limit=35)) == 2


@pytest.mark.parametrize("damage", ["cut", "count", "noise", "gone"])
def test_damaged_token_files_are_named(tokenizer, tmp_path, damage):
    counts = tokens.write_tokens([(prose(1), False)], tokenizer, 0, tmp_path, np.dtype("<u2"))
    file, count = tmp_path / "train.npy", counts["train_tokens"]
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-10])
    if damage == "noise":
        file.write_bytes(b"noise" * 100)
    if damage == "gone":
        file.unlink()
    with pytest.raises(ValueError, match=r"train\.npy: a damaged token file"):
        tokens.open_tokens(file, count + (damage == "count"))
