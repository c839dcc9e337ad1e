"""Time and error of `isotropize` by method: python bench/isotropize.py [--json OUT] [--sizes 768x768 ...].

All methods run in one process, in turn, so that a busy machine slows them alike. Input: a Gaussian matrix with eight
large directions, as averaged pseudo-gradients have. Error: relative Frobenius distance to the float64 SVD.
`svd-float32` is the plain `torch.linalg.svd` of the paper's code, without a rank policy; speed-ups are against it.
One CPU thread is timed by the process's own CPU seconds, so that other processes do not count; else by the clock.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from lowcomm.outer.isotropy import isotropize

SIZES = ("768x768", "768x3072", "1024x2688", "2048x8192")


def plain_svd(matrix: Tensor) -> Tensor:
    u, sigma, vh = torch.linalg.svd(matrix, full_matrices=False)
    return sigma.mean() * (u @ vh)


METHODS = {
    "svd": lambda g: isotropize(g, "svd"),
    "svd-float32": plain_svd,
    "gram": lambda g: isotropize(g, "gram"),
    "newton-schulz": lambda g: isotropize(g, "newton-schulz"),
    "newton-schulz-converged": lambda g: isotropize(g, "newton-schulz-converged"),
    "newton-schulz-rms": lambda g: isotropize(g, "newton-schulz", "rms"),
}


def spiked(n: int, m: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(n, 8, generator=generator), torch.randn(8, m, generator=generator)
    return (torch.randn(n, m, generator=generator) + left @ right).to(device)


def timed(work, device: str) -> tuple[float, Tensor]:
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start, result


def measure(size: str, methods: list[str], repeats: int, device: str) -> list[dict]:
    n, m = map(int, size.split("x"))
    matrix = spiked(n, m, device)
    seconds, results = {name: [] for name in methods}, {}
    for _ in range(repeats):
        for name in methods:
            elapsed, results[name] = timed(lambda name=name: METHODS[name](matrix), device)
            seconds[name].append(elapsed)
    want = results["svd"].double()
    return [
        {
            "size": size,
            "method": name,
            "seconds": statistics.median(seconds[name]),
            "spread": [min(seconds[name]), max(seconds[name])],
            "repeats": repeats,
            "error": ((results[name].double() - want).norm() / want.norm()).item(),
        }
        for name in methods
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), help="n x m, as 768x3072")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    measure("64x96", list(METHODS), 2, args.device)  # warm-up

    rows = []
    print(f"{'size':>10} {'method':<24} {'seconds':>9} {'speed-up':>8} {'error':>9}")
    for size in args.sizes:
        found = measure(size, list(METHODS), args.repeats, args.device)
        base = next(row["seconds"] for row in found if row["method"] == "svd-float32")
        for row in found:
            row["speedup"] = base / row["seconds"]
            print(f"{size:>10} {row['method']:<24} {row['seconds']:9.4f} {row['speedup']:8.2f} {row['error']:9.1e}")
        rows += found
    if args.json:
        environment = {"torch": torch.__version__, "threads": args.threads, "device": args.device}
        args.json.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
