"""One entry of a gated message in the `packed` code: the group it is counted off in, its sign, exponent and fraction.

`gate_code` says what is told and why; here is how. Everything is compiled, and none of it looks outside its arguments.
"""

from pathlib import Path

import numpy as np

from lowcomm.pulse import jit
from lowcomm.pulse.rangecoder import get, get_raw, put, put_raw

OWN = [Path(__file__).with_name(name) for name in ("gate_entry.py", "gate_code.py")]
compiled = jit.compiler([*OWN, *(Path(jit.__file__).with_name(name) for name in jit.SOURCES)])

NEAR, FAR = 32, 8  # classes of the two distances
CLASSES = NEAR * FAR
LOWEST = 20  # quarter octaves below the usual |s| at which the nearer distance stops to matter
WIDEST = 40  # bits; a cell of a subnormal of a small format may hold all smaller FP32 numbers
# contexts
FLAG = 0
SIGN = FLAG + 2
HIGHER = SIGN + CLASSES
UPWARD = HIGHER + NEAR // 2
DOWNWARD = UPWARD + NEAR // 2 * 8
FINER = DOWNWARD + NEAR // 2 * 24
CONTEXTS = FINER + 8


@compiled
def edges(word, shift, lowest):
    """Exponent of theta's last place, and the distances in that unit to the edges above and below its magnitude."""
    e = max((np.int64(word) >> 23) & 255, np.int64(1))
    m = np.int64(word) & 0x7FFFFF
    if (word >> 23) & 255:
        m |= 0x800000
    low = min(shift + max(np.int64(0), lowest - e), np.int64(WIDEST))
    if low <= 0:
        return e, np.int64(1), np.int64(1)
    half = np.int64(1) << (low - 1)
    k = (m + half - 1 + ((m >> low) & 1)) >> low
    return e, (k << low) + half - m, m - (k << low) + half


@compiled
def group_of(word, shift, lowest, centre, real, bits):
    """Group of an element; ``real`` and ``bits`` are one FP32 cell seen as number and as word."""
    e, up, down = edges(word, shift, lowest)
    scale = 4 * (e - 150) - centre
    real[0] = min(up, down)
    near = (np.int64(bits[0]) >> 21) + scale + LOWEST
    real[0] = max(up, down)
    far = (((np.int64(bits[0]) >> 21) + scale) >> 2) + 2
    return min(max(near, 0), NEAR - 1) * FAR + min(max(far, 0), FAR - 1)


@compiled
def zeros(word):
    """Zero bits at the end of an FP32 number's significand, at most 23."""
    z = 0
    while z < 23 and (word >> z) & 1 == 0:
        z += 1
    return z


@compiled
def put_entry(state, out, own, word, s, g, shift, lowest, usual, grid, least):
    """Code the word ``s`` of what is sent at a weight with the word ``word``, of group ``g``; contexts ``own`` learn.
    The other numbers are those of `gate_code.pack`, ``usual`` being the exponent field of the usual |s|."""
    e, up, down = edges(word, shift, lowest)
    near = g // FAR // 2
    larger = ((np.int64(word) ^ np.int64(s)) >> 31) != 0  # theta - s has the larger magnitude
    put(state, out, own, SIGN + g, larger == (up <= down))
    field = (np.int64(s) >> 23) & 255
    put(state, out, own, HIGHER + near, field > usual)
    at = usual
    if field > usual:
        at += 1
        while at < 254:
            put(state, out, own, UPWARD + near * 8 + min(at - usual - 1, 7), at < field)
            if at == field:
                break
            at += 1
    else:
        while at > 0:
            put(state, out, own, DOWNWARD + near * 24 + min(usual - at, 23), at > field)
            if at == field:
                break
            at -= 1
    z = max(e + grid - max(field, np.int64(1)), least)
    z = min(z, 23)
    if z > 0:
        has, j = zeros(s), 0
        while z > 0:
            put(state, out, own, FINER + min(j, 7), has < z)
            if has >= z:
                break
            z -= 1
            j += 1
    if z < 23:
        put_raw(state, out, (np.int64(s) & 0x7FFFFF) >> max(z, 0), 23 - max(z, 0))


@compiled
def get_entry(state, data, own, word, g, shift, lowest, usual, grid, least):
    """The word that `put_entry` coded; for any other stream some word, zero among them, never NaN or infinity."""
    e, up, down = edges(word, shift, lowest)
    near = g // FAR // 2
    larger = get(state, data, own, SIGN + g) == (up <= down)
    negative = larger != ((np.int64(word) >> 31) != 0)
    field = usual
    if get(state, data, own, HIGHER + near):
        field += 1
        while field < 254 and get(state, data, own, UPWARD + near * 8 + min(field - usual - 1, 7)):
            field += 1
    else:
        while field > 0 and get(state, data, own, DOWNWARD + near * 24 + min(usual - field, 23)):
            field -= 1
    z = min(max(e + grid - max(field, np.int64(1)), least), 23)
    j = 0
    while z > 0 and get(state, data, own, FINER + min(j, 7)):
        z -= 1
        j += 1
    fraction = np.int64(0)
    if z < 23:
        fraction = get_raw(state, data, 23 - max(z, 0)) << max(z, 0)
    return (np.int64(negative) << 31) | (min(field, np.int64(254)) << 23) | fraction
