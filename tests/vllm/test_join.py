"""Engines that come late, start empty, have biases, follow signed stores, or cannot be followed at all."""

import pytest
import torch

from lowcomm.pulse import Publisher, Store
from lowcomm.pulse.signing import generate
from tests.vllm.engines import Rig, change, changes, digests, runtime, start, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def base(folder):
    return tiny(folder)


def rpc(llm, method, *args):
    (answer,) = llm.collective_rpc(method, args=args)
    return answer


def update(llm, marker, **info):
    llm.start_weight_update()
    llm.update_weights({"update_info": {"version": marker.version, "digest": marker.target_digest, **info}})
    llm.finish_weight_update(str(marker.version))


@pytest.mark.parametrize("codec", ["packed", "paper", "history"])
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_late_joiner(folder, base, tmp_path, codec, load_format):
    """The base is no longer in the store; with dummy weights the engine holds nothing of it either."""
    publisher = Publisher(Store(tmp_path / "s"), base, anchor_every=2, keep_anchors=1, codec=codec)
    weights = base
    for version in range(6):
        marker = publisher.publish(weights, version)
        weights, latest = change(weights, seed=version), weights
    assert publisher.store.versions("anchor")[0] > 0
    llm = start(folder, load_format=load_format)
    llm.init_weight_transfer_engine({"init_info": {"store": str(tmp_path / "s")}})
    assert rpc(llm, "pulse_status")["in_place"] == (load_format == "auto")
    update(llm, marker)
    assert rpc(llm, "pulse_digests") == digests(runtime(latest, tied=False))
    marker = publisher.publish(weights, 6)
    update(llm, marker, base_version=5)
    assert rpc(llm, "pulse_digests") == digests(runtime(weights, tied=False))
    if load_format == "dummy":
        with pytest.raises(ValueError, match="not laid out as loaded"):
            update(llm, marker, way="direct")
        update(llm, marker, full=True)
        update(llm, marker, way="direct")


def test_biases_stay_with_their_layer(tmp_path):
    """Qwen2: a change in q's weight alone rebuilds q, k and v and their biases."""
    (tmp_path / "m").mkdir()
    base = tiny(tmp_path / "m", "qwen2", tied=True)
    assert "model.layers.0.self_attn.k_proj.bias" in base
    rig = Rig(start(tmp_path / "m"), base, tmp_path / "s")
    new = change(base, seed=1, only=("layers.0.self_attn.q_proj.weight",))
    rig.rpc("pulse_snapshot")
    rig.publish(new)
    rig.update()
    assert rig.rpc("pulse_changed") == changes(runtime(base, True), runtime(new, True))
    rig.publish(change(new, seed=2))
    rig.update()
    assert rig.rpc("pulse_digests") == digests(runtime(rig.weights, True))


def test_publisher_names_the_tied_head_too(tmp_path):
    """A state dict has the head under both names; the checkpoint has it once."""
    (tmp_path / "m").mkdir()
    base = tiny(tmp_path / "m", tied=True)
    base["lm_head.weight"] = base["model.embed_tokens.weight"]
    llm = start(tmp_path / "m")
    publisher = Publisher(Store(tmp_path / "s"), base)
    publisher.publish(base, 0)
    llm.init_weight_transfer_engine({"init_info": {"store": str(tmp_path / "s")}})
    base["model.embed_tokens.weight"].view(-1).view(torch.int16)[1000:1010] ^= 3
    update(llm, publisher.publish(base, 1))
    assert rpc(llm, "pulse_digests") == digests(runtime(base, True))


def test_unsigned_store_is_refused(folder, base, tmp_path):
    private, public = generate()
    _, other = generate()
    marker = Publisher(Store(tmp_path / "s", private_key=private), base).publish(base, 3)
    llm = start(folder)
    with pytest.raises(Exception, match="not signed by the trusted key"):
        llm.init_weight_transfer_engine({"init_info": {"store": str(tmp_path / "s"), "public_key": other.hex()}})
    llm.init_weight_transfer_engine({"init_info": {"store": str(tmp_path / "s"), "public_key": public.hex()}})
    update(llm, marker)
    assert rpc(llm, "pulse_status")["version"] == 3


def test_before_the_first_publication(folder, base, tmp_path):
    llm = start(folder)
    with pytest.raises(ValueError, match="init_weight_transfer_engine first"):
        update(llm, Publisher(Store(tmp_path / "t"), base).publish(base, 0))
    llm.init_weight_transfer_engine({"init_info": {"store": str(tmp_path / "s")}})
    assert rpc(llm, "pulse_status")["version"] is None
    update(llm, Publisher(Store(tmp_path / "s"), base).publish(base, 0))
    assert rpc(llm, "pulse_status")["version"] == 0


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"dtype": "float16"}, "runs in torch.bfloat16"),
        ({"base": "/nowhere"}, "no .safetensors file"),
        ({"shop": "x"}, "shop"),
    ],
)
def test_wrong_init_info(folder, base, tmp_path, info, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        start(folder).init_weight_transfer_engine({"init_info": {"store": str(tmp_path / "s"), **info}})


def test_packed_weights_are_refused(folder, base, tmp_path):
    """As the CPU backend packs them where it can: an empty parameter."""
    llm = start(folder)
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    model.model.layers[0].mlp.down_proj.weight.data = torch.empty(0, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="down_proj.weight has no elements.*PULSE_VLLM_NO_PREPACK=1"):
        llm.init_weight_transfer_engine({"init_info": {"store": str(tmp_path / "s")}})


def test_registering_twice_is_fine():
    from pulse_vllm import register

    register()
    register()
