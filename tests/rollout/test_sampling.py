import numpy as np
import pytest
import torch

from lowcomm.rollout.generation import Job, Sampling, seed_of
from lowcomm.rollout.sampling import choose, log_probabilities, truncated, uniforms

LOGITS = torch.tensor([[2.0, 0.0, -torch.inf, 1.0, -1.0]])


def test_draws_follow_the_probabilities_and_never_take_an_impossible_token():
    lp = log_probabilities(LOGITS, 1.0)
    u = torch.from_numpy((np.arange(20000) + 0.5) / 20000)
    drawn = choose(lp.expand(20000, -1), u, Sampling(1))
    share = torch.bincount(drawn, minlength=5) / 20000
    torch.testing.assert_close(share, lp.exp()[0], atol=1e-4, rtol=0)
    assert share[2] == 0
    edges = torch.tensor([0.0, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    first, last = choose(torch.log(torch.tensor([[0.0, 0.5, 0.5, 0.0]])).expand(2, -1), edges, Sampling(1))
    assert (first, last) == (1, 2)


def test_temperature():
    torch.testing.assert_close(log_probabilities(LOGITS, 0.5), torch.log_softmax(LOGITS * 2, -1))
    torch.testing.assert_close(log_probabilities(LOGITS, 0.0), torch.log_softmax(LOGITS, -1))
    assert choose(log_probabilities(LOGITS, 0.0), torch.tensor([0.99]).double(), Sampling(1, temperature=0)) == 0


def test_truncation_keeps_the_likeliest():
    lp = log_probabilities(LOGITS, 1.0)  # probabilities 0.644, 0.087, 0, 0.237, 0.032
    kept = lambda **how: torch.isfinite(truncated(lp, Sampling(1, **how)))[0].nonzero()[:, 0].tolist()  # noqa: E731
    assert kept(top_k=2) == [0, 3]
    assert kept(top_p=0.64) == [0]
    assert kept(top_p=0.65) == [0, 3]
    assert kept(top_p=0.9) == [0, 1, 3]
    assert kept(top_k=2, top_p=0.74) == [0, 3]  # of what top_k left, token 0 holds 0.731
    assert kept(top_k=2, top_p=0.73) == [0]


def test_noise_is_a_function_of_the_seed():
    assert (uniforms(5, 3) == uniforms(5, 8)[:3]).all()
    assert not (uniforms(5, 3) == uniforms(6, 3)).any()
    assert seed_of(1, 2, 3, 4) == seed_of(1, 2, 3, 4) != seed_of(1, 2, 34)
    assert len({seed_of(0, step, p, r) for step in range(5) for p in range(5) for r in range(5)}) == 125
    assert all(0 <= seed_of(s) < 2**63 for s in range(50))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"max_new_tokens": 1, "temperature": -1.0}, "temperature=-1"),
        ({"max_new_tokens": 1, "temperature": float("nan")}, "temperature=nan"),
        ({"max_new_tokens": 1, "top_p": 0.0}, "top_p=0"),
        ({"max_new_tokens": 1, "top_k": -1}, "top_k=-1"),
    ],
)
def test_sampling_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**arguments)


def test_jobs_without_content_are_refused():
    with pytest.raises(ValueError, match="prompt"):
        Job([], [1], Sampling(1))
    with pytest.raises(ValueError, match="seeds"):
        Job([1], [], Sampling(1))
    with pytest.raises(ValueError, match="seeds"):
        Job([1], [-1], Sampling(1))
