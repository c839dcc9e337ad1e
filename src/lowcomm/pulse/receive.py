"""From a patch back to exactly the new weights, or not at all."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np
from torch import Tensor

from lowcomm.pulse import paper
from lowcomm.pulse.blocks import Mode, Update, decode_block, split
from lowcomm.pulse.errors import Corrupt, Missing, StaleBase, Unsupported
from lowcomm.pulse.patch import Patch, Record, decode
from lowcomm.pulse.state import State, Tensors, block_digest, block_digests, ordered, state_digest, tensor_digest

STAGED = 256 << 20  # decoded changes kept between checking and writing; beyond this they are decoded twice


class Writable(State, Protocol):
    def write(self, name: str, start: int, stop: int, position: np.ndarray | None, value: np.ndarray) -> None: ...


def apply(tensors: Mapping[str, Tensor] | Writable, patch: Patch | bytes, threads: int | None = None) -> None:
    """Turn ``tensors`` into the patch's target, in place, all or nothing.

    Everything is checked before the first write: the object, names, shapes and dtypes, that these weights are the
    patch's base, every position, and that the result has the target digest. Raises a PatchError with the weights
    untouched: Corrupt, Unsupported, Missing (a tensor), StaleBase.

    Memory: the object, some blocks of 4 Mi elements for each thread, and STAGED; the codec `paper` needs up to 30 bytes
    more for each changed entry of its largest tensor.
    """
    patch, state, names, staged = _checked(tensors, patch, threads)
    # what was checked is decoded again from the same bytes where it was too much to keep
    again = ((i, u) for i, u, _ in decoded(patch, state, names, threads)) if staged is None else staged
    for (record, block), update in again:
        for name in names[record.name]:
            state.write(name, *record.entry.blocks()[block], update.position, update.value)


def verify(tensors: Mapping[str, Tensor] | State, patch: Patch | bytes, threads: int | None = None) -> None:
    """All that `apply` checks, without writing: raises the PatchError that it would."""
    _checked(tensors, patch, threads)


def _checked(
    tensors: Mapping[str, Tensor] | State, patch: Patch | bytes, threads: int | None
) -> tuple[Patch, State, dict[str, list[str]], list | None]:
    """Patch, state, matched names, and the decoded changes, None where they are too many to keep."""
    patch = patch if isinstance(patch, Patch) else decode(patch)
    state = Tensors(tensors) if isinstance(tensors, Mapping) else tensors
    names = match(patch, state)
    hashes = block_digests(state, threads)
    check_base(patch, state, names, hashes)
    staged, size = [], 0
    for item, update, block_hash in decoded(patch, state, names, threads):
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

    Raises Missing where the state lacks a tensor, Unsupported where it has others, or other shapes or dtypes.
    """
    other: dict[str, list[str]] = {}
    for alias, owner in patch.aliases.items():
        other.setdefault(owner, []).append(alias)
    names, owner_of = {}, {}
    for record in patch.records:
        known = [n for n in (record.name, *other.get(record.name, ())) if n in state.entries or n in state.aliases]
        if not known:
            raise Missing(f"the patch has tensor {record.name!r}, the receiver does not: is it the same model?")
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
    patch: Patch, state: State, names: Mapping[str, list[str]], threads: int | None = None
) -> Iterator[tuple[tuple[Record, int], Update, bytes]]:
    """((record, block), update, digest of the new block) for each block that the patch may change."""

    def work(task):
        record, block, decoder = task
        old = state.read(names[record.name][0], *record.entry.blocks()[block])
        update = decoder(old)
        return (record, block), update, block_digest(update.on(old))

    return ordered(work, _plan(patch), threads)


def _plan(patch: Patch) -> Iterator[tuple[Record, int, Callable[[np.ndarray], Update]]]:
    """(record, block, decode) of what may change, decoded only when asked for."""
    if patch.codec == "paper":
        for record, block, position, value in paper.updates(patch):
            update = Update(position, value)
            yield record, block, lambda old, u=update: u
        return
    at = 0
    for record in patch.records:
        payload, what = patch.body[at : at + record.length], f"tensor {record.name!r}"
        at += record.length
        layout = record.entry.layout
        for block, part in enumerate(split(payload, len(record.entry.blocks()), record.changed, what)):
            if part[0] != Mode.SAME or part[1] or len(part[2]):
                yield record, block, lambda old, p=part, y=layout, w=what: decode_block(*p, old, y, w)
