"""Generalized Primal Averaging (GPA) around any torch optimizer.

Defazio, Mishchenko, Raman, Shi, Xiao: "Smoothing DiLoCo with Primal Averaging for Faster Training of LLMs",
arXiv 2512.17131. Three sequences, equal at the start:

    y_t     = mu_y x_t + (1 - mu_y) z_t         the gradient is taken here
    z_{t+1} = base optimizer's step on z_t      with the gradient g(y_t)
    x_{t+1} = mu_x x_t + (1 - mu_x) z_{t+1}     evaluated and saved

| symbol | meaning                                     | where it lives                                      |
|--------|---------------------------------------------|-----------------------------------------------------|
| y      | point of the gradient                       | the parameter, in train mode                        |
| x      | running average of z, the result            | the parameter, in eval mode                         |
| z      | fast iterate, moved by the base optimizer   | state[p]["z"], float32 or wider: the one extra copy |
| mu_x   | how slowly x follows z, in [0, 1]           | group["mu_x"]                                       |
| mu_y   | share of x in y, in (0, 1]                  | group["mu_y"]                                       |

x need not be stored: x = (y - (1 - mu_y) z) / mu_y = lerp(y, z, 1 - 1/mu_y). So one step is
p: y -> x, the base's own step on z, p: x -> new y = lerp(x, z_new, 1 - mu_x mu_y), exact for every base optimizer.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Work = tuple[dict[str, Any], list[Tensor], list[Tensor]]  # a group, its parameters with gradient: wide, narrow


class GPA(Optimizer):
    """Primal averaging of any torch optimizer: `GPA(params, partial(torch.optim.SGD, lr=0.1))`.

    Starts in eval mode, as schedulefree does: call `train()` before training, `eval()` before evaluating or saving.
    Learning rate and all other options of the base live in `param_groups`; schedulers work as usual.

    Weights in bfloat16 or float16 are too coarse to hold y (its increments round to nothing), so for them x is kept
    as well, x, z and moments in float32, and the weight is only ever rounded from them: 16 bytes of state per AdamW
    weight instead of 12. What others write into such a weight in train mode is overwritten by the next step.

    Args:
        params: tensors, (name, tensor) pairs or group dicts; mu_x, mu_y and decay_at may differ by group.
        base: called once as `base(params)`; returns the torch optimizer that moves z, one that steps without closure.
        mu_x: 0 is the base optimizer itself, 1 freezes x. See `horizon.mu_x_from_horizon`.
        mu_y: 1 takes the gradient at x (primal averaging). Change it during training in eval mode only.
        decay_at: "z" leaves weight decay to the base, which applies its own rule at z; "y" switches the base's off and
            applies the decoupled rule z -= lr * weight_decay * y. Both are exact in x, y and z.

    Raises:
        ValueError: an option outside its range; parameters that are not real floating-point tensors.
    """

    def __init__(
        self, params: Any, base: Callable[..., Optimizer], mu_x: float = 0.9967, mu_y: float = 0.7, decay_at: str = "z"
    ) -> None:
        self.base = base(params)  # params may be a generator: from here on only the base's groups are read
        if callable(getattr(self.base, "eval", None)):
            raise ValueError(f"base={type(self.base).__name__}: it averages already; give the optimizer inside it")
        groups, self.base.param_groups = self.base.param_groups, []  # filled with z for the length of a step
        ours = {"mu_x": mu_x, "mu_y": mu_y, "decay_at": decay_at, "train_mode": False}
        super().__init__(groups, self.base.defaults | ours)

    @property
    def training(self) -> bool:
        """True while the parameters hold y."""
        return bool(self.param_groups) and self.param_groups[0]["train_mode"]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; the new parameters start with x = y = z, in the current mode.

        Raises ValueError naming the setting that is out of range.
        """
        super().add_param_group(param_group | {"train_mode": self.training})
        group = self.param_groups.pop()
        if not 0 <= group["mu_x"] <= 1:
            raise ValueError(f"mu_x={group['mu_x']}: a weight of the average, in [0, 1]")
        if not 0 < group["mu_y"] <= 1:
            raise ValueError(f"mu_y={group['mu_y']}: must lie in (0, 1], x is recovered from y by dividing by it")
        if group["decay_at"] not in ("z", "y"):
            raise ValueError(f"decay_at={group['decay_at']!r}: 'z' or 'y'")
        if group["decay_at"] == "y" and "weight_decay" not in group:
            raise ValueError("decay_at='y': the base optimizer has no weight_decay; use decay_at='z'")
        for p in group["params"]:
            if not p.is_floating_point():
                raise ValueError(f"parameter of shape {tuple(p.shape)} is {p.dtype}: GPA averages real numbers only")
        self.param_groups.append(group)

    @torch.no_grad()
    def train(self) -> None:
        """Put y into the parameters: bit for bit the y that was there before `eval()`, unless x was edited since."""
        for p, state, mu_y in self._switch(to=True):
            z = state["z"]
            if _narrow(p):
                if not torch.equal(p, state["x"].to(p.dtype)):
                    state["x"].copy_(p)
                p.copy_(state["x"].lerp(z, 1 - mu_y))
            else:
                y = state.pop("y")
                p.copy_(y if torch.equal(p, y.lerp(z, 1 - 1 / mu_y)) else p.lerp(z, 1 - mu_y))

    @torch.no_grad()
    def eval(self) -> None:
        """Put x into the parameters. y is set aside until `train()`, so that evaluating never changes training."""
        for p, state, mu_y in self._switch(to=False):
            if _narrow(p):
                p.copy_(state["x"])
            else:
                state["y"] = p.clone()
                p.lerp_(state["z"], 1 - 1 / mu_y)

    def _switch(self, to: bool) -> list[tuple[Tensor, dict[str, Any], float]]:
        """Set the mode; returns what has to move: parameters that had a gradient, in groups of the other mode."""
        groups = [group for group in self.param_groups if group["train_mode"] != to]
        for group in groups:
            group["train_mode"] = to
        return [(p, self.state[p], group["mu_y"]) for group in groups for p in group["params"] if self.state.get(p)]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; parameters without gradient keep x, y and z. Returns the closure's loss.

        Raises:
            RuntimeError: in eval mode; for a sparse gradient (before anything has changed).
        """
        if not self.training:
            raise RuntimeError("step() in eval mode, where the parameters hold x: call optimizer.train() first")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        self._move([(group, *self._with_gradient(group["params"])) for group in self.param_groups])
        return loss

    def _with_gradient(self, params: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters to step, wide and narrow; at its first gradient a parameter gets x = y = z."""
        wide: list[Tensor] = []
        narrow: list[Tensor] = []
        for p in params:
            if p.grad is None:
                continue
            if p.grad.layout != torch.strided:
                raise RuntimeError(f"gradient of a parameter of shape {tuple(p.shape)} is sparse: use sparse=False")
            (narrow if _narrow(p) else wide).append(p)
            if not self.state.get(p):
                z = p.detach().to(torch.float32 if _narrow(p) else p.dtype, copy=True)
                self.state[p] = {"z": z, "x": z.clone()} if _narrow(p) else {"z": z}
        return wide, narrow

    def _move(self, work: list[Work]) -> None:
        """y_t to y_{t+1}: the three sequences, of which p holds one at a time."""
        for group, wide, narrow in work:
            _lerp(wide, self._state("z", wide), 1 - 1 / group["mu_y"])  # p: y_t -> x_t
            c = float(group["lr"]) * group["weight_decay"] if group["decay_at"] == "y" else 0
            if c and (wide or narrow):  # z -= c y, with y = mu_y x + (1 - mu_y) z
                z, x = self._state("z", wide + narrow), wide + self._state("x", narrow)
                torch._foreach_mul_(z, 1 - c * (1 - group["mu_y"]))
                torch._foreach_add_(z, x, alpha=-c * group["mu_y"])
        self._step_base(work)  # z_t -> z_{t+1}, with the gradient g(y_t)
        # x_{t+1} = mu_x x_t + (1 - mu_x) z_{t+1};  y_{t+1} = mu_y x_{t+1} + (1 - mu_y) z_{t+1}
        for group, wide, narrow in work:
            mu_x, mu_y = group["mu_x"], group["mu_y"]
            _lerp(wide, self._state("z", wide), 1 - mu_x * mu_y)  # both in one: p: x_t -> y_{t+1}
            if narrow:
                x, z = self._state("x", narrow), self._state("z", narrow)
                _lerp(x, z, 1 - mu_x)  # x_{t+1}
                torch._foreach_copy_(narrow, torch._foreach_lerp(x, z, 1 - mu_y))

    def _state(self, key: str, ps: list[Tensor]) -> list[Tensor]:
        return [self.state[p][key] for p in ps]

    def _step_base(self, work: list[Work]) -> None:
        """Lend z, its gradient and its state to the base optimizer for one step."""
        base, pairs = self.base, [(self.state[p], p.grad) for _, wide, narrow in work for p in wide + narrow]
        base.param_groups = []
        for group, wide, narrow in work:
            off = {"weight_decay": 0.0} if group["decay_at"] == "y" else {}
            base.param_groups.append(group | {"params": self._state("z", wide + narrow)} | off)
        for state, grad in pairs:
            z = state["z"]
            z.grad = grad if grad.dtype == z.dtype else grad.to(z.dtype)
            base.state[z] = {key: value for key, value in state.items() if key not in ("x", "z")}
        base.step()
        for state, _ in pairs:
            state["z"].grad = None
            state.update(base.state[state["z"]])
        base.param_groups = []
        base.state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but every tensor is copied and keeps the dtype it was saved in; the mode is restored too.

        torch would cast float32 moments of bfloat16 weights to bfloat16 and share tensors with `state_dict`.
        Load the model's weights from the same moment: y if they were saved in train mode, x if in eval mode.

        Raises:
            ValueError: mu_x, mu_y or decay_at differ from this optimizer's; saved for weights of another precision.
        """
        loaded: dict[str, Any] = {}

        def check(_: Optimizer, state_dict: dict[str, Any]) -> None:
            for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=False):
                for key in ("mu_x", "mu_y", "decay_at"):
                    if group[key] != saved.get(key):
                        raise ValueError(
                            f"{key}={group[key]} here but {saved.get(key)} in the state dict, which its x and y go "
                            f"with: build the optimizer with the latter, load, and change {key} in eval mode"
                        )
                for p, index in zip(group["params"], saved["params"], strict=False):
                    state = state_dict["state"].get(index)
                    if state and ("x" in state) != _narrow(p):
                        raise ValueError(f"state {index} was saved for weights of another precision than {p.dtype}")
            loaded.update(state_dict)

        hook = self.register_load_state_dict_pre_hook(check)  # the last one: it sees what users' hooks made
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        for group, saved in zip(self.param_groups, loaded["param_groups"], strict=True):
            for p, index in zip(group["params"], saved["params"], strict=True):
                for key, value in loaded["state"].get(index, {}).items():
                    if isinstance(value, Tensor):
                        value = self.state[p][key] if key == "step" else value.to(p.device)
                        self.state[p][key] = value.detach().clone()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"base": self.base}


def _narrow(p: Tensor) -> bool:
    """Too coarse to hold y: the state keeps x."""
    return p.dtype not in (torch.float32, torch.float64)


def _lerp(start: list[Tensor], end: list[Tensor], weight: float) -> None:
    if start and weight:
        torch._foreach_lerp_(start, end, weight)
