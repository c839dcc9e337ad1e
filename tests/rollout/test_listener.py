"""The trainer's door: what may stand where it listens, strangers who are slow or many, and a system that runs short."""

import contextlib
import errno
import socket

import pytest

from lowcomm.rollout import wire
from lowcomm.rollout.dispatcher import Dispatcher
from lowcomm.rollout.generation import Completion
from lowcomm.rollout.listener import listener
from tests.rollout.fakes import Hash, Rude, answers, dispatcher, jobs, start


def stranger(address: str) -> wire.Line:
    family, where = wire.endpoint(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.connect(where)
    return wire.Line(sock, 60.0)


def test_a_file_that_is_no_socket_is_not_removed(tmp_path):
    precious = tmp_path / "notes"
    precious.write_text("here")
    with pytest.raises(ValueError, match="listen=unix:.*notes: Address already in use; choose another"):
        listener(f"unix:{precious}")
    assert precious.read_text() == "here"


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_place_where_another_trainer_listens_is_left_to_it(tmp_path, kind):
    with dispatcher(listen="127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/door") as d:
        with pytest.raises(ValueError, match=f"listen={d.address}: .*another"):
            listener(d.address)
        start(d.address)
        assert d.generate(jobs(1), 0, 0) == answers(jobs(1), 0)


def test_it_goes_on_when_the_system_has_no_file_for_a_connection(monkeypatch, caplog):
    class Short:
        """A listening socket whose first connection cannot be taken."""

        def __init__(self, made):
            self.made, self.failed = made, False

        def accept(self):
            if not self.failed:
                self.failed = True
                raise OSError(errno.EMFILE, "Too many open files")
            return self.made.accept()

        def __getattr__(self, name):
            return getattr(self.made, name)

    monkeypatch.setattr(
        "lowcomm.rollout.dispatcher.listener", lambda at: (Short(made := listener(at)[0]), address(made))
    )
    with dispatcher() as d:
        start(d.address)
        assert d.generate(jobs(2), 0, 0) == answers(jobs(2), 0)
    assert "could not be taken: [Errno 24] Too many open files" in caplog.text


def address(made: socket.socket) -> str:
    return "{}:{}".format(*made.getsockname())


def write_for_ever(line: wire.Line) -> None:
    while True:
        line.sock.sendall(b" ")


def test_a_stranger_who_writes_slowly_is_not_waited_for():
    with dispatcher(heartbeat_s=0.1, lost_after_s=0.5) as d:
        slow = stranger(d.address)
        slow.receive()
        with pytest.raises(OSError):  # noqa: PT011 whichever the system calls it: it is cut off
            write_for_ever(slow)
        assert d.status()["refused"] == 1


def test_strangers_too_are_counted_and_there_is_a_most(monkeypatch):
    monkeypatch.setattr("lowcomm.rollout.dispatcher.CONNECTIONS", 2)
    with dispatcher() as d:
        strangers = [stranger(d.address) for _ in range(2)]
        for line in strangers:
            line.receive()
        with pytest.raises(OSError):  # noqa: PT011 closed, with or without a reset
            stranger(d.address).receive()
        for line in strangers:
            line.close()
        start(d.address)
        assert d.generate(jobs(1), 0, 0) == answers(jobs(1), 0)


def test_who_is_greeted_while_the_trainer_ends_is_let_go(monkeypatch):
    """It would have waited for jobs for as long as the process lives."""
    with dispatcher() as d:
        greet = d._greet
        monkeypatch.setattr(d, "_greet", lambda line: (d.close(), greet(line))[1])
        with contextlib.suppress(OSError):
            assert Rude(d.address).closed()


def test_a_worker_whose_numbers_are_not_finite_says_so_and_lives(caplog):
    class Overflows(Hash):
        """At version 1."""

        def generate(self, prompts, seeds, sampling):
            good = super().generate(prompts, seeds, sampling)
            bad = [Completion(c.tokens, [float("nan")] * len(c.tokens), c.finished, c.version) for c in good]
            return bad if self.version == 1 else good

    with dispatcher(wait_limit_s=2.0) as d:
        start(d.address, Overflows())
        with pytest.raises(RuntimeError, match="version 1 gives log-probabilities that are not finite"):
            d.generate(jobs(1), 1, 1)
        d.wait_limit_s = 60.0
        assert d.generate(jobs(1), 2, 2) == answers(jobs(1), 2)


def test_an_address_that_cannot_be_is_a_value_error():
    with pytest.raises(ValueError, match="listen=unix:x*: .*choose another"):
        Dispatcher("unix:" + "x" * 200, token="0123456789abcdef")
