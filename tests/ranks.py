"""Run by torchrun for test_ranks: several small runs in one launch of processes."""

import sys
from pathlib import Path

import torch.distributed as dist

from lowcomm.train import Stopped
from tests.runs import ALGORITHMS, TINY, run_overrides


def overrides(folder: Path, name: str) -> list[str]:
    return [*TINY, *ALGORITHMS[name], f"run_dir={folder}"]


def main(folder: Path, cases: list[str]) -> None:
    dist.init_process_group("gloo")
    for case in cases:
        if case.endswith("-begin"):
            name = case.removesuffix("-begin")
            try:
                run_overrides([*overrides(folder / case, name), "stop_after=6"])
            except Stopped:
                continue
        if case.endswith("-moved"):
            run_overrides(overrides(folder / case, case.removesuffix("-moved")))
            continue
        run_overrides(overrides(folder / case, case))
        finished = False
        while not finished:
            try:
                run_overrides([*overrides(folder / f"{case}-pieces", case), "stop_after=3"])
                finished = True
            except Stopped:
                continue
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
