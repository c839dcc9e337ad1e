"""What a run says of itself while it goes: `metrics.jsonl` always, a progress bar in a terminal, wandb on request.

    step            inner steps of every worker that the line stands for
    train/loss      nats, mean over all workers and the steps since the last line
    train/lr        rate of the last step
    eval/loss       nats, held-out split, at theta (outer loop), x (GPA, Schedule-Free) or the weights
    eval/accuracy   images only
    eval/n          predicted units of the evaluation
    outer/delta_norm, outer/cosine   norm of the aggregate; mean cosine between the workers' messages
    comm/bytes      bytes a worker sends, as serialised, in the round or step of this line
    comm/sent       entries that a worker sends through a gate; comm/sparsity, comm/sparsity_min, comm/sparsity_max: the
                    share it keeps back, mean, least and most over the workers
    outer/residual_norm   root mean square over the workers of the norm of what the gate keeps back
    time/seconds    of this session; time/units_per_s  tokens or images of all workers, since the last line

Every value but `time/*` is the same, bit for bit, whether or not the run was interrupted.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lowcomm.blocks import ConfigError
from lowcomm.schema import LoggerConfig


class Tracker:
    """Rank 0 writes; on other ranks every method does nothing."""

    def __init__(self, run_dir: Path, cfg: LoggerConfig, active: bool, unit: str, units_per_step: int, ticks: int):
        self.active, self.unit, self.units_per_step = active, unit, units_per_step
        self.started = self.last_time = time.perf_counter()
        self.last_step = 0
        self.path, self.file, self.bar, self.wandb = run_dir / "metrics.jsonl", None, None, None
        if not active:
            return
        self.file = self.path.open("ab")
        shown = cfg.progress and sys.stderr.isatty()
        self.bar = tqdm(total=ticks, unit="step", disable=not shown, dynamic_ncols=True)
        if cfg.wandb != "disabled":
            self.wandb = start_wandb(run_dir, cfg)

    def resume(self, step: int, ticks: int, position: int) -> None:
        """Forget the lines written after the checkpoint; `position` is the file's length in bytes at that time.

        Raises ValueError when the file is shorter: someone has cut or removed it.
        """
        self.last_step = step
        if self.active:
            if (size := os.fstat(self.file.fileno()).st_size) < position:
                raise ValueError(
                    f"{self.path}: {size} bytes where the checkpoint knows of {position}; "
                    "put the file back, or delete the run's folder to begin again"
                )
            self.file.truncate(position)
            self.bar.update(ticks)

    def tick(self) -> None:
        """One inner step of one of this rank's workers: what the bar counts, so that it moves within a long round."""
        if self.active:
            self.bar.update(1)

    def position(self) -> int:
        """Length of the metrics file in bytes, after everything is on the disk."""
        if not self.active:
            return 0
        self.file.flush()
        os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size

    def log(self, step: int, values: dict[str, float]) -> None:
        """One line of `metrics.jsonl`: the step, the values, seconds so far, units per second since the last line."""
        if not self.active:
            return
        now = time.perf_counter()
        speed = (step - self.last_step) * self.units_per_step / max(now - self.last_time, 1e-9)
        line = {"step": step, **values, "time/seconds": round(now - self.started, 3)}
        if step > self.last_step:
            line["time/units_per_s"] = round(speed, 1)
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()
        shown = {k.split("/")[1]: f"{values[k]:.4f}" for k in ("train/loss", "eval/loss") if k in values}
        if step > self.last_step:
            shown[f"{self.unit}/s"] = f"{speed:,.0f}"
        self.bar.set_postfix(shown, refresh=False)
        if self.wandb:
            self.wandb.log({k: v for k, v in line.items() if k != "step"}, step=step)
        self.last_step, self.last_time = step, now

    def close(self) -> None:
        """End file, bar and W&B run."""
        if self.active:
            self.file.close()
            self.bar.close()
            if self.wandb:
                self.wandb.finish()


def start_wandb(run_dir: Path, cfg: LoggerConfig) -> Any:
    """Offline mode needs neither account nor network. The run directory stays the only copy that counts.

    Raises ConfigError without the package, a key, or an answer from the server.
    """
    try:
        import wandb
    except ImportError as error:
        raise ConfigError("logger.wandb needs the wandb package: pip install 'lowcomm[wandb]'") from error
    config = json.loads((run_dir / "config.json").read_text())
    settings = wandb.Settings(silent=True, console="off")
    name = "-".join(run_dir.parts[-2:])
    try:
        return wandb.init(dir=run_dir, project=cfg.project, mode=cfg.wandb, name=name, config=config, settings=settings)
    except wandb.Error as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"logger.wandb={cfg.wandb}: {why}; take logger.wandb=offline or disabled") from error


def read_metrics(run_dir: Path) -> list[dict[str, float]]:
    """The lines of a run's `metrics.jsonl`, in their order."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
