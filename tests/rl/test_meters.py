"""The meters on weights whose every answer can be counted by hand, and against the room of patches."""

import pytest
import torch

from lowcomm.pulse import bounds
from lowcomm.rl.meters import Meters, kind_of, zeros
from tests.reference import pulse as ref

NAMES = {
    "model.embed_tokens.weight": "embedding", "lm_head.weight": "head", "model.norm.weight": "norm",
    "model.layers.0.self_attn.q_proj.weight": "attention", "model.layers.0.mlp.up_proj.weight": "mlp",
    "model.layers.0.post_attention_layernorm.weight": "norm", "visual.patch": "other",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_kinds_of_tensors(name):
    assert kind_of(name) == NAMES[name]


def test_density_by_kind_and_without_zeros():
    """Of 4 + 2 weights one zero, one that moves visibly and one that moves too little."""
    params = {"embed": torch.tensor([0.0, 1.0, 1.0, 1.0]), "mlp": torch.tensor([1.0, 2.0])}
    meters = Meters(["density", "groups"], zeros=zeros(params))
    meters.start(0, params)
    params["embed"] += torch.tensor([1e-9, 1 / 64, 1 / 1024, 0.0])
    values = meters.update(1, params, 1e-3)
    assert values == {
        "density/bf16": 2 / 6, "density/zeros": 1 / 6, "density/without_zeros": 1 / 5, "density/embedding": 2 / 4,
        "density/mlp": 0.0,
    }  # fmt: skip
    params["embed"] += torch.tensor([1e-9, 0.0, 0.0, 0.0])  # no zero any more, but it began as one
    values = meters.update(2, params, 1e-3)
    assert (values["density/bf16"], values["density/zeros"], values["density/without_zeros"]) == (1 / 6, 1 / 6, 0.0)


def walk(steps: int):
    generator = torch.Generator().manual_seed(0)
    weights = {"mlp": torch.randn(200, generator=generator) * 0.03}
    for step in range(steps + 1):
        yield step, weights
        weights = {"mlp": weights["mlp"] + 3e-5 * torch.randn(200, generator=generator)}


def test_horizons_are_windows_of_snapshots_also_when_resumed_in_the_middle():
    meters, snapshots = Meters(["density", "horizons"], [1, 2, 4]), []
    for step, weights in walk(8):
        if step == 3:  # from here on by another object, as after a checkpoint
            held, meters = meters.state_dict(), Meters(["density", "horizons"], [1, 2, 4])
            meters.load_state_dict(held)
            meters.start(2, list(walk(2))[2][1])
        snapshots.append(weights["mlp"].tolist())
        if step == 0:
            meters.start(0, weights)
            continue
        values = meters.update(step, weights, 1e-3)
        for k in (1, 2, 4):
            if step % k == 0:
                expected = ref.density(snapshots[step - k], snapshots[step], "bf16")
                assert values[f"density/k{k}"] == pytest.approx(expected, abs=1e-12)
            else:
                assert f"density/k{k}" not in values


def test_a_weight_that_moved_and_returned_has_not_changed():
    meters, there, away = (
        Meters(["density", "horizons"], [1, 2]),
        {"mlp": torch.ones(4)},
        {"mlp": torch.ones(4) + 1 / 64},
    )
    meters.start(0, there)
    assert meters.update(1, away, 1e-3)["density/k1"] == 1
    values = meters.update(2, there, 1e-3)
    assert (values["density/k1"], values["density/k2"]) == (1, 0)


def test_other_formats_are_counted_from_the_masters():
    (_, old), (_, new) = walk(1)
    meters = Meters(["formats"])
    meters.start(0, old)
    values = meters.update(1, new, 1e-3)
    for name in ("fp16", "fp8-e4m3", "fp8-e5m2", "mxfp4"):
        assert values[f"density/{name}"] == pytest.approx(ref.density(old["mlp"].tolist(), new["mlp"].tolist(), name))
    assert values["density/fp8-e4m3"] < values["density/fp16"]


def test_bounds_predict_the_density_of_a_random_walk():
    generator = torch.Generator().manual_seed(1)
    old = {"mlp": torch.randn(200_000, generator=generator) * 0.03}
    new = {"mlp": old["mlp"] + 3e-6 * torch.randn(200_000, generator=generator)}
    meters = Meters(["density", "bounds"], betas=(0.9, 0.999))
    meters.start(0, old)
    values = meters.update(1, new, 3e-6)
    assert values["bounds/predicted"] == pytest.approx(values["density/bf16"], rel=0.05)
    below = float((old["mlp"].abs() < 256 * 3e-6).float().mean())
    assert values["bounds/below_effective"] == pytest.approx(below)
    assert values["bounds/below_conservative"] > values["bounds/below_effective"]
    assert values["bounds/moved_over_lr"] == pytest.approx((2 / torch.pi) ** 0.5, rel=0.01)
    assert bounds.critical_magnitude(3e-6) == 256 * 3e-6


def test_moves_predict_the_density_of_masters_that_lie_anywhere():
    """Normal masters, moves of the size of an Adam step: prediction and count agree; a zero that moves is visible."""
    generator = torch.Generator().manual_seed(0)
    params = {"mlp": 0.02 * torch.randn(400_000, generator=generator)}
    params["mlp"][:100] = 0
    meters = Meters(["density", "bounds"], betas=(0.9, 0.999))
    meters.start(0, params)
    values = meters.update(1, {"mlp": params["mlp"] + 3e-6 * torch.randn(400_000, generator=generator)}, 3e-6)
    assert values["bounds/predicted"] == pytest.approx(values["density/bf16"], rel=0.02)
    zeros, moved = {"mlp": torch.zeros(4)}, {"mlp": torch.tensor([0.0, 1e-9, 0.0, 1e-9])}
    meters.start(0, zeros)
    assert meters.update(1, moved, 3e-6)["bounds/predicted"] == 0.5
