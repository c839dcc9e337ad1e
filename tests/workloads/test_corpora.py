import pytest

from lowcomm.workloads import corpora
from tests.workloads.conftest import prose


def test_the_real_standard_library():
    names = [name for name, _ in corpora.corpus_files("stdlib")]
    assert names == sorted(names)
    assert {"stdlib/os.py", "stdlib/json/decoder.py", "stdlib/argparse.py"} <= set(names)
    assert len(names) > 500
    parts = [set(name.split("/")) for name in names]
    assert not any({"test", "tests", "idle_test", "lib2to3", "site-packages"} & p for p in parts)
    assert not any("_sysconfigdata" in name or "sitecustomize" in name or name.startswith("/") for name in names)


def test_packages():
    names = [name for name, _ in corpora.package_files("sympy")]
    assert "sympy/core/basic.py" in names
    assert not any("/tests/" in name for name in names)


def test_a_package_that_is_not_there(monkeypatch):
    monkeypatch.setattr(corpora, "PACKAGES", ("no_such_package_here",))
    with pytest.raises(ValueError, match="no_such_package_here is not installed"):
        corpora.corpus_files("stdlib+packages")


def test_copies_empty_files_and_other_encodings_are_left_out(sources):
    (sources / "copy.py").write_text(prose(3))  # of module03, before it in order
    (sources / "empty.py").write_text("")
    (sources / "latin.py").write_bytes("# caf\xe9".encode("latin-1"))
    found = corpora.read_sources("stdlib")
    assert len(found) == 40
    names = {source.name for source in found}
    assert "stdlib/copy.py" in names
    assert not {"stdlib/module03.py", "stdlib/empty.py", "stdlib/latin.py"} & names


def test_the_split_is_by_content():
    digests = [corpora.text_sha256(prose(i)) for i in range(2000)]
    held = sum(corpora.held_out(d, 0.2) for d in digests)
    assert 340 < held < 460
    smaller = {d for d in digests if corpora.held_out(d, 0.1)}
    assert smaller < {d for d in digests if corpora.held_out(d, 0.2)}
