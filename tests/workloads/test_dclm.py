"""Dclm on shards made here, in the form of DCLM-Baseline's."""

import json
import os

import datasets
import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from lowcomm.workloads import Dclm, web
from lowcomm.workloads.corpora import held_out, text_sha256
from lowcomm.workloads.tokens import train_tokenizer
from tests.workloads.conftest import prose, zst

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def shards(tmp_path):
    """Three shards of twenty documents, one of them in every shard."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for s in range(3):
        texts = [*(prose(20 * s + i) for i in range(20)), prose(999)]
        zst(folder / f"shard_{s}_processed.jsonl.zst", [json.dumps({"text": t, "url": "u"}).encode() for t in texts])
    return folder


@pytest.fixture
def make(shards, tmp_path):
    def make(**changes):
        given = {"name": "dclm", "path": str(shards), "seq_len": 16, "seed": 1, "cache_dir": str(tmp_path / "cache")}
        return Dclm(**(given | {"tokenizer": "train:300", "vocab_size": 300, "holdout": 0.3} | changes))

    return make


@pytest.fixture
def tokenizer():
    return train_tokenizer([prose(i) for i in range(20)], 280)


def stream(workload, split: str) -> list[int]:
    return np.concatenate([entry.open(split) for entry in workload._entries]).tolist()


def texts(workload, split: str, tmp_path) -> list[str]:
    folder = next(p for p in (tmp_path / "cache").glob("tokenizer-*") if p.is_dir())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    eos = "<|endoftext|>"
    return tokenizer.decode(stream(workload, split), skip_special_tokens=False).removesuffix(eos).split(eos)


def test_documents_are_concatenated_in_order_and_copies_stay_together(make, tmp_path):
    workload = make()
    train, heldout = texts(workload, "train", tmp_path), texts(workload, "heldout", tmp_path)
    expected = [prose(n) for s in range(3) for n in (*range(20 * s, 20 * s + 20), 999)]
    assert sorted(train + heldout) == sorted(expected)
    assert train == [t for t in expected if t in set(train)]
    assert not set(train) & set(heldout)
    told = workload.describe()
    assert (told["documents"], told["heldout_documents"], told["shards"]) == (len(train), len(heldout), 3)


def test_windows_are_cut_from_the_stream_across_shards(make):
    workload = make()
    n = workload.describe()["windows"]
    rows = np.concatenate([workload.batch(0, 1, step, 1)["input_ids"] for step in range(n)])
    windows = np.array(stream(workload, "train")[: n * 16]).reshape(n, 16)
    assert sorted(rows.tolist()) == sorted(windows.tolist())


@pytest.mark.parametrize("build_before", [(), (None,), (500, None), (None, 500), (3000,)])
def test_a_token_budget_gives_the_same_whatever_was_built_before(make, tmp_path, build_before):
    for tokens in build_before:
        make(tokens=tokens)
    told = make(tokens=2000)
    fresh = make(tokens=2000, cache_dir=str(tmp_path / "fresh"))
    assert told.describe() == fresh.describe()
    assert told.describe()["tokens"] == 2000
    assert [stream(told, s) for s in ("train", "heldout")] == [stream(fresh, s) for s in ("train", "heldout")]
    whole = make()
    assert stream(whole, "train")[:2000] == stream(told, "train")[:2000]


def test_a_budget_reads_no_more_shards_than_it_needs(make):
    assert make(tokens=500).describe()["shards"] == 1
    with pytest.raises(ValueError, match="tokens=1000000: the training side has only"):
        make(tokens=1_000_000)


def test_an_interrupted_build_goes_on_with_the_next_shard(make, shards, monkeypatch):
    bad = shards / "shard_1_processed.jsonl.zst"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-7])
    with pytest.raises(ValueError, match=r"shard_1_processed\.jsonl\.zst, after line \d+: .*middle"):
        make()
    bad.write_bytes(whole)
    build, built = web.ShardCache._build, []

    def spy(self, shard, *rest):
        built.append(shard.name)
        return build(self, shard, *rest)

    monkeypatch.setattr(web.ShardCache, "_build", spy)
    make()
    assert built == ["shard_1_processed.jsonl.zst", "shard_2_processed.jsonl.zst"]
    make()
    assert len(built) == 2


def test_a_changed_shard_is_read_again(make, shards):
    before = make().describe()
    zst(shards / "shard_2_processed.jsonl.zst", [json.dumps({"text": prose(5000 + i)}).encode() for i in range(20)])
    after = make().describe()
    assert before["manifest_sha256"] != after["manifest_sha256"]
    assert before["train_sha256"] != after["train_sha256"]


def test_skipped_documents_are_in_the_record(make, shards):
    lines = [b"{", b'{"text": 1}', b'{"body": ""}', json.dumps({"text": prose(1)}).encode()]
    (shards / "z.jsonl").write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match="z.jsonl, line 1: not JSON"):
        make()
    told = make(on_error="skip").describe()
    assert told["skipped"] == {"invalid_json": 1, "not_text": 1, "missing_field": 1}


def test_the_record_has_no_path(make, tmp_path, tokenizer):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    told = make(tokenizer=str(tmp_path / "tokenizer.json"), eos_token="<|endoftext|>").describe()
    assert str(tmp_path) not in json.dumps(told)
    assert told["tokenizer"] == "tokenizer.json"


def test_tokenizer_from_file_and_folder_give_the_same(make, tmp_path, tokenizer):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(tmp_path / "folder")
    from_file = make(tokenizer=str(tmp_path / "tokenizer.json"), eos_token="<|endoftext|>")
    from_folder = make(tokenizer=str(tmp_path / "folder"))
    assert stream(from_file, "train") == stream(from_folder, "train")


def test_a_tokenizer_that_adds_tokens_does_not_here(make, tmp_path, tokenizer):
    """No BOS: the paper's stream has only EOS between documents."""
    from tokenizers.processors import TemplateProcessing

    tokenizer.save(str(tmp_path / "plain.json"))
    tokenizer.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    tokenizer.save(str(tmp_path / "adds.json"))
    plain, adds = (make(tokenizer=str(tmp_path / f"{n}.json"), eos_token="<|endoftext|>") for n in ("plain", "adds"))
    assert stream(plain, "train") == stream(adds, "train")


def test_tokenizers_that_cannot_be_used(make, tmp_path, tokenizer):
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    with pytest.raises(ValueError, match="does not say which token ends a text; set workload.eos_token"):
        make(tokenizer=str(file))
    with pytest.raises(ValueError, match="eos_token=</s>: not in the vocabulary"):
        make(tokenizer=str(file), eos_token="</s>")
    with pytest.raises(ValueError, match="vocab_size=279: the tokenizer .* has 280 entries"):
        make(tokenizer=str(file), eos_token="<|endoftext|>", vocab_size=279)
    with pytest.raises(ValueError, match=r"tokenizer_revision=None: the tokenizer some/where \(no such local"):
        make(tokenizer="some/where")
    with pytest.raises(ValueError, match="tokenizer=train:many"):
        make(tokenizer="train:many")


@pytest.fixture
def hub(monkeypatch):
    """The hub's place is taken by a stream of 25 rows, in portions of 10."""
    asked = []

    def load_dataset(name, *, revision, split, streaming):
        asked.append((name, revision, split, streaming))
        rows = [{"text": prose(i), "url": "u"} for i in range(25)]
        return datasets.IterableDataset.from_generator(lambda: iter(rows))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(web, "HUB_ROWS", 10)
    return asked


def test_the_hub_is_streamed_and_cached(make, hub, tmp_path):
    given = {"path": None, "hub": "a/b", "revision": SHA, "holdout": 0.2}
    with pytest.raises(ValueError, match="has only"):
        make(**given, tokens=1_000_000)
    assert hub == [("a/b", SHA, "train", True)] * 2  # once for the tokenizer, once for all portions
    available = sum(len(np.load(f)) for f in (tmp_path / "cache").glob("shard-*/train.npy"))
    workload = make(**given, tokens=available)
    assert len(hub) == 3  # the last portion alone, up to the document that fills the budget
    assert workload.describe()["shards"] == 3
    train = texts(workload, "train", tmp_path)
    assert train == [t for t in map(prose, range(25)) if not held_out(text_sha256(t), 0.2)]
    assert not set(train) & set(texts(workload, "heldout", tmp_path))
    fewer = make(**given, tokens=available // 3)
    assert stream(fewer, "train")[: available // 3] == stream(workload, "train")[: available // 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": None}, "path=None, hub=None: give one"),
        ({"hub": "a/b"}, "hub=a/b: give one"),
        ({"path": None, "hub": "a/b", "tokens": 100}, "workload.revision=None: the dataset a/b must be pinned"),
        ({"path": None, "hub": "a/b", "revision": "main", "tokens": 100}, "workload.revision=main"),
        ({"path": None, "hub": "a/b", "revision": SHA}, "tokens=null"),
        ({"on_error": "ignore"}, "on_error=ignore"),
        ({"max_line_bytes": 0}, "max_line_bytes=0"),
        ({"tokens": 8}, "tokens=8: less than one window"),
        ({"seq_len": 1}, "seq_len=1"),
        ({"holdout": 1.5}, "holdout=1.5"),
    ],
)
def test_refusals(make, change, message):
    with pytest.raises(ValueError, match=message):
        make(**change)


def test_nothing_to_train_on(make, shards):
    for path in shards.iterdir():
        os.unlink(path)
    (shards / "empty.jsonl").write_bytes(b"\n")
    with pytest.raises(ValueError, match="no text to train a tokenizer on"):
        make()
