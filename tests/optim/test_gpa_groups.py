"""GPA as a torch optimizer: arguments, groups, parameters, schedulers, hooks, gradients."""

import copy

import pytest
import torch
from torch import nn

from lowcomm.optim import GPA, GPAAdamW
from tests.optim.problems import OPTIONS, START, close, equal, gradient, point, sequences, steps, trained
from tests.reference import gpa as ref


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu_x": -0.1}, r"mu_x=-0.1.*\[0, 1\]"),
        ({"mu_x": 1.1}, "mu_x=1.1"),
        ({"mu_x": float("nan")}, "mu_x=nan"),
        ({"mu_y": 0.0}, r"mu_y=0.0.*\(0, 1\]"),
        ({"mu_y": 1.1}, "mu_y=1.1"),
        ({"mu_y": float("nan")}, "mu_y=nan"),
        ({"decay_at": "x"}, "decay_at='x'"),
        ({"lr": -1.0}, "learning rate"),
        ({"eps": -1.0}, "epsilon"),
        ({"betas": (1.0, 0.9)}, "beta"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_ranges(options, message):
    with pytest.raises(ValueError, match=message):
        GPAAdamW([point()], **options)


def test_no_parameters():
    with pytest.raises(ValueError, match="empty parameter list"):
        GPAAdamW([])


def test_decay_at_y_needs_a_base_with_decay():
    with pytest.raises(ValueError, match="no weight_decay"):
        GPA([point()], lambda params: torch.optim.Rprop(params), decay_at="y")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_refuses_what_cannot_be_averaged(dtype):
    with pytest.raises(ValueError, match=str(dtype)):
        GPAAdamW([torch.zeros(3, dtype=dtype)])


def test_refuses_sparse_gradients_before_anything_changes():
    embedding, p = nn.Embedding(4, 2, sparse=True), point()
    optimizer = GPAAdamW([p, embedding.weight])
    optimizer.train()
    p.grad = torch.ones_like(p)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=r"\(4, 2\) is sparse: use sparse=False"):
        optimizer.step()
    assert torch.equal(p, START)


def test_group_added_later_starts_at_its_weights_in_the_current_mode():
    optimizer, p = trained(dtype=torch.float64)
    q = point()
    optimizer.add_param_group({"params": [q], "mu_y": 0.5, "lr": 0.01})
    assert optimizer.param_groups[1]["train_mode"] is True
    p.grad = None
    steps(optimizer, q, 5)
    r = point()
    alone = GPAAdamW([r], **OPTIONS | {"lr": 0.01, "mu_y": 0.5})
    alone.train()
    steps(alone, r, 5)
    assert torch.equal(q, r)
    with pytest.raises(ValueError, match="mu_x=2"):
        optimizer.add_param_group({"params": [point()], "mu_x": 2})
    assert len(optimizer.param_groups) == 2


def test_late_parameter_gets_its_own_bias_correction():
    """Pitfall 6: a weight unfrozen at step 10 behaves as if training began there; pitfall 7: no shared state."""
    p, q = point(), point()
    optimizer = GPAAdamW([p, q], **OPTIONS)
    optimizer.train()
    steps(optimizer, p, 10)
    assert torch.equal(q, START)
    assert optimizer.state[q] == {}
    for _ in range(5):
        q.grad = torch.ones_like(q)
        steps(optimizer, p, 1)
    r = point()
    alone = GPAAdamW([r], **OPTIONS)
    alone.train()
    for _ in range(5):
        r.grad = torch.ones_like(r)
        alone.step()
    assert torch.equal(q, r)
    assert optimizer.state[p]["step"] == 15
    assert optimizer.state[q]["step"] == 5


def test_parameter_without_gradient_keeps_everything():
    p, q = point(), point()
    optimizer = GPAAdamW([p, q], **OPTIONS)
    optimizer.train()
    q.grad = torch.ones_like(q)
    steps(optimizer, p, 1)
    q.grad = None
    before, y = copy.deepcopy(optimizer.state[q]), q.clone()
    steps(optimizer, p, 3)
    equal(optimizer.state[q], before)
    assert torch.equal(q, y)


@pytest.mark.parametrize("kernel", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_steps_without_any_gradient_and_empty_groups(kernel):
    p = point()
    optimizer = GPAAdamW([{"params": []}, {"params": [p]}], **OPTIONS, **kernel)
    optimizer.train()
    optimizer.step()
    assert torch.equal(p, START)
    steps(optimizer, p, 3)
    close(sequences(optimizer, p)["y"], sequences(*trained(3, torch.float64))["y"])


def test_tied_weights_are_moved_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

    torch.manual_seed(0)
    model = Tied()
    optimizer = GPAAdamW(model.named_parameters(), lr=0.1, mu_x=0.0)
    optimizer.train()
    w = model.a.weight.detach().clone()
    model.b(model.a(torch.ones(3))).sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["param_names"] == ["a.weight"]
    close((model.b.weight - w).abs(), torch.full((3, 3), 0.1), 1e-4)
    with pytest.raises(ValueError, match="more than one parameter group"):
        GPAAdamW([{"params": [model.a.weight]}, {"params": [model.b.weight]}])


def test_generator_of_parameters_and_group_options():
    model = nn.Linear(2, 2)
    optimizer = GPAAdamW((p for p in model.parameters()), lr=0.1)
    assert len(optimizer.param_groups[0]["params"]) == 2
    optimizer = GPAAdamW(
        [{"params": [model.weight], "mu_x": 0.5}, {"params": [model.bias], "weight_decay": 0.3}], lr=0.1
    )
    assert [(g["mu_x"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.5, 0.0), (0.9967, 0.3)]


def test_first_step_with_a_rate_of_zero():
    """Pitfall 3: warm-up from 0 tripped an assertion. Here z stands still for one step."""
    p = point()
    optimizer = GPAAdamW([p], **OPTIONS)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    optimizer.train()
    rates = []
    for _ in range(3):
        rates.append(optimizer.param_groups[0]["lr"])
        steps(optimizer, p, 1)
        scheduler.step()
        if len(rates) == 1:
            assert torch.equal(p, START)
    assert rates == [0.0, 0.002, 0.004]
    assert not torch.equal(p, START)
    assert optimizer.state[p]["step"] == 3


def test_scheduled_rates_take_effect():
    p = point()
    optimizer = GPAAdamW([p], **OPTIONS)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    optimizer.train()
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        steps(optimizer, p, 1)
        scheduler.step()
    x, y, z = ref.gpa(START.tolist(), gradient, 20, ref.AdamW(6), rates.__getitem__, 0.9, 0.7, 0.1)
    found = sequences(optimizer, p)
    close(found["x"], x)
    close(found["y"], y)
    close(found["z"], z)


def test_step_hooks_and_closure():
    optimizer, p = trained(0)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure():
        calls.append("closure")
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert calls == ["before", "closure", "after"]
    assert loss.item() == pytest.approx(2.8)
    assert not torch.equal(p, START.float())


def test_gradients_are_left_alone():
    """Clipping, accumulation and logging look at p.grad after the step."""
    p = point(START.bfloat16())
    optimizer = GPAAdamW([p], **OPTIONS)
    optimizer.train()
    p.grad = torch.ones_like(p)
    grad, before = p.grad, p.grad.clone()
    optimizer.step()
    assert p.grad is grad
    assert torch.equal(grad, before)
    assert optimizer.state[p]["z"].grad is None


def test_evaluation_during_gradient_accumulation():
    """Pitfall 10: switching between two backward passes leaves gradient and y as they were."""
    found = []
    for interrupt in (False, True):
        optimizer, p = trained(5)
        optimizer.zero_grad()
        for half in range(2):
            if half and interrupt:
                optimizer.eval()
                optimizer.train()
            (p**2).sum().backward()
        optimizer.step()
        found.append(p.detach().clone())
    assert torch.equal(*found)


def test_batch_statistics_are_the_models_affair():
    """Pitfall 11: eval() moves weights only; running statistics still belong to y until the model is run at x."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = GPAAdamW(model.parameters(), lr=0.1, mu_x=0.5)
    optimizer.train()
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        model(x).square().sum().backward()
        optimizer.step()
    before = model[1].running_mean.clone()
    optimizer.eval()
    assert torch.equal(model[1].running_mean, before)


def test_a_base_that_averages_itself_is_refused():
    with pytest.raises(ValueError, match="base=GPAAdamW: it averages already"):
        GPA([point()], GPAAdamW)
