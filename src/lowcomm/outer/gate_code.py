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

import numpy as np

from lowcomm.outer.gate_entry import (
    CLASSES,
    CONTEXTS,
    FAR,
    FLAG,
    LOWEST,
    compiled,
    get_entry,
    group_of,
    put_entry,
    zeros,
)
from lowcomm.pulse.gaps import AGES, fresh, get_gap, put_gap
from lowcomm.pulse.rangecoder import HALF, finish, get, put, start, start_reading

NEVER = np.int64(1) << 40
GRIDS = 160  # histogram of `survey`


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
            grids[min(max(e + zeros(w) - t + 80, 0), GRIDS - 1)] += 1
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
        g = group_of(theta[i], shift, lowest, centre, real, bits)
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
        put_entry(state, out, own, theta[i], s[i], g, shift, lowest, usual, grid, least)
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
        g = group_of(theta[i], shift, lowest, centre, real, bits)
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
    missing = n
    for i in range(len(theta)):
        g = np.int64(group[i])
        left[g] -= 1
        if left[g]:
            continue
        word = get_entry(state, data, own, theta[i], g, shift, lowest, usual, grid, least)
        if word & 0x7FFFFFFF == 0:
            return False  # a zero is never sent
        out[i] = np.uint32(word)
        missing -= 1
        if not missing:
            return True
        left[g] = get_gap(state, data, table, total, count, log, g)
        if left[g] < 0:
            return False
    return False
