"""The `packed` code of one block: what changed, told to a receiver that knows the old bits.

The chance that an update crosses a rounding boundary, and by how many steps, follows the spacing of the format at the
weight, that is its old exponent. So the entries of a block are counted off group by group, a group being all entries
of one old exponent, and what is coded is

- the gap to the next changed entry of the same group: quotient by a power of two near the group's mean gap, in
  adaptive contexts, then the low bits as they are;
- the step in units of last place between old and new, in the total order of bit patterns: its size class in
  contexts of the group's density, its direction towards or away from zero;
- for steps of more than 64 units (a zero that becomes a number, say) the new bits: exponent and leading fraction bits
  in contexts, the rest as they are.

With a history (history.py), a group is one old exponent and one age of the last change, and the direction of that
change is the context of the new one's.

Both sides walk over the old bits in the same order and keep the same statistics; one stream holds everything. Nothing
depends on other blocks. No input can make `unpack` read or write outside its arrays, or run longer than the block.
"""

import numpy as np

from lowcomm.pulse.gaps import EXPONENTS, FLAG, GROUPS, fresh, get_gap, put_gap
from lowcomm.pulse.jit import compiled
from lowcomm.pulse.rangecoder import finish, get, put, start, start_reading
from lowcomm.pulse.values import get_value, put_value, value_context

NEVER = np.int64(1) << 40


@compiled
def _group(word, i, shift, mask, marks, age):
    """Group of element i; ``marks`` (u8 per element) and ``age`` (of each mark) are None without a history."""
    if marks is None:
        return (np.int64(word) >> shift) & mask
    return ((np.int64(word) >> shift) & mask) + EXPONENTS * age[marks[i]]


@compiled
def _turn(i, marks, turn):
    if marks is None:
        return np.int64(0)
    return turn[marks[i]]


@compiled
def scan(old, new, shift, mask, marks, age, position, group, rank, sizes):
    """Find what changed. Fills position, group and rank (1-based, among the entries of the group) of each change, and
    sizes (GROUPS), the entries of each group; returns the number of changes. Four tables, as one counter that is hit
    twice in a row would stall."""
    c0, c1 = np.zeros(GROUPS, np.uint32), np.zeros(GROUPS, np.uint32)
    c2, c3 = np.zeros(GROUPS, np.uint32), np.zeros(GROUPS, np.uint32)
    n = 0
    length = len(old)
    whole = length - length % 4
    for i in range(0, whole, 4):
        a0, a1, a2, a3 = old[i], old[i + 1], old[i + 2], old[i + 3]
        g0, g1 = _group(a0, i, shift, mask, marks, age), _group(a1, i + 1, shift, mask, marks, age)
        g2, g3 = _group(a2, i + 2, shift, mask, marks, age), _group(a3, i + 3, shift, mask, marks, age)
        c0[g0] += 1
        if a0 != new[i]:
            position[n], group[n], rank[n] = i, g0, c0[g0] + c1[g0] + c2[g0] + c3[g0]
            n += 1
        c1[g1] += 1
        if a1 != new[i + 1]:
            position[n], group[n], rank[n] = i + 1, g1, c0[g1] + c1[g1] + c2[g1] + c3[g1]
            n += 1
        c2[g2] += 1
        if a2 != new[i + 2]:
            position[n], group[n], rank[n] = i + 2, g2, c0[g2] + c1[g2] + c2[g2] + c3[g2]
            n += 1
        c3[g3] += 1
        if a3 != new[i + 3]:
            position[n], group[n], rank[n] = i + 3, g3, c0[g3] + c1[g3] + c2[g3] + c3[g3]
            n += 1
    for i in range(whole, length):
        g = _group(old[i], i, shift, mask, marks, age)
        c0[g] += 1
        if old[i] != new[i]:
            position[n], group[n], rank[n] = i, g, c0[g] + c1[g] + c2[g] + c3[g]
            n += 1
    for g in range(GROUPS):
        sizes[g] = c0[g] + c1[g] + c2[g] + c3[g]
    return n


@compiled
def _flag(used, g, before):
    """Context of whether group g changes at all: the exponent below, and the same exponent one age before."""
    return FLAG + before + (2 * np.int64(used[g - EXPONENTS]) if g >= EXPONENTS else 0)


@compiled
def pack(old, new, position, group, rank, sizes, n, offset, ages, groups, marks, turn, sign, exponent, fraction, out):
    """Code n >= 1 changes into ``out``; returns the bytes written, or -1 where out (any length) is too small."""
    table, total, count, log = fresh(offset)
    gap = np.empty(n, np.int64)
    upcoming = np.zeros(GROUPS, np.int64)  # rank of the next change of the group, seen from the end
    for g in range(GROUPS):
        upcoming[g] = np.int64(sizes[g]) + 1
    for j in range(n - 1, -1, -1):
        gap[j] = upcoming[group[j]] - rank[j]
        upcoming[group[j]] = rank[j]
    state = np.empty(4, np.uint64)
    start(state)
    margin = len(out) - 512
    used = np.zeros(GROUPS, np.bool_)
    for a in range(ages):
        before = 0
        for g in range(a * EXPONENTS, a * EXPONENTS + groups):
            if np.int64(state[3]) > margin:
                return -1
            used[g] = upcoming[g] <= np.int64(sizes[g])
            put(state, out, table, _flag(used, g, before), used[g])
            before = np.int64(used[g])
            if used[g]:
                put_gap(state, out, table, total, count, log, g, upcoming[g])
    for j in range(n):
        if np.int64(state[3]) > margin:
            return -1
        g, i = np.int64(group[j]), position[j]
        a, b, t = np.int64(old[i]), np.int64(new[i]), _turn(i, marks, turn)
        put_value(state, out, table, a, b, value_context(log, g), t, sign, exponent, fraction)
        if j < n - 1:
            put_gap(state, out, table, total, count, log, g, gap[j])
    return finish(state, out)


@compiled
def unpack(
    old, data, n, offset, ages, groups, shift, mask, marks, age, turn, sign, exponent, fraction, position, value
):
    """Read n >= 1 changes into position and value (n each); False where the stream holds fewer or is impossible."""
    table, total, count, log = fresh(offset)
    state = np.empty(4, np.uint64)
    start_reading(state, data)
    left = np.full(GROUPS, NEVER, np.int64)  # entries of the group until its next change
    used = np.zeros(GROUPS, np.bool_)
    for a in range(ages):
        before = 0
        for g in range(a * EXPONENTS, a * EXPONENTS + groups):
            used[g] = get(state, data, table, _flag(used, g, before))
            before = np.int64(used[g])
            if used[g]:
                left[g] = get_gap(state, data, table, total, count, log, g)
                if left[g] < 0:
                    return False
    done = 0
    for i in range(len(old)):
        g = _group(old[i], i, shift, mask, marks, age)
        left[g] -= 1
        if left[g] == 0:
            a, t = np.int64(old[i]), _turn(i, marks, turn)
            position[done] = i
            value[done] = get_value(state, data, table, a, value_context(log, g), t, sign, exponent, fraction)
            done += 1
            if done == n:
                return True
            left[g] = get_gap(state, data, table, total, count, log, g)
            if left[g] < 0:
                return False
    return False
