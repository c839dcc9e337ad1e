"""Choosing mu_x: GPA's counterpart of DiLoCo's number of inner steps."""


def mu_x_from_horizon(H: float, mu_outer: float = 0.9) -> float:
    """mu_x = mu_outer^(1/H): GPA smooths like single-worker DiLoCo with `H` inner steps (arXiv 2512.17131, table of H).

    H = 32 gives 0.9967. x then averages over about 1/(1 - mu_x) optimizer steps, which is 9.5 H for mu_outer 0.9:
    with H above a tenth of the run, x is still near the initial weights when training ends.

    Args:
        H: inner steps per outer step of the DiLoCo run to be matched, >= 1.
        mu_outer: outer momentum of that run, in [0, 1).

    Raises:
        ValueError: an argument outside its range.
    """
    if not H >= 1:
        raise ValueError(f"H={H}: DiLoCo takes at least one inner step per outer step; use H >= 1")
    if not 0 <= mu_outer < 1:
        raise ValueError(f"mu_outer={mu_outer}: a momentum lies in [0, 1)")
    return mu_outer ** (1 / H)
