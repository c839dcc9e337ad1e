"""Time of one optimizer step, GPAAdamW against torch.optim.AdamW, and the memory of their states.

    python bench/gpa_step.py [--params 10e6 100e6] [--repeats 30] [--json OUT]

One thread on the CPU, float32, the shapes of a Llama's blocks; both optimizers step in turn in one process on the same
gradients, so that whatever else the machine does falls on both. Medians. State bytes are those of the tensors that
exist after a step, per byte of weights; DiLoCo is one worker: AdamW, a copy of theta, and outer momentum.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from tabulate import tabulate
from torch import nn

from lowcomm.optim import GPAAdamW


def weights(count: int) -> list[nn.Parameter]:
    """Blocks of four (d, d) attention and three (d, 4d) feed-forward matrices with gradients, at least `count`."""
    d = max(64, int((count / 8 / 16) ** 0.5) // 64 * 64)  # about eight blocks
    params = []
    while sum(p.numel() for p in params) < count:
        params += [nn.Parameter(torch.randn(shape) * 0.02) for shape in [(d, d)] * 4 + [(d, 4 * d)] * 3]
    for p in params:
        p.grad = torch.randn_like(p) * 1e-3
    return params


def twins(params: list[nn.Parameter]) -> list[nn.Parameter]:
    """The same weights in their own memory, the same gradients."""
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    for copy, p in zip(copies, params, strict=True):
        copy.grad = p.grad
    return copies


def nbytes(*optimizers: torch.optim.Optimizer) -> int:
    return sum(t.nbytes for o in optimizers for state in o.state.values() for t in state.values())


def step_times(count: int, kernel: str, repeats: int) -> dict:
    params = weights(count)
    adamw = torch.optim.AdamW(params, **{kernel: True})
    gpa = GPAAdamW(twins(params), **{kernel: True}, weight_decay=1e-2)
    gpa.train()
    times = {adamw: [], gpa: []}
    for _ in range(repeats + 2):
        for optimizer, spent in times.items():
            start = time.perf_counter()
            optimizer.step()
            spent.append(time.perf_counter() - start)
    seconds = [statistics.median(spent[2:]) for spent in times.values()]
    return {
        "parameters": sum(p.numel() for p in params),
        "tensors": len(params),
        "kernel": kernel,
        "adamw_ms": 1e3 * seconds[0],
        "gpa_ms": 1e3 * seconds[1],
        "ratio": seconds[1] / seconds[0],
    }


def state_bytes(count: int) -> dict[str, float]:
    """Bytes of optimizer state per byte of weights."""
    params = weights(count)
    size = sum(p.nbytes for p in params)
    adamw, gpa = torch.optim.AdamW(params), GPAAdamW(twins(params))
    gpa.train()
    adamw.step()
    gpa.step()
    theta = [nn.Parameter(p.detach() + 1e-3) for p in params]
    outer = torch.optim.SGD(theta, lr=0.7, momentum=0.9, nesterov=True)
    for t, p in zip(theta, params, strict=True):
        t.grad = t.detach() - p.detach()
    outer.step()
    copy = sum(t.nbytes for t in theta)
    return {
        "AdamW": nbytes(adamw) / size,
        "GPAAdamW": nbytes(gpa) / size,
        "DiLoCo, one worker": (nbytes(adamw, outer) + copy) / size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--params", type=float, nargs="+", default=[10e6, 100e6], help="numbers of weights")
    parser.add_argument("--repeats", type=int, default=30, help="steps of each optimizer, after two for warm-up")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    times = [step_times(int(n), kernel, arguments.repeats) for n in arguments.params for kernel in ("foreach", "fused")]
    memory = state_bytes(int(arguments.params[0]))
    headers = {"adamw_ms": "AdamW, ms", "gpa_ms": "GPAAdamW, ms"} | {k: k for k in ("parameters", "tensors", "kernel")}
    print(tabulate(times, headers=headers | {"ratio": "ratio"}, tablefmt="github", floatfmt=".2f", intfmt=","))
    print()
    print(
        tabulate(memory.items(), headers=["optimizer", "state bytes / weight bytes"], tablefmt="github", floatfmt=".5f")
    )
    if arguments.json:
        record = {"torch": torch.__version__, "threads": 1, "times": times, "state_bytes": memory}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
