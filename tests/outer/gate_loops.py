"""Small PULSELoCo runs for the tests: what is configured, what must agree."""

from functools import partial

import torch

from lowcomm.inner import InnerStep
from lowcomm.outer import aggregate
from lowcomm.outer.compress import VisibilityGate
from lowcomm.outer.loop import OuterLoop
from lowcomm.outer.workers import Wire
from lowcomm.schema import AlgorithmConfig, ScaleConfig, ScheduleConfig
from lowcomm.training import Rounds
from tests.toys import Regression, net

ADAMW = partial(torch.optim.AdamW, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
NESTEROV = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
PLAIN = partial(torch.optim.SGD, lr=1.0)
OPEN = partial(VisibilityGate, "float32")


def rounds(compressor=VisibilityGate, workers=4, steps=60, inner_steps=3, lr=3e-4, model=None, outer=NESTEROV,
           rule=aggregate.mean, workload=None):  # fmt: skip
    model = net() if model is None else model
    params, workload = dict(model.named_parameters()), workload or Regression()
    algorithm = AlgorithmConfig(schedule=ScheduleConfig(shape="constant"))
    step = InnerStep(model, params, workload, algorithm, ScaleConfig(), steps, seed=0)
    wire = Wire(workers)
    loop = OuterLoop(params, compressor, rule, outer, wire, seed=5)
    return Rounds(step, params, partial(ADAMW, lr=lr), wire, 4, inner_steps, loop)


def finish(trainer):
    reports = []
    while not trainer.done:
        reports.append(trainer.advance())
    return [r for r in reports if r]


def state(trainer):
    """Everything that must agree: theta, momentum, residuals of the local workers. Copies."""
    loop = trainer.loop
    found = {f"theta/{n}": t for n, t in loop.theta_tensors().items()}
    found |= {f"momentum/{n}": loop.outer.state[t]["momentum_buffer"] for n, t in loop.theta.items()
              if "momentum_buffer" in loop.outer.state.get(t, {})}  # fmt: skip
    for index, compressor in loop.compressors.items():
        found |= {f"residual/{index}/{n}": t for n, t in compressor.state_dict().items()}
    return {n: t.clone() for n, t in found.items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
