"""PULSELoCo on ranks: bitwise one process, refused together, and a rank that is killed."""

import multiprocessing
import os
import signal
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist

from lowcomm import checkpoint
from lowcomm.outer import aggregate, exchange, gate
from lowcomm.outer.compress import VisibilityGate
from lowcomm.outer.exchange import ConsensusError
from lowcomm.pulse.errors import Corrupt
from tests.outer.gate_loops import finish, rounds, same, state


def on_ranks(ranks, folder, task):
    """Run `task(rank, folder)` on ranks that gloo joins; returns their exit codes."""
    context = multiprocessing.get_context("fork")
    store = folder / f"store-{len(list(folder.iterdir()))}"
    processes = [context.Process(target=one_rank, args=(rank, ranks, store, folder, task)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    return [process.exitcode for process in processes]


def one_rank(rank, ranks, store, folder, task):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks,
                            timeout=timedelta(seconds=150))  # fmt: skip
    task(rank, folder)
    dist.destroy_process_group()


@pytest.fixture(autouse=True, scope="module")
def compiled():
    """Before the first fork, so that the ranks need not load the compiled code each on its own."""
    theta = torch.linspace(-1, 1, 64)
    item = VisibilityGate()("w", theta, torch.full((64,), 1e-2)).item
    form = gate.Format.of(torch.bfloat16, "exact")
    for codec in ("packed", "paper"):
        body = gate.opened(gate.encode([item], form, codec), codec, 0, 0)
        assert torch.equal(next(gate.decode(body, {"w": theta}, form, codec, "test")), item.values)


CASES = {
    "twenty rounds": {},
    "iso-c": {"steps": 12, "rule": partial(aggregate.iso_c, method="gram")},
    "paper": {"steps": 12, "compressor": partial(VisibilityGate, codec="paper")},
    "bf16 values": {"steps": 12, "compressor": partial(VisibilityGate, values="bf16")},
}


def run_cases(rank, folder):
    exchange.BUCKET = 50  # two objects a round
    for name, case in CASES.items():
        trainer = rounds(**case)
        reports = finish(trainer)
        found = {"state": state(trainer), "reports": reports, "residual": trainer.loop.compressors[0 if rank < 0 else
                 trainer.wire.local[0]].residual}  # fmt: skip
        torch.save(found, folder / f"{name}-{trainer.wire.ranks}-{rank}")


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_are_outside_the_mathematics(tmp_path, ranks, monkeypatch):
    """W = 4: theta, momentum, residuals, and everything reported, bit for bit."""
    assert on_ranks(ranks, tmp_path, run_cases) == [0] * ranks
    monkeypatch.setattr(exchange, "BUCKET", 50)
    run_cases(-1, tmp_path)
    for name in CASES:
        alone = torch.load(tmp_path / f"{name}-1--1", weights_only=True)
        for rank in range(ranks):
            mine = torch.load(tmp_path / f"{name}-{ranks}-{rank}", weights_only=True)
            assert mine["reports"] == alone["reports"]
            assert all(torch.equal(t, alone["state"][n]) for n, t in mine["state"].items())
        shares = {"iso-c": 1, "paper": 1, "bf16 values": 1}.get(name, 5)
        assert len(alone["reports"]) == 4 * shares
        assert 0 < alone["reports"][-1]["comm/sparsity_min"] < alone["reports"][-1]["comm/sparsity_max"] < 1


def refusals(rank, folder):
    """Damaged bytes, a worker that is not finite, a rank that left the consensus: refused by all, then all is well."""
    trainer = rounds(workers=2, steps=12)
    for _ in range(3):
        trainer.advance()
    before, encode = state(trainer), gate.encode
    for _ in range(2):
        trainer.advance()
    sync, trainer.loop.sync = trainer.loop.sync, lambda workers: {}
    trainer.advance()
    trainer.loop.sync = sync

    def damaged(*arguments):
        data = bytearray(encode(*arguments))
        data[len(data) // 2] ^= 1
        return bytes(data)

    def refused(kind, message):
        with pytest.raises(kind, match=message):
            trainer.loop.sync(trainer.workers)
        assert same(state(trainer), before)
        assert trainer.loop.round == 1

    gate.encode = damaged if rank == 1 else encode
    refused(Corrupt, "round 1, worker 1: the message of .* bytes was damaged")
    gate.encode = encode
    weight = trainer.workers[0].weights["0.bias"]
    kept = weight.clone()
    if rank == 1:
        weight[0] = float("inf")
    refused(FloatingPointError, "round 1, worker 1: .*'0.bias' is not finite")
    weight.copy_(kept)
    theta = trainer.loop.theta["2.bias"]
    whole = theta.detach().clone()
    if rank == 1:
        theta.data.copy_(torch.nextafter(whole, torch.tensor(9.0)))
        before["theta/2.bias"] = theta.detach().clone()
    refused(ConsensusError, "round 1: round or theta of rank 1 differ from rank 0's")
    theta.data.copy_(whole)
    trainer.loop.sync(trainer.workers)
    finish(trainer)
    torch.save(state(trainer), folder / f"refusals-{rank}")


def test_refusals_are_the_same_on_all_ranks_and_leave_no_trace(tmp_path):
    assert on_ranks(2, tmp_path, refusals) == [0, 0]
    expected = rounds(workers=2, steps=12)
    finish(expected)
    for rank in range(2):
        mine = torch.load(tmp_path / f"refusals-{rank}", weights_only=True)
        assert all(torch.equal(t, state(expected)[n]) for n, t in mine.items())


def with_checkpoints(rank, folder, die_at=None):
    trainer = rounds(workers=4, steps=18, inner_steps=4)
    found, ticks = checkpoint.latest(folder / "checkpoints", "d"), 0
    if found:
        ticks, shared, worker_state = checkpoint.load(found)
        trainer.load(shared, worker_state)
    while not trainer.done:
        if ticks == die_at and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.advance()
        ticks += 1
        if ticks % 5 == 0 and not trainer.done:
            states = trainer.worker_states()
            checkpoint.save(folder / "checkpoints", "d", ticks, trainer.shared_state(), states, trainer.wire)
    torch.save(state(trainer), folder / f"end-{rank}")


def test_a_rank_killed_in_mid_round_and_everything_started_again(tmp_path):
    """SIGKILL of one rank in the second of its workers; the run that resumes is bitwise the uninterrupted one."""
    assert on_ranks(2, tmp_path, partial(with_checkpoints, die_at=23)) == [1, -signal.SIGKILL]
    assert not list(tmp_path.glob("end-*"))
    assert checkpoint.latest(tmp_path / "checkpoints", "d").name == "tick-00000020"
    assert on_ranks(2, tmp_path, with_checkpoints) == [0, 0]
    expected = rounds(workers=4, steps=18, inner_steps=4)
    finish(expected)
    whole = state(expected)
    assert any(e.any() for n, e in whole.items() if n.startswith("residual"))
    for rank in range(2):
        mine = torch.load(tmp_path / f"end-{rank}", weights_only=True)
        assert all(torch.equal(t, whole[n]) for n, t in mine.items())
