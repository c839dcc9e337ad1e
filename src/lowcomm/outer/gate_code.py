"""The `packed` code of one block of gated FP32 entries, told to receivers that hold theta. Compiled.

Receivers know theta in FP32, and that is most of what an entry says:

- **where**: s is sent where theta - s leaves theta's rounding cell, so the chance follows the distances from theta to
  the nearer and the farther edge of its cell, compared with the usual |s|. Entries are counted off in groups of like
  distances (quarter octaves of the nearer, octaves of the farther), as the gaps of `lowcomm.pulse.gaps`;
- **sign**: towards the nearer edge or away from it, in a context of the group;
- **exponent**: in unary around the usual one, in contexts of the nearer distance, which |s| must exceed;
- **fraction**: s is a sum of differences of FP32 weights close to theta, so it lies on theta's own grid of FP32 steps:
  the bits below that grid are zero and are not sent. A finer entry says by how many bits it is finer.

Nothing is lost: any FP32 pattern but NaN and infinity can be told, only at a different cost. No input can make `unpack`
read or write outside its arrays, or run longer than the block.
"""

from pathlib import Path

import numpy as np

from lowcomm.pulse import jit
from lowcomm.pulse.gaps import AGES, fresh, get_gap, put_gap
from lowcomm.pulse.rangecoder import HALF, finish, get, get_raw, put, put_raw, start, start_reading

compiled = jit.compiler([Path(__file__), *(Path(jit.__file__).with_name(name) for name in jit.SOURCES)])

NEAR, FAR = 32, 8  # classes of the two distances
CLASSES = NEAR * FAR
LOWEST = 20  # quarter octaves below the usual |s| at which the nearer distance stops to matter
WIDEST = 40  # bits; a cell of a subnormal of a small format may hold all smaller FP32 numbers
NEVER = np.int64(1) << 40
# contexts
FLAG = 0
SIGN = FLAG + 2
HIGHER = SIGN + CLASSES
UPWARD = HIGHER + NEAR // 2
DOWNWARD = UPWARD + NEAR // 2 * 8
FINER = DOWNWARD + NEAR // 2 * 24
CONTEXTS = FINER + 8
GRIDS = 160  # histogram of `survey`


@compiled
def _edges(word, shift, lowest):
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
def _group(word, shift, lowest, centre, real, bits):
    """Group of an element; ``real`` and ``bits`` are one FP32 cell seen as number and as word."""
    e, up, down = _edges(word, shift, lowest)
    scale = 4 * (e - 150) - centre
    real[0] = min(up, down)
    near = (np.int64(bits[0]) >> 21) + scale + LOWEST
    real[0] = max(up, down)
    far = (((np.int64(bits[0]) >> 21) + scale) >> 2) + 2
    return min(max(near, 0), NEAR - 1) * FAR + min(max(far, 0), FAR - 1)


@compiled
def _zeros(word):
    """Zero bits at the end of an FP32 number's significand, at most 23."""
    z = 0
    while z < 23 and (word >> z) & 1 == 0:
        z += 1
    return z


@compiled
def survey(theta, s, fired, position, grids):
    """Positions of what is sent, and how many of them have their last bit at 2^(g - 80) of theta's unit (grids[g]).
    Returns (number sent, sum of their sizes in quarter octaves)."""
    n, total = 0, np.int64(0)
    for i in range(len(theta)):
        if fired[i]:
            position[n] = i
            n += 1
            w = np.int64(s[i])
            total += (w >> 21) & 1023
            e, t = max((w >> 23) & 255, np.int64(1)), max((np.int64(theta[i]) >> 23) & 255, np.int64(1))
            grids[min(max(e + _zeros(w) - t + 80, 0), GRIDS - 1)] += 1
    return n, total


@compiled
def _start(sizes):
    """Contexts and gap statistics. A group near its edge is sent every second time, one far from it hardly ever."""
    table, total, count, log = fresh(np.zeros(AGES, np.int64))
    for g in range(CLASSES):
        guess = max(g // FAR - LOWEST + 6, 0) * 3 // 4
        log[g] = min(guess + 1, 12) if g % FAR > 2 else min(guess, 12)
        total[g], count[g] = np.int64(3) << log[g], 3
    return table, total, count, log, np.full(CONTEXTS, HALF, np.uint32)


@compiled
def _put_entry(state, out, own, word, s, g, shift, lowest, usual, grid, least):
    e, up, down = _edges(word, shift, lowest)
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
        has, j = _zeros(s), 0
        while z > 0:
            put(state, out, own, FINER + min(j, 7), has < z)
            if has >= z:
                break
            z -= 1
            j += 1
    if z < 23:
        put_raw(state, out, (np.int64(s) & 0x7FFFFF) >> max(z, 0), 23 - max(z, 0))


@compiled
def _get_entry(state, data, own, word, g, shift, lowest, usual, grid, least):
    e, up, down = _edges(word, shift, lowest)
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


@compiled
def pack(theta, s, position, n, shift, lowest, centre, grid, least, out):
    """Code the n >= 1 entries of ``s`` at ``position``; returns the bytes written, or -1 where ``out`` is too small.

    theta, s: words of FP32 numbers. shift: FP32 bits below the gate's format; lowest: FP32 exponent of its smallest
    normal number; centre: usual |s| in quarter octaves; grid: log2 of the last bit of s in units of theta's last place;
    least: low bits that are zero in every value.
    """
    real = np.empty(1, np.float32)
    bits = real.view(np.uint32)
    sizes = np.zeros(CLASSES, np.int64)
    group, rank = np.empty(n, np.uint8), np.empty(n, np.int64)
    j = 0
    for i in range(len(theta)):
        g = _group(theta[i], shift, lowest, centre, real, bits)
        sizes[g] += 1
        if j < n and position[j] == i:
            group[j], rank[j] = g, sizes[g]
            j += 1
    upcoming = sizes + 1
    gap = np.empty(n, np.int64)
    for j in range(n - 1, -1, -1):
        gap[j] = upcoming[group[j]] - rank[j]
        upcoming[group[j]] = rank[j]
    table, total, count, log, own = _start(sizes)
    state = np.empty(4, np.uint64)
    start(state)
    margin = len(out) - 1024
    used = 1
    for g in range(CLASSES):
        if np.int64(state[3]) > margin:
            return -1
        if sizes[g]:
            before, used = used, np.int64(upcoming[g] <= sizes[g])
            put(state, out, own, FLAG + before, used != 0)
            if used:
                put_gap(state, out, table, total, count, log, g, upcoming[g])
    usual = np.int64(centre) >> 2
    for j in range(n):
        if np.int64(state[3]) > margin:
            return -1
        i, g = position[j], np.int64(group[j])
        _put_entry(state, out, own, theta[i], s[i], g, shift, lowest, usual, grid, least)
        if j < n - 1:
            put_gap(state, out, table, total, count, log, g, gap[j])
    return finish(state, out)


@compiled
def unpack(theta, data, n, shift, lowest, centre, grid, least, out):
    """Write the n >= 1 entries into ``out`` (words, zero before); False where the stream does not hold them."""
    real = np.empty(1, np.float32)
    bits = real.view(np.uint32)
    group = np.empty(len(theta), np.uint8)
    sizes = np.zeros(CLASSES, np.int64)
    for i in range(len(theta)):
        g = _group(theta[i], shift, lowest, centre, real, bits)
        group[i] = g
        sizes[g] += 1
    table, total, count, log, own = _start(sizes)
    state = np.empty(4, np.uint64)
    start_reading(state, data)
    left = np.full(CLASSES, NEVER, np.int64)
    used = 1
    for g in range(CLASSES):
        if sizes[g]:
            used = np.int64(get(state, data, own, FLAG + used))
            if used:
                left[g] = get_gap(state, data, table, total, count, log, g)
                if left[g] < 0:
                    return False
    usual = np.int64(centre) >> 2
    done = 0
    for i in range(len(theta)):
        g = np.int64(group[i])
        left[g] -= 1
        if left[g] == 0:
            word = _get_entry(state, data, own, theta[i], g, shift, lowest, usual, grid, least)
            if word & 0x7FFFFFFF == 0:
                return False  # a zero is never sent
            out[i] = np.uint32(word)
            done += 1
            if done == n:
                return True
            left[g] = get_gap(state, data, table, total, count, log, g)
            if left[g] < 0:
                return False
    return False
