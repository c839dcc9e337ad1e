"""GPA in train and eval mode, and under weights of every precision."""

import copy

import pytest
import torch
from torch import nn

from lowcomm.optim import GPAAdamW
from tests.optim.problems import DTYPES, OPTIONS, START, close, equal, point, sequences, steps, trained


def test_step_needs_train_mode():
    p = point()
    optimizer = GPAAdamW([p], **OPTIONS)
    with pytest.raises(RuntimeError, match="call optimizer.train"):
        steps(optimizer, p, 1)
    optimizer.train()
    steps(optimizer, p, 1)
    optimizer.eval()
    with pytest.raises(RuntimeError, match="call optimizer.train"):
        steps(optimizer, p, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_modes_are_idempotent_and_reversible_bit_for_bit(dtype):
    """Pitfall 2: one round trip through x moved bfloat16 weights by up to 8e-3."""
    optimizer, p = trained(dtype=dtype)
    y, before = p.clone(), copy.deepcopy(optimizer.state_dict())
    optimizer.train()
    assert torch.equal(p, y)
    optimizer.eval()
    x = p.clone()
    assert not torch.equal(x, y)
    optimizer.eval()
    assert torch.equal(p, x)
    for _ in range(100):
        optimizer.train()
        optimizer.eval()
    assert torch.equal(p, x)
    optimizer.train()
    assert torch.equal(p, y)
    equal(optimizer.state_dict(), before)


@pytest.mark.parametrize("shape", [(33, 70), (70, 33)])
def test_reversible_for_transposed_weights(shape):
    p = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)).t())
    optimizer = GPAAdamW([p], **OPTIONS)
    optimizer.train()
    for _ in range(3):
        p.grad = p.detach() ** 3
        optimizer.step()
    y = p.clone()
    optimizer.eval()
    optimizer.train()
    assert torch.equal(p, y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_x_edited_in_eval_mode_is_kept(dtype):
    optimizer, p = trained(dtype=dtype)
    optimizer.eval()
    with torch.no_grad():
        p.fill_(3.0)
    optimizer.train()
    close(p, 0.7 * 3.0 + 0.3 * optimizer.state[p]["z"].double(), 1e-12 if dtype == torch.float64 else 8e-3)
    optimizer.eval()
    close(p, torch.full_like(START, 3.0), 1e-12)


def test_mode_switch_before_the_first_step_changes_nothing():
    p = point()
    optimizer = GPAAdamW([p])
    for switch in (optimizer.train, optimizer.eval, optimizer.train):
        switch()
        assert torch.equal(p, START)


def test_weights_loaded_after_construction_are_the_start():
    p = point()
    optimizer = GPAAdamW([p], **OPTIONS)
    optimizer.train()
    with torch.no_grad():
        p.copy_(START.flip(0))
    steps(optimizer, p, 5)
    q = point(START.flip(0))
    other = GPAAdamW([q], **OPTIONS)
    other.train()
    steps(other, q, 5)
    assert torch.equal(p, q)


def test_changing_mu_y_in_eval_mode_keeps_x():
    optimizer, p = trained(dtype=torch.float64)
    x = sequences(optimizer, p)["x"]
    optimizer.eval()
    optimizer.param_groups[0]["mu_y"] = 0.9
    optimizer.train()
    found = sequences(optimizer, p)
    close(found["x"], x)
    close(found["y"], 0.9 * x + 0.1 * found["z"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decay_at", ["z", "y"])
@pytest.mark.parametrize("foreach", [False, True])
def test_low_precision_weights_are_rounded_from_a_wide_run(dtype, decay_at, foreach):
    """Pitfall 1. Gradients at the rounded y; everything else as in a wide run that is fed the same gradients."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    p, q = point(START.to(dtype)), point(START.to(dtype).to(wide))
    options = OPTIONS | {"decay_at": decay_at, "foreach": foreach, "lr": 1e-4}
    narrow, reference = GPAAdamW([p], **options), GPAAdamW([q], **options)
    narrow.train()
    reference.train()
    for _ in range(40):
        p.grad = p.detach() * 2
        q.grad = p.grad.to(wide)
        narrow.step()
        reference.step()
    close(narrow.state[p]["z"], reference.state[q]["z"].double(), 1e-7)
    close(p, q.detach().to(dtype).double(), 0 if dtype == wide else 4e-3)
    narrow.eval()
    reference.eval()
    close(p, q.detach().to(dtype).double(), 0 if dtype == wide else 4e-3)
    for key in ("z", "exp_avg", "exp_avg_sq"):
        assert narrow.state[p][key].dtype == wide


def test_small_steps_move_bfloat16_weights():
    """600 steps of 1e-5 on a weight of 1 in bfloat16 (resolution 2^-8 below 1): the updates must not round away."""
    p = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = GPAAdamW([p], lr=1e-5, mu_x=0.9)
    optimizer.train()
    for _ in range(600):
        p.grad = torch.ones_like(p)
        optimizer.step()
    optimizer.eval()
    close(p, [1 - 600e-5], 2**-9)
    assert abs(optimizer.state[p]["x"].item() - (1 - 591e-5)) < 1e-5  # x lags by mu_x / (1 - mu_x) = 9 steps


@pytest.mark.parametrize(("dtype", "per_weight"), [(torch.float64, 24), (torch.float32, 12), (torch.bfloat16, 16)])
def test_memory(dtype, per_weight):
    """Buffers of AdamW plus one copy, x for narrow weights; y only while evaluating. The step counter has 4 bytes."""
    p = nn.Parameter(torch.zeros(1000, dtype=dtype))
    optimizer = GPAAdamW([p])
    optimizer.train()
    p.grad = torch.ones_like(p)
    optimizer.step()

    def nbytes():
        return sum(t.nbytes for t in optimizer.state[p].values())

    assert nbytes() == 1000 * per_weight + 4
    optimizer.eval()
    assert nbytes() == 1000 * (per_weight + (0 if dtype == torch.bfloat16 else p.element_size())) + 4
    optimizer.train()
    assert nbytes() == 1000 * per_weight + 4
    assert not optimizer.base.state
