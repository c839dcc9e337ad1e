"""The RL door as a person uses it: help and mistakes, before anything heavy is imported."""

import subprocess
import sys


def door(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lowcomm.rl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def test_help_names_the_groups_and_examples():
    done = door("--help")
    assert done.returncode == 0
    for word in ("algorithm: adamw, ", "pulsesync", "rollout: inline, transformers, vllm", "smollm2-135m", "-m"):
        assert word in done.stdout, word


def test_a_mistake_is_one_line_without_a_traceback():
    done = door("scale.micro_batchs=2")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "scale.micro_batch" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_door_loads_neither_torch_nor_trl():
    code = "import sys, lowcomm.rl; assert not {'torch', 'trl', 'hydra'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=280).returncode == 0
