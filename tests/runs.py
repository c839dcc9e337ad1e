"""Small real runs for the tests: the door's own functions on a tiny model, from overrides to a record."""

from pathlib import Path

from safetensors.torch import load_file

from lowcomm.tracking import read_metrics
from lowcomm.train import Stopped, run_overrides

TINY = [
    "model=vit-tiny", "model.config.hidden_size=16", "model.config.num_hidden_layers=1",
    "model.config.intermediate_size=32", "model.config.num_attention_heads=2", "workload=digits", "scale=smoke",
    "scale.steps=10", "scale.batch=8", "scale.eval_every=4", "scale.eval_samples=40", "scale.eval_batch=40",
    "scale.checkpoint_every=3", "logger.progress=false",
]  # fmt: skip

ALGORITHMS = {
    "adamw": ["algorithm=adamw"],
    "adamw-W4": ["algorithm=adamw", "workers=4"],
    "schedule-free": ["algorithm=schedule-free"],
    "gpa": ["algorithm=gpa"],
    "diloco": ["algorithm=diloco", "algorithm.inner_steps=4"],
    "diloco-W4": ["algorithm=diloco", "algorithm.inner_steps=4", "workers=4"],
    "dareloco-W4": ["algorithm=dareloco", "algorithm.inner_steps=4", "workers=4", "state=disk"],
    "isoloco-gpa-W4": ["algorithm=isoloco", "algorithm/inner=gpa", "algorithm.inner_steps=4", "workers=4"],
}


def run(folder: Path, *overrides: str) -> tuple[dict, list[dict], dict]:
    """(weights, metrics without times, record) of a run in `folder`."""
    record = run_overrides([*TINY, f"run_dir={folder}", *overrides])
    return load_file(folder / "weights.safetensors"), metrics(folder), record


def run_in_pieces(folder: Path, piece: int, *overrides: str) -> tuple[dict, list[dict], dict]:
    """The same, stopped and started again after every `piece` ticks."""
    while True:
        try:
            return run(folder, f"stop_after={piece}", *overrides)
        except Stopped:
            continue


def metrics(folder: Path) -> list[dict]:
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in read_metrics(folder)]
