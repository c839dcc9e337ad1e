"""Adaptive binary range coder, compiled. The state lives in small arrays so that the callers stay one loop.

Carry-less coder with 64-bit registers (after Subbotin): before every symbol the range is at least 2^48, so that no
input, however mangled, divides by zero or loops for ever; a reader past its end reads zeros. A context is one u32:
22 bits of probability that the bit is 1, 10 bits of how often it was seen; it learns at 1/(n + 1.6), then at 1/LIMIT.
"""

import numpy as np

from lowcomm.pulse.jit import compiled

U = np.uint64
LOW, RANGE, CODE, AT = 0, 1, 2, 3  # of the u64 state array; AT is the next byte to write or read
TOP, BOTTOM = U(1 << 56), U(1 << 48)
LIMIT = 160
HALF = np.uint32(1 << 31)  # a fresh context: one half, never seen
RATE = np.array([65536 / (n + 1.6) for n in range(1024)], np.int64)


@compiled
def start(state):
    """Make ``state`` (u64, (4)) that of an empty stream."""
    state[LOW], state[RANGE], state[CODE], state[AT] = U(0), U(0xFFFFFFFFFFFFFFFF), U(0), U(0)


@compiled
def learn(table, index, bit):
    """Probability (16 bits, never 0 or 1) before the bit; the context then moves towards the bit."""
    v = np.int64(table[index])
    p, n = v >> 10, v & 1023
    target = 4194303 if bit else 0
    moved = p + (((target - p) * RATE[n]) >> 16)
    table[index] = np.uint32((moved << 10) | min(n + 1, LIMIT))
    return U(min(max(p >> 6, 24), 65512))


@compiled
def probability(table, index):
    """Probability of a 1 in a context (16 bits, never 0 or 1), without learning from it."""
    return U(min(max((np.int64(table[index]) >> 10) >> 6, 24), 65512))


@compiled
def put(state, out, table, index, bit):
    """Code one bit in context ``index`` of ``table`` (u32). ``out`` (u8) must have room: nothing checks it."""
    r = (state[RANGE] >> U(16)) * learn(table, index, bit)
    if bit:
        state[RANGE] = r
    else:
        state[LOW] += r
        state[RANGE] -= r
    _flush(state, out)


@compiled
def put_raw(state, out, value, count):
    """``count`` (at most 24) bits that are as likely 0 as 1."""
    r = state[RANGE] >> U(count)
    state[LOW] += r * U(value)
    state[RANGE] = r
    _flush(state, out)


@compiled
def _flush(state, out):
    low, rng, at = state[LOW], state[RANGE], state[AT]
    while True:
        if (low ^ (low + rng)) >= TOP:
            if rng >= BOTTOM:
                break
            rng = (U(0) - low) & (BOTTOM - U(1))
        out[at] = np.uint8(low >> U(56))
        at += U(1)
        low <<= U(8)
        rng <<= U(8)
    state[LOW], state[RANGE], state[AT] = low, rng, at


@compiled
def finish(state, out):
    """Ends the stream with the shortest number in the range; returns its length. Trailing zero bytes may be dropped:
    the reader supplies them."""
    value = state[LOW]
    for bits in range(63, 0, -1):
        mask = (U(1) << U(bits)) - U(1)
        rounded = (state[LOW] + mask) & ~mask
        if rounded >= state[LOW] and rounded - state[LOW] < state[RANGE]:
            value = rounded
            break
    for _ in range(8):
        out[state[AT]] = np.uint8(value >> U(56))
        state[AT] += U(1)
        value <<= U(8)
    return np.int64(state[AT])


@compiled
def start_reading(state, data):
    """Make ``state`` that of the beginning of the stream ``data`` (u8)."""
    start(state)
    for _ in range(8):
        state[CODE] = (state[CODE] << U(8)) | _byte(state, data)


@compiled
def _byte(state, data):
    at = state[AT]
    state[AT] = at + U(1)
    return U(data[at]) if at < U(len(data)) else U(0)


@compiled
def get(state, data, table, index):
    """The next bit (bool), in the context in which it was put."""
    r = (state[RANGE] >> U(16)) * probability(table, index)
    bit = (state[CODE] - state[LOW]) < r
    if bit:
        state[RANGE] = r
    else:
        state[LOW] += r
        state[RANGE] -= r
    learn(table, index, bit)
    _refill(state, data)
    return bit


@compiled
def get_raw(state, data, count):
    """The next ``count`` bits of `put_raw` as a number (i64)."""
    r = state[RANGE] >> U(count)
    value = min((state[CODE] - state[LOW]) // r, (U(1) << U(count)) - U(1))
    state[LOW] += r * value
    state[RANGE] = r
    _refill(state, data)
    return np.int64(value)


@compiled
def _refill(state, data):
    low, rng, code = state[LOW], state[RANGE], state[CODE]
    while True:
        if (low ^ (low + rng)) >= TOP:
            if rng >= BOTTOM:
                break
            rng = (U(0) - low) & (BOTTOM - U(1))
        code = (code << U(8)) | _byte(state, data)
        low <<= U(8)
        rng <<= U(8)
    state[LOW], state[RANGE], state[CODE] = low, rng, code
