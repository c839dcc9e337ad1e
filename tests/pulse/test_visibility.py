"""The gate is the cast, bit by bit; the bounds are theorems about it."""

import math

import pytest
import torch

from lowcomm.pulse import bounds, visibility
from lowcomm.pulse.visibility import changed, mxfp4, visible
from tests.reference import pulse as ref

FLOATS = ["bf16", "fp16", "fp8-e4m3", "fp8-e5m2"]


def values(seed: int, n: int = 600) -> torch.Tensor:
    """FP32 values of all magnitudes that matter, with ties, zeros of both signs, subnormals and non-finite ones."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=g) * 10.0 ** (torch.rand(n, generator=g) * 12 - 9)
    ties = (torch.randn(100, generator=g).bfloat16().view(torch.int16).int() * 65536 + 32768).view(torch.float32)
    special = torch.tensor(
        [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 448.0, 464.0, 465.0, 65519.0, 65520.0, 3.4e38]
    )
    return torch.cat([x, ties, special])


@pytest.mark.parametrize("fmt", FLOATS)
def test_mask_is_the_hand_made_cast(fmt):
    theta = values(0)
    s = values(1)[torch.randperm(len(theta), generator=torch.Generator().manual_seed(2))] * 1e-3
    s[::7] = 0
    expected = ref.visible(theta.tolist(), (theta - s).tolist(), fmt)
    got = visible(theta, s, fmt)
    nan = theta.isnan() | (theta - s).isnan()  # payloads are compared below
    assert got[~nan].tolist() == [e for e, n in zip(expected, nan.tolist(), strict=True) if not n]
    assert 0 < sum(expected) < len(expected)


def test_bits_not_values():
    zero, nan = torch.tensor([0.0, -0.0]), torch.tensor([0x7FC0, 0x7FC1], dtype=torch.int16).view(torch.bfloat16)
    assert changed(zero[:1], zero[1:], "bf16").item(), "-0.0 is not +0.0"
    assert changed(nan[:1], nan[1:]).item(), "another NaN payload is another value"
    assert not changed(nan, nan.clone()).any(), "an unchanged NaN is not sent"


def test_own_dtype():
    """An FP32 buffer among BF16 weights is compared in FP32: a change below a BF16 step is a change."""
    a = torch.tensor([1.0])
    assert changed(a, a + 2**-20).item()
    assert not changed(a, a + 2**-20, "bf16").item()
    with pytest.raises(ValueError, match="name the dtype"):
        changed(a, a.bfloat16())


def test_gate_golden():
    """The published case: below 2.0 the spacing is half, and the tie at 0.00390625 goes to the even side."""
    two = torch.tensor([2.0])
    assert not visible(two, torch.tensor([0.003])).item()
    assert not visible(two, torch.tensor([0.00390625])).item()
    assert visible(two, torch.tensor([0.005])).item()


@pytest.mark.parametrize(("w", "up", "down"), [(1.0, 1 / 256, 1 / 512), (1.5, 1 / 384, 1 / 384)])
def test_first_visible_change(w, up, down):
    theta = torch.tensor([w])
    for sign, first in ((-1, up), (1, down)):
        assert not visible(theta, torch.tensor([sign * first * w * 0.999])).item()
        assert visible(theta, torch.tensor([sign * first * w * 1.01])).item()


def test_masters_only():
    with pytest.raises(ValueError, match="FP32 master"):
        visible(torch.zeros(3).bfloat16(), torch.zeros(3).bfloat16())
    with pytest.raises(ValueError, match="shape"):
        visible(torch.zeros(3), torch.zeros(1))
    with pytest.raises(ValueError, match="fp8-e4m3"):
        visible(torch.zeros(3), torch.zeros(3), "fp8")


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
def test_mxfp4_by_hand(n):
    x = values(3)
    x = x[x.isfinite()][: 4 * n].reshape(4, n)
    scales, codes = mxfp4(x)
    for row in range(4):
        for b in range(0, n, 32):
            exponent, expected = ref.mxfp4_block(x[row, b : b + 32].tolist())
            assert scales[row, b // 32].item() - 127 == exponent
            assert codes[row, b : b + 32].tolist() == expected


def test_mxfp4_scale_change_dirties_the_block():
    x = torch.linspace(0.1, 1.0, 96).reshape(1, 96)
    s = torch.zeros_like(x)
    s[0, 40] = -100.0  # one weight grows: its block's scale moves
    mask = visible(x, s, "mxfp4")
    assert mask[0, 32:64].all()
    assert mask.sum() == 32
    assert mask[0].tolist() == ref.mxfp4_changed(x[0].tolist(), (x - s)[0].tolist())


def test_mxfp4_ties_and_poison():
    x = torch.tensor([[4.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25]])
    assert mxfp4(x)[1].tolist() == [[6, 0, 2, 2, 4, 4, 6, 6, 8]]
    assert mxfp4(torch.tensor([[math.nan, 1.0]]))[0].tolist() == [[255]]
    assert mxfp4(torch.zeros(0, 32))[1].shape == (0, 32)
    assert changed(torch.tensor(1.0), torch.tensor(3.0), "mxfp4").shape == ()


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.95)])
def test_exact_bound_is_attained_and_never_passed(betas):
    b1, b2 = betas
    worst = [(b1 / b2) ** (-i) for i in range(300)]  # g_i proportional to a_i / b_i
    assert ref.adam_largest_step(worst, b1, b2) == pytest.approx(bounds.exact(1.0, betas, step=300), rel=1e-9)
    g = torch.randn(50, 300, generator=torch.Generator().manual_seed(0)).double() ** 3
    assert max(ref.adam_largest_step(row.tolist(), b1, b2) for row in g) < bounds.exact(1.0, betas, step=300)
    assert bounds.exact(1.0, betas, step=1) == pytest.approx(1.0)


def test_bound_constants():
    assert bounds.conservative(3e-6) == pytest.approx(10 * 3e-6)
    assert bounds.exact(1.0) == pytest.approx(7.27, abs=0.005)
    assert bounds.conservative(1.0, (0.9, 0.95)) == pytest.approx(math.sqrt(2))
    assert bounds.critical_magnitude(bounds.effective(3e-6)) == pytest.approx(7.68e-4)
    with pytest.raises(ValueError, match="no bound"):
        bounds.exact(1.0, (0.999, 0.9))


@pytest.mark.parametrize(("fmt", "step"), [("bf16", 1e-3), ("fp16", 1e-4)])
def test_below_the_critical_magnitude_a_step_is_seen_and_above_twice_it_never(fmt, step):
    """PULSE, Def. A.3: |w|/256 and |w|/512 for BF16."""
    g = torch.Generator().manual_seed(5)
    w = torch.randn(4000, generator=g).to(visibility.FORMATS[fmt]).float()
    sign = torch.where(torch.rand(4000, generator=g) < 0.5, -1.0, 1.0)
    hit, critical = visible(w, sign * step, fmt), bounds.critical_magnitude(step, fmt)
    small, large = w.abs() < critical, w.abs() >= 2 * critical
    assert hit[small].all()
    assert not hit[large].any()
    assert min(small.sum(), large.sum()) > 100


def test_cast_keeps_ties():
    w = torch.randn(3, 3)
    out = visibility.cast({"a": w, "b": w, "n": torch.arange(3)})
    assert out["a"].data_ptr() == out["b"].data_ptr()
    assert out["a"].dtype == torch.bfloat16
    assert out["n"].dtype == torch.int64
