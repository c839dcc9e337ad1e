"""Which entries of an update the receiver's number format can see.

An entry is visible when the cast changes, compared as integers, so that -0.0 is not +0.0 and a NaN equals itself:
``bits(cast(theta)) != bits(cast(theta - s))`` (PULSE, Eq. 1). Never a threshold on the magnitude: |w|/256 only explains
what the cast decides. Casts round to nearest, ties to even, as torch does.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from lowcomm.pulse.dtypes import INTEGER

MXFP4 = "mxfp4"
FORMATS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8-e4m3": torch.float8_e4m3fn,
    "fp8-e5m2": torch.float8_e5m2,
    MXFP4: MXFP4,
}
BLOCK = 32  # elements that share one MXFP4 scale, along the last dimension (OCP MX v1.0)


def visible(theta: Tensor, s: Tensor, dtype: torch.dtype | str = torch.bfloat16) -> Tensor:
    """Where ``cast(theta - s)`` differs from ``cast(theta)``: a bool tensor of theta's shape (PULSE, Eq. 1).

    ``theta`` and ``s`` are FP32 (or FP64) of one shape; ``s`` has the sign of a gradient, it is subtracted.
    ``dtype`` is a torch dtype or a name of ``FORMATS``. For "mxfp4" every entry of a block whose scale changed is
    visible. Raises ValueError on other dtypes of theta: a BF16 theta has lost the small steps that this is about.
    """
    if theta.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"theta has dtype {theta.dtype}: the test needs the FP32 master weights, not their cast")
    if theta.shape != s.shape:
        raise ValueError(f"theta has shape {tuple(theta.shape)} but s has {tuple(s.shape)}")
    return changed(theta, theta - s, dtype)


def changed(old: Tensor, new: Tensor, dtype: torch.dtype | str | None = None) -> Tensor:
    """Where two tensors of one shape differ after a cast to ``dtype`` (None: in their own dtype): bool, that shape.

    Raises ValueError for an unknown name of a format, and for two dtypes without one to compare in.
    """
    if dtype is None and old.dtype != new.dtype:
        raise ValueError(f"old is {old.dtype} and new is {new.dtype}: name the dtype they are to be compared in")
    return differ(seen(old, dtype), seen(new, dtype)).reshape(old.shape)


def seen(tensor: Tensor, dtype: torch.dtype | str | None = None) -> tuple[Tensor, ...]:
    """What a receiver of the format holds of a tensor, as integers: the cast's bits, or scales and codes of MXFP4.

    Raises ValueError on the name of an unknown format.
    """
    dtype = FORMATS.get(dtype, dtype)
    if dtype == MXFP4:
        return mxfp4(tensor)
    if isinstance(dtype, str):
        raise ValueError(f"unknown number format {dtype!r}; known: {', '.join(FORMATS)} or a torch dtype")
    return (bits(tensor, dtype),)


def differ(old: tuple[Tensor, ...], new: tuple[Tensor, ...]) -> Tensor:
    """Where two results of `seen` differ, a bool tensor; a new MXFP4 scale makes all of its block differ."""
    hit = old[-1] != new[-1]
    if len(old) == 1:
        return hit
    return hit | (old[0] != new[0]).repeat_interleave(BLOCK, -1)[..., : hit.shape[-1]]


def bits(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The cast's bit patterns as integers of the same width; shape kept."""
    cast = tensor.detach().to(dtype or tensor.dtype)
    return cast.view(INTEGER[cast.element_size()])


def mxfp4(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """MXFP4 as the OCP MX v1.0 specification converts: ``(scales, codes)``, both uint8.

    ``scales`` (..., ceil(n/32)) are E8M0 exponents (value 2^(scale-127)), the floor of log2 of the block's largest
    magnitude minus 2; ``codes`` (..., n) are E2M1 bit patterns in the low four bits: nearest, ties to even, saturating
    at 6. A 0-d tensor counts as one block. A block that holds a NaN or an infinity gets the NaN scale 255 and code 0.
    """
    x = tensor.detach().float().reshape(1, 1) if tensor.dim() == 0 else tensor.detach().float()
    n = x.shape[-1]
    blocks = torch.nn.functional.pad(x, (0, -n % BLOCK)).unflatten(-1, (-1, BLOCK))
    amax = blocks.abs().amax(-1) if blocks.numel() else blocks.abs().sum(-1)
    finite = amax.isfinite()
    # frexp: amax = f * 2^e with f in [0.5, 1), hence floor(log2(amax)) = e - 1, exactly, subnormals included
    exponent = torch.where(amax > 0, torch.frexp(torch.where(finite, amax, 1.0))[1] - 3, -127).clamp(-127, 127)
    # two factors: 2^127 * 2^... would overflow float32 in one; made block by block, as ldexp of every element is slow
    half = -exponent // 2
    one = torch.ones_like(amax)
    kept = blocks if bool(finite.all()) else torch.where(finite[..., None], blocks, 0.0)
    scaled = kept * torch.ldexp(one, half)[..., None] * torch.ldexp(one, -exponent - half)[..., None]
    code = _e2m1(scaled.abs()) | (torch.signbit(scaled).to(torch.uint8) << 3)
    scale = torch.where(finite, exponent + 127, 255).to(torch.uint8)
    return scale, code.flatten(-2)[..., :n]


def _e2m1(magnitude: Tensor) -> Tensor:
    """Codes of the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6; a tie goes to the even code.

    From 1 upward the code is the exponent and the first bit of the fraction, rounded as integers; below it compares.
    """
    word = magnitude.view(torch.int32)
    rounded = (word + ((word >> 22) & 1)).add_(0x1FFFFF).bitwise_right_shift_(22).sub_(252).clamp_(max=7)
    low = (magnitude > 0.25).to(torch.int32) + (magnitude >= 0.75)
    return torch.maximum(rounded, low).to(torch.uint8)


def cast(tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """What is published: floating tensors cast to ``dtype``, others as they are. Tied tensors stay tied."""
    seen: dict[tuple, Tensor] = {}
    out = {}
    for name, tensor in tensors.items():
        key = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        # an empty tensor has no address of its own
        if key not in seen or not tensor.numel():
            seen[key] = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor.detach()
        out[name] = seen[key]
    return out
