"""What a worker sends: `(name, theta, delta) -> message`, one compressor per worker, residual kept inside.

A compressor with a residual has two phases, so that a round that is refused leaves no trace: the call looks at the
residual, `settle` moves it once the round stands.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from lowcomm.outer import gate
from lowcomm.pulse.visibility import FORMATS, visible

GATES = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp16": torch.float16, "float16": torch.float16,
         "fp8-e4m3": torch.float8_e4m3fn, "float8_e4m3fn": torch.float8_e4m3fn, "fp8-e5m2": torch.float8_e5m2,
         "float8_e5m2": torch.float8_e5m2, "fp32": torch.float32, "float32": torch.float32}  # fmt: skip
Values = Literal["exact", "bf16", "jump"]


@dataclass
class Dense:
    """A message that holds every entry."""

    values: Tensor  # FP32, the parameter's shape

    def dense(self) -> Tensor:
        """`values`, as every message has it."""
        return self.values

    @property
    def nbytes(self) -> int:
        """Bytes of the values alone."""
        return self.values.numel() * self.values.element_size()


class Identity:
    """Send the pseudo-gradient as it is: DiLoCo, IsoLoCo."""

    gated = False

    def __call__(self, name: str, theta: Tensor, delta: Tensor) -> Dense:
        return Dense(delta)

    def state_dict(self) -> dict[str, Tensor]:
        """Empty: nothing is held back."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Raises ValueError where ``state`` holds a residual."""
        if state:
            raise ValueError(f"this compressor keeps no residual, the checkpoint has one for {sorted(state)[0]!r}")


@dataclass
class Gated:
    """A message of the visible entries: values of theta's dtype and shape, zero where `fired` (bool) is not set."""

    item: gate.Item
    form: gate.Format
    codec: str

    @property
    def sent(self) -> int:
        """How many entries are sent."""
        return int(self.item.fired.sum())

    def dense(self) -> Tensor:
        """Values of the parameter's shape, zero where nothing is sent."""
        return self.item.values

    @cached_property
    def data(self) -> bytes:
        """The message as an object of its own; in a run, many parameters share one."""
        return gate.encode([self.item], self.form, self.codec)

    @property
    def nbytes(self) -> int:
        """Bytes of `data`, head and trailer included."""
        return len(self.data)


class VisibilityGate:
    """PULSELoCo (2602.03839 v2, Algorithm 2): send what the receivers' number format can see, keep the rest.

        s_r    = Delta_r + e_r
        fire_r = bits(cast(theta)) != bits(cast(theta - s_r))
        sent   = s_r where fire_r, 0 elsewhere;   e_r = s_r - sent

    dtype:  bfloat16 | float16 | float8_e4m3fn | float8_e5m2; float32: an open gate, everything that moved is sent
    values: exact: FP32, so that sent + e_r is s_r bit for bit, as the two have no entry in common
            bf16:  rounded to BF16, the rounding error stays in e_r (ours)
            jump:  cast(theta) - cast(theta - s_r), the rest stays in e_r: the authors' first variant, which oscillates
    codec:  packed, or paper: the published layout of patches with FP32 values

    theta and delta are FP32 (float64 in tests: sent unpacked). Raises FloatingPointError naming the parameter when s_r
    or a value to be sent is not finite; nothing has changed then.
    """

    gated = True

    def __init__(self, dtype: str | torch.dtype = "bfloat16", values: Values = "exact", codec: str = "packed"):
        self.dtype = GATES.get(dtype, FORMATS.get(dtype, dtype))
        if self.dtype not in GATES.values():
            known = "bfloat16, float16, float8_e4m3fn, float8_e5m2, or float32 for an open gate"
            raise ValueError(f"dtype={dtype}: there is no gate of this format; take {known}")
        if values not in ("exact", "bf16", "jump"):
            raise ValueError(f"values={values}: must be exact, bf16 or jump")
        if codec not in ("packed", "paper"):
            raise ValueError(f"codec={codec}: must be packed or paper")
        self.values, self.codec = values, codec
        self.form = gate.Format.of(self.dtype, values)
        self.residual: dict[str, Tensor] = {}

    def __call__(self, name: str, theta: Tensor, delta: Tensor) -> Gated:
        """The message; the residual is looked at and not touched."""
        s, sent, fired = self._split(name, theta, delta)
        if not (torch.isfinite(s).all() and torch.isfinite(sent).all()):
            raise FloatingPointError(f"pseudo-gradient of '{name}' is not finite")
        return Gated(gate.Item(name, theta, sent, fired), self.form, self.codec)

    def settle(self, name: str, theta: Tensor, delta: Tensor) -> None:
        """The message of the same arguments was taken: what it did not say is the new residual."""
        s, sent, _ = self._split(name, theta, delta)
        self.residual[name] = s.sub_(sent)  # e_r = s_r - sent

    def _split(self, name: str, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        theta = theta.detach()
        kept = self.residual.get(name)
        s = delta.clone() if kept is None else delta + kept  # s_r = Delta_r + e_r
        fired = visible(theta, s, self.dtype)  # fire_r
        value = s
        if self.values == "bf16":
            value = s.bfloat16().to(s.dtype)
        elif self.values == "jump":
            value = theta.to(self.dtype).to(s.dtype) - (theta - s).to(self.dtype).to(s.dtype)
        fired &= value != 0  # a zero says nothing: -0.0 of theta against +0.0, or s that rounds away
        return s, torch.where(fired, value, torch.zeros_like(s)), fired

    def state_dict(self) -> dict[str, Tensor]:
        """Name -> residual e_r, of the parameter's shape, FP32 or wider; not copied. Empty before the first round."""
        return dict(self.residual)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Residuals of `state_dict`, copied; those of other parameters are forgotten."""
        self.residual = {n: t.clone() for n, t in state.items()}
