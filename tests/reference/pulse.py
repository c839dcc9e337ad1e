"""PULSE by hand: casts, masks and the published patch layout, as loops over Python numbers. Imports nothing of src."""

import json
import math
import struct
from fractions import Fraction

FORMATS = {  # exponent bits, fraction bits, largest finite value, what lies beyond it ("inf" or "nan")
    "bf16": (8, 7, (2 - 2.0**-7) * 2.0**127, "inf"),
    "fp16": (5, 10, 65504.0, "inf"),
    "fp8-e4m3": (4, 3, 448.0, "nan"),
    "fp8-e5m2": (5, 2, 57344.0, "inf"),
}


def round_half_even(q: Fraction) -> int:
    low = math.floor(q)
    rest = q - low
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1):
        return low + 1
    return low


def cast(x: float, fmt: str):
    """The value of x in the format, with the sign of zero: ("+", value), ("-", value), or ("nan",)."""
    ebits, fbits, largest, beyond = FORMATS[fmt]
    if math.isnan(x):
        return ("nan",)
    sign = "-" if math.copysign(1.0, x) < 0 else "+"
    if math.isinf(x):
        return (sign, "inf") if beyond == "inf" else ("nan",)
    bias = 2 ** (ebits - 1) - 1
    magnitude = Fraction(abs(x))
    exponent = 1 - bias
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - fbits)
    value = round_half_even(magnitude / unit) * unit
    if value > Fraction(largest):
        return (sign, "inf") if beyond == "inf" else ("nan",)
    return (sign, value)


def visible(theta: list[float], s: list[float], fmt: str) -> list[bool]:
    """PULSE Eq. 1; the differences theta - s must already be what FP32 arithmetic gives (pass them as `moved`)."""
    return [cast(a, fmt) != cast(b, fmt) for a, b in zip(theta, s, strict=True)]


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def mxfp4_block(block: list[float]):
    """(scale exponent, codes) of one block of at most 32 finite values, OCP MX v1.0."""
    amax = max(abs(x) for x in block)
    exponent = -127 if amax == 0 else max(-127, math.frexp(amax)[1] - 1 - 2)
    codes = []
    for x in block:
        q = Fraction(abs(x)) / Fraction(2) ** exponent
        best = min(range(8), key=lambda c: (abs(q - Fraction(E2M1[c])), c % 2))
        codes.append(best | (8 if math.copysign(1.0, x) < 0 else 0))
    return exponent, codes


def mxfp4_changed(old: list[float], new: list[float]) -> list[bool]:
    out = []
    for start in range(0, len(old), 32):
        (sa, ca), (sb, cb) = mxfp4_block(old[start : start + 32]), mxfp4_block(new[start : start + 32])
        out += [sa != sb or x != y for x, y in zip(ca, cb, strict=True)]
    return out


def density(old: list[float], new: list[float], fmt: str) -> float:
    """Share of the entries whose cast changed: one less the sparsity of Def. A.2."""
    hit = mxfp4_changed(old, new) if fmt == "mxfp4" else visible(old, new, fmt)
    return sum(hit) / len(hit)


def adam_largest_step(gradients: list[float], b1: float, b2: float) -> float:
    """|m_hat| / sqrt(v_hat) after these gradients (epsilon 0, lr 1)."""
    m = v = 0.0
    for g in gradients:
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    t = len(gradients)
    return abs(m / (1 - b1**t)) / math.sqrt(v / (1 - b2**t))


def published_layout(old: dict, new: dict, shapes: dict) -> bytes:
    """The published patch before compression, for lists of 16-bit patterns: u32 header length, JSON, then per tensor
    row gaps, column gaps and values. Row gaps run over the tensor; a column is absolute on a new row."""
    header, body = {"version": "3.1", "tensors": []}, b""
    for name in sorted(new):
        shape = shapes[name]
        # a vector is one column, so that its gaps lie in the row stream
        columns = 1 if len(shape) < 2 else math.prod(shape[1:])
        rows, cols, values = [], [], []
        row = col = 0
        for i, (a, b) in enumerate(zip(old[name], new[name], strict=True)):
            if a == b:
                continue
            r, c = divmod(i, columns)
            rows.append(r - row)
            cols.append(c - col if r == row else c)
            values.append(b)
            row, col = r, c
        if not values:
            continue
        top = max(rows)
        rtype = "B" if top < 2**8 else "H" if top < 2**16 else "i"
        ctype = "H" if max(cols) < 2**16 else "i"
        streams = [struct.pack(f"<{len(values)}{t}", *x) for t, x in ((rtype, rows), (ctype, cols), ("H", values))]
        names = {"B": "uint8", "H": "uint16", "i": "int32"}
        names = {"B": "uint8", "H": "uint16", "i": "int32"}
        header["tensors"].append(
            {
                "name": name,
                "shape": list(shape),
                "nnz": len(values),
                "value_dtype": "BF16",
                "row_dtype": names[rtype],
                "col_dtype": names[ctype],
                "offset": len(body),
                "sizes": [len(x) for x in streams],
            }
        )
        body += b"".join(streams)
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + body
