"""GPA in float64 loops over Python numbers: three sequences, x stored, written from arXiv 2512.17131.

    y_t = mu_y x_t + (1 - mu_y) z_t
    z_{t+1} = z_t - lr d_t, d_t from g(y_t)
    x_{t+1} = mu_x x_t + (1 - mu_x) z_{t+1}

Weight decay is decoupled and additive: d_t + wd z_t (decay at z) or d_t + wd y_t (decay at y). Because x is stored,
mu_y = 0 (gradient at z, x an exponential moving average of the iterates) is allowed here.
"""

import math


class SGD:
    """d = g."""

    def directions(self, gradients):
        return list(gradients)


class AdamW:
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; d = m_hat / (sqrt(v_hat) + eps)."""

    def __init__(self, size, b1=0.9, b2=0.999, eps=1e-8):
        self.b1, self.b2, self.eps = b1, b2, eps
        self.m, self.v, self.k = [0.0] * size, [0.0] * size, 0

    def directions(self, gradients):
        self.k += 1
        d = []
        for i, g in enumerate(gradients):
            self.m[i] = self.b1 * self.m[i] + (1 - self.b1) * g
            self.v[i] = self.b2 * self.v[i] + (1 - self.b2) * g * g
            m_hat = self.m[i] / (1 - self.b1**self.k)
            v_hat = self.v[i] / (1 - self.b2**self.k)
            d.append(m_hat / (math.sqrt(v_hat) + self.eps))
        return d


def gpa(w0, gradient, steps, base, lr, mu_x, mu_y, wd=0.0, decay_at="z"):
    """x, y, z (lists) after `steps`. `gradient(y)` returns a list; lr and mu_x are numbers or functions of the step."""
    x, z = list(w0), list(w0)
    y = list(w0)
    for t in range(steps):
        rate = lr(t) if callable(lr) else lr
        smooth = mu_x(t) if callable(mu_x) else mu_x
        d = base.directions(gradient(y))
        for i in range(len(w0)):
            z[i] = z[i] - rate * (d[i] + wd * (z[i] if decay_at == "z" else y[i]))
            x[i] = smooth * x[i] + (1 - smooth) * z[i]
        y = [mu_y * x[i] + (1 - mu_y) * z[i] for i in range(len(w0))]
    return x, y, z


def diloco_h1(w0, gradient, steps, base, inner_lr, outer_lr, mu):
    """Single-worker DiLoCo with one inner step: theta after `steps` rounds (arXiv 2311.08105, Algorithm 1)."""
    theta, buf = list(w0), [0.0] * len(w0)
    for _ in range(steps):
        d = base.directions(gradient(theta))
        for i in range(len(w0)):
            w = theta[i] - inner_lr * d[i]
            delta = theta[i] - w
            buf[i] = mu * buf[i] + delta
            theta[i] = theta[i] - outer_lr * (delta + mu * buf[i])
    return theta


def heavy_ball(w0, gradient, steps, lr, mu, nesterov=False):
    """SGD with momentum: buf = mu buf + g; w -= lr buf, or lr (g + mu buf) with nesterov."""
    w, buf = list(w0), [0.0] * len(w0)
    for _ in range(steps):
        for i, g in enumerate(gradient(w)):
            buf[i] = mu * buf[i] + g
            w[i] = w[i] - lr * (g + mu * buf[i] if nesterov else buf[i])
    return w
