"""Isotropic correction: against the float64 twin, by its invariants, and in every corner (isoloco: 2607.03011)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcomm.outer import isotropy
from lowcomm.outer.isotropy import clip, isotropize, polar, spectrum, triplets
from tests.reference import aggregate as reference

EXACT = ("svd", "gram")
METHODS = (*EXACT, "newton-schulz", "newton-schulz-converged")
SHAPES = [(1, 5), (5, 1), (3, 3), (4, 7), (7, 4)]
quick = settings(max_examples=25, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
sides = st.integers(1, 12)


def gaussian(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def rotation(seed, size):
    return torch.linalg.qr(gaussian(seed, size, size, dtype=torch.float64)).Q


def with_spectrum(sigma, n, m, seed=0):
    """A float64 matrix with these singular values."""
    sigma = torch.as_tensor(sigma, dtype=torch.float64)
    return rotation(seed, n)[:, : len(sigma)] * sigma @ rotation(seed + 1, m)[: len(sigma)]


def error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", EXACT)
def test_exact_methods_equal_the_twin(method, shape):
    g = gaussian(1, *shape)
    assert error(polar(g, method), torch.tensor(reference.polar(g.tolist()))) < 1e-6
    for scale in ("mean", "rms", "spectral"):
        assert error(isotropize(g, method, scale), torch.tensor(reference.isotropize(g.tolist(), scale))) < 1e-6
    for side in ("high", "low"):
        assert error(clip(g, side, method), torch.tensor(reference.clip(g.tolist(), side))) < 1e-6


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("method", "steps"),
    [("newton-schulz", isotropy.DION_STEPS), ("newton-schulz-converged", isotropy.CONVERGED_STEPS)],
)
def test_newton_schulz_equals_the_twin(method, steps, shape):
    g = gaussian(2, *shape, dtype=torch.float64)
    twin = torch.tensor(reference.newton_schulz(g.tolist(), steps), dtype=torch.float64)
    assert error(polar(g, method), twin) < 1e-13
    assert error(polar(g.float(), method), twin) < 1e-4
    mean, rms = (g * twin).sum() / min(shape), g.norm() / math.sqrt(min(shape))
    assert error(isotropize(g, method), twin * mean) < 1e-13
    assert error(isotropize(g, method, "rms"), twin * rms) < 1e-13


@quick
@given(seeds, sides, sides, st.sampled_from(EXACT))
def test_equal_singular_values_of_unchanged_sum(seed, n, m, method):
    g = gaussian(seed, n, m, dtype=torch.float64)
    sigma = torch.linalg.svdvals(isotropize(g, method))
    torch.testing.assert_close(sigma, torch.full_like(sigma, torch.linalg.svdvals(g).mean()), rtol=1e-5, atol=0)
    torch.testing.assert_close(polar(isotropize(g, method), method), polar(g, method), rtol=1e-5, atol=1e-6)


@quick
@given(seeds, sides, sides, st.sampled_from(EXACT))
def test_nuclear_norm_is_the_product_with_the_polar_factor(seed, n, m, method):
    g = gaussian(seed, n, m, dtype=torch.float64)
    torch.testing.assert_close((g * polar(g, method)).sum(), spectrum(g).sum(), rtol=1e-7, atol=0)


@quick
@given(seeds, sides, sides, st.sampled_from(METHODS), st.sampled_from(["mean", "rms"]))
def test_transpose_equivariance(seed, n, m, method, scale):
    g = gaussian(seed, n, m)
    torch.testing.assert_close(isotropize(g.T, method, scale), isotropize(g, method, scale).T, rtol=1e-5, atol=1e-5)


@quick
@given(seeds, sides, sides, st.sampled_from(METHODS), st.sampled_from(["mean", "rms"]))
def test_rotation_equivariance(seed, n, m, method, scale):
    g, q, p = gaussian(seed, n, m, dtype=torch.float64), rotation(seed + 1, n), rotation(seed + 2, m)
    turned = isotropize(q @ g @ p, method, scale)
    torch.testing.assert_close(turned, q @ isotropize(g, method, scale) @ p, rtol=1e-6, atol=1e-6)


@quick
@given(seeds, sides, sides, st.sampled_from(METHODS), st.floats(-1e6, 1e6).filter(lambda c: abs(c) > 1e-6))
def test_homogeneity(seed, n, m, method, factor):
    g = gaussian(seed, n, m, dtype=torch.float64)
    for scale in ("mean", "rms"):
        torch.testing.assert_close(
            isotropize(factor * g, method, scale) / factor, isotropize(g, method, scale), rtol=1e-6, atol=1e-7
        )
    torch.testing.assert_close(polar(factor * g, method), math.copysign(1, factor) * polar(g, method))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("exponent", [-110, -66, -30, 30, 100])
def test_powers_of_two_pass_through_bit_for_bit(method, exponent):
    # 64 x 64 at norm 1e-9 loses a third of its size, at 1e-20 all, where an epsilon of 1e-7 guards the division.
    g, factor = gaussian(3, 6, 9), 2.0**exponent
    g[0, 0] = 0
    assert torch.equal(polar(g * factor, method), polar(g, method))
    torch.testing.assert_close(isotropize(g * factor, method), isotropize(g, method) * factor, rtol=1e-6, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_subnormal_and_extreme_entries_stay_finite(method):
    g = gaussian(4, 3, 4)
    small = isotropize((g.double() * 1e-42).float(), method)
    assert torch.isfinite(small).all()
    assert small.abs().max() > 0
    large = isotropize(g / g.abs().max() * 3e38, method)
    assert torch.isfinite(large).all()
    least = isotropize(g.double() * 1e-320, method)
    assert torch.isfinite(least).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", ["mean", "rms", "spectral"])
def test_zero_in_zero_out(method, scale):
    # microsoft/dion#24: 0/0 in the norm.
    assert torch.equal(isotropize(torch.zeros(4, 6), method, scale), torch.zeros(4, 6))


@pytest.mark.parametrize(("method", "tolerance"), [("svd", 1e-6), ("gram", 1e-6), ("newton-schulz-converged", 2e-2)])
def test_null_directions_stay_null(method, tolerance):
    # A plain SVD gives norm 15 here, and a result for the transpose that is up to 9.8 off.
    g = torch.outer(torch.tensor([1.0, 2, 3, 4]), torch.tensor([4.0, 3, 2, 1]))
    flat = isotropize(g, method)
    assert error(flat, g / 4) < tolerance  # sigma = 30, 0, 0, 0: mean 7.5 on the one direction
    assert error(isotropize(g.T, method), flat.T) < tolerance


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("shape", [(40, 90), (90, 40), (50, 50)])
def test_numerical_rank_of_float32_noise(method, shape):
    g = gaussian(5, shape[0], 7) @ gaussian(6, 7, shape[1])
    assert spectrum(g).count_nonzero() == 7
    assert triplets(g, method)[1].count_nonzero() == 7
    assert round(polar(g, method).norm().item() ** 2, 3) == 7
    assert round(polar(torch.ones(shape), method).norm().item() ** 2, 3) == 1
    repeated = torch.cat([g[:20], g[:20]])
    assert round(polar(repeated, method).norm().item() ** 2, 3) == 7


@pytest.mark.parametrize("method", [*EXACT, "newton-schulz-converged"])
def test_small_true_directions_are_kept(method):
    # r * eps = 3.6e-5 would drop the smallest of these; square attention gradients reach 1e-5 of the norm.
    sigma = torch.logspace(0, -4.7, 300, dtype=torch.float64)
    g = with_spectrum(sigma, 300, 300)
    want = with_spectrum(torch.ones(300), 300, 300)
    assert error(polar(g.float(), method), want) < (5e-3 if method == "newton-schulz-converged" else 1e-3)
    assert spectrum(g.float()).count_nonzero() == 300


def test_gram_agrees_with_svd_at_a_large_condition():
    g = with_spectrum(torch.logspace(0, -5, 60), 60, 200).float()
    assert error(polar(g, "gram"), polar(g, "svd")) < 1e-5
    assert error(isotropize(g, "gram"), isotropize(g, "svd")) < 1e-5


@pytest.mark.parametrize(("shape", "condition"), [((512, 640), 500), ((640, 512), 500), ((512, 640), 5000)])
def test_gram_of_large_matrices(shape, condition):
    # From 512 on the long product runs in float32 while condition and settings allow it.
    want = with_spectrum(torch.ones(512), *shape)
    g = with_spectrum(torch.linspace(condition, 1, 512), *shape).float()
    got = polar(g)
    assert error(got, polar(g.double())) < 5e-6
    assert error(got, want) < 1e-4
    torch.set_float32_matmul_precision("high")
    try:
        careful = polar(g)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert error(careful, polar(g.double())) < 1e-7
    assert torch.equal(got, careful) == (condition > 1000)


def test_scalar_response_of_the_schedules():
    def response(sigma, steps):
        for a, b, c in steps:
            sigma = a * sigma + b * sigma**3 + c * sigma**5
        return sigma

    known = {1.0: 0.978, 0.1: 1.019, 1e-2: 1.018, 1e-3: 0.475, 1e-4: 0.049, 1e-5: 0.005}
    for sigma, want in known.items():
        assert response(sigma, isotropy.DION_STEPS) == pytest.approx(want, abs=5e-4)
    usual = response(torch.linspace(0.02, 1, 100_001, dtype=torch.float64), isotropy.DION_STEPS)
    assert usual.min() == pytest.approx(0.978, abs=1e-3)
    assert usual.max() == pytest.approx(1.032, abs=1e-3)
    # Up to 1.001: rounding may leave the norm above one, and a schedule without safety factor then diverges.
    wide = torch.logspace(-5, math.log10(1.001), 100_001, dtype=torch.float64)
    assert (response(wide, isotropy.CONVERGED_STEPS) - 1).abs().max() < 2e-6


def test_newton_schulz_beside_svd():
    wide, square = gaussian(7, 96, 384), gaussian(8, 128, 128)
    assert error(isotropize(wide, "newton-schulz-converged"), isotropize(wide, "svd")) < 1e-4
    assert error(isotropize(square, "newton-schulz-converged"), isotropize(square, "svd")) < 1e-3
    assert 0.005 < error(isotropize(wide, "newton-schulz"), isotropize(wide, "svd")) < 0.03
    # Large singular values dominate the sum and are the ones that five steps get right.
    size = isotropize(wide, "newton-schulz").norm() / polar(wide, "newton-schulz").norm()
    assert size.item() == pytest.approx(spectrum(wide).mean().item(), rel=2e-2)


@pytest.mark.parametrize("shape", [(1, 9), (9, 1)])
def test_one_direction_is_left_alone(shape):
    g = gaussian(9, *shape)
    for method in EXACT:
        torch.testing.assert_close(isotropize(g, method), g, rtol=1e-6, atol=0)
    torch.testing.assert_close(isotropize(g, "newton-schulz", "rms"), 0.978 * g, rtol=1e-3, atol=0)


@pytest.mark.parametrize("method", EXACT)
def test_rms_exceeds_the_mean_unless_flat(method):
    g, flat = gaussian(10, 8, 20), with_spectrum(torch.full((8,), 3.0), 8, 20)
    ratio = isotropize(g, method, "rms").norm() / isotropize(g, method).norm()
    assert ratio.item() == pytest.approx((spectrum(g).square().mean().sqrt() / spectrum(g).mean()).item(), rel=1e-6)
    assert ratio > 1.01
    assert error(isotropize(flat, method, "rms"), flat) < 1e-12
    assert error(isotropize(flat, method), flat) < 1e-12


def test_spectral_scale_is_fan_out_over_fan_in():
    # (out, in) layout; swapping the two is a known bug elsewhere.
    g = gaussian(11, 18, 2)
    sigma = torch.linalg.svdvals(isotropize(g, "svd", "spectral"))
    torch.testing.assert_close(sigma, torch.full((2,), 3.0))


@pytest.mark.parametrize("method", EXACT)
def test_the_halves_of_the_correction(method):
    g = with_spectrum([8.0, 4.0, 3.0, 1.0], 4, 6)
    torch.testing.assert_close(spectrum(clip(g, "high", method)), torch.tensor([4.0, 4, 3, 1], dtype=torch.float64))
    torch.testing.assert_close(spectrum(clip(g, "low", method)), torch.tensor([8.0, 4, 4, 4], dtype=torch.float64))
    thin = torch.outer(torch.tensor([1.0, 2, 2]), torch.tensor([2.0, 0, 0]))
    assert error(clip(thin, "low", method), thin) < 1e-6  # nothing to lift a null direction along


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("shape", [(4, 9), (9, 4)])
def test_triplets_are_a_thin_svd(method, shape):
    g = gaussian(12, *shape)
    u, sigma, vh = triplets(g, method)
    assert (u.shape, sigma.shape, vh.shape) == ((shape[0], 4), (4,), (4, shape[1]))
    assert error((u * sigma) @ vh, g) < 1e-7
    torch.testing.assert_close(sigma, torch.linalg.svdvals(g.double()), rtol=1e-7, atol=0)
    torch.testing.assert_close(u.T @ u, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-7)
    torch.testing.assert_close(vh @ vh.T, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-7)
    u, kept, vh = triplets(g, method, floor=sigma[1])
    assert (kept.count_nonzero(), u.count_nonzero(dim=0).tolist()) == (1, [shape[0], 0, 0, 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_worked_on_in_float32(method, dtype):
    g = gaussian(13, 5, 8).to(dtype)
    flat = isotropize(g, method)
    assert flat.dtype == torch.float32
    assert torch.equal(flat, isotropize(g.float(), method))
    assert isotropize(g.double(), method).dtype == torch.float64


@pytest.mark.parametrize("method", METHODS)
def test_the_input_is_not_touched(method):
    g = gaussian(14, 5, 8)
    before = g.clone()
    polar(g, method), isotropize(g, method, "rms"), isotropize(g.T, method)
    assert torch.equal(g, before)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_entries_are_refused(method, value):
    g = gaussian(15, 4, 5)
    g[2, 3] = value
    with pytest.raises(ValueError, match="non-finite"):
        isotropize(g, method)


@pytest.mark.parametrize("bad", [torch.ones(3), torch.ones(2, 2, 2), torch.ones(0, 4), torch.ones(2, 2).int()])
def test_only_float_matrices(bad):
    for use in (polar, isotropize, spectrum, triplets):
        with pytest.raises(ValueError, match="need a non-empty float matrix"):
            use(bad)


def test_unknown_choices_name_the_known_ones():
    g = torch.ones(2, 2)
    with pytest.raises(ValueError, match="method='qr': choose svd, gram"):
        polar(g, "qr")
    with pytest.raises(ValueError, match="scale='max': choose mean"):
        isotropize(g, scale="max")
    with pytest.raises(ValueError, match="side='both': choose high"):
        clip(g, "both")
    for use in (lambda m: clip(g, "high", m), lambda m: triplets(g, m)):
        with pytest.raises(ValueError, match="choose svd or gram"):
            use("newton-schulz")
