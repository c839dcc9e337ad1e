import json
import subprocess
import sys
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lowcomm.workloads.shards import Skips, documents, find_shards
from tests.workloads.conftest import zst

GOOD = [json.dumps({"text": t}).encode() for t in ("one", "zwö", "drei\nvier")]
TEXTS = ["one", "zwö", "drei\nvier"]


def read(path, on_error="raise", limit=1 << 20, field="text"):
    skips = Skips(on_error)
    return list(documents(path, path.name, field, limit, skips)), dict(skips.counts)


@pytest.fixture(params=[".jsonl", ".jsonl.zst", ".jsonl.zstd", ".parquet"])
def shard(request, tmp_path):
    path = tmp_path / f"a{request.param}"
    if request.param == ".jsonl":
        path.write_bytes(b"\n".join(GOOD))
    elif request.param == ".parquet":
        pq.write_table(pa.table({"text": TEXTS, "url": ["u"] * 3}), path)
    else:
        zst(path, GOOD)
    return path


def test_every_form_gives_the_same_texts(shard):
    assert read(shard) == (TEXTS, {})


def test_a_missing_field_names_shard_and_place(shard):
    with pytest.raises(ValueError, match=rf"{shard.name}, (line|row) 1: no field 'body' \(workload.field\), only text"):
        read(shard, field="body")
    assert read(shard, "skip", field="body") == ([], {"missing_field": 3})


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (b'{"text": "a"', "invalid_json", "line 2: not JSON"),
        (b"[" * 200_000, "invalid_json", "line 2: not JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "invalid_json", "line 2: not JSON"),
        (b'\xef\xbb\xbf{"text": "a"}', "invalid_json", "line 2: not JSON"),
        (b'"a"', "not_an_object", "line 2: a JSON str, not an object"),
        (b"null", "not_an_object", "line 2: a JSON NoneType, not an object"),
        (b'{"body": "a"}', "missing_field", "line 2: no field 'text'"),
        (b'{"text": 3}', "not_text", "line 2: field 'text' is int"),
        (b'{"text": null}', "not_text", "line 2: field 'text' is NoneType"),
        (b'{"text": "\xff"}', "not_utf8", "line 2: not UTF-8 at byte 10"),
        (b'{"text": "\\ud800"}', "not_utf8", "line 2: field 'text' holds half a surrogate pair"),
        (
            b'{"text": "' + b"a" * (1 << 20) + b'"}',
            "line_too_long",
            "line 2: longer than workload.max_line_bytes=1048576",
        ),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.zst"])
def test_bad_lines_are_named_or_counted(tmp_path, line, kind, message, suffix):
    path = tmp_path / f"bad{suffix}"
    if suffix == ".jsonl":
        path.write_bytes(GOOD[0] + b"\n" + line + b"\n" + GOOD[1] + b"\n")
    else:
        zst(path, [GOOD[0], line, GOOD[1]])
    with pytest.raises(ValueError, match=f"bad{suffix}, {message}.*workload.on_error=skip"):
        read(path)
    assert read(path, "skip") == (["one", "zwö"], {kind: 1})


def test_lines_up_to_the_limit_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD[0] + b"\n" + GOOD[0] + b" \n" + GOOD[0] + b" ")
    assert read(path, "skip", limit=len(GOOD[0])) == (["one"], {"line_too_long": 2})


def test_blank_lines_are_nothing_and_empty_texts_are_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n  \r\n" + GOOD[0] + b'\r\n{"text": ""}\n')
    assert read(path) == (["one"], {"empty": 1})


def test_every_cut_of_a_compressed_shard_is_noticed(tmp_path):
    """zstandard's own reader takes a cut file for its end, so an interrupted download would train on less, silently."""
    whole = tmp_path / "whole.jsonl.zst"
    zst(whole, [json.dumps({"text": f"text {i}"}).encode() for i in range(50)])
    raw = whole.read_bytes()
    for end in range(len(raw)):
        path = tmp_path / "cut.jsonl.zst"
        path.write_bytes(raw[:end])
        with pytest.raises(ValueError, match=r"cut\.jsonl\.zst, after line \d+: .*(in the middle|corrupt)"):
            read(path)
    texts, counts = read(path, "skip")
    assert (texts, counts) == ([f"text {i}" for i in range(len(texts))], {"corrupt_shard": 1})


@pytest.mark.parametrize("raw", [b"garbage" * 10, b"", GOOD[0]])
def test_what_is_not_zstd(tmp_path, raw):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="after line 0: the compressed shard"):
        read(path)


def test_several_frames_skippable_frames_and_garbage_after_them(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    compress = zstandard.ZstdCompressor().compress
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    path.write_bytes(compress(GOOD[0] + b"\n" + GOOD[1][:5]) + skippable + compress(GOOD[1][5:] + b"\n"))
    assert read(path) == (["one", "zwö"], {})
    path.write_bytes(path.read_bytes() + b"garbage")
    with pytest.raises(ValueError, match="after line 2: the compressed shard"):
        read(path)


def test_a_cut_parquet_file(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"] * 100}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"a\.parquet, after row 0: the file is cut or corrupt"):
        read(path)
    assert read(path, "skip") == ([], {"corrupt_shard": 1})


def test_parquet_nulls(tmp_path):
    pq.write_table(pa.table({"text": ["a", None, "b"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="row 2: field 'text' is NoneType"):
        read(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", "skip") == (["a", "b"], {"not_text": 1})


def test_a_bomb_is_read_in_bounded_memory(tmp_path):
    """512 MiB of zeros on one line, 16 KiB compressed."""
    bomb = zstandard.ZstdCompressor(level=19).compressobj()
    zeros = bytes(1 << 22)
    path = tmp_path / "bomb.jsonl.zst"
    path.write_bytes(b"".join(bomb.compress(zeros) for _ in range(128)) + bomb.flush())
    assert path.stat().st_size < 1 << 15
    tracemalloc.start()
    assert read(path, "skip") == ([], {"line_too_long": 1})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


def test_shards_are_found_below_and_sorted(tmp_path):
    for name in ("b.jsonl", "a/c.jsonl.zst", "a/b.jsonl.zstd", "README.md", ".jsonl.zst.tmp", "d.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [name for name, _ in find_shards(tmp_path)] == ["a/b.jsonl.zstd", "a/c.jsonl.zst", "b.jsonl", "d.parquet"]


def test_folders_without_shards(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        find_shards(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="there, the folder is empty; give the folder that holds some"):
        find_shards(tmp_path)
    (tmp_path / "a.json.gz").touch()
    with pytest.raises(ValueError, match=r"no shard \(.jsonl, .* there, there are 1 other files, such as a.json.gz"):
        find_shards(tmp_path)


def test_reading_shards_does_not_import_what_is_slow():
    code = "import sys, lowcomm.workloads; print({'datasets', 'pyarrow', 'sklearn', 'transformers'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "set()"
