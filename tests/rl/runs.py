"""Small real RL runs: the door's own functions on a random model of 0.1 M parameters, from overrides to a record."""

from pathlib import Path

from safetensors.torch import load_file

from lowcomm.rl import run_overrides
from lowcomm.tracking import read_metrics
from lowcomm.train import Stopped

TINY = [
    "model.config.hidden_size=16", "model.config.intermediate_size=32", "model.config.num_attention_heads=2",
    "scale.steps=4", "scale.checkpoint_every=1", "scale.eval_every=2", "scale.eval_problems=2",
    "scale.max_completion=4", "scale.micro_batch=4", "algorithm.inner.lr=1e-3", "horizons=[1,2,4]",
    "prompt=boxed_user", "meters=[density,groups,horizons,formats,bounds]", "logger.progress=false",
]  # fmt: skip


def run(folder: Path, *overrides: str) -> tuple[dict, list[dict], dict]:
    """(weights, metrics without times, record) of a run in `folder`."""
    record = run_overrides([*TINY, f"run_dir={folder}", *overrides])
    return load_file(folder / "weights.safetensors"), metrics(folder), record


def run_in_pieces(folder: Path, *overrides: str) -> tuple[dict, list[dict], dict]:
    """The same, stopped and started again after every step."""
    while True:
        try:
            return run(folder, "stop_after=1", *overrides)
        except Stopped:
            continue


def metrics(folder: Path) -> list[dict]:
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in read_metrics(folder)]


def same(a: dict, b: dict) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(a[n].equal(b[n]) for n in a)
