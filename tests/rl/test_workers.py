"""Rollout workers as the trainer sees them: who is sent ahead to a new version."""

from functools import partial
from types import SimpleNamespace

import pytest

from lowcomm.pulse import digest
from lowcomm.rl.publishing import Publishing
from lowcomm.rl.workers import Workers
from lowcomm.rollout.dispatcher import RolloutError
from tests.rollout.fakes import Hash, jobs, start
from tests.rollout.tiny import masters, publish, served

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize("newest", [True, False])
def test_workers_are_sent_to_a_version_only_if_the_next_text_may_come_from_it(newest, monkeypatch):
    """At staleness 1 they stood on the version before, and would have had to go back to an anchor for it."""
    publishing = SimpleNamespace(on_version=None)
    made = Workers("127.0.0.1:0", TOKEN, 1.0, publishing, newest)
    sent = []
    monkeypatch.setattr(made.dispatcher, "follow", sent.append)
    try:
        publishing.on_version(3, "ab" * 16)
    finally:
        made.close()
    assert made.dispatcher.expected == {3: "ab" * 16}, "every version's bits are known, whoever takes it"
    assert sent == ([3] if newest else [])


def test_after_a_resume_workers_are_held_to_versions_of_the_session_before(tmp_path):
    """With staleness the first text comes from a version that this session has not published."""
    store = publish(tmp_path / "store", range(4))
    publishing = SimpleNamespace(store=store, on_version=None)
    publishing.digests = partial(Publishing.digests, publishing)
    made = Workers("127.0.0.1:0", TOKEN, 60.0, publishing, False)
    try:
        start(made.address, Hash())  # its digests are others
        made.dispatcher.wait_limit_s = 1.0
        with pytest.raises(RolloutError, match="0 workers"):
            made.generate(jobs(1), 2, 3)
    finally:
        made.close()
    assert made.dispatcher.expected == {v: digest(served(masters(v))).hex() for v in (2, 3)}
    assert made.dispatcher.status()["refused"] == 1
