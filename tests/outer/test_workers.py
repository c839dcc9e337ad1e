"""Idle workers at rest (beside the model, in memory, on disk) and optimizers that average inside the outer loop."""

from functools import partial

import pytest
import schedulefree
import torch

from lowcomm.inner import InnerStep
from lowcomm.optim import GPAAdamW, MuonAdamW
from lowcomm.outer.aggregate import dare, iso_c, keyed_generator, mean, sparsify
from lowcomm.outer.compress import Identity
from lowcomm.outer.loop import OuterLoop, needs_only_mean
from lowcomm.outer.shelf import Shelf
from lowcomm.outer.workers import Wire
from lowcomm.schema import AlgorithmConfig, ScaleConfig, ScheduleConfig
from lowcomm.training import Rounds
from tests.toys import Point, Quadratic, Regression, net

ADAMW = partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1)
GPA = partial(GPAAdamW, lr=0.02, mu_x=0.9, mu_y=0.7, weight_decay=0.1)
FREE = partial(schedulefree.AdamWScheduleFree, lr=0.02, weight_decay=0.1)
NESTEROV = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
PLAIN = partial(torch.optim.SGD, lr=1.0)
START = torch.linspace(-1, 1, 6, dtype=torch.float64)


def muon(params):
    return MuonAdamW([(f"{i}", p) for i, p in enumerate(params)], ["0"], lr=0.02)


INNER = {"adamw": ADAMW, "gpa": GPA, "schedule-free": FREE, "muon": muon}


def rounds(model, steps, inner_steps, workers=1, inner=ADAMW, outer=NESTEROV, workload=None, rule=mean, **rest):
    params = dict(model.named_parameters())
    algorithm = AlgorithmConfig(schedule=ScheduleConfig(shape="constant"))
    step = InnerStep(model, params, workload or Regression(), algorithm, ScaleConfig(), steps, seed=0)
    wire = Wire(workers)
    loop = OuterLoop(params, Identity, rule, outer, wire, seed=5)
    return Rounds(step, params, inner, wire, 4, inner_steps, loop, **rest)


def finish(trainer):
    while not trainer.done:
        trainer.advance()
    return trainer


def same(a, b):
    return all(torch.equal(a.loop.theta[n], b.loop.theta[n]) for n in a.loop.theta)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_where_a_worker_rests_changes_no_bit(tmp_path, inner, place):
    """Weights, moments, z; a `cpu` worker of a CPU model stays where it is, a `disk` one is mapped."""
    here = finish(rounds(net(), 14, 4, 3, INNER[inner]))
    there = finish(rounds(net(), 14, 4, 3, INNER[inner], place=place, folder=tmp_path))
    assert same(here, there)
    for a, b in zip(here.workers, there.workers, strict=True):
        mine, other = a.optimizer.state_dict()["state"], b.optimizer.state_dict()["state"]
        assert all(torch.equal(mine[i][k], other[i][k]) for i in mine for k in mine[i] if k != "step")
    assert (there.workers[0].moments is not None) == (place == "disk")
    assert not list(tmp_path.iterdir()), "a file on disk has no name, so none is left behind"


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("place", ["device", "disk"])
def test_a_run_stopped_anywhere_goes_on_bit_for_bit(tmp_path, inner, place):
    """Mid-round in the first and the second worker, between workers, between rounds; from one place to the other."""
    other = {"device": "disk", "disk": "device"}[place]
    whole = finish(rounds(net(), 12, 4, 2, INNER[inner]))
    for ticks in (2, 4, 6, 8, 11):
        first = rounds(net(), 12, 4, 2, INNER[inner], place=place, folder=tmp_path)
        for _ in range(ticks):
            first.advance()
        torch.save({"shared": first.shared_state(), "workers": first.worker_states()}, tmp_path / "saved")
        finish(first)
        assert same(whole, first), "saving changes nothing"
        saved = torch.load(tmp_path / "saved", weights_only=True)
        second = rounds(net(seed=1), 12, 4, 2, INNER[inner], place=other, folder=tmp_path)
        second.load(saved["shared"], saved["workers"].__getitem__)
        assert same(whole, finish(second)), ticks


def test_a_hundred_and_twenty_eight_workers_on_disk(tmp_path):
    model = net()
    trainer = finish(rounds(model, 4, 2, 128, place="disk", folder=tmp_path))
    assert same(trainer, finish(rounds(net(), 4, 2, 128)))
    assert all(w.moments.tensors for w in trainer.workers)


def test_a_shelf_lets_go_of_memory_and_keeps_the_values(tmp_path):
    def resident():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssFile:"))

    tensors = {"a": torch.randn(3), "b": torch.randn(1000, 4096), "c": torch.ones((), dtype=torch.bfloat16)}
    shelf = Shelf(tensors, tmp_path)
    shelf.put(tensors)
    before = resident()
    assert all(torch.equal(shelf.tensors[n], t) for n, t in tensors.items())
    read = resident()
    shelf.let_go("b")
    assert read - before > 12_000, "16 MB were mapped in"
    assert read - resident() > 12_000
    assert torch.equal(shelf.tensors["b"], tensors["b"])


def plain(inner, steps, workload, model):
    optimizer = inner(list(model.parameters()))
    optimizer.train()
    for step in range(steps):
        workload.loss(model, workload.batch(0, 1, step, 4)).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.eval()
    return dict(model.named_parameters())


@pytest.mark.parametrize("inner_steps", [1, 3, 7, 48])
@pytest.mark.parametrize("inner", [GPA, FREE], ids=["gpa", "schedule-free"])
def test_averaging_with_one_worker_rate_one_is_the_plain_optimizer(inner, inner_steps):
    """eta = 1, mu = 0: every restart moves x by a rounding, for every H; restarting z at x would show at once."""
    expected = plain(inner, 48, Quadratic(), Point(START))
    trainer = finish(rounds(Point(START), 48, inner_steps, 1, inner, PLAIN, Quadratic()))
    torch.testing.assert_close(trainer.loop.theta["w"].detach(), expected["w"].detach(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("workers", [1, 3])
def test_x_is_sent_and_z_moves_with_it(workers):
    """After a round the pseudo-gradient was theta - mean(x), and every worker's z - x is what it was."""
    trainer = rounds(net().double(), 8, 4, workers, GPA, workload=Doubled())
    kept, theta = {}, {n: t.clone() for n, t in trainer.loop.theta_tensors().items()}
    sync = trainer.loop.sync

    def watched(all_workers):
        for w in all_workers:
            for n, p in w.params.items():
                kept[w.index, n] = (w.weights[n].clone(), w.optimizer.state[p]["z"] - w.weights[n])
        return sync(all_workers)

    trainer.loop.sync = watched
    for _ in range(4 * workers):
        trainer.advance()
    for w in trainer.workers:
        for n, p in w.params.items():
            now = trainer.loop.theta[n].detach()
            assert torch.equal(w.weights[n], now)
            torch.testing.assert_close(w.optimizer.state[p]["z"] - now, kept[w.index, n][1], rtol=0, atol=1e-15)
    for n, start in theta.items():
        delta = start - sum(kept[i, n][0] for i in range(workers)) / workers
        torch.testing.assert_close(trainer.loop.theta[n].detach(), start - 0.7 * 1.9 * delta, rtol=0, atol=1e-15)


class Doubled(Regression):
    def batch(self, *place):
        return {k: v.double() for k, v in super().batch(*place).items()}

    def loss(self, model, batch):
        return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])


def test_averaging_in_bfloat16_weights_is_refused():
    with pytest.raises(ValueError, match="model.dtype"):
        rounds(net().bfloat16(), 8, 4, 2, GPA)


def test_the_stream_of_sums_is_the_stack_bit_for_bit():
    """Rules of the mean see a running sum; the same rule with the whole stack gives the same bits."""

    def stacked(deltas):  # not marked as one that needs the sum only
        return mean(deltas)

    streamed = finish(rounds(net(), 12, 4, 5, rule=mean))
    assert same(streamed, finish(rounds(net(), 12, 4, 5, rule=stacked)))
    assert needs_only_mean(partial(iso_c, method="gram"))
    assert not needs_only_mean(partial(iso_c, total="sum")), "the sum of W workers is not the sum of their mean"
    assert not needs_only_mean(dare)


def test_masks_are_keyed_by_seed_round_parameter_and_worker():
    """DARE sees the masks that its key says, so no rank and no interruption can change them."""
    seen = []

    def watched(deltas, *, generator):
        seen.append((deltas.clone(), generator.get_state()))
        return dare(deltas, 0.5, generator=generator)

    trainer = finish(rounds(net(), 8, 4, 2, rule=watched))
    names = list(trainer.loop.theta)
    for place, (deltas, state) in enumerate(seen):
        key = (5, place // len(names), names[place % len(names)])
        generator = keyed_generator(*key)
        assert torch.equal(generator.get_state(), state)
        draw = int(torch.randint(2**62, (), generator=generator))
        masks = [sparsify(d, 0.5, generator=keyed_generator(draw, w)) for w, d in enumerate(deltas)]
        if deltas[0].numel() > 8:
            assert not torch.equal(masks[0] == 0, masks[1] == 0), "workers draw different masks"
