"""What the README tells a reader to type works: commands compose and train, code runs, targets and files exist."""

import re
import shlex
import subprocess
from pathlib import Path
from pkgutil import resolve_name

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from lowcomm.config import checked, load_config
from lowcomm.train import run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
# "```bash\nmake test  # note\n```" -> ["make test"], continued lines joined
LINES = [
    shlex.split(line, comments=True)
    for block in re.findall(r"^```bash\n(.*?)^```", README, re.M | re.S)
    for line in block.replace("\\\n", " ").splitlines()
]
MODULES = [words[words.index("-m") + 1 :] for words in LINES if "-m" in words]
TRAIN = [" ".join(words[1:]) for words in MODULES if words[0] == "lowcomm.train"]
REPRODUCE = [" ".join(words[1:]) for words in MODULES if words[0] == "lowcomm.reproduce"]
TINY = ["scale.steps=2", "scale.eval_every=2", "scale.eval_samples=4", "scale.batch=4", "logger.progress=false"]


def overrides_of(command: str) -> list[str]:
    """Overrides of a command; of a sweep, the first value of each."""
    overrides = [word for word in shlex.split(command) if "=" in word]
    parsed = OverridesParser.create().parse_overrides(overrides)
    return [f"{o.get_key_element()}={next(o.sweep_string_iterator())}" if o.is_sweep_override() else o.input_line
            for o in parsed]  # fmt: skip


def runs_here(command: str) -> bool:
    """It trains, on two cores, without data of one's own."""
    return not re.search(r"scale=(gpu|paper)|workload=(dclm|imagenet)|--cfg", command)


def test_the_readme_has_commands() -> None:
    assert len(TRAIN) >= 8
    assert REPRODUCE
    assert len(README.splitlines()) < 250


@pytest.mark.parametrize("command", TRAIN)
def test_training_command_composes(command: str) -> None:
    checked(load_config(overrides_of(command)))


@pytest.mark.parametrize("command", [c for c in TRAIN if runs_here(c)])
def test_training_command_trains(command: str, tmp_path: Path) -> None:
    overrides = overrides_of(command)
    batch = max([4] + [int(o.partition("=")[2]) for o in overrides if o.startswith("workers=")])
    overrides += [*TINY, f"scale.batch={batch}", f"run_dir={tmp_path}"]
    record = run(checked(load_config(overrides)), overrides)
    assert record["outcome"]["metrics"]["loss"] > 0


@pytest.mark.parametrize("command", REPRODUCE)
def test_reproduction_command_composes(command: str) -> None:
    load_config([word for word in command.split() if "=" in word], primary="reproduce")


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```", README, re.M | re.S))
def test_python_example_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_make_targets_exist_and_are_listed() -> None:
    named = {word for words in LINES if words and words[0] == "make" for word in words[1:] if "=" not in word}
    phony = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.M)[1].split())
    listed = set(re.findall(r"^  make (\S+)", subprocess.check_output(["make", "help"], cwd=ROOT, text=True), re.M))
    assert listed == phony
    assert named <= listed
    assert len(MAKEFILE.splitlines()) < 80


@pytest.mark.parametrize("document", ["README.md", "DEVIATIONS.md"])
def test_what_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    paths = re.findall(r"\]\(([^)#:]+)\)", text)
    paths += re.findall(r"`((?:conf|src|tests|bench|tools|paper_figures|notebooks)/[^`*<{: ]*)", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for module, name in re.findall(r"`src/([\w/]+)\.py::([\w.]+)`", text):
        assert resolve_name(f"{module.replace('/', '.')}:{name}")
    for name in re.findall(r"`(lowcomm(?:\.\w+)+)", text):
        assert resolve_name(name)
