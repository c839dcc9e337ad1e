"""The outer loop against golden values, its reductions, and the sign of the pseudo-gradient."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from lowcomm.inner import InnerStep
from lowcomm.outer.aggregate import mean
from lowcomm.outer.compress import Identity
from lowcomm.outer.loop import OuterLoop
from lowcomm.outer.workers import Wire
from lowcomm.schema import AlgorithmConfig, ScaleConfig, ScheduleConfig
from lowcomm.training import Rounds, Synchronous
from tests.reference.diloco import diloco
from tests.toys import Point, Quadratic, Regression, net

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "diloco.json").read_text())
START = torch.linspace(-1, 1, 6, dtype=torch.float64)
ADAMW = partial(torch.optim.AdamW, lr=0.02, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
NESTEROV = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)


def rounds(model, workload, steps, inner_steps, workers=1, inner=ADAMW, outer=NESTEROV, batch=4, params=None):
    params = dict(model.named_parameters()) if params is None else params
    algorithm = AlgorithmConfig(schedule=ScheduleConfig(shape="constant"))
    step = InnerStep(model, params, workload, algorithm, ScaleConfig(), steps, seed=0)
    wire = Wire(workers)
    return Rounds(step, params, inner, wire, batch, inner_steps, OuterLoop(params, Identity, mean, outer, wire))


def synchronous(model, workload, steps, workers=1, inner=ADAMW, batch=4):
    params = dict(model.named_parameters())
    algorithm = AlgorithmConfig(schedule=ScheduleConfig(shape="constant"))
    step = InnerStep(model, params, workload, algorithm, ScaleConfig(), steps, seed=0)
    return Synchronous(step, params, inner, Wire(workers), batch)


def finish(trainer):
    reports = []
    while not trainer.done:
        reports.append(trainer.advance())
    return [r for r in reports if r]


@pytest.mark.parametrize("case", GOLDEN, ids=[c["name"] for c in GOLDEN])
def test_golden(case):
    outer = partial(torch.optim.SGD, **case["outer"])
    trainer = rounds(Point(START), Quadratic(), case["steps"], case["inner_steps"], outer=outer)
    for number in range(case["steps"] // case["inner_steps"]):
        for _ in range(case["inner_steps"]):
            trainer.advance()
        for expected in (r for r in case["rounds"] if r["round"] == number + 1):
            close(trainer.loop.theta["w"], expected["theta"])
    close(trainer.loop.theta["w"], case["theta"])
    if "momentum" in case:
        close(trainer.loop.outer.state[trainer.loop.theta["w"]]["momentum_buffer"], case["momentum"])
    if "f" in case:
        value = Quadratic().loss(Point(trainer.loop.theta["w"].detach()), {}).item()
        assert value == pytest.approx(case["f"], abs=1e-12)


def close(actual, expected):
    torch.testing.assert_close(actual.detach(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("inner_steps", [1, 4, 7])
def test_against_the_float64_twin(workers, inner_steps):
    """Moments, momentum and theta after 14 steps of each worker; at H = 4 the last round is shorter."""
    model = net().double()
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    trainer = rounds(model, DoubleRegression(), 14, inner_steps, workers)
    finish(trainer)
    theta, momentum, moments = diloco(start, DoubleRegression(), workers, 14, inner_steps, batch=4)
    for name in theta:
        torch.testing.assert_close(trainer.loop.theta[name].detach(), theta[name], rtol=0, atol=1e-13)
        buffer = trainer.loop.outer.state[trainer.loop.theta[name]]["momentum_buffer"]
        torch.testing.assert_close(buffer, momentum[name], rtol=0, atol=1e-13)
    for worker, (first, second) in zip(trainer.workers, moments, strict=True):
        for name, p in worker.params.items():
            torch.testing.assert_close(worker.optimizer.state[p]["exp_avg"], first[name], rtol=0, atol=1e-13)
            torch.testing.assert_close(worker.optimizer.state[p]["exp_avg_sq"], second[name], rtol=0, atol=1e-13)


class DoubleRegression(Regression):
    def batch(self, *place):
        return {k: v.double() for k, v in super().batch(*place).items()}

    def loss(self, model, batch):
        return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])


def test_one_worker_rate_one_is_the_inner_optimizer_up_to_one_rounding_a_round():
    """eta = 1, mu = 0 (case D6): theta - (theta - w) is w, up to the rounding of the two subtractions."""
    model, plain = Point(START), Point(START)
    trainer = rounds(model, Quadratic(), 48, 8, outer=partial(torch.optim.SGD, lr=1.0))
    finish(trainer)
    optimizer = ADAMW(plain.parameters())
    for _ in range(48):
        Quadratic().loss(plain, {}).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(trainer.loop.theta["w"].detach(), plain.w.detach(), rtol=0, atol=1e-15)


def test_the_outer_step_goes_downhill():
    """new - old in place of old - new sends this to 113 (known bug of other implementations)."""
    model = Point(START)
    finish(rounds(model, Quadratic(), 48, 8))
    assert Quadratic().loss(model, {}).item() < 3


def test_equal_workers_are_one_worker():
    class Same(Regression):
        def batch(self, worker, workers, step, size):
            return super().batch(0, 1, step, size)

    one, four = net(), net()
    finish(rounds(one, Same(), 12, 4, workers=1))
    trainer = rounds(four, Same(), 12, 4, workers=4)
    finish(trainer)
    for name, p in one.named_parameters():
        torch.testing.assert_close(trainer.loop.theta[name].detach(), p.detach(), rtol=1e-6, atol=1e-7)


def test_no_local_steps_no_pseudo_gradient_even_for_bf16_workers():
    """A BF16 worker starts from the cast of theta; the rounding must not look like training."""
    model = net().bfloat16()
    trainer = rounds(model, Regression(), 8, 4)
    theta = {n: t + 1e-3 for n, t in trainer.loop.theta_tensors().items()}  # off the BF16 grid
    with torch.no_grad():
        for name, t in theta.items():
            trainer.loop.theta[name].copy_(t)
            trainer.workers[0].weights[name].copy_(t)
    report = trainer.loop.sync(trainer.workers)
    assert report["outer/delta_norm"] == 0
    for name, t in theta.items():
        assert torch.equal(trainer.loop.theta[name], t)


def test_theta_is_float32_under_bf16_workers():
    trainer = rounds(net().bfloat16(), Regression(), 8, 4)
    finish(trainer)
    assert all(t.dtype == torch.float32 for t in trainer.loop.theta.values())
    assert all(p.dtype == torch.bfloat16 for p in trainer.params.values())


def test_tied_and_frozen_parameters():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(5, 5, bias=False)
            self.b = torch.nn.Linear(5, 5, bias=False)
            self.b.weight = self.a.weight
            self.head = torch.nn.Linear(5, 1)
            self.head.weight.requires_grad_(False)

        def forward(self, x):
            return self.head(self.b(self.a(x)))

    model = Tied()
    frozen = model.head.weight.detach().clone()
    params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    trainer = rounds(model, Regression(), 6, 3, workers=2, params=params)
    finish(trainer)
    assert list(trainer.loop.theta) == ["a.weight", "head.bias"]
    assert torch.equal(model.head.weight, frozen)


def test_nan_pseudo_gradient_is_refused_and_theta_untouched():
    model = net()
    trainer = rounds(model, Regression(), 8, 4)
    before = {n: t.clone() for n, t in trainer.loop.theta_tensors().items()}
    with torch.no_grad():
        trainer.workers[0].weights["2.bias"].fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"2\.bias"):
        trainer.loop.sync(trainer.workers)
    assert all(torch.equal(trainer.loop.theta[n], t) for n, t in before.items())
    assert trainer.loop.round == 0


def test_cosine_and_bytes_of_a_round():
    trainer = rounds(net(), Regression(), 4, 4, workers=3)
    report = finish(trainer)[-1]
    deltas = [torch.cat([v.flatten() for v in d.values()]) for d in deltas_of(net(), 3)]
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
    dots = sum(float(deltas[i] @ deltas[j]) for i, j in pairs)
    expected = dots / (2 * sum(float(d @ d) for d in deltas))
    assert report["outer/cosine"] == pytest.approx(expected, rel=1e-4)
    assert report["comm/bytes"] == 4 * sum(p.numel() for p in net().parameters())


def deltas_of(model, workers):
    """Each worker alone for one round from the same start."""
    for index in range(workers):
        local = net()
        optimizer = ADAMW(local.parameters())
        for step in range(4):
            Regression().loss(local, Regression().batch(index, workers, step, 4)).backward()
            optimizer.step()
            optimizer.zero_grad()
        yield {n: p.detach() - dict(local.named_parameters())[n].detach() for n, p in model.named_parameters()}


def test_synchronous_workers_share_one_gradient():
    """Four workers with a quarter of the batch each step like one worker with the mean of their gradients."""
    model, plain = net(), net()
    trainer = synchronous(model, Regression(), 6, workers=4)
    finish(trainer)
    optimizer = ADAMW(plain.parameters())
    for step in range(6):
        for worker in range(4):
            (Regression().loss(plain, Regression().batch(worker, 4, step, 4)) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
