"""Training speed: lowcomm against a bare PyTorch loop, the outer step's share of a round, many virtual workers.

    python bench/training.py [--model llama-1m] [--repeats 9] [--json OUT]

All sides run in this process and alternate; medians and ratios are printed. One OpenMP thread.
"""

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path

import torch

from lowcomm import models
from lowcomm.blocks import build
from lowcomm.config import checked, load_config
from lowcomm.inner import InnerStep
from lowcomm.outer.loop import OuterLoop
from lowcomm.outer.workers import Wire
from lowcomm.training import Rounds, Synchronous

BATCH = 8  # sequences of 128 tokens, of each worker


def setup(model_name: str, *overrides: str):
    """Model, parameters, workload, config: everything that a loop needs."""
    cfg = checked(load_config([f"model={model_name}", "workload=pycode", "scale=smoke", *overrides]))
    workload = build("workload", cfg.workload, seed=0)
    model = models.build(cfg.model, seed=0)
    return cfg, workload, model, models.parameters(model)


def bare(model_name: str, steps: int):
    """The loop one would write by hand: same model, data, clipping and optimizer."""
    cfg, workload, model, params = setup(model_name)
    optimizer = torch.optim.AdamW(params.values(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    model.train()

    def run() -> None:
        for step in range(steps):
            batch = workload.batch(0, 1, step, BATCH)
            loss = model(**batch, labels=batch["input_ids"]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            loss.item()

    return run


def synchronous(model_name: str, steps: int):
    cfg, workload, model, params = setup(model_name)
    inner_step = InnerStep(model, params, workload, cfg.algorithm, cfg.scale, 10**6, 0)
    trainer = Synchronous(inner_step, params, partial(build, "algorithm.inner", cfg.algorithm.inner), Wire(1), BATCH)

    def run() -> None:
        for _ in range(steps):
            trainer.advance()

    return run


class Timed(OuterLoop):
    """Adds up the time of the outer steps."""

    seconds = 0.0

    def sync(self, workers):
        begin = time.perf_counter()
        report = super().sync(workers)
        self.seconds += time.perf_counter() - begin
        return report


def rounds(model_name: str, workers: int, inner_steps: int = 30, batch: int = BATCH):
    """One round of `workers` virtual workers with H inner steps each; returns (run, loop)."""
    cfg, workload, model, params = setup(model_name, "algorithm=diloco", f"algorithm.inner_steps={inner_steps}",
                                         f"workers={workers}", "budget=per_worker")  # fmt: skip
    a = cfg.algorithm
    wire = Wire(workers)
    inner_step = InnerStep(model, params, workload, a, cfg.scale, 10**6, 0)
    compressor, outer = partial(build, "algorithm.compressor", a.compressor), partial(build, "algorithm.outer", a.outer)
    loop = Timed(params, compressor, build("algorithm.aggregator", a.aggregator), outer, wire)
    trainer = Rounds(inner_step, params, partial(build, "algorithm.inner", a.inner), wire, batch, inner_steps, loop)

    def run() -> None:
        while trainer.advance() is None:
            pass

    return run, loop


def clock(run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def alternate(repeats: int, **sides) -> dict[str, list[float]]:
    """Seconds of each side, A B A B ..., after one warm-up of each."""
    for run in sides.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            times[name].append(clock(run))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-1m")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokens = BATCH * 128
    out: dict[str, float] = {}

    steps = 10
    t = alternate(args.repeats, bare=bare(args.model, steps), lowcomm=synchronous(args.model, steps))
    speed = {k: steps * tokens / statistics.median(v) for k, v in t.items()}
    ratio = statistics.median(b / a for a, b in zip(t["lowcomm"], t["bare"], strict=True))
    out |= {"tokens_per_s_bare": speed["bare"], "tokens_per_s_lowcomm": speed["lowcomm"], "speed_ratio": ratio}
    print(f"{args.model}: bare loop {speed['bare']:,.0f} tokens/s, lowcomm {speed['lowcomm']:,.0f} tokens/s; "
          f"ratio {ratio:.3f} (median of {args.repeats} pairs; target >= 0.95)")  # fmt: skip

    run, loop = rounds(args.model, workers=1)
    run()
    shares = []
    for _ in range(3):
        loop.seconds = 0.0
        total = clock(run)
        shares.append(loop.seconds / total)
    out["outer_share_H30"] = statistics.median(shares)
    print(f"outer step: {100 * out['outer_share_H30']:.2f} % of a round at H = 30, W = 1 (target <= 3 %)")

    # A small model and batch: the steps are cheap, so that swapping weights weighs as much as it ever does.
    one, many = rounds("llama-nano", 1, batch=2)[0], rounds("llama-nano", 64, batch=2)[0]
    one()
    many()
    speeds = {"1": [], "64": []}
    for _ in range(3):
        speeds["1"].append(30 * 2 * 128 / clock(one))
        speeds["64"].append(64 * 30 * 2 * 128 / clock(many))
    ratio = statistics.median(b / a for a, b in zip(speeds["1"], speeds["64"], strict=True))
    out |= {"tokens_per_s_W1": statistics.median(speeds["1"]), "tokens_per_s_W64": statistics.median(speeds["64"]),
            "W64_ratio": ratio}  # fmt: skip
    print(
        f"llama-nano, 256 tokens a step, H = 30: W = 1 {out['tokens_per_s_W1']:,.0f} tokens/s, "
        f"W = 64 {out['tokens_per_s_W64']:,.0f} tokens/s; ratio {ratio:.3f} (target >= 0.9)"
    )
    if args.json:
        args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
