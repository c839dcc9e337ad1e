"""A real engine follows a store: exactly the published entries change, and whatever is refused changes nothing."""

import shutil
from pathlib import Path

import pytest

from tests.vllm.engines import Rig, answer, change, changes, digests, runtime, start, tiny, with_weights


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    base = tiny(folder, tied=request.param)
    return start(folder), base, folder, request.param


@pytest.fixture
def rig(model, tmp_path):
    llm, base, *_ = model
    return Rig(llm, base, tmp_path / "store")


def test_parameters_can_be_read(model, rig):
    """First of all: a packed weight is an empty parameter, and every check below would compare nothing with nothing."""
    _, base, _, tied = model
    assert rig.rpc("pulse_empty") == []
    assert rig.rpc("pulse_digests") == digests(runtime(base, tied))


@pytest.mark.parametrize("way", ["layerwise", "direct"])
def test_exactly_the_published_entries_change(model, rig, way):
    """In place, at the offsets of q, k, v and gate, up in their fused parameters; and back by the inverse patch."""
    _, base, _, tied = model
    before = rig.rpc("pulse_digests")
    parts = "layers.1.self_attn.k_proj", "layers.0.mlp.up_proj", "layers.0.self_attn.v_proj", "o_proj", "embed", "norm"
    new = change(base, seed=1, only=parts)
    expected = changes(runtime(base, tied), runtime(new, tied))
    assert set(expected) >= {"model.layers.1.self_attn.qkv_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"}
    assert ("lm_head.weight" in expected) == tied
    rig.rpc("pulse_snapshot")
    rig.publish(new)
    rig.update(way=way, base_version=0)
    assert rig.rpc("pulse_changed") == expected
    assert rig.rpc("pulse_digests") == digests(runtime(new, tied))
    assert (rig.status()["version"], rig.llm.get_weight_version()) == (1, "1")
    rig.publish(base)
    rig.update(way=way, base_version=1)
    assert rig.rpc("pulse_changed") == {}
    assert rig.rpc("pulse_digests") == before


def test_like_a_fresh_start_on_the_patched_weights(model, rig, tmp_path):
    _, base, folder, _ = model
    at_base = rig.answer()
    new = change(base, seed=2, share=0.1)
    rig.publish(new)
    rig.update()
    fresh = start(with_weights(folder, tmp_path / "patched", new))
    (fresh_digests,) = fresh.collective_rpc("pulse_digests")
    assert rig.rpc("pulse_digests") == fresh_digests
    assert rig.answer() == answer(fresh) != at_base


def test_no_stale_prefix_cache(model, rig):
    """The cache serves this prompt, and after an update nothing of it; without the reset it would."""
    _, base, *_ = model
    rig.answer()
    assert rig.answer()[2] >= 96
    rig.publish(change(base, seed=3, share=0.2))
    rig.llm.start_weight_update()
    rig.llm.update_weights({"update_info": {"version": 1, "digest": rig.marker.target_digest}})
    rig.llm.finish_weight_update("1")
    stale = rig.answer()
    assert stale[2] >= 96
    assert rig.llm.reset_prefix_cache(reset_running_requests=True)
    right = rig.answer()
    assert right[2] == 0
    assert right[1] != stale[1]


def test_chain_with_anchors_and_a_jump(model, rig):
    """Version by version, then over several at once and back; every bit of every parameter each time."""
    _, _, _, tied = model
    history = {}
    for version in range(1, 7):
        rig.publish(change(rig.weights, seed=10 + version))
        history[version] = rig.weights, rig.marker.target_digest
        if version != 4:
            rig.update()
            assert rig.rpc("pulse_digests") == digests(runtime(rig.weights, tied)), version
    weights, digest = history[3]
    rig.publisher.publish(weights, 7)
    rig.update(version=7, digest=digest)
    assert rig.rpc("pulse_digests") == digests(runtime(weights, tied))
    assert rig.status()["version"] == 7


def test_staged_ahead(model, rig):
    """Fetched and verified while the model is as it was; the same update then applies it and asks the store no more."""
    _, base, *_ = model
    new = change(base, seed=4)
    rig.publish(new)
    before = rig.rpc("pulse_digests")
    info = {"version": 1, "digest": rig.marker.target_digest}
    assert rig.rpc("pulse_stage", info | {"way": "sparse"})["error"].startswith("ValueError: way='sparse'")
    assert rig.stage(info) == ""
    assert (rig.status()["version"], rig.status()["staged"]) == (0, 1)
    assert rig.rpc("pulse_digests") == before
    shutil.rmtree(rig.store.root)
    rig.update()
    assert rig.rpc("pulse_digests") == digests(runtime(new, model[3]))


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"digest": "0" * 32}, "has digest"),
        ({"base_version": 5}, "holds version 0, not 5"),
        ({"version": 9}, "version 9 is not in the store"),
        ({"digest": "abc"}, "32 hex digits"),
        ({"way": "sparse"}, "layerwise, direct"),
        ({"version": -1}, "integers from 0 on"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_refusal_leaves_model_and_version(model, rig, told, message):
    """The engine answers as before, and takes the right update afterwards."""
    _, base, _, tied = model
    at_base, before = rig.answer(), rig.rpc("pulse_digests")
    rig.publish(change(base, seed=5))
    version = rig.llm.get_weight_version()
    with pytest.raises(Exception, match=message):
        rig.update(**told)
    assert rig.rpc("pulse_digests") == before
    assert (rig.status()["version"], rig.status()["poisoned"]) == (0, None)
    assert rig.llm.get_weight_version() == version
    assert rig.answer()[:2] == at_base[:2]
    rig.update()
    assert rig.rpc("pulse_digests") == digests(runtime(rig.weights, tied))


@pytest.mark.parametrize("way", ["layerwise", "direct"])
def test_failed_apply_poisons_until_a_full_update(model, rig, way, monkeypatch):
    llm, base, _, tied = model
    rig.publish(change(base, seed=6))
    running = llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    load = running.load_weights

    def breaks(weights):
        for i, item in enumerate(weights):
            if i == 5:
                raise OSError("the device is gone")
            load([item])

    with monkeypatch.context() as patched:
        patched.setattr(running, "load_weights", breaks)
        with pytest.raises(OSError, match="device is gone"):
            rig.update(way=way)
    status = rig.status()
    assert status["version"] is None
    assert "device is gone" in status["poisoned"]
    for version in (1, 0):
        with pytest.raises(ValueError, match="full=true"):
            rig.update(version=version, digest=rig.store.marker(("anchor", "patch")[version], version).target_digest)
    rig.update(full=True)
    assert rig.status()["poisoned"] is None
    assert rig.rpc("pulse_digests") == digests(runtime(rig.weights, tied))
    rig.publish(base)
    rig.update()
    assert rig.rpc("pulse_digests") == digests(runtime(base, tied))


def test_damaged_object_is_refused(model, rig):
    """A flipped bit in the store: refused, the engine answers; an anchor leads around it."""
    _, base, _, tied = model
    at_base, before = rig.answer(), rig.rpc("pulse_digests")
    rig.publish(change(base, seed=8))
    path = Path(rig.store.root, "patches", rig.marker.name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match="not the object that its marker names"):
        rig.update()
    assert rig.rpc("pulse_digests") == before
    assert rig.answer()[:2] == at_base[:2]
    rig.publisher.anchor_every = 1
    rig.publish(change(rig.weights, seed=9))
    rig.update()
    assert rig.rpc("pulse_digests") == digests(runtime(rig.weights, tied))
