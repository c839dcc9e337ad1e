"""PULSELoCo as a loop in one process: its reductions, its twin, what the authors' code gets wrong, refused rounds."""

from functools import partial

import pytest
import torch

from lowcomm.outer import aggregate, exchange, gate
from lowcomm.outer.compress import Identity, VisibilityGate
from lowcomm.outer.exchange import AGREEMENT
from lowcomm.pulse.visibility import bits
from tests.outer.gate_loops import ADAMW, OPEN, PLAIN, finish, rounds, same, state
from tests.reference.pulseloco import pulseloco
from tests.toys import Regression, net


@pytest.mark.parametrize("rule", [aggregate.mean, partial(aggregate.iso_c, method="gram")], ids=["mean", "iso-c"])
def test_an_open_gate_is_diloco_bit_for_bit(rule):
    gated, dense = rounds(OPEN, 3, 14, rule=rule), rounds(Identity, 3, 14, rule=rule)
    a, b = finish(gated), finish(dense)
    assert all(torch.equal(gated.loop.theta[n], dense.loop.theta[n]) for n in dense.loop.theta)
    for mine, theirs in zip(a, b, strict=True):
        assert all(mine[k] == v for k, v in theirs.items() if k != "comm/bytes")
        assert mine["outer/residual_norm"] == 0
    assert not any(e.any() for c in gated.loop.compressors.values() for e in c.residual.values())


def test_one_worker_every_step_rate_one_is_adamw_up_to_a_rounding_a_step():
    trainer, plain, steps = rounds(OPEN, 1, 48, 1, 1e-3, outer=PLAIN), net(), 48
    finish(trainer)
    optimizer = ADAMW(plain.parameters(), lr=1e-3)
    for step in range(steps):
        Regression().loss(plain, Regression().batch(0, 1, step, 4)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, p in plain.named_parameters():
        torch.testing.assert_close(trainer.loop.theta[name].detach(), p.detach(), rtol=0, atol=steps * 2.0**-24)


def test_receivers_see_what_they_would_without_a_gate():
    """R = 1, rate 1, no momentum: BF16 of the new theta is BF16 of theta - s at every weight, sent or not."""
    trainer = rounds(VisibilityGate, 1, 60, 3, outer=PLAIN)
    compressor = trainer.loop.compressors[0]
    for _ in range(20):
        before = {n: t.clone() for n, t in trainer.loop.theta_tensors().items()}
        kept = {n: compressor.residual.get(n, torch.zeros_like(t)).clone() for n, t in before.items()}
        for _ in range(2):
            trainer.advance()
        sync, moved = trainer.loop.sync, {}

        def watched(workers, before=before, kept=kept, moved=moved, sync=sync):
            moved.update({n: t - ((t - workers[0].weights[n]) + kept[n]) for n, t in before.items()})
            return sync(workers)

        trainer.loop.sync = watched
        trainer.advance()
        trainer.loop.sync = sync
        for name, theta in trainer.loop.theta_tensors().items():
            assert torch.equal(bits(theta, torch.bfloat16), bits(moved[name], torch.bfloat16))


def test_against_the_float64_twin():
    class Doubled(Regression):
        def batch(self, *place):
            return {k: v.double() for k, v in super().batch(*place).items()}

        def loss(self, model, batch):
            return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])

    model = net().double()
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    trainer = rounds(VisibilityGate, 3, 11, 3, 3e-4, model, workload=Doubled())
    reports = finish(trainer)
    theta, residuals, counts = pulseloco(start, Doubled(), 3, 11, 3, 4, lr=3e-4)
    numel = sum(t.numel() for t in theta.values())
    for report, sent in zip(reports, counts, strict=True):
        assert min(sent) > 0
        assert max(sent) < numel
        assert report["comm/sent"] == pytest.approx(sum(sent) / 3)
        assert report["comm/sparsity_min"] == pytest.approx(1 - max(sent) / numel)
        assert report["comm/sparsity_max"] == pytest.approx(1 - min(sent) / numel)
    for name in theta:
        torch.testing.assert_close(trainer.loop.theta[name].detach(), theta[name], rtol=0, atol=1e-13)
        for index, residual in enumerate(residuals):
            mine = trainer.loop.compressors[index].residual[name]
            torch.testing.assert_close(mine, residual[name], rtol=0, atol=1e-13)


# what the authors' code does otherwise


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_zero_local_steps_never_fire(low):
    """BF16 workers stand at the cast of theta: the rounding must not look like training, nor add up in the residual."""
    trainer = rounds(workers=2, model=net().bfloat16() if low else net())
    with torch.no_grad():
        for theta in trainer.loop.theta.values():
            theta += 1.003e-3  # off the BF16 grid
        for worker in trainer.workers:
            worker.restart(trainer.loop.theta)
    before = {n: t.clone() for n, t in trainer.loop.theta_tensors().items()}
    for _ in range(5):
        report = trainer.loop.sync(trainer.workers)
        assert report["comm/sent"] == 0
        assert report["comm/sparsity"] == 1
        assert report["outer/residual_norm"] == 0
    assert all(torch.equal(trainer.loop.theta[n], t) for n, t in before.items())
    assert trainer.loop.round == 5, "the round counts what was done"
    assert all(t.dtype == torch.float32 for t in trainer.loop.theta.values())


def test_what_a_worker_does_not_send_counts_as_zero_of_all_workers():
    trainer = rounds(workers=4, outer=PLAIN)
    before = {n: t.clone() for n, t in trainer.loop.theta_tensors().items()}
    with torch.no_grad():
        for weight in trainer.workers[2].weights.values():
            weight -= 0.25
    report = trainer.loop.sync(trainer.workers)
    assert report["comm/sparsity_max"] == 1
    assert report["comm/sparsity_min"] == 0
    assert report["comm/sparsity"] == 0.75
    for name, theta in trainer.loop.theta_tensors().items():
        torch.testing.assert_close(theta, before[name] - 0.25 / 4, rtol=0, atol=1e-7)


def test_momentum_moves_theta_where_nothing_was_sent():
    """The residual is kept through the reset of the weights; momentum is dense."""
    trainer = rounds(workers=2)
    report = [trainer.advance() for _ in range(6)][-1]
    assert report["outer/residual_norm"] > 0
    kept = {i: {n: e.clone() for n, e in c.residual.items()} for i, c in trainer.loop.compressors.items()}
    before = {n: t.clone() for n, t in trainer.loop.theta_tensors().items()}
    report = trainer.loop.sync(trainer.workers)  # no local step: only what theta's own step made visible is sent
    numel = sum(t.numel() for t in before.values())
    assert report["comm/sent"] < numel / 8
    moved = sum(int((trainer.loop.theta[n] != t).sum()) for n, t in before.items())
    assert moved > numel / 2
    for index, residual in kept.items():
        now = trainer.loop.compressors[index].residual
        assert all(((now[n] == e) | (now[n] == 0)).all() for n, e in residual.items())
        assert any(now[n].any() for n in residual)
    assert all(torch.equal(w.weights[n], t) for w in trainer.workers for n, t in trainer.loop.theta_tensors().items())


def test_bytes_are_those_that_would_cross_the_wire(monkeypatch):
    made, encode = [], gate.encode
    monkeypatch.setattr(gate, "encode", lambda *a: made.append(encode(*a)) or made[-1])
    trainer = rounds(workers=2)
    report = finish(rounds(workers=2, steps=3))[0]
    assert len(made) == 2
    assert report["comm/bytes"] == sum(map(len, made)) / 2 + AGREEMENT
    monkeypatch.setattr(exchange, "BUCKET", 50)
    assert trainer.loop.exchange.buckets(trainer.loop.theta) == [["0.weight", "0.bias"], ["2.weight", "2.bias"]]
    report = finish(rounds(workers=2, steps=3))[0]
    assert len(made) == 2 + 4
    assert report["comm/bytes"] == sum(map(len, made[2:])) / 2 + AGREEMENT


RULES = {
    "ties": aggregate.ties, "dare": partial(aggregate.dare, drop=0.1), "tsv": aggregate.tsv,
    "iso-cts": aggregate.iso_cts, "clip": partial(aggregate.clip, side="high"), "iso-c": aggregate.iso_c,
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_every_aggregator_takes_gated_messages(name):
    trainer = rounds(workers=2, steps=6, rule=RULES[name])
    reports = finish(trainer)
    assert reports[-1]["outer/delta_norm"] > 0
    assert all(torch.isfinite(t).all() for t in trainer.loop.theta.values())


@pytest.mark.parametrize("bad", ["0.weight", "2.bias"])
def test_a_round_that_is_not_finite_leaves_no_trace_and_may_be_tried_again(bad):
    trainer, expected = rounds(workers=2, steps=12), rounds(workers=2, steps=12)
    for _ in range(12):
        trainer.advance(), expected.advance()
    before = state(trainer)
    weight = trainer.workers[1].weights[bad]
    kept = weight.clone()
    weight.view(-1)[0] = float("nan")
    with pytest.raises(FloatingPointError, match=rf"round 2, worker 1.*'{bad}' is not finite"):
        trainer.loop.sync(trainer.workers)
    assert same(state(trainer), before)
    assert trainer.loop.round == 2
    weight.copy_(kept)
    finish(trainer), finish(expected)
    assert same(state(trainer), state(expected))
