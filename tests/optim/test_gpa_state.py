"""GPA's state through files, copies and resumed runs: the pitfalls of the published implementations."""

import copy
import pickle

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from lowcomm.optim import GPAAdamW
from tests.optim.problems import DTYPES, OPTIONS, equal, point, saved, steps, trained


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("kernel", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_resume_is_bit_identical(dtype, mode, kernel):
    """Pitfalls 4 and 5: safe loading; float32 moments stay float32, booleans booleans, counters exact."""
    unbroken, p = trained(40, dtype, **kernel)
    first, q = trained(20, dtype, **kernel)
    getattr(first, mode)()
    weights, state = saved(q.detach()), saved(first.state_dict())
    equal(state, first.state_dict())
    r = nn.Parameter(weights)
    second = GPAAdamW([r], **OPTIONS, **kernel)
    second.load_state_dict(state)
    equal(second.state_dict(), state)
    assert second.training == (mode == "train")
    second.train()
    steps(second, r, 20)
    assert torch.equal(r, p)
    equal(second.state_dict(), unbroken.state_dict())


def test_state_dict_holds_only_plain_things():
    state = trained(dtype=torch.bfloat16)[0].state_dict()
    for per_parameter in state["state"].values():
        assert all(isinstance(value, torch.Tensor) for value in per_parameter.values())
    for group in state["param_groups"]:
        assert isinstance(group["train_mode"], bool)
        for value in group.values():
            for item in value if isinstance(value, list | tuple) else [value]:
                assert item is None or type(item) in (bool, int, float, str)


def test_configuration_lists_do_not_enter_the_state_dict():
    optimizer = GPAAdamW([point()], betas=OmegaConf.create([0, 0.95]))
    assert type(optimizer.state_dict()["param_groups"][0]["betas"]) is tuple


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loading_copies(dtype):
    first, p = trained(dtype=dtype)
    q = nn.Parameter(p.detach().clone())
    second = GPAAdamW([q], **OPTIONS)
    second.load_state_dict(first.state_dict())
    before = copy.deepcopy(first.state_dict())
    steps(second, q, 3)
    equal(first.state_dict(), before)


def test_large_step_counter_of_narrow_weights_survives():
    first, p = trained(dtype=torch.bfloat16)
    first.state[p]["step"].fill_(1001.0)  # bfloat16 holds 1000 and 1004
    second = GPAAdamW([nn.Parameter(p.detach().clone())], **OPTIONS)
    second.load_state_dict(saved(first.state_dict()))
    assert second.state[second.param_groups[0]["params"][0]]["step"].item() == 1001.0


@pytest.mark.parametrize(
    ("key", "value", "saved_value"), [("mu_y", 0.9, 0.7), ("mu_x", 0.5, 0.9), ("decay_at", "y", "z")]
)
def test_loading_another_average_is_refused(key, value, saved_value):
    """Pitfall 9: x would jump. A refused load changes nothing, and leaves no hook behind."""
    state = trained()[0].state_dict()
    other, q = trained(3, **{key: value})
    before = copy.deepcopy(other.state_dict())
    for _ in range(2):
        with pytest.raises(
            ValueError, match=f"{key}={value} here but {OPTIONS.get(key, 0.7 if key == 'mu_y' else 'z')}"
        ):
            other.load_state_dict(state)
    equal(other.state_dict(), before)
    assert not other._optimizer_load_state_dict_pre_hooks


def test_loading_anothers_state_is_refused():
    adamw = torch.optim.AdamW([point()])
    with pytest.raises(ValueError, match="None in the state dict"):
        trained()[0].load_state_dict(adamw.state_dict())
    with pytest.raises(ValueError, match="another precision than torch.bfloat16"):
        trained(dtype=torch.bfloat16)[0].load_state_dict(trained()[0].state_dict())
    with pytest.raises(ValueError, match="another precision than torch.float32"):
        trained()[0].load_state_dict(trained(dtype=torch.bfloat16)[0].state_dict())


def test_user_load_hooks_are_seen():
    first, p = trained()
    second = GPAAdamW([nn.Parameter(p.detach().clone())], **OPTIONS)
    second.register_load_state_dict_pre_hook(lambda _, state: renamed(state))
    calls = []
    second.register_load_state_dict_post_hook(lambda optimizer: calls.append(optimizer))
    state = saved(first.state_dict())
    state["state"] = {"other": state["state"][0]}
    second.load_state_dict(state)
    assert calls == [second]
    equal(second.state_dict(), first.state_dict())


def renamed(state):
    return {"param_groups": state["param_groups"], "state": {0: state["state"]["other"]}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))], ids=["deepcopy", "pickle"]
)
def test_copies_are_independent_and_equal(dtype, mode, duplicate):
    optimizer, p = trained(dtype=dtype)
    getattr(optimizer, mode)()
    twin, q = duplicate((optimizer, p))
    optimizer.train()
    twin.train()
    steps(twin, q, 5)
    assert not torch.equal(p, q)
    steps(optimizer, p, 5)
    assert torch.equal(p, q)
    equal(twin.state_dict(), optimizer.state_dict())


def test_weights_of_a_train_mode_checkpoint_are_y():
    """Pitfall 8: weights alone do not tell which point they are; with the optimizer's state they give x."""
    optimizer, p = trained(dtype=torch.float64)
    y, state = p.detach().clone(), saved(optimizer.state_dict())
    optimizer.eval()
    assert not torch.equal(p, y)
    q = nn.Parameter(y)
    again = GPAAdamW([q], **OPTIONS)
    again.load_state_dict(state)
    again.eval()
    assert torch.equal(q, p)
