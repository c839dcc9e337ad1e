"""Muon on the hidden matrices, AdamW on the rest: who gets what, the conventions, state and schedule."""

import io
import math

import pytest
import torch
from torch import nn

from lowcomm.optim import MuonAdamW
from tests.toys import Regression

OPTIONS = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1, "betas": (0.9, 0.99)}


class Tied(nn.Module):
    """Embedding tied to the head, two hidden matrices of different shape, a norm gain."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(7, 6)
        self.layers = nn.ModuleList([nn.Linear(6, 10, bias=False), nn.Linear(10, 6, bias=False)])
        self.norm = nn.LayerNorm(6, bias=False)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        h = self.embed(tokens)
        return self.head(self.norm(h + self.layers[1](torch.tanh(self.layers[0](h)))))


MATRICES = ["layers.0.weight", "layers.1.weight"]
TOKENS = torch.arange(7).repeat(3)


def backward(model):
    nn.functional.cross_entropy(model(TOKENS), TOKENS.roll(1)).backward()


def train(model, optimizer, count):
    for _ in range(count):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()


def test_newton_schulz_is_called_on_the_matrices_and_on_nothing_else(monkeypatch):
    """A Muon that silently steps as something else never calls it (known bug elsewhere)."""
    seen, inside = [], torch.optim._muon._zeropower_via_newtonschulz
    monkeypatch.setattr(torch.optim._muon, "_zeropower_via_newtonschulz",
                        lambda g, *rest: (seen.append(tuple(g.shape)), inside(g, *rest))[1])  # fmt: skip
    model = Tied()
    train(model, MuonAdamW(model.named_parameters(), MATRICES, **OPTIONS), 2)
    assert sorted(seen) == sorted([(10, 6), (6, 10)] * 2)


def test_embedding_head_and_norm_step_as_adamw_and_tied_weights_once():
    model, plain = Tied(), Tied()
    optimizer = MuonAdamW(model.named_parameters(), MATRICES, **OPTIONS)
    adamw = torch.optim.AdamW([plain.embed.weight, plain.norm.weight], lr=0.02, betas=(0.9, 0.99), weight_decay=0.1)
    muon = torch.optim.Muon([{"params": [p], "lr": 0.02 * r, "weight_decay": 0.1 / r} for p, r in
                             ((plain.layers[0].weight, 1.0), (plain.layers[1].weight, math.sqrt(6 / 10)))],
                            momentum=0.9, nesterov=False)  # fmt: skip
    for _ in range(4):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
        backward(plain)
        for part in (adamw, muon):
            part.step()
            part.zero_grad()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)
    assert sum(len(g["params"]) for g in optimizer.param_groups) == 4
    assert set(optimizer.state[model.embed.weight]) == {"step", "exp_avg", "exp_avg_sq"}
    assert set(optimizer.state[model.layers[0].weight]) == {"momentum_buffer"}


@pytest.mark.parametrize("shape", [(8, 2), (2, 8), (4, 4)])
def test_the_step_is_the_rate_times_the_shape_and_the_decay_is_not(shape):
    """Algorithm 3: theta - eta sqrt(out / in) NS(B); MuLoCo decays by eta * weight_decay."""
    torch.manual_seed(0)
    start = torch.randn(shape)
    moved = []
    for decay in (0.0, 0.5):
        p = nn.Parameter(start.clone())
        p.grad = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        MuonAdamW([("w", p)], ["w"], lr=0.1, weight_decay=decay).step()
        moved.append(p.detach())
    update = (start - moved[0]) / (0.1 * math.sqrt(shape[0] / shape[1]))
    sigma = torch.linalg.svdvals(update)
    assert ((sigma > 0.6) & (sigma < 1.25)).all(), "Newton-Schulz lifts every singular value to about one"
    torch.testing.assert_close(moved[0] - moved[1], 0.1 * 0.5 * start, rtol=1e-4, atol=1e-6)


def test_the_moving_average_points_where_the_sum_does():
    """torch averages, MuLoCo sums: the buffers differ by 1 - mu, the orthogonalised steps do not."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(5, 9))
    optimizer, total = MuonAdamW([("w", p)], ["w"], lr=0.1, weight_decay=0.0), torch.zeros(5, 9)
    for _ in range(6):
        p.grad = torch.randn(5, 9)
        total = 0.9 * total + p.grad
        optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], 0.1 * total)


def test_a_schedule_over_initial_rates_reaches_every_group():
    model = Tied()
    optimizer = MuonAdamW(model.named_parameters(), MATRICES, **OPTIONS)
    rates = [g["lr"] for g in optimizer.param_groups]
    assert rates == pytest.approx([0.02, 0.02, 0.02 * math.sqrt(0.6)]), "the first group has the plain rate"
    before = [p.detach().clone() for p in model.parameters()]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_state_goes_through_a_safe_file_and_continues_bit_for_bit():
    whole, first, second = Tied(), Tied(), Tied()
    train(whole, MuonAdamW(whole.named_parameters(), MATRICES, **OPTIONS), 6)
    optimizer = MuonAdamW(first.named_parameters(), MATRICES, **OPTIONS)
    train(first, optimizer, 3)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second.load_state_dict(saved["model"])
    optimizer = MuonAdamW(second.named_parameters(), MATRICES, **OPTIONS | {"lr": 1.0})
    optimizer.load_state_dict(saved["optimizer"])
    train(second, optimizer, 3)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


def test_it_learns():
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = MuonAdamW(model.named_parameters(), ["0.weight"], lr=0.05, weight_decay=0.0)
    losses = []
    for step in range(60):
        loss = Regression().loss(model, Regression().batch(0, 1, step, 16))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.2 * sum(losses[:5])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"matrices": []}, "needs hidden matrices"),
        ({"matrices": ["w", "w"]}, "each once"),
        ({"matrices": ["v"]}, "'v' must name a 2-D parameter"),
        ({"matrices": ["b"]}, r"'b' must name a 2-D parameter \(\(3,\)\)"),
        ({"scale": "spectral"}, "scale='spectral'"),
        ({"momentum": 1.0}, "momentum=1.0"),
    ],
)
def test_mistakes_are_named(change, message):
    params = [("w", nn.Parameter(torch.ones(3, 2))), ("b", nn.Parameter(torch.ones(3)))]
    with pytest.raises(ValueError, match=message):
        MuonAdamW(params, **{"matrices": ["w"]} | change)
