"""New values of changed entries: steps in units of last place, or the bits themselves where the step is long."""

import numpy as np

from lowcomm.pulse.gaps import CLASS, CLASSES, EXPONENT, EXPONENTS, FRACTION, GROUPS, SIGN
from lowcomm.pulse.jit import compiled
from lowcomm.pulse.rangecoder import get, get_raw, put, put_raw


@compiled
def value_context(log, g):
    """First of the contexts of the size class: by age and density, or the group's own where nearly all change."""
    k = min(log[g], 31)
    return CLASS + (g if k == 0 else GROUPS + 32 * (g // EXPONENTS) + k) * CLASSES


@compiled
def order(word, sign):
    """Bit patterns as integers in the order of their values, one to one, -0.0 just below +0.0. sign 0: as they are."""
    if sign == 0 or (word & sign) == 0:
        return word
    return np.int64(-1) - (word & (sign - 1))


@compiled
def put_value(state, out, table, old, new, context, turn, sign, exponent, fraction):
    """Code ``new``, given ``old`` (both words as i64, not equal).

    ``context``: of `value_context`; ``turn``: of `Marks`, 0 without a history. Of the layout: ``sign`` bit (0: none),
    number of ``exponent`` and ``fraction`` bits.
    """
    step = order(new, sign) - order(old, sign)
    size = abs(step) - 1
    # told as away from zero or towards it, unless the last direction is known
    negative = turn == 0 and sign != 0 and (old & sign) != 0
    bits = 0
    while bits < CLASSES and (size < 0 or (size >> bits) > 0):
        bits += 1
    for j in range(bits):
        put(state, out, table, context + j, True)
    if bits < CLASSES:
        put(state, out, table, context + bits, False)
        if bits > 1:
            put_raw(state, out, size - (1 << (bits - 1)), bits - 1)
        put(state, out, table, SIGN + 3 * turn + np.int64(bits > 0), (step > 0) != negative)
    elif exponent == 0 or exponent > 8:
        for part in range(0, 64, 16):
            put_raw(state, out, (new >> part) & 0xFFFF, 16)
    else:
        put(state, out, table, SIGN + 3 * turn + 2, (new & sign) != 0)
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


@compiled
def get_value(state, data, table, old, context, turn, sign, exponent, fraction):
    """The new word (i64), with the arguments of `put_value`."""
    # told as away from zero or towards it, unless the last direction is known
    negative = turn == 0 and sign != 0 and (old & sign) != 0
    bits = 0
    while bits < CLASSES and get(state, data, table, context + bits):
        bits += 1
    if bits < CLASSES:
        size = np.int64(1) << (bits - 1) if bits > 0 else np.int64(0)
        if bits > 1:
            size += get_raw(state, data, bits - 1)
        step = size + 1
        if get(state, data, table, SIGN + 3 * turn + np.int64(bits > 0)) == negative:
            step = -step
        to = order(old, sign) + step
        return to if sign == 0 or to >= 0 else sign | (np.int64(-1) - to)
    new = np.int64(0)
    if exponent == 0 or exponent > 8:
        for part in range(0, 64, 16):
            new |= get_raw(state, data, 16) << part
        return new
    if get(state, data, table, SIGN + 3 * turn + 2):
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
