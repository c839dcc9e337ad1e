"""The workload files of the RL door name every argument of their task, and nothing else."""

import inspect
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lowcomm import tasks
from lowcomm.blocks import build, check_block

FILES = [file for file in sorted((Path(__file__).parents[2] / "conf/rl/workload").glob("*.yaml"))
         if OmegaConf.load(file)._target_.startswith("lowcomm.tasks.")]  # fmt: skip


def test_every_task_has_a_file():
    assert {OmegaConf.load(file)._target_.rpartition(".")[2] for file in FILES} == {
        "Arithmetic",
        "Gsm8k",
        "Math",
        "Mbpp",
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_keys_are_arguments(file):
    block = OmegaConf.load(file)
    assert block.name == file.stem
    check_block("workload", block)
    target = getattr(tasks, block._target_.rpartition(".")[2])
    assert set(block) - {"_target_"} == set(inspect.signature(target).parameters) - {"seed"}


def test_arithmetic_builds_from_its_file():
    block = next(OmegaConf.load(file) for file in FILES if file.stem == "arithmetic")
    task = build("workload", block, seed=3)
    assert len(task.problems("test")) == block.test_size
    assert task.describe()["seed"] == 3
