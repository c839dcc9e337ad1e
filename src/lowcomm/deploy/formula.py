"""What a link of a rate does to a trainer that waits for its weights to arrive (PULSE, Figure 1)."""

PAPER_BYTES, PAPER_COMPUTE_S = 14e9, 50.0  # 7B in BF16, seconds between versions: give the paper's 20 and 0.2 Gbit/s


def utilisation(compute_s: float, nbytes: float, rate: float) -> float:
    """Share of the time that is computation, T / (T + 8 S / B): S bytes at B bit/s stop it once per T seconds."""
    return compute_s / (compute_s + transfer(nbytes, rate))


def transfer(nbytes: float, rate: float) -> float:
    """Seconds that S bytes take at B bit/s, 8 S / B; headers, round trips and lost packets come on top."""
    return 8 * nbytes / rate


def rate_for(share: float, compute_s: float, nbytes: float) -> float:
    """The bit/s that give a utilisation: 90 % is 72 S / T."""
    return share / (1 - share) * 8 * nbytes / compute_s


def paper_rate(rate: float, compute_s: float, dense_nbytes: float) -> float:
    """The bit/s that are to the paper's 14 GB every 50 s what ``rate`` is to ours."""
    return rate * (PAPER_BYTES / PAPER_COMPUTE_S) / (dense_nbytes / compute_s)
