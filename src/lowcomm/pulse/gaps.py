"""Gaps between the changed entries of a group, in contexts that follow the group's mean gap; and the table of contexts.

A gap's quotient by a power of two near half the mean is told bit by bit in contexts shared by all groups of like mean
(groups where nearly everything changes have their own), its remainder as it is: within 1 % of the entropy of a
geometric distribution, and it follows where density drifts.
"""

import numpy as np

from lowcomm.pulse.jit import compiled
from lowcomm.pulse.rangecoder import HALF, get, get_raw, put, put_raw

EXPONENTS = 256
UNARY = 20  # longer quotients continue as an Elias-gamma number
WINDOW = 128  # how many gaps a group's mean remembers
CLASSES = 7  # size classes of a step, see values.py
PRIOR = 3  # how many gaps the first guess of the mean is worth
AGES = 6  # see history.py; without history only the first is used
GROUPS = AGES * EXPONENTS
# one table of contexts; where each kind starts
FLAG = 0
DENSE = FLAG + 4
GAP = DENSE + GROUPS * 4
LONG = GAP + 2 * 4 * 12
CLASS = LONG + 32
SIGN = CLASS + (GROUPS + 32 * AGES) * CLASSES
EXPONENT = SIGN + 3 * 2 * AGES
FRACTION = EXPONENT + 256
CONTEXTS = FRACTION + 256 * 4


@compiled
def fresh(offset):
    """First statistics: contexts, and per group the sum and number of gaps and the binary logarithm of their mean.
    The mean gap doubles with every exponent above ``offset`` (one per age), below it everything changes."""
    table = np.full(CONTEXTS, HALF, np.uint32)
    for i in range(CLASS, SIGN):
        table[i] = np.uint32((700000 << 10) | 2)  # small steps are the rule
    total, count, log = np.zeros(GROUPS, np.int64), np.zeros(GROUPS, np.int64), np.zeros(GROUPS, np.int64)
    for g in range(GROUPS):
        log[g] = min(max(g % EXPONENTS - offset[g // EXPONENTS], 0), 24)
        total[g], count[g] = PRIOR << log[g], PRIOR
    return table, total, count, log


@compiled
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


@compiled
def _gap_context(total, count, log, g):
    """(first context of the unary part, contexts it has, low bits)."""
    k = log[g]
    if k == 0:
        return DENSE + g * 4, 4, np.int64(0)
    base = count[g] << k
    over = (total[g] - base) * 4
    quarter = np.int64(over >= base) + np.int64(over >= 2 * base) + np.int64(over >= 3 * base)
    return GAP + ((np.int64(0) if k == 1 else np.int64(4)) + quarter) * 12, 12, k - 1


@compiled
def put_gap(state, out, table, total, count, log, g, gap):
    """Code the ``gap`` (1 or more, in entries of group ``g``) to the next change; the group's mean follows."""
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


@compiled
def get_gap(state, data, table, total, count, log, g):
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
