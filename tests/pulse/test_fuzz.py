"""Mutated patches by the thousand: no wrong weight, no other exception, little memory.

    python -m tests.pulse.test_fuzz --count 50000 --seeds 1 2 3 4

One line a seed and one for all; each seed is a part that can be run alone, on another machine or at another time.
"""

import argparse
import random
import tracemalloc
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.pulse import Corrupt, History, PatchError, apply, decode, encode
from tests.pulse.cases import copy, gaussian, same
from tests.pulse.forge import mutate, mutate_json

BOUND = 32 << 20  # bytes that Python and numpy may hold at once, weights and patches of a few kB included


def fuzz(count: int, seed: int) -> Counter:
    """How often each answer came: "accepted", which a mutant may be only when it leads to the true weights, or the name
    of the refusal."""
    rng, answers = random.Random(seed), Counter()
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
        except PatchError as refusal:
            answers[type(refusal).__name__] += 1
            continue
        answers["accepted"] += 1
        assert same(here, new), "accepted, but with other weights"
        for name, tensor in old.items():
            here[name].copy_(tensor)
        memory.reset(None)
    assert same(here, old), "a refused patch left a trace"
    assert memory.digest() == fresh
    return answers


def measured(count: int, seed: int) -> tuple[Counter, int]:
    """Answers, and the peak of traced memory in bytes."""
    tracemalloc.start()
    try:
        answers = fuzz(count, seed)
        return answers, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_mutants():
    answers = fuzz(3000, 0)
    # metadata and versions are not part of the weights, and a forger may seal what he likes there
    assert answers["accepted"] < 600
    assert answers["Corrupt"] > 1000


def test_every_json_that_says_something_else_is_corrupt():
    """The inner list of tensors of the published layout: what differs is refused, what is equal may pass."""
    rng = random.Random(0)
    old, new = gaussian(delta=4e-6, rows=6, columns=24)
    patch, here, refused = encode(old, new, "paper"), copy(old), 0
    for _ in range(400):
        try:
            apply(here, mutate_json(patch, rng))
        except Corrupt:  # and nothing else
            refused += 1
            continue
        assert same(here, new)
        here = copy(old)
    assert same(here, old)
    assert refused > 200


def test_the_long_run_counts_what_it_did(capsys):
    main(["--count", "60", "--seeds", "5", "6"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("120 mutants: ")
    assert "0 wrong weights, 0 other exceptions" in last


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 5))
def test_two_hundred_thousand_mutants(seed):
    assert measured(50_000, seed)[1] < BOUND


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_noise(data):
    for start in (b"", b"LCPULSE\x01"):
        with pytest.raises(PatchError):
            decode(start + data)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.pulse.test_fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=50_000, help="mutants of each seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4])
    args = parser.parse_args(argv)
    total, top = Counter(), 0
    for seed in args.seeds:
        answers, peak = measured(args.count, seed)  # a wrong weight or another exception ends the program here
        total, top = total + answers, max(top, peak)
        print(f"seed {seed}: {args.count:,} mutants, peak {peak / 1e6:.1f} MB", flush=True)
    said = ", ".join(f"{n:,} {name}" for name, n in total.most_common())
    print(f"{sum(total.values()):,} mutants: {said}; 0 wrong weights, 0 other exceptions; peak {top / 1e6:.1f} MB of "
          f"{BOUND / 1e6:.1f} allowed")  # fmt: skip
    assert top < BOUND, "more memory than allowed"


if __name__ == "__main__":
    main()
