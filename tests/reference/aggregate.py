"""Float64 twins of the merging rules in plain Python loops, written from the papers and from nothing else.

A matrix is a list of rows. The SVD is one-sided Jacobi; singular values up to ``NULL`` of the largest count as zero.
"""

import math

NULL = 8 * 2.0**-23  # eight float32 roundings


def transpose(a):
    return [list(column) for column in zip(*a, strict=True)]


def matmul(a, b):
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in transpose(b)] for row in a]


def add(a, b, factor=1.0):
    return [[x + factor * y for x, y in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)]


def scaled(a, factor):
    return [[factor * x for x in row] for row in a]


def svd(a, floor=0.0):
    """Triplets ``(sigma, u, v)``, largest first, without the null ones."""
    columns = transpose(a) if len(a) >= len(a[0]) else [list(row) for row in a]
    turns = [[float(i == j) for j in range(len(columns))] for i in range(len(columns))]
    for _ in range(60):
        worst = 0.0
        for i in range(len(columns)):
            for j in range(i + 1, len(columns)):
                p, q = columns[i], columns[j]
                pp, qq = sum(x * x for x in p), sum(x * x for x in q)
                pq = sum(x * y for x, y in zip(p, q, strict=True))
                if pq == 0 or abs(pq) <= 1e-16 * math.sqrt(pp * qq):
                    continue
                worst = max(worst, abs(pq) / math.sqrt(pp * qq))
                zeta = (qq - pp) / (2 * pq)
                t = math.copysign(1, zeta) / (abs(zeta) + math.hypot(1, zeta))
                c = 1 / math.hypot(1, t)
                for rows in (columns, turns):
                    x, y = rows[i], rows[j]
                    rows[i] = [c * g - c * t * h for g, h in zip(x, y, strict=True)]
                    rows[j] = [c * t * g + c * h for g, h in zip(x, y, strict=True)]
        if worst < 1e-15:
            break
    triplets = []
    for column, turn in zip(columns, turns, strict=True):
        sigma = math.sqrt(sum(x * x for x in column))
        if sigma > 0:
            long, short = [x / sigma for x in column], turn
            triplets.append((sigma, long, short) if len(a) >= len(a[0]) else (sigma, short, long))
    triplets.sort(key=lambda triplet: -triplet[0])
    return [t for t in triplets if t[0] > NULL * triplets[0][0] and t[0] > floor]


def rebuilt(triplets, shape, value):
    """``sum_k value(sigma_k) u_k v_k^T``."""
    out = [[0.0] * shape[1] for _ in range(shape[0])]
    for sigma, u, v in triplets:
        for i in range(shape[0]):
            for j in range(shape[1]):
                out[i][j] += value(sigma) * u[i] * v[j]
    return out


def shape_of(a):
    return len(a), len(a[0])


def polar(a):
    return rebuilt(svd(a), shape_of(a), lambda sigma: 1.0)


def isotropize(a, scale="mean"):
    triplets, rank = svd(a), min(shape_of(a))
    if scale == "mean":
        size = sum(sigma for sigma, _, _ in triplets) / rank
    elif scale == "rms":
        size = math.sqrt(sum(x * x for row in a for x in row) / rank)
    else:
        size = math.sqrt(len(a) / len(a[0]))
    return rebuilt(triplets, shape_of(a), lambda sigma: size)


def clip(a, side):
    triplets = svd(a)
    middle = sum(sigma for sigma, _, _ in triplets) / min(shape_of(a))
    bound = min if side == "high" else max
    return rebuilt(triplets, shape_of(a), lambda sigma: bound(sigma, middle))


def newton_schulz(a, steps):
    """The quintic iteration on ``a`` over its Frobenius norm, rows on the short side."""
    norm = math.sqrt(sum(x * x for row in a for x in row))
    x = scaled(a if len(a) <= len(a[0]) else transpose(a), 1 / norm)
    for one, three, five in steps:
        square = matmul(x, transpose(x))
        x = add(scaled(x, one), matmul(add(scaled(square, three), matmul(square, square), five), x))
    return x if len(a) <= len(a[0]) else transpose(x)


def mean(deltas):
    """Of flat deltas."""
    return [sum(values) / len(deltas) for values in zip(*deltas, strict=True)]


def trim(delta, density):
    kept = max(1, math.floor(round(density * len(delta), 6)))
    order = sorted(range(len(delta)), key=lambda i: (-abs(delta[i]), i))[:kept]
    return [delta[i] if i in order else 0.0 for i in range(len(delta))]


def trim_original(delta, density):
    kept = max(1, math.floor(round(density * len(delta), 6)))
    threshold = sorted((abs(x) for x in delta), reverse=True)[kept - 1]
    return [x if abs(x) >= threshold else 0.0 for x in delta]


def sign(x):
    return (x > 0) - (x < 0)


def ties(deltas, density, rule="paper"):
    trimmed = [(trim if rule == "paper" else trim_original)(delta, density) for delta in deltas]
    elected = [sign(sum(values)) for values in zip(*trimmed, strict=True)]
    if rule == "original":
        majority = sign(sum(elected))
        elected = [e or majority for e in elected]
    merged = []
    for e, values in zip(elected, zip(*trimmed, strict=True), strict=True):
        agreeing = [x for x in values if e and sign(x) == e]
        merged.append(sum(agreeing) / max(len(agreeing), 1))
    return merged


def dare(deltas, masks, drop):
    """Of flat deltas and the masks of the entries kept."""
    return mean(
        [[x * keep / (1 - drop) for x, keep in zip(d, m, strict=True)] for d, m in zip(deltas, masks, strict=True)]
    )


def joined(triplets, shape):
    """``polar(U) diag(sigma) polar(V)^T`` of stacked triplets, as rank-one terms."""
    u = polar(transpose([t[1] for t in triplets]))
    v = polar(transpose([t[2] for t in triplets]))
    pieces = [(t[0], a, b) for t, a, b in zip(triplets, transpose(u), transpose(v), strict=True)]
    return rebuilt(pieces, shape, lambda sigma: sigma)


def tsv(deltas):
    shape = shape_of(deltas[0])
    k = max(1, min(shape) // len(deltas))
    return joined([t for delta in deltas for t in svd(delta)[:k]], shape)


def iso_cts(deltas, common):
    shape, workers = shape_of(deltas[0]), len(deltas)
    rank = min(shape)
    total = [[0.0] * shape[1] for _ in range(shape[0])]
    for delta in deltas:
        total = add(total, delta, 1 / workers)
    specific = round((rank - math.floor(common * rank)) / workers) * workers
    if specific > rank:
        specific = rank // workers * workers
    whole = svd(total)
    collected = shared = whole[: rank - specific]
    for delta in deltas if specific else ():
        residual = scaled(delta, 1 / workers)
        for _, u, _ in shared:
            along = [sum(u[i] * residual[i][j] for i in range(shape[0])) for j in range(shape[1])]
            residual = [[residual[i][j] - u[i] * along[j] for j in range(shape[1])] for i in range(shape[0])]
        floor = NULL * whole[0][0] if whole else 0.0
        collected = collected + svd(residual, floor)[: specific // workers]
    level = sum(sigma for sigma, _, _ in collected) / rank
    return joined([(level, u, v) for _, u, v in collected], shape)
