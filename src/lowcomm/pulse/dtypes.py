"""Element types: names as in safetensors, width in bytes, and where exponent and fraction lie in the bits."""

from typing import NamedTuple

import numpy as np
import torch


class Layout(NamedTuple):
    """One element type. Integers have no exponent (``exponent == 0``): their bits are taken as a plain number."""

    code: int  # number of the type in a patch; never reused
    width: int  # bytes
    exponent: int  # exponent bits
    fraction: int  # stored fraction bits

    @property
    def word(self) -> np.dtype:
        """Unsigned little-endian integer of the same width."""
        return np.dtype(f"<u{self.width}")


LAYOUTS = {
    "BF16": Layout(1, 2, 8, 7),
    "F16": Layout(2, 2, 5, 10),
    "F32": Layout(3, 4, 8, 23),
    "F64": Layout(4, 8, 11, 52),
    "F8_E4M3": Layout(5, 1, 4, 3),
    "F8_E5M2": Layout(6, 1, 5, 2),
    "F8_E4M3FNUZ": Layout(7, 1, 4, 3),
    "F8_E5M2FNUZ": Layout(8, 1, 5, 2),
    "F8_E8M0": Layout(9, 1, 0, 0),
    "U8": Layout(10, 1, 0, 0),
    "I8": Layout(11, 1, 0, 0),
    "BOOL": Layout(12, 1, 0, 0),
    "U16": Layout(13, 2, 0, 0),
    "I16": Layout(14, 2, 0, 0),
    "U32": Layout(15, 4, 0, 0),
    "I32": Layout(16, 4, 0, 0),
    "U64": Layout(17, 8, 0, 0),
    "I64": Layout(18, 8, 0, 0),
    "C64": Layout(19, 8, 0, 0),
    "F4_X2": Layout(20, 1, 0, 0),  # two E2M1 codes in a byte, as torch packs MXFP4
}
NAMES = {layout.code: name for name, layout in LAYOUTS.items()}

TORCH = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.bool: "BOOL",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.complex64: "C64",
    torch.float4_e2m1fn_x2: "F4_X2",
}
INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # of the same width, for views
