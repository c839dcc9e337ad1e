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
        return "sent"


class Writers:
    """Answers from the oldest version allowed."""

    def generate(self, jobs, at_least, at_most):
        self.asked = (at_least, at_most)
        return [[Completion([1], [0.0], True, at_least)] for _ in jobs]


class Rounds:
    """The trainers join after every `inner_steps` steps; what an outer step leaves is the number of steps."""

    def __init__(self, params, inner_steps):
        self.params, self.inner_steps = params, inner_steps

    def joins(self, step):
        return step % self.inner_steps == 0

    def last(self, step):
        return step - step % self.inner_steps

    def after_step(self, step):
        if self.inner_steps == 1 or not self.joins(step):
            return {}
        self.params["w"].fill_(step)
        return {"comm/bytes": 8}


def live(inner_steps=1, **changes):
    params = {"w": torch.zeros(2)}
    store, writers = Store(params), Writers()
    ledger = SimpleNamespace(write=lambda step, sent, lag, trainers: {"sync/bytes": 1, "told": trainers})
    settings = dict(steps=8, staleness=2, strict=True, eval_every=8, checkpoint_every=8, boundary=1, values=dict)
    settings |= {"together": Rounds(params, inner_steps)} | changes
    return Live(params, writers, store, ledger, Meters([]), None, None, None, None, **settings), params, store, writers


def test_what_an_outer_step_leaves_is_published_and_nothing_between():
    made, params, store, _ = live(inner_steps=2)
    for step in (1, 2):
        params["w"].fill_(-1.0)
        made.on_step_end(None, SimpleNamespace(global_step=step), None)
    assert {step: w.tolist() for step, w in store.seen.items()} == {2: [2, 2]}
    assert made.joined == {"comm/bytes": 8, "sync/bytes": 1, "told": {"comm/bytes": 8}}


def test_between_outer_steps_text_is_by_the_last_joined_weights():
    made, _, _, writers = live(inner_steps=4, staleness=0)
    made.text([Job([1], [0], Sampling(1))], 7)
    assert writers.asked == (4, 4)
    assert made.lag == 3


def test_evaluations_and_checkpoints_wait_for_the_trainers_to_join():
    made, *_ = live(inner_steps=4)
    assert [step for step in (4, 8, 12, 16) if made.due(step, 6)] == [8, 12]
    made, *_ = live()
    assert [step for step in range(1, 10) if made.due(step, 3)] == [3, 6, 9]


def test_weights_that_are_not_finite_reach_nobody():
    made, params, store, _ = live()
    params["w"][0] = float("nan")
    with pytest.raises(FloatingPointError, match="'w' is not finite after step 1"):
        made.on_step_end(None, SimpleNamespace(global_step=1), None)
    assert store.seen == {}


def test_the_line_of_a_step_says_how_long_still(caplog):
    made, *_ = live()
    made.tracker = SimpleNamespace(active=True, bar=SimpleNamespace(disable=True))
    caplog.set_level("INFO")
    values = {"train/reward": 0.5, "time/step": 25.0, "time/generate": 20.0, "time/publish": 1.0}
    for step in (5, 8):
        made.show(step, values)
    assert [record.message for record in caplog.records] == [
        "step 5/8 · reward 0.50 · 25.0 s, of it text 20.0, sync 1.00 · 01:15 left",
        "step 8/8 · reward 0.50 · 25.0 s, of it text 20.0, sync 1.00",
    ]


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
