"""Updates with the statistics of fine-tuning, for tests and measurements.

Weights are normal with median |w| 0.019. An FP32 master lies anywhere in its rounding cell, so an update d is seen with
probability min(1, |d| / spacing): small weights change often, large ones hardly (`min` is exceeded by several steps).
"""

from collections.abc import Iterator

import numpy as np

SIGMA = 0.019 / 0.6745


def weights(n: int, seed: int = 0, sigma: float = SIGMA) -> np.ndarray:
    """``n`` BF16 bit patterns (uint16) of normal weights, standard deviation ``sigma``."""
    x = np.random.default_rng(seed).standard_normal(n, np.float32) * np.float32(sigma)
    return _round(x)


def update(bits: np.ndarray, delta: float = 1.2e-6, seed: int = 1) -> np.ndarray:
    """BF16 patterns after a step: each master, uniform in its cell, moves by a normal amount of scale ``delta``.

    1.2e-6 changes about 1 % of the weights above.
    """
    rng = np.random.default_rng(seed)
    out = np.empty_like(bits)
    for start in range(0, len(bits), 1 << 22):
        part = bits[start : start + (1 << 22)]
        x = (part.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        spacing = np.ldexp(1.0, np.maximum((part >> 7 & 0xFF).astype(np.int32), 1) - 134)
        master = x + (rng.random(len(part)) - 0.5) * spacing
        moved = _round((master + delta * rng.standard_normal(len(part))).astype(np.float32))
        still = _round(master.astype(np.float32))
        # a master at the edge of a binade may round elsewhere to begin with: such an entry keeps its old bits
        out[start : start + len(part)] = np.where(moved == still, part, moved)
    return out


def chain(n: int, steps: int, lr: float = 3e-6, signal: float = 0.4, seed: int = 0) -> Iterator[np.ndarray]:
    """BF16 patterns of ``n`` weights after 0, 1, ... ``steps`` AdamW steps (0.9, 0.999) on FP32 masters that start on
    the BF16 grid. Each weight's gradient has a steady part, ``signal`` of its deviation, so that crossings recur."""
    rng = np.random.default_rng(seed)
    bits = weights(n, seed)
    master = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    steady = signal * rng.standard_normal(n)
    m, v = np.zeros(n), np.zeros(n)
    yield bits
    for t in range(1, steps + 1):
        g = steady + rng.standard_normal(n)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        master -= lr * (m / (1 - 0.9**t)) / np.sqrt(v / (1 - 0.999**t))
        yield _round(master.astype(np.float32))


def _round(x: np.ndarray) -> np.ndarray:
    """FP32 to BF16 patterns, nearest, ties to even; finite values only."""
    u = x.view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)
