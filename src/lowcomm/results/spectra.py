"""What the isotropic correction meets in practice: averaged pseudo-gradients of a short real run, and their spectra.

IsoLoCo (arXiv 2607.03011) makes the singular values of every averaged matrix equal to their mean; its fast variant
takes five Newton-Schulz steps and the root mean square in place of the mean. How far the two are apart depends on the
spectrum, so it is measured here on the matrices that training produces.
"""

import time

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lowcomm import models
from lowcomm.assembly import build_trainer, build_workload
from lowcomm.config import checked, load_config
from lowcomm.outer import isotropy
from lowcomm.outer.aggregate import mean
from lowcomm.outer.workers import Wire
from lowcomm.results.figures import STYLE

METHODS = ("svd", "gram", "newton-schulz", "newton-schulz-converged")


def pseudo_gradients(overrides: list[str], rounds: int) -> dict[str, Tensor]:
    """Name -> mean over the workers of `theta - theta_w` in round `rounds` of a run, in the parameters' shapes."""
    cfg = checked(load_config(overrides))
    wire = Wire(cfg.workers)
    workload = build_workload(cfg, wire)
    model = models.build(cfg.model, seed=cfg.seed)
    batch = cfg.scale.batch // cfg.workers
    steps = rounds * cfg.algorithm.inner_steps
    trainer = build_trainer(cfg, model, models.parameters(model), workload, wire, steps, batch)
    seen, rule = [], trainer.loop.aggregator

    def watched(deltas: Tensor, **key: torch.Generator) -> Tensor:
        seen.append(mean(deltas))
        return rule(deltas, **key)

    trainer.loop.aggregator = watched
    while not trainer.done:
        trainer.advance()
    names = list(trainer.loop.theta)
    return dict(zip(names, seen[-len(names) :], strict=True))


def kind(name: str) -> str:
    """`q_proj` of `model.layers.2.self_attn.q_proj.weight`."""
    return name.removesuffix(".weight").rpartition(".")[2]


def spectra(gradients: dict[str, Tensor]) -> pd.DataFrame:
    """One line a matrix: shape, rank, mean and RMS of the singular values, their ratio, energy of the largest 5 %."""
    lines = []
    for name, g in gradients.items():
        if g.ndim != 2:
            continue
        sigma = isotropy.spectrum(g)
        mean_, rms = sigma.mean().item(), sigma.square().mean().sqrt().item()
        top = sigma[: max(1, len(sigma) // 20)].square().sum() / sigma.square().sum()
        lines.append(
            [name, kind(name), tuple(g.shape), int(sigma.count_nonzero()), mean_, rms, rms / mean_, top.item()]
        )
    columns = ["name", "kind", "shape", "rank", "mean", "rms", "rms / mean", "energy of the top 5 %"]
    return pd.DataFrame(lines, columns=columns)


def methods(gradients: dict[str, Tensor]) -> pd.DataFrame:
    """Every backend and scale against the SVD with the mean: relative Frobenius error, cosine, time; over matrices.

    `error` and `cosine` are medians and `worst` the largest error; `ms` is CPU time for all matrices once. `mean` with
    Newton-Schulz is the nuclear norm through one product with the polar factor.
    """
    matrices = [g for g in gradients.values() if g.ndim == 2]
    exact = [isotropy.isotropize(g, "svd") for g in matrices]
    lines = []
    for method in METHODS:
        for scale in ("mean", "rms"):
            begun = time.process_time()
            found = [isotropy.isotropize(g, method, scale) for g in matrices]
            spent = time.process_time() - begun
            pairs = list(zip(found, exact, strict=True))
            errors = torch.tensor([(a - b).norm() / b.norm() for a, b in pairs])
            cosine = torch.tensor([(a * b).sum() / (a.norm() * b.norm()) for a, b in pairs]).median().item()
            lines.append([method, scale, errors.median().item(), errors.max().item(), cosine, 1e3 * spent])
    return pd.DataFrame(lines, columns=["method", "scale", "error", "worst", "cosine", "ms"])


def draw(gradients: dict[str, Tensor], names: list[str]) -> Figure:
    """Singular values of some matrices before the correction, and after it (their mean) and its RMS variant."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        drawing, axes = plt.subplots(1, len(names), figsize=(3.4 * len(names), 3.0), squeeze=False, sharey=True)
        for ax, name in zip(axes[0], names, strict=True):
            sigma = isotropy.spectrum(gradients[name])
            after = isotropy.spectrum(isotropy.isotropize(gradients[name]))
            fast = isotropy.spectrum(isotropy.isotropize(gradients[name], "newton-schulz", "rms"))
            ax.semilogy(sigma[sigma > 0], label="averaged pseudo-gradient", color="#6b6b6b")
            ax.semilogy(after, label="isotropic, mean", color="#0072b2")
            ax.semilogy(fast, label="5 Newton-Schulz steps, RMS", color="#d55e00", linestyle="--")
            ax.set(title=f"{kind(name)} {tuple(gradients[name].shape)}", xlabel="index")
        axes[0][0].set(ylabel="singular value")
        axes[0][0].legend()
        plt.close(drawing)
    return drawing
