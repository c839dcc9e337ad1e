"""How the messages of all workers come together: as tensors, or as the packed bytes of gated ones; consensus."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lowcomm.outer import gate
from lowcomm.outer.workers import Wire, Worker
from lowcomm.pulse.state import digest

BUCKET = 1 << 22  # entries of the parameters that share one object on the wire
AGREEMENT = 8 + 16  # bytes: the round and a digest

Message = Callable[[str, Worker], object]  # what a local worker sends of a parameter; the same at every call


class ConsensusError(RuntimeError):
    """The ranks hold different theta; whatever they average from here on is wrong."""


def agree(wire: Wire, round: int, theta: dict[str, Tensor]) -> None:
    """Compare round and theta (xxh3-128 of all tensors: names, shapes, bits) of all ranks. Raises ConsensusError on
    each of them, naming those that differ.

    Nothing is compared within one rank, whose workers share theta.
    """
    if wire.ranks == 1:
        return
    mine = torch.tensor(list(round.to_bytes(8, "little") + digest(theta)), dtype=torch.uint8)
    found = wire.gather(mine.repeat(len(wire.local), 1))[:: len(wire.local)].tolist()
    usual = max(found, key=found.count)
    odd = [rank for rank, other in enumerate(found) if other != usual]
    if odd:
        what = "round or theta of " + ("rank " if len(odd) == 1 else "ranks ") + ", ".join(map(str, odd))
        raise ConsensusError(f"round {round}: {what} differ from rank {found.index(usual)}'s; nothing was averaged. "
                             "Start all ranks again: they resume together from their last checkpoint")  # fmt: skip


class Tally:
    """What the local workers sent in one round."""

    def __init__(self, workers: list[Worker]):
        self.places = {worker.index: place for place, worker in enumerate(workers)}
        self.squares: list[float] = []  # squared norm of each message: parameters outside, workers inside
        self.nbytes = [0] * len(workers)
        self.sent = [0] * len(workers)

    def norm(self, dense: Tensor) -> None:
        """Note what one worker's message of one parameter measures, ``dense`` having its shape."""
        self.squares.append(float(torch.linalg.vector_norm(dense)) ** 2)

    def count(self, worker: Worker, nbytes: int, sent: int) -> None:
        """Add bytes and entries to what this worker has sent."""
        self.nbytes[self.places[worker.index]] += nbytes
        self.sent[self.places[worker.index]] += sent


class DenseExchange:
    """Every entry of every worker, as tensors, parameter by parameter."""

    def __init__(self, wire: Wire):
        self.wire = wire

    def buckets(self, theta: dict[str, Tensor]) -> list[list[str]]:
        """Every parameter alone."""
        return [[name] for name in theta]

    def begin(self, round: int, theta: dict[str, Tensor], workers: list[Worker], message: Message, tally: Tally):
        """Nothing is sent before it is asked for."""
        self.workers, self.message, self.tally = workers, message, tally

    def _local(self, name: str) -> Iterator[Tensor]:
        for worker in self.workers:
            message = self.message(name, worker)
            self.tally.norm(message.dense())
            self.tally.count(worker, message.nbytes, message.dense().numel())
            yield message.dense()

    def total(self, name: str) -> Tensor:
        """Sum over all workers in worker order."""
        return self.wire.total(self._local(name))

    def stack(self, name: str) -> Tensor:
        """`(W, *shape)` in worker order."""
        return self.wire.gather(torch.stack(list(self._local(name))))


class GatedExchange:
    """The bytes of gated messages, one object per worker and bucket of parameters; every rank unpacks the others'.

    What a local worker sends is taken from its gate again, since unpacking gives the same bits.
    """

    def __init__(self, wire: Wire, form: gate.Format, codec: str):
        self.wire, self.form, self.codec = wire, form, codec

    def buckets(self, theta: dict[str, Tensor]) -> list[list[str]]:
        """Parameters in their order, together as long as they hold fewer than BUCKET entries."""
        found, size = [], BUCKET
        for name, t in theta.items():
            if size + t.numel() > BUCKET:
                found.append([])
                size = 0
            found[-1].append(name)
            size += t.numel()
        return found

    def begin(self, round: int, theta: dict[str, Tensor], workers: list[Worker], message: Message, tally: Tally):
        """Exchange one bucket, `theta`. Raises before anything was averaged: FloatingPointError on all ranks where a
        worker has no finite message, Corrupt on the rank that got other bytes than that worker must have sent; the
        others stop at the next exchange, before theta moves."""
        self.workers, self.message, self.tally = {w.index: w for w in workers}, message, tally
        objects = [self._object(round, theta, worker) for worker in workers]
        self.readers = {}
        for index, data in enumerate(self.wire.gather_bytes(objects)):
            try:
                body = gate.opened(data, self.codec, round, index)
            except gate.Refused as refused:
                raise FloatingPointError(f"round {round}, worker {index}: {refused}") from None
            if index not in self.workers:
                what = f"round {round}, worker {index}"
                self.readers[index] = gate.decode(body, theta, self.form, self.codec, what)

    def _object(self, round: int, theta: dict[str, Tensor], worker: Worker) -> bytes:
        try:
            messages = [self.message(name, worker) for name in theta]
        except FloatingPointError as error:
            return gate.refusal(str(error), round, worker.index)
        data = gate.encode([m.item for m in messages], self.form, self.codec, round, worker.index)
        self.tally.count(worker, len(data), sum(m.sent for m in messages))
        return data

    def _all(self, name: str) -> Iterator[Tensor]:
        for index in range(self.wire.workers):
            if index in self.readers:
                yield next(self.readers[index])
            else:
                dense = self.message(name, self.workers[index]).dense()
                self.tally.norm(dense)
                yield dense

    def total(self, name: str) -> Tensor:
        """Sum over all workers in worker order."""
        parts = self._all(name)
        running = next(parts).clone()
        for part in parts:
            running += part
        return running

    def stack(self, name: str) -> Tensor:
        """`(W, *shape)` in worker order."""
        return torch.stack(list(self._all(name)))
