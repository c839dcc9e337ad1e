import errno
import subprocess
import sys

import pytest

from lowcomm.workloads import cache

WRITER = """
import sys, time
from pathlib import Path
from lowcomm.workloads import cache
def write(folder):
    with open(sys.argv[1] + "/builds", "a") as file:
        file.write("x")
    (folder / "a").write_text("half")
    time.sleep(0.3)
    (folder / "a").write_text("whole")
print((cache.build_once(Path(sys.argv[1]) / "made", write) / "a").read_text())
"""


def test_one_process_builds_and_the_others_wait(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [p.communicate()[0].strip() for p in started] == ["whole"] * 3
    assert (tmp_path / "builds").read_text() == "x"


def test_a_build_that_fails_leaves_nothing_that_looks_finished(tmp_path):
    def fails(folder):
        (folder / "a").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cache.build_once(tmp_path / "made", fails)
    assert not (tmp_path / "made").exists()
    made = cache.build_once(tmp_path / "made", lambda folder: (folder / "b").write_text("whole"))
    assert [f.name for f in made.iterdir()] == ["b"]


def test_a_full_disk_and_a_place_that_is_none_are_said_with_the_remedy(tmp_path):
    def fills(folder):
        (folder / "a").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    remedy = "free some space there, or set LOWCOMM_CACHE to another folder"
    with pytest.raises(OSError, match=rf"the cache {tmp_path} can't be written \(No space left on device\); {remedy}"):
        cache.build_once(tmp_path / "made", fills)
    assert [f.name for f in tmp_path.iterdir()] == ["made.lock"], "what is half there would fill the disk for ever"
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="the cache .*/file can't be written"):
        cache.build_once(tmp_path / "file" / "made", fills)


def test_what_is_there_is_not_built_again(tmp_path):
    cache.build_once(tmp_path / "made", lambda folder: None)
    cache.build_once(tmp_path / "made", lambda folder: pytest.fail("built twice"))


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOWCOMM_CACHE", raising=False)
    assert cache.root(None) == tmp_path / ".cache/lowcomm"
    monkeypatch.setenv("LOWCOMM_CACHE", str(tmp_path / "env"))
    assert cache.root(None) == tmp_path / "env"
    assert cache.root("given") == tmp_path / "given"
