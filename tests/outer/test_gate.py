"""The visibility gate: what it sends and what it keeps."""

import json
from pathlib import Path

import pytest
import torch

from lowcomm.outer.compress import Dense, Identity, VisibilityGate
from tests.outer.gate_cases import example, same, vector
from tests.reference import pulse as by_hand
from tests.reference.pulseloco import gate as gate_by_hand

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "pulseloco.json").read_text())
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8-e4m3", "float8_e5m2": "fp8-e5m2"}


@pytest.mark.parametrize("case", GOLDEN, ids=[c["name"] for c in GOLDEN])
def test_golden(case):
    compressor, theta = VisibilityGate(), vector(case["theta"])
    compressor.residual["w"] = vector(case["residual"])
    for line in case["rounds"]:
        message = compressor("w", theta, vector(line["delta"]))
        assert bool(message.item.fired) == line["fires"]
        compressor.settle("w", theta, vector(line["delta"]))
        sent, kept = (line["s"], 0.0) if line["fires"] else (0.0, line["s"])
        torch.testing.assert_close(message.dense(), vector(sent), rtol=1e-6, atol=0)
        torch.testing.assert_close(compressor.residual["w"], vector(kept), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_against_the_gate_by_hand(dtype):
    """Casts as exact fractions, entry by entry; theta - s is what FP32 arithmetic gives."""
    theta, delta = example()
    message = VisibilityGate(dtype)("w", theta, delta)
    moved = (theta - delta).tolist()
    fired = [by_hand.cast(a, DTYPES[dtype]) != by_hand.cast(b, DTYPES[dtype]) for a, b in zip(theta.tolist(), moved,
                                                                                             strict=True)]  # fmt: skip
    expected = torch.tensor(fired) & (delta != 0)
    assert torch.equal(message.item.fired, expected)
    assert 0 < message.sent < theta.numel()
    sent, _, _ = gate_by_hand([2.0], [0.005], "bf16")
    assert sent == [0.005]


@pytest.mark.parametrize("values", ["exact", "bf16", "jump"])
def test_sent_and_residual_are_the_input_bit_for_bit(values):
    """Over rounds: exact values share no entry with the residual; the other two leave the rest, exactly."""
    theta, _ = example()
    compressor = VisibilityGate(values=values)
    kept = torch.zeros_like(theta)
    for number in range(6):
        _, delta = example(seed=number, step=2e-5)
        s = delta + kept
        message = compressor("w", theta, delta)
        compressor.settle("w", theta, delta)
        kept = compressor.residual["w"]
        assert same(message.dense() + kept, s)
        if values == "exact":
            assert not (message.item.fired & (kept != 0)).any()
            assert same(torch.where(message.item.fired, message.dense(), kept), s)
        assert not message.dense()[~message.item.fired].any()


def test_sum_of_what_was_sent_and_kept_is_the_sum_of_what_came():
    """In exact arithmetic (float64 of FP32 numbers on one grid): nothing is lost, nothing twice."""
    theta = torch.full((64,), 1.0)
    generator, compressor = torch.Generator().manual_seed(1), VisibilityGate()
    came, went = torch.zeros(64, dtype=torch.float64), torch.zeros(64, dtype=torch.float64)
    for _ in range(50):
        delta = torch.randint(-9, 9, (64,), generator=generator) * 2.0**-13
        came += delta
        went += compressor("w", theta, delta).dense()
        compressor.settle("w", theta, delta)
    assert torch.equal(went + compressor.residual["w"], came)
    assert went.abs().sum() > 0


def test_signs_of_zero():
    """+0.0 and -0.0 differ in bits, but moving from one to the other is nothing to send; through zero it is."""
    theta = vector(0.0, -0.0, 0.0, -0.0, 1e-30)
    compressor = VisibilityGate()
    message = compressor("w", theta, vector(0.0, -0.0, 1e-30, -1e-30, 2e-30))
    assert message.item.fired.tolist() == [False, False, True, True, True]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused_and_nothing_has_changed(bad):
    theta, delta = example()
    compressor = VisibilityGate()
    compressor.settle("w", theta, delta)
    before, weights = compressor.residual["w"].clone(), theta.clone()
    delta[7] = bad
    with pytest.raises(FloatingPointError, match="'w' is not finite"):
        compressor("w", theta, delta)
    assert same(compressor.residual["w"], before)
    assert same(theta, weights)


def test_a_value_that_overflows_bf16_is_refused_too():
    huge = vector(3.4e38)
    VisibilityGate()("w", vector(0.0), huge)
    with pytest.raises(FloatingPointError):
        VisibilityGate(values="bf16")("w", vector(0.0), huge)


def test_zero_local_steps_never_fire_and_a_constant_push_arrives():
    """200 pushes of 1e-5 at 1.0: what arrives is within one firing quantum of their sum (2^-9 below 1.0)."""
    theta, push = vector(1.0), vector(1e-5)
    still, compressor, went = VisibilityGate(), VisibilityGate(), 0.0
    for _ in range(200):
        still.settle("w", theta, torch.zeros(1))
        assert still("w", theta, torch.zeros(1)).sent == 0
        went += float(compressor("w", theta, push).dense())
        compressor.settle("w", theta, push)
    assert abs(went - 200 * 1e-5) <= 2**-9 + 1e-9
    assert went > 0


def test_rounded_jumps_overshoot_and_the_residual_swings_back():
    """The variant that the authors dropped: the cast jumps by more than was pushed, the residual turns its sign."""
    theta, push = vector(1.0), vector(1e-5)
    signs = {}
    for values in ("exact", "jump", "bf16"):
        compressor, least = VisibilityGate(values=values), 0.0
        for _ in range(400):
            compressor.settle("w", theta, push)
            least = min(least, float(compressor.residual["w"]))
        signs[values] = least
    assert signs["exact"] == 0
    assert signs["jump"] < -0.9 * 2**-9
    assert -(2**-17) < signs["bf16"] <= 0, "the rounding error of a value, not of a weight"


def test_state_is_the_residual_and_comes_back():
    theta, delta = example()
    first, second = VisibilityGate(), VisibilityGate()
    assert first.state_dict() == {}
    second.load_state_dict({})
    first.settle("w", theta, delta)
    second.load_state_dict(first.state_dict())
    first.settle("w", theta, delta)
    second.settle("w", theta, delta)
    assert same(first.residual["w"], second.residual["w"])
    with pytest.raises(ValueError, match="keeps no residual.*'w'"):
        Identity().load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("mistake", "message"),
    [({"dtype": "int8"}, "dtype=int8"), ({"dtype": "mxfp4"}, "dtype=mxfp4"), ({"values": "fp8"}, "values=fp8"),
     ({"codec": "zip"}, "codec=zip")],
)  # fmt: skip
def test_mistakes_are_named(mistake, message):
    with pytest.raises(ValueError, match=message):
        VisibilityGate(**mistake)


def test_theta_in_low_precision_is_refused():
    """A BF16 theta would have lost what the gate is about (a defect of the official code)."""
    with pytest.raises(ValueError, match=r"bfloat16.*FP32 master"):
        VisibilityGate()("w", torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16))


def test_a_dense_message_counts_every_entry():
    assert Dense(torch.zeros(7)).nbytes == 28
