"""DiLoCo in float64 loops, written from Algorithm 1 of 2311.08105 and AdamW's definition, not from the package."""

import torch
from torch.func import functional_call

from tests.toys import net


def diloco(start, workload, workers, steps, inner_steps, batch, lr=0.02, b1=0.9, b2=0.999, eps=1e-8, eta=0.7, mu=0.9):
    """theta, outer momentum, and each worker's first and second moments after `steps` inner steps of each worker."""
    theta = {n: t.clone() for n, t in start.items()}
    momentum = {n: torch.zeros_like(t) for n, t in start.items()}
    moments = [({n: torch.zeros_like(t) for n, t in start.items()}, {n: torch.zeros_like(t) for n, t in start.items()})
               for _ in range(workers)]  # fmt: skip
    done = 0
    while done < steps:
        end = min(done + inner_steps, steps)
        local = []
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
            local.append(w)
        for n in theta:
            delta = theta[n] - sum(w[n] for w in local) / workers
            momentum[n] = mu * momentum[n] + delta
            theta[n] = theta[n] - eta * (delta + mu * momentum[n])
        done = end
    return theta, momentum, moments
