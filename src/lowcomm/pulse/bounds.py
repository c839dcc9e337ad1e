"""How far Adam can move a weight, and how far it must move to be seen: the explanation of sparsity (PULSE, sec. 3)."""

import math

FRACTION_BITS = {"bf16": 7, "fp16": 10, "fp8-e4m3": 3, "fp8-e5m2": 2, "mxfp4": 1}


def effective(lr: float) -> float:
    """eta: what one Adam step typically moves a weight at most, as |m| <= sqrt(v) for a steady gradient."""
    return lr


def conservative(lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> float:
    """eta * sqrt((1 - beta1) / (1 - beta2)): the paper's 10 eta at (0.9, 0.999), 1.41 eta at (0.9, 0.95).

    Not a bound of the exact maximum for every pair of betas: see ``exact``.
    """
    return lr * math.sqrt((1 - betas[0]) / (1 - betas[1]))


def exact(lr: float, betas: tuple[float, float] = (0.9, 0.999), step: int | None = None, decay: float = 0.0) -> float:
    """The largest |step| of bias-corrected Adam over all gradient sequences; attained, so it cannot be tightened.

    With a_i and b_i the weights of g_i and g_i^2 in m_hat and v_hat, Cauchy-Schwarz gives
    ``|m_hat| <= sqrt(sum a_i^2 / b_i) sqrt(v_hat)``, equality for g_i proportional to a_i / b_i. The sum is
    ``(1-b1)^2 / (1-b1^t)^2 * (1-b2^t) / (1-b2) * sum_{j<t} (b1^2/b2)^j``; as t grows, 7.27 eta at (0.9, 0.999).

    ``step`` is t (None: the limit; needs beta1^2 < beta2, else ValueError as there is no bound). ``decay`` is
    ``weight_decay * |w|`` of decoupled decay, which adds ``lr * decay``.
    """
    b1, b2 = betas
    ratio = b1 * b1 / b2
    if step is None:
        if ratio >= 1:
            raise ValueError(f"betas={betas}: beta1^2 >= beta2, Adam's step has no bound as t grows; give step=")
        total = (1 - b1) ** 2 / (1 - b2) / (1 - ratio)
    else:
        terms = step if ratio == 1 else (1 - ratio**step) / (1 - ratio)
        total = (1 - b1) ** 2 / (1 - b1**step) ** 2 * (1 - b2**step) / (1 - b2) * terms
    return lr * (math.sqrt(total) + decay)


def critical_magnitude(bound: float, dtype: str = "bf16") -> float:
    """The |w| below which a step of ``bound`` away from a value of the format is always seen, from twice this on never:
    256 * bound for BF16 (7.7e-4 at lr 3e-6; PULSE, Def. A.3).

    The spacing at w is 2^(e-p) with p fraction bits; half of it, or a quarter just below a power of two, is between
    |w| / 2^(p+2) and |w| / 2^(p+1). An FP32 master may lie anywhere in its cell: then a change is seen with
    probability min(1, |change| / spacing).
    """
    return bound * 2 ** (FRACTION_BITS[dtype] + 1)
