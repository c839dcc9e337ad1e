"""Pseudo-gradients of a short run, and what is read off their spectra."""

import pytest
import torch

from lowcomm.outer.isotropy import isotropize
from lowcomm.results import spectra
from tests.runs import TINY

RUN = [*TINY, "algorithm=isoloco", "algorithm.inner_steps=2", "workers=2"]


@pytest.fixture(scope="module")
def gradients():
    return spectra.pseudo_gradients(RUN, rounds=2)


def test_they_are_the_means_of_the_last_round(gradients, tmp_path, monkeypatch):
    """The correction of what is returned is the step that plain SGD with rate 1 would take."""
    from lowcomm.outer.loop import OuterLoop

    seen, sync = [], OuterLoop.sync

    def watched(self, workers):
        before = {n: t.detach().clone() for n, t in self.theta.items()}
        sync(self, workers)
        seen.append({n: before[n] - t.detach() for n, t in self.theta.items()})

    monkeypatch.setattr(OuterLoop, "sync", lambda self, workers: (watched(self, workers), {})[1])
    outer = ["algorithm/outer=sgd", "algorithm.outer.lr=1.0", "~algorithm.outer.momentum"]
    again = spectra.pseudo_gradients([*RUN, *outer], rounds=1)
    for name, g in again.items():
        expected = isotropize(g) if g.ndim == 2 else g
        torch.testing.assert_close(seen[0][name], expected, rtol=1e-3, atol=1e-6)


def test_the_table_of_spectra(gradients):
    frame = spectra.spectra(gradients)
    assert len(frame) == sum(g.ndim == 2 for g in gradients.values())
    assert (frame["rms / mean"] >= 1).all()
    assert ((frame["energy of the top 5 %"] > 0) & (frame["energy of the top 5 %"] <= 1)).all()


def test_the_gram_route_is_the_svd_and_the_rms_is_not(gradients):
    frame = spectra.methods(gradients).set_index(["method", "scale"])
    assert frame.error["gram", "mean"] < 1e-3
    assert frame.error["svd", "rms"] > 0.05, "the RMS is larger than the mean"
    assert frame.cosine["svd", "rms"] == pytest.approx(1, abs=1e-5)
    assert set(frame.index.get_level_values(0)) == set(spectra.METHODS)


def test_the_figure_has_one_panel_a_matrix(gradients):
    names = [n for n, g in gradients.items() if g.ndim == 2][:2]
    assert len(spectra.draw(gradients, names).axes) == 2
