import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lowcomm.rollout import wire
from lowcomm.rollout.dispatcher import Dispatcher, RolloutError
from lowcomm.rollout.worker import Refused, Worker
from tests.rollout.fakes import TOKEN, Hash, Rude, answers, complete, digest_of, dispatcher, jobs, start


def ask(d, asked, at_least=0, at_most=None):
    """`generate` in the background."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(d.generate, asked, at_least, at_least if at_most is None else at_most)
    pool.shutdown(wait=False)
    return future


def test_answers_come_in_order_whoever_makes_them():
    with dispatcher() as d:
        for name in "abc":
            start(d.address, name=name)
        for version in (0, 1, 5, 3):
            assert d.generate(jobs(7), version, version) == answers(jobs(7), version)
        assert d.status()["done"] == 28


def test_a_worker_may_come_after_the_jobs(caplog):
    with dispatcher() as d:
        future = ask(d, jobs(3), 2)
        while "waiting: 3 of 3" not in caplog.text:
            threading.Event().wait(0.05)
        start(d.address)
        assert future.result(60) == answers(jobs(3), 2)


def test_with_no_worker_it_waits_and_then_says_so():
    with dispatcher(wait_limit_s=0.2) as d:
        with pytest.raises(
            RolloutError, match="2 of 2 rollout jobs are open, 0 workers at 127.0.0.1:.* none has failed"
        ):
            d.generate(jobs(2), 0, 0)
        start(d.address)  # and can go on
        d.wait_limit_s = 60.0
        assert d.generate(jobs(2), 0, 0) == answers(jobs(2), 0)


def test_the_job_of_a_worker_that_dies_goes_to_another():
    with dispatcher() as d:
        future = ask(d, jobs(3))
        dying = Rude(d.address)
        dying.take()
        start(d.address)
        dying.line.close()
        assert future.result(60) == answers(jobs(3), 0)
        assert d.status()["returned"] == 1


def test_a_silent_worker_is_given_up():
    with dispatcher(heartbeat_s=0.2, lost_after_s=1.0) as d:
        future = ask(d, jobs(2))
        silent = Rude(d.address)
        silent.take()
        start(d.address)
        assert future.result(60) == answers(jobs(2), 0)
        assert d.status()["returned"] >= 1


def test_a_slow_worker_is_overtaken_and_its_late_answer_dropped():
    with dispatcher(hedge_after_s=0.3) as d:
        future = ask(d, jobs(1))
        slow = Rude(d.address)
        job = slow.take()
        start(d.address)
        assert future.result(60) == answers(jobs(1), 0)
        wrong = [vars(complete(0, [9], s, jobs(1)[0].sampling)) for s in job["seeds"]]
        slow.line.send("done", id=job["id"], completions=wrong)
        again = ask(d, jobs(1), 1)  # the slow one may work again
        assert again.result(60) == answers(jobs(1), 1)
        slow.line.send("ready")
        while not d.status().get("late"):
            threading.Event().wait(0.05)
        assert d.status()["done"] == 2


def test_a_worker_that_hangs_is_dropped_at_the_limit():
    with dispatcher(job_limit_s=0.3, heartbeat_s=0.1) as d:
        future = ask(d, jobs(1))
        hanging = Rude(d.address)
        hanging.take()
        assert hanging.closed()
        start(d.address)
        assert future.result(60) == answers(jobs(1), 0)


GOOD = {"tokens": [1, 2], "logprobs": [-1.0, -0.5], "finished": True, "version": 0}
BAD = {
    "a field too few": {"tokens": [1, 2]},
    "not a token": GOOD | {"tokens": [1, -2]},
    "a truth value as a token": GOOD | {"tokens": [1, True]},
    "no token": GOOD | {"tokens": [], "logprobs": []},
    "too many tokens": GOOD | {"tokens": [1] * 5, "logprobs": [-1.0] * 5},
    "a logarithm too few": GOOD | {"logprobs": [-1.0]},
    "a probability above 1": GOOD | {"logprobs": [-1.0, 0.5]},
    "a logarithm that no float holds": GOOD | {"logprobs": [-1.0, -(10**400)]},
    "another version": GOOD | {"version": 1},
    "a text": "tokens",
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_answer_ends_its_worker_and_nothing_else(case):
    with dispatcher() as d:
        future = ask(d, jobs(1))
        rude = Rude(d.address)
        rude.line.send("done", id=rude.take()["id"], completions=[GOOD, BAD[case]])
        assert rude.closed()
        start(d.address)
        assert future.result(60) == answers(jobs(1), 0)
        assert d.status()["refused"] == 1


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"type":7}',
        b'{"type":"obey"}',
        b'{"type":"ready"}',  # while it has a job
        b'{"type":"done","id":"x","completions":[]}',
        b'{"type":"done","completions":[]}',
        b'{"type":"ack","version":0,"digest":"zz"}',
        b'{"type":"ack","version":-1,"digest":"%032d"}' % 0,
        b'{"type":"ack","version":1e3,"digest":"%032d"}' % 0,
        b'{"type":"beat","x":NaN}',
        b"[" * 100000,
        b"\xff\xfe",
        b"x" * (wire.LINE + 1),
    ],
    ids=lambda line: line[:24].decode(errors="replace"),
)
def test_a_malformed_line_ends_its_worker_and_nothing_else(line):
    with dispatcher() as d:
        future = ask(d, jobs(2))
        rude = Rude(d.address)
        rude.take()
        rude.line.sock.sendall(line + b"\n")
        start(d.address)
        assert future.result(60) == answers(jobs(2), 0)
        assert d.status()["refused"] == 1


def test_the_same_answer_twice():
    with dispatcher() as d:
        future = ask(d, jobs(2))
        rude = Rude(d.address)
        job = rude.take()
        for _ in range(2):
            rude.line.send("done", id=job["id"], completions=[GOOD, GOOD])
        assert rude.closed()
        start(d.address)
        first, second = future.result(60)
        assert [c.tokens for c in first] == [[1, 2], [1, 2]]
        assert [second] == answers(jobs(2)[1:], 0)
        assert d.status()["done"] == 2


def test_strangers_are_refused():
    with dispatcher() as d:
        with pytest.raises(Refused, match="token"):
            Worker(Hash(), d.address, "another token ......", "w", "fake", 5.0).run()
        assert Rude(d.address, protocol=99).answer["type"] == "refused"
        with pytest.raises((ConnectionError, OSError)):
            Rude(d.address, name="x" * 5000)
        start(d.address)
        assert d.generate(jobs(1), 0, 0) == answers(jobs(1), 0)


def test_weights_that_are_not_the_trainers_are_not_used():
    with dispatcher() as d:
        for version in range(3):
            d.announce(version, digest_of(version))
        drifting = Worker(Hash(wrong_from=1), d.address, TOKEN, "drifting", "fake", 60.0)
        pool = ThreadPoolExecutor(1)
        ended = pool.submit(drifting.run)
        pool.shutdown(wait=False)
        assert d.generate(jobs(2), 0, 0) == answers(jobs(2), 0)
        future = ask(d, jobs(2), 1)
        with pytest.raises(Refused, match="weights of version 1 have digest"):  # and it ends, to start afresh
            ended.result(60)
        start(d.address, name="right")
        assert future.result(60) == answers(jobs(2), 1)
        assert d.generate(jobs(2), 2, 2) == answers(jobs(2), 2)
        assert d.status()["verified"] == 3


def test_completions_of_a_version_that_was_not_acknowledged_are_refused():
    with dispatcher() as d:
        d.announce(0, digest_of(0))
        future = ask(d, jobs(1))
        rude = Rude(d.address)
        rude.line.send("ready")
        job = rude.next("job")
        rude.line.send("done", id=job["id"], completions=[GOOD, GOOD])
        assert rude.closed()
        start(d.address)
        assert future.result(60) == answers(jobs(1), 0)


def test_a_worker_that_cannot_get_the_weights_says_why():
    with dispatcher(wait_limit_s=3.0) as d:
        start(d.address, Hash(newest=2), name="cut off")
        with pytest.raises(
            RolloutError, match=r"last failure: cut off \(fake\): Missing: version 3 is not in the store"
        ):
            d.generate(jobs(1), 3, 3)
        d.wait_limit_s = 60.0
        start(d.address)
        assert d.generate(jobs(3), 3, 3) == answers(jobs(3), 3)


def test_staleness_is_bounded_and_logged():
    with dispatcher() as d:
        start(d.address, Hash(newest=4))
        assert d.generate(jobs(1), 4, 4) == answers(jobs(1), 4)
        assert d.generate(jobs(2), 3, 6) == answers(jobs(2), 4)  # two versions behind, three are allowed
        assert {k: v for k, v in d.status().items() if k.startswith("lag")} == {"lag 0": 2, "lag 2": 4}
        with pytest.raises(ValueError, match="versions 2 to 1"):
            d.generate(jobs(1), 2, 1)
        with pytest.raises(ValueError, match="versions -1 to 1"):
            d.generate(jobs(1), -1, 1)


def test_workers_follow_when_asked_to():
    with dispatcher() as d:
        d.announce(7, digest_of(7))
        for name in "ab":
            start(d.address, name=name)
        while d.status()["workers"] < 2:
            threading.Event().wait(0.05)
        assert d.follow(7, wait_s=60.0) == 2
        assert d.status()["verified"] == 1
        start(d.address, name="late")
        assert d.follow(7, wait_s=60.0, at_least=3) == 3
        assert d.generate(jobs(3), 2, 2) == answers(jobs(3), 2)  # which ends it: those that join now are not sent to 7
        assert d.wanted is None


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_worker_outlives_its_trainer(tmp_path, kind):
    with dispatcher(listen="127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/door") as d:
        start(d.address)
        assert d.generate(jobs(1), 0, 0) == answers(jobs(1), 0)
        address = d.address
    with dispatcher(listen=address) as d:
        d.announce(0, digest_of(0))
        assert d.generate(jobs(1), 1, 1) == answers(jobs(1), 1)
        assert d.status()["verified"] == 1  # it said again what it holds


def test_a_place_where_it_cannot_listen(tmp_path):
    message = r"listen=127\.0\.0\.1:\d+: .*in use; choose another address \(port 0: any free one\)"
    with dispatcher(listen="127.0.0.1:0") as d, pytest.raises(ValueError, match=message):
        Dispatcher(d.address, TOKEN)
    with pytest.raises(ValueError, match=r"listen=unix:.*No such file.*"):
        Dispatcher(f"unix:{tmp_path}/none/socket", TOKEN)


def test_a_worker_without_a_trainer_gives_up(tmp_path):
    with pytest.raises(ConnectionError, match="not to be reached for 0.2 s"):
        Worker(Hash(), f"unix:{tmp_path}/nobody", TOKEN, "w", "fake", 0.2).run()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"token": "short"}, "16 characters"),
        ({"token": TOKEN, "listen": "nowhere"}, "address=nowhere"),
        ({"token": TOKEN, "heartbeat_s": 20.0}, "heartbeat_s=20"),
        ({"token": TOKEN, "wait_limit_s": 0.0}, "wait_limit_s=0"),
    ],
)
def test_what_the_dispatcher_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        Dispatcher(**arguments)
