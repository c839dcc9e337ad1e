"""Around a step: the outer step comes before publishing, text comes from the version that staleness says."""

from types import SimpleNamespace

import pytest
import torch

from lowcomm.rl.live import Live
from lowcomm.rl.meters import Meters
from lowcomm.rollout import Completion, Job, Sampling


class Store:
    """Publishes by remembering."""

    epoch = 0

    def __init__(self, params):
        self.params, self.seen = params, {}

    def version(self, step):
        return step

    def for_text(self, step, staleness):
        return max(0, step - staleness)

    def publish(self, step):
        self.seen[step] = self.params["w"].clone()


class Writers:
    """Answers from the oldest version allowed."""

    def generate(self, jobs, at_least, at_most):
        self.asked = (at_least, at_most)
        return [[Completion([1], [0.0], True, at_least)] for _ in jobs]


def live(outer=None, **changes):
    params = {"w": torch.zeros(2)}
    store, writers = Store(params), Writers()
    ledger = SimpleNamespace(write=lambda step, sent, lag: {"sync/bytes": 1})
    settings = dict(steps=8, staleness=2, strict=True, eval_every=8, checkpoint_every=8, boundary=1, values=dict)
    made = Live(params, writers, store, ledger, Meters([]), None, None, None, None, outer=outer, **settings | changes)
    return made, params, store, writers


def test_what_is_published_is_what_the_outer_step_leaves():
    def outer(step):
        if step % 2 == 0:
            params["w"].fill_(step)
        return {"outer/step": step // 2}

    made, params, store, _ = live(outer)
    for step in (1, 2):
        params["w"].fill_(-1.0)
        made.on_step_end(None, SimpleNamespace(global_step=step), None)
    assert store.seen[1].tolist() == [-1, -1]
    assert store.seen[2].tolist() == [2, 2]
    assert made.pending["outer/step"] == 1


def test_weights_that_are_not_finite_reach_nobody():
    made, params, store, _ = live()
    params["w"][0] = float("nan")
    with pytest.raises(FloatingPointError, match="'w' is not finite after step 1"):
        made.on_step_end(None, SimpleNamespace(global_step=1), None)
    assert store.seen == {}


def test_text_comes_from_exactly_the_stale_version_or_newer_ones():
    jobs = [Job([1], [0], Sampling(1))]
    made, _, _, writers = live()
    made.text(jobs, 5)
    assert writers.asked == (3, 3)
    assert made.lag == 2
    made, _, _, writers = live(strict=False)
    made.text(jobs, 5)
    assert writers.asked == (3, 5)
    made.at_version(jobs, 5)
    assert writers.asked == (5, 5)
