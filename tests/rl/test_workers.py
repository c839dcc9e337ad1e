"""Rollout workers as the trainer sees them: who is sent ahead to a new version."""

from types import SimpleNamespace

import pytest

from lowcomm.rl.workers import Workers

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
