"""What a worker sends: `(name, theta, delta) -> message`, one compressor per worker, residual kept inside."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Dense:
    """A message that holds every entry."""

    values: Tensor  # FP32, the parameter's shape

    def dense(self) -> Tensor:
        return self.values

    @property
    def nbytes(self) -> int:
        return self.values.numel() * self.values.element_size()


class Identity:
    """Send the pseudo-gradient as it is: DiLoCo, IsoLoCo."""

    def __call__(self, name: str, theta: Tensor, delta: Tensor) -> Dense:
        return Dense(delta)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state:
            raise ValueError(f"this compressor keeps no residual, the checkpoint has one for {sorted(state)[0]!r}")
