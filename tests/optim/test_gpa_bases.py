"""GPA around any base: properties over random weights, gradients and settings, against three explicit sequences."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW, Muon, NAdam, RMSprop

from lowcomm.optim import GPA, GPAAdamW, gpa_adamw
from tests.optim.problems import equal, saved

BASES = {
    "sgd": partial(SGD, lr=0.05),
    "momentum": partial(SGD, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adamw": partial(AdamW, lr=0.02, weight_decay=0.1),
    "foreach": partial(AdamW, lr=0.02, weight_decay=0.1, foreach=True),
    "fused": partial(AdamW, lr=0.02, weight_decay=0.1, fused=True),
    "amsgrad": partial(AdamW, lr=0.02, amsgrad=True),
    "rmsprop": partial(RMSprop, lr=0.01, momentum=0.5, centered=True),
    "nadam": partial(NAdam, lr=0.01, decoupled_weight_decay=True, weight_decay=0.1),
    "muon": partial(Muon, lr=0.02),
}
SHAPES = [(3, 5), (4, 4), (7, 2)]
some = settings(max_examples=12, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31 - 1)
mu_xs = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 0.9967, 1.0])
mu_ys = st.floats(0.05, 1) | st.sampled_from([0.7, 1.0])


def weights(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)) for shape in SHAPES]


def set_gradients(seed, step, at, into):
    """A smooth function of the point plus noise; every fourth gradient of the last tensor is missing."""
    generator = torch.Generator().manual_seed(seed + step)
    for i, (w, p) in enumerate(zip(at, into, strict=True)):
        noise = torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w.dtype)
        p.grad = None if i == 2 and step % 4 == 0 else (w.detach().tanh() + 0.3 * noise).to(p.dtype)


@pytest.mark.parametrize("name", BASES)
@some
@given(seed=seeds, mu_x=mu_xs, mu_y=mu_ys)
def test_three_sequences(name, seed, mu_x, mu_y):
    """Ours against x, y, z kept apart and the same base stepping z."""
    ps = weights(seed, torch.float64)
    optimizer = GPA(ps, BASES[name], mu_x=mu_x, mu_y=mu_y)
    optimizer.train()
    z = weights(seed, torch.float64)
    x = [w.detach().clone() for w in z]
    base = BASES[name](z)
    for step in range(15):
        y = [mu_y * a + (1 - mu_y) * b.detach() for a, b in zip(x, z, strict=True)]
        set_gradients(seed, step, ps, ps)
        set_gradients(seed, step, y, z)
        optimizer.step()
        base.step()
        for a, b in zip(x, z, strict=True):
            if b.grad is not None:
                a.lerp_(b.detach(), 1 - mu_x)
    # Muon orthogonalizes in bfloat16, where a difference of 1e-16 in the gradient may flip a rounding
    tolerance = {"rtol": 0, "atol": 2e-2 if name == "muon" else 1e-10}
    for p, a, b in zip(ps, x, z, strict=True):
        torch.testing.assert_close(optimizer.state[p]["z"], b.detach(), **tolerance)
        torch.testing.assert_close(p.detach(), mu_y * a + (1 - mu_y) * b.detach(), **tolerance)
    optimizer.eval()
    for p, a in zip(ps, x, strict=True):
        torch.testing.assert_close(p.detach(), a, **tolerance)


@some
@given(seed=seeds, mu_x=mu_xs, mu_y=mu_ys, wd=st.sampled_from([0.0, 0.1]), decay_at=st.sampled_from(["z", "y"]))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_kernels_agree(dtype, seed, mu_x, mu_y, wd, decay_at):
    """foreach = loop and fused = loop, to the rounding of the state's dtype."""
    found = []
    for kernel in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        ps = weights(seed, dtype)
        optimizer = GPAAdamW(ps, lr=0.01, weight_decay=wd, mu_x=mu_x, mu_y=mu_y, decay_at=decay_at, **kernel)
        optimizer.train()
        for step in range(10):
            set_gradients(seed, step, weights(seed + step, dtype), ps)  # at fixed points: only the kernels differ
            optimizer.step()
        found.append([optimizer.state[p]["z"] for p in ps] + [p.detach() for p in ps])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            wide = {"rtol": 1e-12, "atol": 1e-12} if a.dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
            torch.testing.assert_close(a, b, **{"rtol": 8e-3, "atol": 1e-5} if a.dtype == torch.bfloat16 else wide)


@pytest.mark.parametrize("name", BASES)
@some
@given(seed=seeds, mu_x=mu_xs, mu_y=mu_ys, dtype=st.sampled_from([torch.float32, torch.bfloat16]), at=st.integers(0, 9))
def test_resume_and_evaluation_change_nothing(name, seed, mu_x, mu_y, dtype, at):
    """A run that evaluates after step `at`, and goes on in a new optimizer, equals the unbroken one bit for bit."""
    plain, broken = weights(seed, dtype), weights(seed, dtype)
    one = GPA(plain, BASES[name], mu_x=mu_x, mu_y=mu_y)
    two = GPA(broken, BASES[name], mu_x=mu_x, mu_y=mu_y)
    one.train()
    two.train()
    for step in range(10):
        set_gradients(seed, step, plain, plain)
        one.step()
        set_gradients(seed, step, broken, broken)
        two.step()
        if step == at:
            two.eval()
            two.eval()
            state = saved({"weights": [p.detach() for p in broken], "optimizer": two.state_dict()})
            broken = [nn.Parameter(w) for w in state["weights"]]
            two = GPA(broken, BASES[name], mu_x=mu_x, mu_y=mu_y)
            two.load_state_dict(state["optimizer"])
            equal(two.state_dict(), state["optimizer"])
            two.train()
            two.train()
    for p, q in zip(plain, broken, strict=True):
        assert torch.equal(p, q)
    equal(two.state_dict(), one.state_dict())


@pytest.mark.parametrize("name", BASES)
def test_decay_at_y_switches_the_bases_rule_off(name):
    """z moves by the base without decay, then by -lr wd y."""
    defaults = BASES[name](weights(0, torch.float64)).defaults
    wd = 0.3
    ps, qs = weights(0, torch.float64), weights(0, torch.float64)
    optimizer = GPA([{"params": ps, "weight_decay": wd}], BASES[name], mu_x=0.8, mu_y=0.6, decay_at="y")
    plain = GPA([{"params": qs, "weight_decay": 0.0}], BASES[name], mu_x=0.8, mu_y=0.6)
    optimizer.train()
    plain.train()
    for step in range(3):
        set_gradients(0, step + 1, ps, ps)
        for p, q in zip(ps, qs, strict=True):  # same state, so that one step differs by the decay alone
            q.data.copy_(p)
            q.grad = p.grad.clone()
        plain.state.update({q: copy.deepcopy(optimizer.state[p]) for p, q in zip(ps, qs, strict=True) if step})
        y = [p.detach().clone() for p in ps]
        optimizer.step()
        plain.step()
        for p, q, w in zip(ps, qs, y, strict=True):
            moved = optimizer.state[p]["z"] - plain.state[q]["z"]
            torch.testing.assert_close(moved, -defaults["lr"] * wd * w, rtol=0, atol=1e-12)


def test_options_of_the_base_survive_and_can_be_set_per_group():
    ps = weights(0, torch.float32)
    optimizer = GPA([{"params": ps[:1], "lr": 0.5}, {"params": ps[1:]}], BASES["muon"])
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.02]
    assert optimizer.param_groups[1]["momentum"] == 0.95
    with pytest.raises(ValueError, match="Muon only supports 2D"):
        GPA([nn.Parameter(torch.zeros(3))], BASES["muon"])


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decay_at": "y"}])
@pytest.mark.parametrize("group", [{}, {"amsgrad": True}, {"maximize": True}])
def test_fused_in_blocks_is_fused_bit_for_bit(monkeypatch, options, group):
    """Large parameters on a CPU go block by block; the last block is short, some parameters stay whole."""
    found = []
    for small in (1 << 40, 100):  # never in blocks; from 100 weights on, in blocks of 128
        monkeypatch.setattr(gpa_adamw, "SMALL", small)
        monkeypatch.setattr(gpa_adamw, "BLOCK", 128)
        generator = torch.Generator().manual_seed(0)
        shapes = [(30, 10), (5, 5), (100,), (20, 30)]
        ps = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        ps[3] = nn.Parameter(ps[3].detach().t())
        groups = [{"params": ps[:2], "mu_y": 0.5}, {"params": ps[2:]} | group]
        optimizer = GPAAdamW(groups, lr=0.01, mu_x=0.9, fused=True, **options)
        calls = []
        monkeypatch.setattr(optimizer, "_move_in_blocks", counted(calls, optimizer._move_in_blocks))
        optimizer.train()
        for step in range(6):
            for i, p in enumerate(ps):
                p.grad = None if i == 0 and step == 3 else torch.randn(p.shape, generator=generator) + p.detach()
            if step == 4:
                ps[0].grad = ps[0].grad.t().contiguous().t()
            optimizer.step()
        first, second = 3, 0 if group else 5  # of steps 1 to 5: one without, one with a transposed gradient
        assert len(calls) == (0 if small > 100 or "decay_at" in options else first + second)
        found.append((ps, optimizer.state_dict()))
    equal(found[0][1], found[1][1])
    assert all(torch.equal(p, q) for p, q in zip(found[0][0], found[1][0], strict=True))


def counted(calls, function):
    def call(*arguments):
        calls.append(arguments)
        function(*arguments)

    return call
