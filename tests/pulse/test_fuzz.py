"""Mutated patches by the thousand: no wrong weight, no other exception, little memory."""

import random
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.pulse import History, PatchError, apply, decode, encode
from tests.pulse.cases import copy, gaussian, same
from tests.pulse.forge import mutate


def fuzz(count: int, seed: int) -> int:
    """Returns how many mutants were accepted, which they may be only when they lead to the true weights."""
    rng, accepted = random.Random(seed), 0
    old, new = gaussian(seed, delta=4e-6, rows=6, columns=24)
    old["f"], new["f"] = torch.zeros(9), torch.arange(9.0)
    old["tied"], new["tied"] = old["norm"], new["norm"]
    patches = [encode(old, new, c, model="m", lr=3e-6) for c in ("packed", "paper", "full")]
    patches.append(encode(old, new, "history", history=History(old, 0)))
    here = {**copy({n: t for n, t in old.items() if n != "tied"})}
    here["tied"] = here["norm"]
    memory = History(here)
    fresh = memory.digest()
    for _ in range(count):
        bad = mutate(rng.choice(patches), rng)
        try:
            apply(here, bad, history=memory)
        except PatchError:
            continue
        accepted += 1
        assert same(here, new), "accepted, but with other weights"
        for name, tensor in old.items():
            here[name].copy_(tensor)
        memory.reset(None)
    assert same(here, old), "a refused patch left a trace"
    assert memory.digest() == fresh
    return accepted


def test_mutants():
    accepted = fuzz(3000, 0)
    # metadata and versions are not part of the weights, and a forger may seal what he likes there
    assert accepted < 600


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 5))
def test_two_hundred_thousand_mutants(seed):
    tracemalloc.start()
    fuzz(50_000, seed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_noise(data):
    for start in (b"", b"LCPULSE\x01"):
        with pytest.raises(PatchError):
            decode(start + data)
