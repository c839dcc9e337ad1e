"""GPA's numbers: published golden values, the float64 twin, and every special case named by the paper."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from schedulefree import AdamWScheduleFree

from lowcomm.optim import GPA, GPAAdamW, mu_x_from_horizon
from tests.optim.problems import START, close, gradient, point, sequences, steps
from tests.reference import gpa as ref
from tests.toys import CURVATURE

GOLDEN = {case["name"]: case for case in json.loads((Path(__file__).parents[1] / "golden" / "gpa.json").read_text())}
W0 = START.tolist()


def run(options, count=50, p=None):
    p = point() if p is None else p
    optimizer = GPAAdamW([p], **options)
    optimizer.train()
    steps(optimizer, p, count)
    return optimizer, p


@pytest.mark.parametrize("name", ["G1", "G4", "G4w", "G6x"])
@pytest.mark.parametrize("kernel", [{}, {"foreach": True}, {"fused": True}], ids=["loop", "foreach", "fused"])
def test_golden(name, kernel):
    case = GOLDEN[name]
    found = sequences(*run(case["options"] | kernel, case["steps"]))
    for sequence in "xyz":
        close(found[sequence], case[sequence])
    for sequence, f in case.get("f", {}).items():
        assert (0.5 * CURVATURE * found[sequence] ** 2).sum().item() == pytest.approx(f, rel=1e-12)


def test_golden_decay_is_not_the_inexact_one():
    """The authors' later code leaves a term of y out when it decays z (G6)."""
    found = sequences(*run(GOLDEN["G6"]["options"]))
    assert (found["y"] - torch.tensor(GOLDEN["G6"]["y"])).abs().max() > 5e-4
    assert (found["x"] - torch.tensor(GOLDEN["G6"]["x"])).abs().max() > 1e-3


def test_golden_with_evaluations():
    """G11: eval() and train() after steps 7, 14, ..., 49 change nothing."""
    case, p = GOLDEN["G1"], point()
    optimizer = GPAAdamW([p], **case["options"])
    optimizer.train()
    for step in range(50):
        steps(optimizer, p, 1)
        if step % 7 == 6:
            optimizer.eval()
            optimizer.train()
    for sequence, value in sequences(optimizer, p).items():
        close(value, case[sequence])


@pytest.mark.parametrize("first", GOLDEN["G12"]["first"], ids=lambda first: f"{first['sequence']}{first['steps']}")
def test_golden_first_steps(first):
    found = sequences(*run(GOLDEN["G12"]["options"], first["steps"]))
    close(found[first["sequence"]], first["value"])


@pytest.mark.parametrize("decay_at", ["z", "y"])
@pytest.mark.parametrize(("mu_x", "mu_y"), [(0.9, 0.7), (0.0, 0.5), (1.0, 0.3), (0.97, 1.0), (1.0, 1.0), (0.5, 0.05)])
@pytest.mark.parametrize("wd", [0.0, 0.1])
def test_twin(mu_x, mu_y, wd, decay_at):
    options = {"lr": 0.02, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": wd, "mu_x": mu_x, "mu_y": mu_y}
    found = sequences(*run(options | {"decay_at": decay_at}))
    x, y, z = ref.gpa(W0, gradient, 50, ref.AdamW(6, 0.8, 0.99, 1e-6), 0.02, mu_x, mu_y, wd, decay_at)
    close(found["y"], y)
    close(found["z"], z)
    close(found["x"], x)


def test_decay_reaches_y_from_y_only_when_x_is_frozen_there():
    """mu_x = mu_y = 1: y is bit-equal with and without decay, at z or at y; both move z."""
    plain, z_decay, y_decay = (
        sequences(*run({"lr": 0.02, "mu_x": 1.0, "mu_y": 1.0, "weight_decay": wd, "decay_at": at}))
        for wd, at in ((0.0, "z"), (0.1, "z"), (0.1, "y"))
    )
    assert torch.equal(plain["y"], START)
    assert torch.equal(plain["y"], z_decay["y"])
    assert torch.equal(plain["y"], y_decay["y"])
    assert not torch.equal(plain["z"], z_decay["z"])
    assert not torch.equal(z_decay["z"], y_decay["z"])


def test_first_moments():
    optimizer, p = run({"lr": 0.02, "mu_x": 0.9}, 1)
    g = CURVATURE * START
    close(optimizer.state[p]["exp_avg"], 0.1 * g)
    close(optimizer.state[p]["exp_avg_sq"], 0.001 * g * g)


# the special cases of the paper


@pytest.mark.parametrize("wd", [0.0, 0.1])
@pytest.mark.parametrize("mu_y", [0.1, 0.7, 1.0])
def test_mu_x_0_is_the_base_optimizer_bit_for_bit(wd, mu_y):
    optimizer, p = run({"lr": 0.02, "weight_decay": wd, "mu_x": 0.0, "mu_y": mu_y})
    q = point()
    steps(torch.optim.AdamW([q], lr=0.02, weight_decay=wd), q, 50)
    for value in sequences(optimizer, p).values():
        assert torch.equal(value, q)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_sgd(nesterov):
    """SGD base with lr g/(1 - mu): mu_y = 1 is heavy ball (read at x = y), mu_x = mu_y Nesterov (read at y)."""
    mu, lr = 0.9, 0.01
    p, q = point(), point()
    optimizer = GPA([p], partial(torch.optim.SGD, lr=lr / (1 - mu)), mu_x=mu, mu_y=mu if nesterov else 1.0)
    optimizer.train()
    steps(optimizer, p, 50)
    steps(torch.optim.SGD([q], lr=lr, momentum=mu, nesterov=nesterov), q, 50)
    close(p, q)
    close(p, ref.heavy_ball(W0, gradient, 50, lr, mu, nesterov))


def test_diloco_with_one_inner_step():
    """mu_x = mu_y = outer momentum, lr = outer lr / (1 - momentum) * inner lr: single-worker DiLoCo with H = 1 is y."""
    _, p = run({"lr": 0.02 * 0.7 / (1 - 0.9), "mu_x": 0.9, "mu_y": 0.9}, 48)
    close(p, GOLDEN["D2"]["y"])
    close(p, ref.diloco_h1(W0, gradient, 48, ref.AdamW(6), 0.02, 0.7, 0.9))


def test_primal_averaging():
    """mu_y = 1: the gradient is taken at the average of all z, which is a plain mean for mu_x = 1 - 1/k."""
    p = point()
    optimizer = GPA([p], partial(torch.optim.SGD, lr=0.05), mu_x=0.0, mu_y=1.0)
    optimizer.train()
    visited = []
    for k in range(1, 31):
        optimizer.param_groups[0]["mu_x"] = 1 - 1 / k
        steps(optimizer, p, 1)
        visited.append(optimizer.state[p]["z"].clone())
    close(p, torch.stack(visited).mean(0))


def test_mu_y_to_0_is_an_average_of_the_base_optimizers_iterates():
    """The twin stores x and allows mu_y = 0: z is AdamW, x its exponential moving average. Ours tends to it."""
    x, y, z = ref.gpa(W0, gradient, 50, ref.AdamW(6), 0.02, 0.9, 0.0)
    q, average = point(), START.clone()
    adamw = torch.optim.AdamW([q], lr=0.02, weight_decay=0.0)
    for _ in range(50):
        steps(adamw, q, 1)
        average.lerp_(q.detach(), 0.1)
    close(torch.tensor(z, dtype=torch.float64), q)
    close(torch.tensor(x, dtype=torch.float64), average)
    assert y == z
    found = sequences(*run({"lr": 0.02, "mu_x": 0.9, "mu_y": 1e-7}))
    close(found["z"], z, 1e-5)
    close(found["x"], x, 1e-5)


@pytest.mark.parametrize("wd", [0.0, 0.1])
def test_schedule_free(wd):
    """b1 = 0, mu_y = their beta1, mu_x = 1 - w_k / sum(w), decay at y: AdamWScheduleFree, and golden G9s."""
    p, q = point(), point()
    optimizer = GPAAdamW([p], lr=0.02, betas=(0, 0.999), weight_decay=wd, mu_x=0.0, mu_y=0.9, decay_at="y")
    theirs = AdamWScheduleFree([q], lr=0.02, betas=(0.9, 0.999), weight_decay=wd)
    optimizer.train()
    theirs.train()
    for k in range(1, 51):  # constant lr: w_k / sum(w) = 1/k
        optimizer.param_groups[0]["mu_x"] = 1 - 1 / k
        steps(optimizer, p, 1)
        steps(theirs, q, 1)
    found = sequences(optimizer, p)
    close(found["y"], q)
    close(found["z"], theirs.state[q]["z"])
    theirs.eval()
    close(found["x"], q)
    if not wd:
        for sequence in "xyz":
            close(found[sequence], GOLDEN["G9s"][sequence])


def test_schedule_free_averaging_with_momentum():
    """G9: the official Schedule-Free mode, which keeps b1 = .9 (and its weights in float32: hence 1e-7)."""
    p = point()
    optimizer = GPAAdamW([p], lr=0.02, mu_x=0.0, mu_y=0.9)
    optimizer.train()
    for k in range(1, 51):
        optimizer.param_groups[0]["mu_x"] = 1 - 1 / k
        steps(optimizer, p, 1)
    found = sequences(optimizer, p)
    close(found["y"], GOLDEN["G9"]["y"], 1e-7)
    close(found["x"], GOLDEN["G9"]["x"], 1e-7)


def test_mu_x_1_freezes_x():
    optimizer, p = run({"lr": 0.02, "mu_x": 1.0, "mu_y": 0.7})
    close(sequences(optimizer, p)["x"], START)
    assert (optimizer.state[p]["z"] - START).abs().min() > 0.01


@pytest.mark.parametrize(
    ("H", "published"), [(1, 0.9), (4, 0.974), (8, 0.9869), (16, 0.9934), (32, 0.9967), (64, 0.9984), (128, 0.9992)]
)
def test_horizon(H, published):
    assert round(mu_x_from_horizon(H), 4) == published
    assert mu_x_from_horizon(H, 0.5) ** H == pytest.approx(0.5)


def test_horizon_ranges():
    with pytest.raises(ValueError, match="H=0"):
        mu_x_from_horizon(0)
    with pytest.raises(ValueError, match="mu_outer=1"):
        mu_x_from_horizon(4, 1.0)
