"""Merging rules: against float64 twins and peft, by their invariants, and in every corner (isoloco: 2607.03011)."""

import functools
import math
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from peft.utils import merge_utils

from lowcomm.outer import aggregate
from lowcomm.outer.aggregate import dare, iso_c, iso_cts, keyed_generator, mean, sparsify, ties, trim, tsv
from lowcomm.outer.isotropy import isotropize
from tests.reference import aggregate as reference

BLOCKS = sorted((Path(__file__).parents[2] / "conf/algorithm/aggregator").glob("*.yaml"))
quick = settings(max_examples=25, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
sides = st.integers(1, 10)
crowds = st.integers(1, 6)


def key():
    return keyed_generator(1, 2, "weight")


RULES = {
    "mean": mean,
    "ties": ties,
    "ties-original": functools.partial(ties, density=0.6, rule="original"),
    "dare": lambda deltas: dare(deltas, generator=key()),
    "tsv": tsv,
    "tsv-svd": functools.partial(tsv, method="svd"),
    "iso_c": iso_c,
    "iso_cts": iso_cts,
    "iso_cts-half": functools.partial(iso_cts, common=0.5, method="svd"),
    "iso_c-fast": functools.partial(iso_c, method="newton-schulz", scale="rms"),
    "clip": functools.partial(aggregate.clip, side="high"),
}
MATRIX_RULES = ("tsv", "iso_c", "iso_cts", "clip")


def gaussian(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def rotation(seed, size):
    return torch.linalg.qr(gaussian(seed, size, size, dtype=torch.float64)).Q


def close(got, want, tolerance=1e-5):
    want = torch.as_tensor(want, dtype=torch.float64)
    assert (got.double() - want).norm() <= tolerance * want.norm() + 1e-30


def flat(deltas):
    return deltas.flatten(1).tolist()


# Twins


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (3, 3), (4, 6), (6, 4)])
def test_rules_equal_their_twins(shape, workers):
    deltas = gaussian(1, workers, *shape)
    close(mean(deltas).flatten(), reference.mean(flat(deltas)))
    for density in (0.01, 0.2, 0.9, 1.0):
        for rule in ("paper", "original"):
            close(ties(deltas, density, rule).flatten(), reference.ties(flat(deltas), density, rule))
    close(iso_c(deltas), reference.isotropize(mean(deltas).double().tolist()))
    for method in ("svd", "gram"):
        close(tsv(deltas, method), reference.tsv(deltas.tolist()))
        for common in (0.0, 0.5, 0.8, 1.0):
            close(iso_cts(deltas, common, method), reference.iso_cts(deltas.tolist(), common))


@pytest.mark.parametrize("method", ["svd", "gram"])
def test_spectral_rules_equal_their_twins_on_deficient_deltas(method):
    low = gaussian(2, 3, 6, 2) @ gaussian(3, 3, 2, 8)  # rank 2 each, 6 together
    alike = gaussian(4, 6, 2) @ gaussian(5, 2, 8) * torch.tensor([1.0, 0.5, 2.0])[:, None, None]  # rank 2 together
    silent = gaussian(6, 3, 6, 8)
    silent[1] = 0
    opposed = torch.stack([low[0], -low[0]])
    for deltas in (low, alike, silent):
        close(tsv(deltas, method), reference.tsv(deltas.tolist()))
        for common in (0.3, 0.8):
            close(iso_cts(deltas, common, method), reference.iso_cts(deltas.tolist(), common))
    assert iso_c(opposed, method).abs().max() == 0
    assert iso_cts(opposed, 0.5, method).abs().max() < 1e-12  # own directions cancel too


@pytest.mark.parametrize("mask", ["exact", "bernoulli"])
def test_dare_equals_its_twin(mask):
    deltas = gaussian(7, 4, 5, 6)
    draw = int(torch.randint(2**62, (), generator=key()))
    ones = torch.ones(5, 6)
    masks = [sparsify(ones, 0.3, mask, generator=keyed_generator(draw, w)) != 0 for w in range(4)]
    want = reference.dare(flat(deltas), [m.flatten().tolist() for m in masks], 0.3)
    close(dare(deltas, 0.3, mask, generator=key()).flatten(), want)


# Invariants


@pytest.mark.parametrize("name", [n for n in RULES if n != "dare"])
@quick
@given(seed=seeds, n=sides, m=sides, workers=crowds, order=st.randoms(use_true_random=False))
def test_workers_have_no_order(name, seed, n, m, workers, order):
    deltas, shuffled = gaussian(seed, workers, n, m), list(range(workers))
    order.shuffle(shuffled)
    close(RULES[name](deltas[shuffled]), RULES[name](deltas).double(), 1e-4)


@pytest.mark.parametrize("name", RULES)
@quick
@given(seed=seeds, n=sides, m=sides, workers=crowds, factor=st.floats(1e-3, 1e3))
def test_homogeneity(name, seed, n, m, workers, factor):
    deltas = gaussian(seed, workers, n, m, dtype=torch.float64)
    for c in (factor, -factor):
        close(RULES[name](c * deltas) / c, RULES[name](deltas), 1e-5)


@pytest.mark.parametrize("name", ["mean", "ties", "tsv", "tsv-svd", "iso_c", "clip"])
@quick
@given(seed=seeds, n=sides, m=sides, workers=crowds)
def test_transpose_equivariance(name, seed, n, m, workers):
    # Iso-CTS projects on the left only.
    deltas = gaussian(seed, workers, n, m)
    close(RULES[name](deltas.mT.contiguous()), RULES[name](deltas).T.double(), 1e-4)


@pytest.mark.parametrize("name", ["mean", "tsv", "iso_c", "iso_cts", "iso_cts-half", "clip"])
@quick
@given(seed=seeds, n=sides, m=sides, workers=crowds)
def test_rotation_equivariance(name, seed, n, m, workers):
    deltas = gaussian(seed, workers, n, m, dtype=torch.float64)
    q, p = rotation(seed + 1, n), rotation(seed + 2, m)
    close(RULES[name](q @ deltas @ p), q @ RULES[name](deltas) @ p, 1e-4)


@pytest.mark.parametrize("name", ["iso_c", "iso_cts", "iso_cts-half"])
@quick
@given(seed=seeds, n=sides, m=sides, workers=crowds)
def test_isotropic_rules_have_one_singular_value(name, seed, n, m, workers):
    deltas = gaussian(seed, workers, n, m, dtype=torch.float64)
    sigma = torch.linalg.svdvals(RULES[name](deltas))
    torch.testing.assert_close(sigma, torch.full_like(sigma, sigma.mean()), rtol=1e-5, atol=0)
    if name == "iso_c":
        torch.testing.assert_close(sigma.sum(), torch.linalg.svdvals(deltas.mean(0)).sum())


# Where rules meet


def test_ties_of_agreeing_signs_at_full_density_is_the_mean():
    deltas = gaussian(8, 4, 5, 6).abs() * gaussian(9, 5, 6).sign()
    close(ties(deltas, 1.0), mean(deltas).double(), 1e-6)


def test_dare_without_dropping_is_the_mean():
    deltas = gaussian(10, 3, 5, 6)
    for mask in ("exact", "bernoulli"):
        assert torch.equal(dare(deltas, 0.0, mask, generator=key()), mean(deltas))


def test_one_worker_is_itself_except_under_an_isotropic_rule():
    delta = gaussian(11, 1, 5, 6)
    assert torch.equal(mean(delta), delta[0])
    assert torch.equal(tsv(delta), delta[0])
    assert torch.equal(ties(delta, 1.0), delta[0])
    assert torch.equal(dare(delta, 0.0, generator=key()), delta[0])
    close(iso_c(delta), isotropize(delta[0]).double(), 1e-6)
    close(iso_cts(delta), isotropize(delta[0]).double(), 1e-5)
    assert (iso_c(delta) - delta[0]).norm() > 0.1


@pytest.mark.parametrize("workers", [1, 2, 5, 9])
def test_iso_cts_of_common_directions_only_is_iso_c(workers):
    deltas = gaussian(12, workers, 7, 9)
    close(iso_cts(deltas, 1.0), iso_c(deltas).double(), 1e-6)


def test_iso_cts_rounds_the_own_directions_to_the_workers():
    # r = 10, eight of them common: two are left, which five workers cannot share but two can, and four round up to.
    assert not torch.allclose(iso_cts(gaussian(13, 2, 10, 12)), iso_c(gaussian(13, 2, 10, 12)), atol=1e-3)
    close(iso_cts(gaussian(13, 5, 10, 12)), iso_c(gaussian(13, 5, 10, 12)).double(), 1e-6)
    # round(0.5) is 0 in the paper's language, as in ours: four workers share nothing.
    close(iso_cts(gaussian(13, 4, 10, 12)), iso_c(gaussian(13, 4, 10, 12)).double(), 1e-6)
    # r = 5, none common, eight workers: 5/8 rounds to one each, more than there are; then all are common.
    close(iso_cts(gaussian(13, 8, 5, 6), 0.0), iso_c(gaussian(13, 8, 5, 6)).double(), 1e-6)


def test_tsv_adds_workers_that_do_not_interfere():
    u, v = rotation(14, 8), rotation(15, 10)
    deltas = torch.stack([u[:, 2 * w : 2 * w + 2] @ v[2 * w : 2 * w + 2] * (w + 1) for w in range(4)])
    close(tsv(deltas), deltas.sum(0), 1e-9)


@pytest.mark.parametrize("method", ["svd", "gram"])
def test_tsv_of_equal_workers_is_their_leading_part(method):
    # Procrustes gives each of W copies of a direction 1/sqrt(W) on both sides, and the sum restores it.
    delta = gaussian(31, 60, 80)
    u, sigma, vh = torch.linalg.svd(delta.double(), full_matrices=False)
    close(tsv(delta.repeat(4, 1, 1), method), (u[:, :15] * sigma[:15]) @ vh[:15])


def test_tsv_of_more_workers_than_directions():
    # k = r // W = 0 would merge to zero; one triplet each is kept.
    deltas = gaussian(16, 9, 3, 4)
    assert tsv(deltas).norm() > 1
    close(tsv(deltas), reference.tsv(deltas.tolist()))


def test_iso_c_total_and_options_reach_the_correction():
    deltas = gaussian(17, 4, 5, 6)
    close(iso_c(deltas, total="sum"), 4 * iso_c(deltas).double(), 1e-6)
    assert torch.equal(iso_c(deltas[:, 0], total="sum"), mean(deltas[:, 0]))
    fast = iso_c(deltas, "newton-schulz", "rms")
    assert torch.equal(fast, isotropize(mean(deltas), "newton-schulz", "rms"))


# What a rule needs


def test_needs_and_generators_of_rules_and_partials():
    sums, stacks = (mean, iso_c, aggregate.clip, dare), (tsv, iso_cts)
    for rule, what in {ties: "two sums", **dict.fromkeys(sums, "sum"), **dict.fromkeys(stacks, "all")}.items():
        assert aggregate.needs(rule) == aggregate.needs(functools.partial(rule, flatten=True)) == what
        assert aggregate.takes_generator(rule) == (rule is dare)
    assert aggregate.needs(lambda deltas: deltas[0]) == "all"
    assert aggregate.takes_generator(functools.partial(dare, drop=0.5))
    assert not aggregate.takes_generator(functools.partial(dare, generator=key()))


@pytest.mark.parametrize("rule", [mean, iso_c, functools.partial(aggregate.clip, side="low")])
def test_rules_of_the_sum_see_nothing_else(rule):
    deltas = gaussian(18, 4, 5, 6)
    assert torch.equal(rule(deltas), rule(mean(deltas)[None]))


def test_mean_adds_in_worker_order():
    deltas = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    assert mean(deltas).item() == 0.25  # float32 loses the first 1.0, not the last
    deltas = gaussian(19, 37, 1000)
    total = deltas[0].clone()
    for delta in deltas[1:]:
        total += delta
    assert torch.equal(mean(deltas), total / 37)


# TIES


TIE = torch.tensor([[1.0, -1, 2, 0], [-1, 1, -1, 0]])


def test_ties_tie_is_zero_or_takes_the_majority():
    assert ties(TIE, 1.0).tolist() == [0, 0, 2, 0]
    assert ties(TIE, 1.0, "original").tolist() == [1, 1, 2, 0]


def test_ties_sees_a_tie_in_any_worker_order():
    deltas = torch.tensor([[1e8], [1.0], [-1e8], [-1.0]])
    for order in ([0, 1, 2, 3], [0, 2, 1, 3], [1, 0, 3, 2]):
        assert ties(deltas[order], 1.0).item() == 0


def test_trim_keeps_the_exact_count_and_the_first_of_equals():
    assert trim(torch.tensor([3.0, -3, 1, 3, -3]), 0.4).tolist() == [3, -3, 0, 0, 0]
    assert trim(torch.tensor([1.0, -3, 3, 3, 5]), 0.6).tolist() == [0, -3, 3, 0, 5]
    assert trim(torch.ones(10), 0.29).count_nonzero() == 2
    assert trim(torch.ones(100), 0.29).count_nonzero() == 29  # 0.29 * 100 is 28.999… in binary
    assert trim(torch.tensor([0.0, 0, 1]), 0.9).tolist() == [0, 0, 1]


def test_density_at_its_ends():
    deltas = gaussian(20, 3, 4, 5)
    for rule in ("paper", "original"):
        assert torch.equal(ties(deltas, 0.0, rule), torch.zeros(4, 5))
        assert ties(deltas, 1e-9, rule).count_nonzero() <= 3  # one entry per worker
        assert ties(deltas[:1], 1e-9, rule).count_nonzero() == 1
    assert torch.equal(trim(deltas[0], 1.0), deltas[0])
    assert ties(torch.ones(2, 3, 4), 0.5).count_nonzero() == 6
    assert ties(torch.ones(2, 3, 4), 0.5, "original").count_nonzero() == 12  # all equal the threshold


@pytest.mark.filterwarnings("ignore:The density")
@quick
@given(seed=seeds, n=sides, m=sides, workers=crowds, density=st.sampled_from([0.25, 0.5, 0.75, 1.0]))
def test_ties_equals_peft_where_no_sum_is_tied(seed, n, m, workers, density):
    deltas = gaussian(seed, workers, n, m)
    if density * n * m >= 1:  # peft may keep nothing, we keep one
        theirs = merge_utils.ties(list(deltas), torch.ones(workers), density)
        close(ties(deltas, density), theirs.double(), 1e-6)


@pytest.mark.filterwarnings("ignore:The density")
def test_ties_and_peft_differ_in_a_tie():
    # peft gives a tied sum the positive sign.
    assert merge_utils.ties(list(TIE), torch.ones(2), 1.0).tolist() == [1, 1, 2, 0]


@given(values=st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), min_size=1, max_size=4))
@settings(quick, max_examples=100)
def test_ties_equals_its_twin_when_everything_is_tied(values):
    deltas = torch.tensor(values, dtype=torch.float32)
    for rule in ("paper", "original"):
        for density in (0.3, 0.5, 1.0):
            want = torch.tensor(reference.ties(values, density, rule), dtype=torch.float32)
            torch.testing.assert_close(ties(deltas, density, rule), want)


# DARE


def test_dare_drops_everything_without_dividing_by_zero():
    for mask in ("exact", "bernoulli"):
        assert torch.equal(dare(gaussian(21, 3, 4, 5), 1.0, mask, generator=key()), torch.zeros(4, 5))


def test_sparsify_keeps_an_exact_count_and_rescales():
    for drop, kept in [(0.1, 90), (0.9, 10), (0.07, 93), (0.999, 1)]:
        thin = sparsify(torch.ones(10, 10), drop, generator=key())
        assert thin.count_nonzero() == kept
        torch.testing.assert_close(thin.max(), torch.tensor(1 / (1 - drop)))


@pytest.mark.parametrize("mask", ["exact", "bernoulli"])
def test_dare_is_unbiased(mask):
    delta = gaussian(22, 50)
    generator = key()
    draws = torch.stack([sparsify(delta, 0.4, mask, generator=generator) for _ in range(4000)])
    # Standard error of each entry: |x| sqrt(p / (1 - p) / 4000) = 0.013 |x|.
    assert ((draws.mean(0) - delta).abs() <= 5 * 0.013 * delta.abs()).all()


def test_bernoulli_masks_equal_peft():
    delta = gaussian(23, 6, 7)
    ours = sparsify(delta, 0.25, "bernoulli", generator=torch.Generator().manual_seed(5))
    torch.manual_seed(5)
    assert torch.equal(ours, merge_utils.prune(delta, 0.75, "random", rescale=True))
    torch.manual_seed(5)
    assert torch.equal(ours, merge_utils.dare_linear([delta], torch.ones(1), 0.75))


def test_masks_are_keyed_by_run_round_name_and_worker():
    same = torch.ones(5, 40)[:, None].expand(5, 8, 40)
    first = dare(same, 0.5, generator=keyed_generator(1, 0, "a"))
    assert torch.equal(first, dare(same, 0.5, generator=keyed_generator(1, 0, "a")))
    for other in [(2, 0, "a"), (1, 1, "a"), (1, 0, "b"), ("1", 0, "a")]:
        assert not torch.equal(first, dare(same, 0.5, generator=keyed_generator(*other)))
    assert len(first.unique()) > 2  # workers' masks differ: equal ones would leave 0 and 2 only
    generator = keyed_generator(1, 0, "a")
    once, again = dare(same, 0.5, generator=generator), dare(same, 0.5, generator=generator)
    assert torch.equal(once, first)
    assert not torch.equal(again, first)


def test_a_worker_s_mask_does_not_depend_on_the_others():
    deltas = torch.zeros(4, 6, 7)
    deltas[1] = 1
    alone = dare(deltas[:2], 0.5, generator=key()) * 2
    torch.testing.assert_close(dare(deltas, 0.5, generator=key()) * 4, alone)


def test_global_randomness_is_left_alone():
    state = torch.get_rng_state()
    dare(gaussian(24, 3, 4, 5), 0.5, "bernoulli", generator=key())
    assert torch.equal(state, torch.get_rng_state())


# Shapes, precision, refusals


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("shape", [(), (1,), (6,), (3, 4), (6, 4), (1, 7), (7, 1), (2, 3, 4), (4, 3, 2, 2)])
def test_every_shape_comes_back(name, shape):
    deltas = gaussian(25, 3, *shape)
    before = deltas.clone()
    merged = RULES[name](deltas)
    assert (merged.shape, merged.dtype) == (shape, torch.float32)
    assert merged.is_contiguous()
    assert torch.equal(deltas, before)
    assert RULES[name](deltas.double()).dtype == torch.float64
    if name.split("-")[0] in MATRIX_RULES and len(shape) != 2:
        assert torch.equal(merged, mean(deltas))


@pytest.mark.parametrize("name", MATRIX_RULES)
def test_flatten_makes_matrices_of_larger_tensors_only(name):
    rule = functools.partial(RULES[name], flatten=True)
    deltas = gaussian(26, 3, 4, 3, 2, 2)
    assert torch.equal(rule(deltas), RULES[name](deltas.flatten(2)).view(4, 3, 2, 2))
    assert torch.equal(rule(deltas[:, 0, 0, 0]), mean(deltas[:, 0, 0, 0]))


@pytest.mark.parametrize("name", RULES)
def test_half_precision_is_merged_in_float32(name):
    deltas = gaussian(27, 3, 4, 6).bfloat16()
    assert torch.equal(RULES[name](deltas), RULES[name](deltas.float()))
    huge = torch.full((4, 160, 10), 60000.0, dtype=torch.float16)
    assert torch.isfinite(RULES[name](huge)).all()


@pytest.mark.parametrize("name", RULES)
def test_zeros_and_tiny_deltas(name):
    assert torch.equal(RULES[name](torch.zeros(3, 4, 5)), torch.zeros(4, 5))
    deltas = gaussian(28, 3, 4, 5)
    for factor in (2.0**-100, 2.0**100):
        close(RULES[name](deltas * factor).double() / factor, RULES[name](deltas).double(), 1e-5)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_deltas_are_refused_with_the_worker(name, value):
    deltas = gaussian(29, 3, 4, 5)
    deltas[1, 2, 3] = value
    with pytest.raises(ValueError, match="non-finite pseudo-gradient from worker 1"):
        RULES[name](deltas)
    with pytest.raises(ValueError, match="non-finite pseudo-gradient from worker 1"):
        RULES[name](deltas[:, 2])


@pytest.mark.parametrize("bad", [torch.ones(0, 3, 4), torch.ones(2, 0), torch.ones(2, 3, 4).int()])
def test_only_float_stacks(bad):
    for rule in RULES.values():
        with pytest.raises(ValueError, match="need a non-empty float stack"):
            rule(bad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: ties(d, 1.5), "density=1.5"),
        (lambda d: ties(d, -0.1), "density=-0.1"),
        (lambda d: ties(d, rule="mine"), "rule='mine': choose paper"),
        (lambda d: dare(d, 2.0, generator=key()), "drop=2.0"),
        (lambda d: dare(d, mask="half", generator=key()), "mask='half': choose exact"),
        (lambda d: iso_cts(d, -1), "common=-1"),
        (lambda d: iso_cts(d, method="newton-schulz"), "choose svd or gram"),
        (lambda d: tsv(d, "newton-schulz"), "choose svd or gram"),
        (lambda d: iso_c(d, "newton"), "method='newton'"),
        (lambda d: iso_c(d, scale="max"), "scale='max'"),
        (lambda d: iso_c(d, total="median"), "total='median'"),
        (lambda d: aggregate.clip(d, "up"), "side='up'"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(3, 4, 5))


# Blocks


@pytest.mark.parametrize("path", BLOCKS, ids=lambda path: path.stem)
def test_blocks_build_and_merge(path):
    rule = instantiate(OmegaConf.load(path))
    assert rule.func.__name__ in ("clip", path.stem.replace("-", "_"))
    extra = {"generator": key()} if aggregate.takes_generator(rule) else {}
    assert rule(gaussian(30, 3, 4, 5), **extra).shape == (4, 5)


def test_every_rule_has_a_block():
    assert {p.stem for p in BLOCKS} >= {"mean", "ties", "dare", "tsv", "iso-c", "iso-cts", "clip-high", "clip-low"}
