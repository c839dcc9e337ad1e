"""The cache of compiled code follows every source: numba's own would go on with an old helper."""

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

import lowcomm.pulse
from lowcomm.pulse import jit

HELPER = "from deco import compiled\n\n@compiled\ndef half(x):\n    return x * {}\n"
USER = (
    "from deco import compiled\nfrom inner import half\n\n@compiled\ndef use(x):\n    return half(x)\nprint(use(10))\n"
)
DECORATORS = {
    "ours": "import pathlib, runpy\nmade = runpy.run_path({jit!r})['compiler']\n"
    "here = pathlib.Path(__file__).parent\ncompiled = made([here / n for n in ('deco.py', 'inner.py', 'outer.py')])\n",
    "numba's": "import numba\ncompiled = numba.njit(cache=True)\n",
}


@pytest.mark.parametrize("decorator", DECORATORS)
def test_a_changed_helper_in_another_file_is_compiled_again(decorator, tmp_path):
    """With numba's own cache the second answer is the first one: the test can fail."""
    (tmp_path / "deco.py").write_text(DECORATORS[decorator].format(jit=jit.__file__))
    (tmp_path / "outer.py").write_text(USER)
    answers = []
    for factor in (3, 5):
        (tmp_path / "inner.py").write_text(HELPER.format(factor))
        environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
        done = subprocess.run(
            [sys.executable, "-B", "outer.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append(int(done.stdout))
    assert answers == ([30, 50] if decorator == "ours" else [30, 30])
    assert list(tmp_path.glob("__pycache__/**/*.nbc"))


def test_every_compiled_function_is_cached_under_all_sources():
    """Also one that a later module adds: its file must be among the sources."""
    seen = 0
    for module in pkgutil.iter_modules(lowcomm.pulse.__path__):
        if module.name == "__main__":
            continue
        code = importlib.import_module(f"lowcomm.pulse.{module.name}")
        for name, value in vars(code).items():
            if isinstance(value, Dispatcher) and value.py_func.__module__ == code.__name__:
                assert Path(code.__file__).name in jit.SOURCES, f"{code.__name__}.{name}"
                assert "numba-" in str(value.stats.cache_path), f"{code.__name__}.{name} has another decorator"
                seen += 1
    assert seen > 20
