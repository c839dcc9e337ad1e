import pytest
import torch
from torch import nn

from lowcomm.workloads.heldout import check_evaluation, evaluating


def test_every_module_gets_its_own_mode_back():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()  # frozen on purpose: model.train() would wake it
    with evaluating(model):
        assert not any(m.training for m in model.modules())
        assert not model(torch.ones(3, 2)).requires_grad
    assert [m.training for m in model.modules()] == [True, True, False]


def test_also_after_an_error():
    model = nn.Dropout()
    with pytest.raises(RuntimeError), evaluating(model):
        raise RuntimeError
    assert model.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("samples", "batch", "message"),
    [
        (0, 1, "samples=0"),
        (1, 0, "batches of 0"),
        (6, 1, "scale.eval_samples=6: there are only 5 cats"),
    ],
)
def test_refusals(samples, batch, message):
    with pytest.raises(ValueError, match=message):
        check_evaluation(samples, batch, 5, "cats")
