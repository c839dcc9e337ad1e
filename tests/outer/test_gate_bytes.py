"""The bytes of gated messages: exact for every pattern, fewer than 4 an entry, refused when damaged."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from lowcomm.outer import gate
from lowcomm.outer.compress import VisibilityGate
from lowcomm.pulse.errors import Corrupt
from tests.outer.gate_cases import example, same

FORMATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float32")


def round_trip(message, codec="packed"):
    body = gate.opened(gate.encode([message.item], message.form, codec, 3, 1), codec, 3, 1)
    (out,) = gate.decode(body, {message.item.name: message.item.theta}, message.form, codec, "test")
    return out


@pytest.mark.parametrize("codec", ["packed", "paper"])
@pytest.mark.parametrize("values", ["exact", "bf16", "jump"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_bytes_give_the_message_back(dtype, values, codec):
    for size, step in ((300, 3e-4), (300, 1e-6), (2000, 1e-2), (6, 1e-3)):
        theta, delta = example(size, step=step)
        message = VisibilityGate(dtype, values, codec)("w", theta, delta)
        assert same(round_trip(message, codec), message.dense())
        assert message.nbytes == len(message.data)


PATTERN = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(PATTERN, PATTERN), min_size=1, max_size=40), st.sampled_from(FORMATS))
def test_any_finite_bits_come_back(pairs, dtype):
    """Subnormals, zeros, huge ones: the code is exact for every pattern, and sent + kept is the input."""
    theta, delta = (torch.from_numpy(np.array(p, np.uint32).view(np.float32).copy()) for p in zip(*pairs, strict=True))
    theta = torch.where(theta.isfinite(), theta, torch.ones(()))
    delta = torch.where(delta.isfinite(), delta, torch.ones(()))
    compressor = VisibilityGate(dtype)
    message = compressor("w", theta, delta)
    assert same(round_trip(message), message.dense())
    compressor.settle("w", theta, delta)
    assert torch.equal(message.dense() + compressor.residual["w"], delta)


def test_many_parameters_share_one_object_and_blocks_are_cut(monkeypatch):
    from lowcomm.pulse import state

    monkeypatch.setattr(state, "BLOCK", 128)
    items, thetas, form = [], {}, None
    for number, size in enumerate((300, 0, 1, 128, 129)):
        theta, delta = torch.full((size,), 0.5), torch.full((size,), 1e-3 * (number != 3))
        message = VisibilityGate()(f"p{number}", theta, delta)
        items, form = [*items, message.item], message.form
        thetas[f"p{number}"] = theta
    body = gate.opened(gate.encode(items, form, "packed"), "packed", 0, 0)
    for item, out in zip(items, gate.decode(body, thetas, form, "packed", "test"), strict=True):
        assert same(out, item.values)


def test_fewer_than_four_bytes_an_entry():
    """Lossless. What FP32 weights near theta differ by lies on theta's grid, so that most of the fraction is known."""
    generator = torch.Generator().manual_seed(2)
    for step, most in ((3e-6, 2.4), (3e-5, 2.6), (1e-3, 2.95)):
        theta = torch.randn(100_000, generator=generator) * 0.028
        message = VisibilityGate()("w", theta, theta - (theta - step * torch.randn(100_000, generator=generator)))
        assert message.nbytes / message.sent < most, step
    published = VisibilityGate(codec="paper")("w", message.item.theta, message.dense())
    assert 3 < published.nbytes / published.sent < 6.5


@pytest.mark.parametrize("codec", ["packed", "paper"])
def test_damaged_bytes_are_corrupt_and_nothing_else(codec):
    """Every byte flipped, every length cut; then the same with the trailer made to fit."""
    theta, delta = example(80)
    message = VisibilityGate(codec=codec)("w", theta, delta)
    data = message.data

    def read(changed):
        body = gate.opened(changed, codec, 0, 0)
        return list(gate.decode(body, {"w": theta}, message.form, codec, "test"))

    for at in range(len(data)):
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]):
            with pytest.raises(Corrupt):
                read(changed)
    body = data[gate.HEAD.size : -gate.TRAILER]
    refused = 0
    for at in range(len(body)):
        changed = body[:at] + bytes([body[at] ^ 0x5A]) + body[at + 1 :]
        try:
            (out,) = read(gate.sealed(codec, 0, 0, changed))
            assert torch.isfinite(out).all()  # well formed, another message
        except Corrupt:
            refused += 1
    assert refused


def test_a_message_of_another_round_or_worker_is_refused():
    message = VisibilityGate()("w", *example())
    data = gate.encode([message.item], message.form, "packed", round=4, worker=2)
    gate.opened(data, "packed", 4, 2)
    for place in ((3, 2), (4, 1)):
        with pytest.raises(Corrupt, match="this is the message of round 4, worker 2"):
            gate.opened(data, "packed", *place)
    with pytest.raises(Corrupt, match="configure all ranks alike"):
        gate.opened(data, "paper", 4, 2)


def test_a_body_of_four_gibibytes_has_a_head():
    """One dense parameter of 1B entries; told by a body that only says so."""

    class Long(bytes):
        def __len__(self):
            return 5 << 30

    data = gate.sealed("packed", 7, 3, Long(b"x"))
    assert gate.HEAD.unpack(data[: gate.HEAD.size])[2:] == (7, 3, 5 << 30)
    with pytest.raises(Corrupt, match="no gated message"):
        gate.opened(data, "packed", 7, 3)
