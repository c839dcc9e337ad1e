"""Tensor parallel: every rank follows the store by itself and holds exactly its shard. Two worker processes."""

import pytest
import torch

from tests.vllm.engines import Rig, Weights, change, digests, runtime, start, tiny

pytestmark = pytest.mark.slow
RANKS = 2


class RankedRig(Rig):
    """`Rig` on an engine of several ranks: their answers must agree, but for parameters."""

    def rpc(self, method, *args):
        answers = self.llm.collective_rpc(method, args=args)
        assert all(answer == answers[0] for answer in answers), answers
        return answers[0]


def shard(weights: Weights, rank: int) -> Weights:
    """Rows of q, k, v, gate, up and of the vocabulary; columns of o and down; norms whole."""
    dims = {n: 1 if "o_proj" in n or "down_proj" in n else None if "norm" in n else 0 for n in weights}
    return {n: t if dims[n] is None else t.chunk(RANKS, dims[n])[rank].contiguous() for n, t in weights.items()}


def expected(weights: Weights, tied: bool) -> list[dict[str, str]]:
    return [digests(runtime(shard(weights, rank), tied)) for rank in range(RANKS)]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_two_ranks(tmp_path, monkeypatch, tied):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    (tmp_path / "m").mkdir()
    base = tiny(tmp_path / "m", tied=tied)
    rig = RankedRig(start(tmp_path / "m", tensor_parallel_size=RANKS), base, tmp_path / "s")
    assert rig.rpc("pulse_empty") == []
    assert rig.llm.collective_rpc("pulse_digests") == expected(base, tied)
    for version, way in enumerate(["layerwise", "direct", "layerwise", "layerwise"], start=1):
        rig.publish(change(rig.weights, seed=version) if version < 4 else base)
        refused = {"version": version, "digest": "0" * 32}
        assert "has digest" in rig.stage(refused)
        rig.update(way=way, base_version=version - 1)
        assert rig.llm.collective_rpc("pulse_digests") == expected(rig.weights, tied), version
    assert torch.equal(rig.weights["model.norm.weight"], base["model.norm.weight"])
    assert len(rig.answer()[0]) == 8
