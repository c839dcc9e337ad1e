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

Both sides walk over the old bits in the same order and keep the same statistics; one stream holds everything. Nothing
depends on other blocks. No input can make `unpack` read or write outside its arrays, or run longer than the block.
"""

import numpy as np

from lowcomm.pulse.rangecoder import (
    HALF,
    compiled,
    finish,
    get,
    get_raw,
    helper,
    put,
    put_raw,
    start,
    start_reading,
)

GROUPS = 256
UNARY = 20  # longer quotients continue as an Elias-gamma number
WINDOW = 128  # how many gaps a group's mean remembers
CLASSES = 7  # size classes of a step: 1, 2, 3-4, 5-8, ... 33-64 units, then the new bits themselves
PRIOR = 3  # how many gaps the first guess of the mean is worth
# one table of contexts; where each kind starts
FLAG = 0
DENSE = FLAG + 2
GAP = DENSE + GROUPS * 4
LONG = GAP + 2 * 4 * 12
CLASS = LONG + 32
SIGN = CLASS + (GROUPS + 32) * CLASSES
EXPONENT = SIGN + 4
FRACTION = EXPONENT + 256
CONTEXTS = FRACTION + 256 * 4
NEVER = np.int64(1) << 40


@compiled
def scan(old, new, shift, mask, position, group, rank, sizes):
    """Find what changed. Fills position, group and rank (1-based, among the entries of the group) of each change, and
    sizes (256), the entries of each group; returns the number of changes. Four tables, as one counter that is hit
    twice in a row would stall."""
    c0, c1 = np.zeros(GROUPS, np.uint32), np.zeros(GROUPS, np.uint32)
    c2, c3 = np.zeros(GROUPS, np.uint32), np.zeros(GROUPS, np.uint32)
    n = 0
    length = len(old)
    whole = length - length % 4
    for i in range(0, whole, 4):
        a0, a1, a2, a3 = old[i], old[i + 1], old[i + 2], old[i + 3]
        g0, g1 = (np.int64(a0) >> shift) & mask, (np.int64(a1) >> shift) & mask
        g2, g3 = (np.int64(a2) >> shift) & mask, (np.int64(a3) >> shift) & mask
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
        g = (np.int64(old[i]) >> shift) & mask
        c0[g] += 1
        if old[i] != new[i]:
            position[n], group[n], rank[n] = i, g, c0[g] + c1[g] + c2[g] + c3[g]
            n += 1
    for g in range(GROUPS):
        sizes[g] = c0[g] + c1[g] + c2[g] + c3[g]
    return n


@helper
def _fresh(offset):
    """First statistics: contexts, and per group the sum and number of gaps and the binary logarithm of their mean.
    The mean gap doubles with every exponent above ``offset``, below it everything changes."""
    table = np.full(CONTEXTS, HALF, np.uint32)
    for i in range(CLASS, SIGN):
        table[i] = np.uint32((700000 << 10) | 2)  # small steps are the rule
    total, count, log = np.zeros(GROUPS, np.int64), np.zeros(GROUPS, np.int64), np.zeros(GROUPS, np.int64)
    for g in range(GROUPS):
        log[g] = min(max(g - offset, 0), 24)
        total[g], count[g] = PRIOR << log[g], PRIOR
    return table, total, count, log


@helper
def _update(total, count, log, g, gap):
    total[g] += gap
    count[g] += 1
    if count[g] >= WINDOW:
        total[g] >>= 1
        count[g] >>= 1
    k = log[g]
    while (count[g] << (k + 1)) <= total[g]:
        k += 1
    while k > 0 and (count[g] << k) > total[g]:
        k -= 1
    log[g] = k


@helper
def _gap_context(total, count, log, g):
    """(first context of the unary part, contexts it has, low bits)."""
    k = log[g]
    if k == 0:
        return DENSE + g * 4, 4, np.int64(0)
    base = count[g] << k
    over = (total[g] - base) * 4
    quarter = np.int64(over >= base) + np.int64(over >= 2 * base) + np.int64(over >= 3 * base)
    return GAP + ((np.int64(0) if k == 1 else np.int64(4)) + quarter) * 12, 12, k - 1


@helper
def _put_gap(state, out, table, total, count, log, g, gap):
    context, contexts, low = _gap_context(total, count, log, g)
    q = (gap - 1) >> low
    for j in range(min(q, UNARY)):
        put(state, out, table, context + min(j, contexts - 1), True)
    if q < UNARY:
        put(state, out, table, context + min(q, contexts - 1), False)
    else:
        rest, bits = q - UNARY + 1, 0
        while (rest >> (bits + 1)) > 0:
            put(state, out, table, LONG + bits, True)
            bits += 1
        put(state, out, table, LONG + bits, False)
        if bits:
            put_raw(state, out, rest - (1 << bits), bits)
    if low:
        put_raw(state, out, (gap - 1) & ((1 << low) - 1), low)
    _update(total, count, log, g, gap)


@helper
def _get_gap(state, data, table, total, count, log, g):
    """The gap, or -1 where no writer would have put such a stream."""
    context, contexts, low = _gap_context(total, count, log, g)
    q = np.int64(0)
    while q < UNARY and get(state, data, table, context + min(q, contexts - 1)):
        q += 1
    if q == UNARY:
        bits = 0
        while get(state, data, table, LONG + bits):
            bits += 1
            if bits > 23:
                return np.int64(-1)
        rest = np.int64(1) << bits
        if bits:
            rest += get_raw(state, data, bits)
        q += rest - 1
    gap = (q << low) + 1
    if low:
        gap += get_raw(state, data, low)
    _update(total, count, log, g, gap)
    return gap


@helper
def _order(word, sign):
    """Bit patterns as integers in the order of their values, one to one, -0.0 just below +0.0. sign 0: as they are."""
    if sign == 0 or (word & sign) == 0:
        return word
    return np.int64(-1) - (word & (sign - 1))


@helper
def _put_value(state, out, table, old, new, context, sign, exponent, fraction):
    step = _order(new, sign) - _order(old, sign)
    size = abs(step) - 1
    negative = sign != 0 and (old & sign) != 0
    bits = 0
    while bits < CLASSES and (size < 0 or (size >> bits) > 0):
        bits += 1
    for j in range(bits):
        put(state, out, table, context + j, True)
    if bits < CLASSES:
        put(state, out, table, context + bits, False)
        if bits > 1:
            put_raw(state, out, size - (1 << (bits - 1)), bits - 1)
        put(state, out, table, SIGN + np.int64(bits > 0), (step > 0) != negative)
    elif exponent == 0 or exponent > 8:
        for part in range(0, 64, 16):
            put_raw(state, out, (new >> part) & 0xFFFF, 16)
    else:
        put(state, out, table, SIGN + 2, (new & sign) != 0)
        e = (new >> fraction) & ((1 << exponent) - 1)
        node = 1
        for j in range(exponent - 1, -1, -1):
            bit = ((e >> j) & 1) != 0
            put(state, out, table, EXPONENT + node, bit)
            node = 2 * node + np.int64(bit)
        node = 1
        rest = fraction
        while rest > 0 and node < 4:
            rest -= 1
            bit = ((new >> rest) & 1) != 0
            put(state, out, table, FRACTION + e * 4 + node, bit)
            node = 2 * node + np.int64(bit)
        while rest > 0:
            take = min(rest, 16)
            rest -= take
            put_raw(state, out, (new >> rest) & ((1 << take) - 1), take)


@helper
def _get_value(state, data, table, old, context, sign, exponent, fraction):
    negative = sign != 0 and (old & sign) != 0
    bits = 0
    while bits < CLASSES and get(state, data, table, context + bits):
        bits += 1
    if bits < CLASSES:
        size = np.int64(1) << (bits - 1) if bits > 0 else np.int64(0)
        if bits > 1:
            size += get_raw(state, data, bits - 1)
        step = size + 1
        if get(state, data, table, SIGN + np.int64(bits > 0)) == negative:
            step = -step
        order = _order(old, sign) + step
        return order if sign == 0 or order >= 0 else sign | (np.int64(-1) - order)
    new = np.int64(0)
    if exponent == 0 or exponent > 8:
        for part in range(0, 64, 16):
            new |= get_raw(state, data, 16) << part
        return new
    if get(state, data, table, SIGN + 2):
        new |= sign
    node = 1
    for _ in range(exponent):
        node = 2 * node + np.int64(get(state, data, table, EXPONENT + node))
    e = node - (1 << exponent)
    new |= e << fraction
    node = 1
    rest = fraction
    while rest > 0 and node < 4:
        rest -= 1
        bit = np.int64(get(state, data, table, FRACTION + e * 4 + node))
        new |= bit << rest
        node = 2 * node + bit
    while rest > 0:
        take = min(rest, 16)
        rest -= take
        new |= get_raw(state, data, take) << rest
    return new


@helper
def _value_context(log, g):
    return CLASS + (g if log[g] == 0 else GROUPS + min(log[g], 31)) * CLASSES


@compiled
def pack(old, new, position, group, rank, sizes, n, offset, groups, sign, exponent, fraction, out):
    """Code n >= 1 changes into ``out``; returns the bytes written, or -1 where out (any length) is too small."""
    table, total, count, log = _fresh(offset)
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
    before = 0
    for g in range(groups):
        if np.int64(state[3]) > margin:
            return -1
        used = upcoming[g] <= np.int64(sizes[g])
        put(state, out, table, FLAG + before, used)
        before = np.int64(used)
        if used:
            _put_gap(state, out, table, total, count, log, g, upcoming[g])
    for j in range(n):
        if np.int64(state[3]) > margin:
            return -1
        g, i = np.int64(group[j]), position[j]
        a, b = np.int64(old[i]), np.int64(new[i])
        _put_value(state, out, table, a, b, _value_context(log, g), sign, exponent, fraction)
        if j < n - 1:
            _put_gap(state, out, table, total, count, log, g, gap[j])
    return finish(state, out)


@compiled
def unpack(old, data, n, offset, groups, shift, mask, sign, exponent, fraction, position, value):
    """Read n >= 1 changes into position and value (n each); False where the stream holds fewer or is impossible."""
    table, total, count, log = _fresh(offset)
    state = np.empty(4, np.uint64)
    start_reading(state, data)
    left = np.full(GROUPS, NEVER, np.int64)  # entries of the group until its next change
    before = 0
    for g in range(groups):
        used = get(state, data, table, FLAG + before)
        before = np.int64(used)
        if used:
            left[g] = _get_gap(state, data, table, total, count, log, g)
            if left[g] < 0:
                return False
    done = 0
    for i in range(len(old)):
        a = np.int64(old[i])
        g = (a >> shift) & mask
        left[g] -= 1
        if left[g] == 0:
            position[done] = i
            value[done] = _get_value(state, data, table, a, _value_context(log, g), sign, exponent, fraction)
            done += 1
            if done == n:
                return True
            left[g] = _get_gap(state, data, table, total, count, log, g)
            if left[g] < 0:
                return False
    return False
