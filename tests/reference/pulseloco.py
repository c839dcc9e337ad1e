"""PULSELoCo in float64 loops, written from Algorithm 2 of 2602.03839 v2 and AdamW's definition, not the package."""

import torch
from torch.func import functional_call

from tests.reference.pulse import cast
from tests.toys import net


def gate(theta, s, fmt):
    """(sent, residual, fired) of one flat list of numbers: Eq. 1 entry by entry."""
    sent, residual, fired = [], [], []
    for t, x in zip(theta, s, strict=True):
        visible = cast(t, fmt) != cast(t - x, fmt)
        sent.append(x if visible else 0.0)
        residual.append(0.0 if visible else x)
        fired.append(visible)
    return sent, residual, fired


def pulseloco(start, workload, workers, steps, inner_steps, batch, fmt="bf16",
              lr=0.02, b1=0.9, b2=0.999, eps=1e-8, eta=0.7, mu=0.9):  # fmt: skip
    """theta, every worker's residual, and the number of entries that each worker sent in each round."""
    theta = {n: t.clone() for n, t in start.items()}
    zeros = lambda: {n: torch.zeros_like(t) for n, t in start.items()}  # noqa: E731
    momentum, residuals = zeros(), [zeros() for _ in range(workers)]
    moments = [(zeros(), zeros()) for _ in range(workers)]
    counts, done = [], 0
    while done < steps:
        end = min(done + inner_steps, steps)
        total, sent_by = zeros(), []
        for worker in range(workers):
            w = {n: t.clone() for n, t in theta.items()}
            first, second = moments[worker]
            for step in range(done, end):
                w = {n: t.detach().requires_grad_() for n, t in w.items()}

                def model(x, w=w):
                    return functional_call(net().double(), w, (x,))

                loss = workload.loss(model, workload.batch(worker, workers, step, batch))
                gradient = dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True))
                for n in w:
                    first[n] = b1 * first[n] + (1 - b1) * gradient[n]
                    second[n] = b2 * second[n] + (1 - b2) * gradient[n] ** 2
                    m_hat = first[n] / (1 - b1 ** (step + 1))
                    v_hat = second[n] / (1 - b2 ** (step + 1))
                    w[n] = (w[n] - lr * m_hat / (v_hat.sqrt() + eps)).detach()
            count = 0
            for n in theta:
                s = theta[n] - w[n] + residuals[worker][n]
                sent, kept, fired = gate(theta[n].flatten().tolist(), s.flatten().tolist(), fmt)
                residuals[worker][n] = torch.tensor(kept, dtype=torch.float64).view(s.shape)
                total[n] = total[n] + torch.tensor(sent, dtype=torch.float64).view(s.shape)
                count += sum(fired)
            sent_by.append(count)
        for n in theta:
            g = total[n] / workers  # what a worker did not send counts as zero, R is the number of all workers
            momentum[n] = mu * momentum[n] + g
            theta[n] = theta[n] - eta * (g + mu * momentum[n])
        counts.append(sent_by)
        done = end
    return theta, residuals, counts
