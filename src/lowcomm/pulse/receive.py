"""From a patch back to exactly the new weights, or not at all (2602.03839, Algorithm 1, decoding)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np
from torch import Tensor

from lowcomm.pulse import paper
from lowcomm.pulse.blocks import Mode, Update, decode_block, split
from lowcomm.pulse.errors import Corrupt, Foreign, StaleBase, Unsupported
from lowcomm.pulse.history import History, Marks, grew
from lowcomm.pulse.overlap import refuse_overlaps
from lowcomm.pulse.paper import differences
from lowcomm.pulse.patch import Patch, Record, decode
from lowcomm.pulse.state import State, Tensors, block_digest, block_digests, ordered, state_digest, tensor_digest

STAGED = 256 << 20  # decoded changes kept between checking and writing; beyond this they are decoded twice


class Writable(State, Protocol):
    """A `State` that can be changed in place."""

    def write(self, name: str, start: int, stop: int, position: np.ndarray | None, value: np.ndarray) -> None:
        """Set elements ``start + position`` (None: all of the range) to ``value``, words of the element's width."""
        ...


def apply(
    tensors: Mapping[str, Tensor] | Writable,
    patch: Patch | bytes,
    threads: int | None = None,
    history: History | None = None,
) -> None:
    """Turn ``tensors`` into the patch's target, in place, all or nothing.

    Everything is checked before the first write: the object, names, shapes and dtypes, that these weights are the
    patch's base, every position, and that the result has the target digest. Raises a PatchError with the weights
    untouched: Corrupt, Unsupported, Foreign (a tensor is missing), StaleBase.

    ``history`` is this side's memory, needed by the codec "history" and kept up to date by every patch.

    Memory: the object, some blocks of 4 Mi elements for each thread, and STAGED; the codec `paper` needs up to 30 bytes
    more for each changed entry of its largest tensor. At a density of a few per cent that is less than 6 times the
    largest tensor and 256 MB, whatever the number of tensors.
    """
    patch, state, names, staged = _checked(tensors, patch, threads, history)
    # what was checked is decoded again from the same bytes where it was too much to keep
    again = ((i, u) for i, u, _ in decoded(patch, state, names, threads, history)) if staged is None else staged
    commit = _remembering(patch, history)
    for (record, block), update in again:
        span = record.entry.blocks()[block]
        commit(names[record.name][0], record, span, state, update)
        for name in names[record.name]:
            state.write(name, *span, update.position, update.value)
    if history is not None and patch.base_version is not None:
        history.close()


def verify(
    tensors: Mapping[str, Tensor] | State,
    patch: Patch | bytes,
    threads: int | None = None,
    history: History | None = None,
) -> None:
    """All that `apply` checks of patch and tensors, without writing: raises the PatchError that it would."""
    _checked(tensors, patch, threads, history)


def _check_history(patch: Patch, history: History | None) -> None:
    """A patch whose codec remembers needs the same memory here, or to be the first after its anchor."""
    if patch.codec != "history":
        return
    if history is None:
        raise Unsupported("this patch was made with codec 'history': pass history=, or start from an anchor")
    if patch.meta.get("history_start") == patch.base_version:
        return
    if history.digest().hex() != patch.meta.get("history"):
        raise StaleBase("what this receiver remembers is not what the publisher does: start again from an anchor")


def _marks(patch: Patch, history: History | None, name: str, span: tuple[int, int]) -> Marks | None:
    if patch.codec != "history":
        return None
    if patch.meta.get("history_start") == patch.base_version:  # nothing is remembered at an anchor
        blank = np.zeros(256, np.int64)
        return Marks(np.zeros(span[1] - span[0], np.uint8), blank, blank)
    return Marks(history.block(name, *span), *history.meaning())


def _remembering(patch: Patch, history: History | None) -> Callable:
    """What to do with each update before it is written."""
    if history is None:
        return lambda *_: None
    if patch.base_version is None or patch.meta.get("history_start") == patch.base_version:
        history.reset(patch.version if patch.base_version is None else patch.base_version)
    if patch.base_version is None:
        return lambda *_: None

    def commit(name: str, record: Record, span: tuple[int, int], state: State, update: Update) -> None:
        old = state.read(name, *span)
        position = differences(old, update.value) if update.position is None else update.position
        new = update.value[position] if update.position is None else update.value
        history.record(name, span[0], position, grew(old[position], new, record.entry.layout.exponent > 0))

    return commit


def _checked(
    tensors: Mapping[str, Tensor] | State, patch: Patch | bytes, threads: int | None, history: History | None
) -> tuple[Patch, State, dict[str, list[str]], list | None]:
    """Patch, state, matched names, and the decoded changes, None where they are too many to keep."""
    patch = patch if isinstance(patch, Patch) else decode(patch)
    state = Tensors(tensors) if isinstance(tensors, Mapping) else tensors
    names = match(patch, state)
    if isinstance(tensors, Mapping):
        refuse_overlaps({name: tensors[name] for here in names.values() for name in here})
    hashes = block_digests(state, threads)
    check_base(patch, state, names, hashes)
    _check_history(patch, history)
    staged, size = [], 0
    for item, update, block_hash in decoded(patch, state, names, threads, history):
        record, block = item
        hashes[names[record.name][0]][block] = block_hash
        size += update.nbytes
        if size <= STAGED:
            staged.append((item, update))
        else:
            staged.clear()
    if _digest(patch, names, hashes) != patch.target_digest:
        raise Corrupt("the patch does not lead to the weights it was made for; they were left as they are")
    return patch, state, names, staged if size <= STAGED else None


def match(patch: Patch, state: State) -> dict[str, list[str]]:
    """For each record the state's tensors that take it: one, or several where the publisher ties what is separate here.

    Raises Foreign where the state lacks a tensor, Unsupported where it has others, or other shapes or dtypes.
    """
    other: dict[str, list[str]] = {}
    for alias, owner in patch.aliases.items():
        other.setdefault(owner, []).append(alias)
    names, owner_of = {}, {}
    for record in patch.records:
        known = [n for n in (record.name, *other.get(record.name, ())) if n in state.entries or n in state.aliases]
        if not known:
            raise Foreign(f"the patch has tensor {record.name!r}, the receiver does not: is it the same model?")
        names[record.name] = list(dict.fromkeys(state.aliases.get(n, n) for n in known))
        for name in names[record.name]:
            if state.entries[name] != record.entry:
                raise Unsupported(f"tensor {name!r} is {state.entries[name]} here and {record.entry} in the patch")
            if name in owner_of:
                raise Unsupported(f"{record.name!r} and {owner_of[name]!r} share storage here but not at the publisher")
            owner_of[name] = record.name
    if extra := sorted(state.entries.keys() - owner_of.keys()):
        raise Unsupported(f"the receiver has {extra[0]!r} ({len(extra)} in all), unknown to the patch: leave it out")
    return names


def check_base(patch: Patch, state: State, names: Mapping[str, list[str]], hashes: Mapping[str, list[bytes]]) -> None:
    """Raises StaleBase unless these are the weights the patch was made against. An anchor fits any weights."""
    if patch.base_version is None:
        return
    for copies in names.values():
        for copy in copies[1:]:
            if hashes[copy] != hashes[copies[0]]:
                raise StaleBase(f"{copy!r} and {copies[0]!r} are tied at the publisher but differ here")
    here = _digest(patch, names, hashes)
    if here == patch.base_digest:
        return
    if here == patch.target_digest:
        raise StaleBase(f"the weights are at version {patch.version} already")
    raise StaleBase(f"the weights are not version {patch.base_version}, the base of this patch: start from an anchor")


def _digest(patch: Patch, names: Mapping[str, list[str]], hashes: Mapping[str, list[bytes]]) -> bytes:
    """State digest under the publisher's names."""
    return state_digest({r.name: tensor_digest(r.name, r.entry, hashes[names[r.name][0]]) for r in patch.records})


def decoded(
    patch: Patch,
    state: State,
    names: Mapping[str, list[str]],
    threads: int | None = None,
    history: History | None = None,
) -> Iterator[tuple[tuple[Record, int], Update, bytes]]:
    """((record, block), update, digest of the new block) for each block that the patch may change."""

    def work(task):
        record, block, decoder = task
        name, span = names[record.name][0], record.entry.blocks()[block]
        old = state.read(name, *span)
        update = decoder(old, _marks(patch, history, name, span))
        return (record, block), update, block_digest(update.on(old))

    return ordered(work, _plan(patch), threads)


def _plan(patch: Patch) -> Iterator[tuple[Record, int, Callable[[np.ndarray, Marks | None], Update]]]:
    """(record, block, decode) of what may change, decoded only when asked for."""
    if patch.codec == "paper":
        for record, block, position, value in paper.updates(patch):
            update = Update(position, value)
            yield record, block, lambda old, known, u=update: u
        return
    at = 0
    for record in patch.records:
        payload, what = patch.body[at : at + record.length], f"tensor {record.name!r}"
        at += record.length
        layout = record.entry.layout
        for block, part in enumerate(split(payload, len(record.entry.blocks()), record.changed, what)):
            if part[0] != Mode.SAME or part[1] or len(part[2]):
                yield record, block, lambda old, known, p=part, y=layout, w=what: decode_block(*p, old, y, w, known)
