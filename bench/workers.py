"""Tokens a second and peak memory by number of workers and by where idle workers rest.

    python bench/workers.py [--workers 1 8 32 128] [--model llama-1m] [--steps 4] [--device cpu] [--json OUT]

Every case is a process of its own, so that one peak does not hide another. Two rounds of IsoLoCo, one sequence of 64
tokens a worker and step: the smallest batch, so that what a worker costs beside its arithmetic is seen. `disk` counts
mapped pages as long as they are in memory; what the system may drop at any time is not counted twice.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from tabulate import tabulate


def measure(model: str, workers: int, place: str, steps: int, device: str) -> dict:
    """In this process: two rounds, no warm-up, since memory matters more than the first step."""
    from lowcomm import models
    from lowcomm.assembly import build_trainer, build_workload
    from lowcomm.config import checked, load_config
    from lowcomm.outer.workers import Wire
    from lowcomm.session import peak_memory, reset_peak_memory

    cfg = checked(load_config([
        f"model={model}", "workload.seq_len=64", "algorithm=isoloco", f"algorithm.inner_steps={max(1, steps // 2)}",
        f"workers={workers}", f"scale.batch={workers}", f"state={place}", f"scale.device={device}",
    ]))  # fmt: skip
    torch.set_num_threads(1)
    wire = Wire(workers)
    workload = build_workload(cfg, wire)
    net = models.build(cfg.model, seed=0).to(device)
    params = models.parameters(net)
    with tempfile.TemporaryDirectory() as folder:
        reset_peak_memory()
        trainer = build_trainer(cfg, net, params, workload, wire, steps, 1, Path(folder))
        wall, cpu = time.perf_counter(), time.process_time()
        while not trainer.done:
            trainer.advance()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    tokens = workers * steps * 64
    size = sum(p.nbytes for p in params.values())
    return {"workers": workers, "state": place, "tokens/s": tokens / wall, "tokens/CPU s": tokens / cpu,
            "peak MB": peak_memory() / 1e6, "state of the workers, MB": workers * 3 * size / 1e6}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--states", nargs="+", default=["device", "disk"], choices=["device", "cpu", "disk"])
    parser.add_argument("--model", default="llama-1m")
    parser.add_argument("--steps", type=int, default=4, help="inner steps of every worker, in two rounds")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        workers, place = arguments.case.split(",")
        print(json.dumps(measure(arguments.model, int(workers), place, arguments.steps, arguments.device)))
        return
    lines = []
    for workers in arguments.workers:
        for place in arguments.states:
            case = ["--case", f"{workers},{place}", "--model", arguments.model, "--steps", str(arguments.steps)]
            command = [sys.executable, __file__, *case, "--device", arguments.device]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            lines.append(json.loads(done.stdout.splitlines()[-1]))
    print(tabulate(lines, headers="keys", tablefmt="github", floatfmt=",.0f"))
    if arguments.json:
        record = {"model": arguments.model, "torch": torch.__version__, "threads": 1, "cases": lines}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
