"""A patch that does not fit is refused with the right error, and nothing is written."""

import pytest
import torch

from lowcomm.pulse import Corrupt, Missing, Patch, PatchError, StaleBase, Unsupported, apply, decode, encode
from tests.pulse.cases import copy, gaussian, same
from tests.pulse.forge import raw_header, rebuild, seal

CODECS = ["packed", "paper"]


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_and_flip(codec):
    old, new = gaussian(delta=4e-6, rows=3, columns=10)
    patch = encode(old, new, codec)
    for n in range(len(patch)):
        with pytest.raises(PatchError):
            decode(patch[:n])
        bad = bytearray(patch)
        bad[n] ^= 1 << (n % 8)
        with pytest.raises(PatchError):
            decode(bytes(bad))
    with pytest.raises(Corrupt):
        decode(patch + b"\0")


@pytest.mark.parametrize("codec", CODECS)
def test_wrong_base(codec):
    """SkyRL#1902: a chain replayed on the wrong base. Here: version 2 onto version 0, and twice in a row."""
    old, new = gaussian()
    last = copy(new)
    last["norm"][0] = 9.0
    patch = encode(new, last, codec, base_version=1)
    here = copy(old)
    with pytest.raises(StaleBase, match="version 1"):
        apply(here, patch)
    assert same(here, old)
    apply(here, encode(old, new, codec))
    apply(here, patch)
    with pytest.raises(StaleBase, match="already"):
        apply(here, patch)
    assert same(here, last)


def test_one_bit_of_the_base():
    """A base that differs anywhere, in a tensor the patch does not touch either, is another base."""
    old, new = gaussian()
    new["a.weight"] = old["a.weight"]
    here = copy(old)
    here["a.weight"].view(torch.int16)[0, 0] ^= 1
    with pytest.raises(StaleBase):
        apply(here, encode(old, new))


@pytest.mark.parametrize("codec", CODECS)
def test_another_model(codec):
    old, new = gaussian()
    patch = encode(old, new, codec)
    less = {n: t.clone() for n, t in old.items() if n != "norm"}
    with pytest.raises(Missing, match="'norm'"):
        apply(less, patch)
    with pytest.raises(Unsupported, match="'lora'"):
        apply({**copy(old), "lora": torch.zeros(3)}, patch)
    with pytest.raises(Unsupported, match="'norm'"):
        apply({**copy(old), "norm": torch.zeros(501).bfloat16()}, patch)
    with pytest.raises(Unsupported, match=r"norm.*F16"):
        apply({**copy(old), "norm": torch.zeros(500).half()}, patch)
    tied = copy(old)
    tied["b.weight"] = tied["a.weight"].reshape(500, 60)
    with pytest.raises(PatchError):
        apply(tied, patch)
    with pytest.raises(Unsupported, match="complex128"):
        apply({"w": torch.zeros(2, dtype=torch.complex128)}, patch)


def test_last_tensor_bad_first_untouched():
    """vllm#53751: half-applied patches. The last record is broken, nothing at all is written."""
    old, new = gaussian()
    patch = encode(old, new)
    body = bytearray(decode(patch).body)
    body[-40] ^= 0x55
    here = copy(old)
    with pytest.raises(Corrupt):
        apply(here, rebuild(patch, body=bytes(body)))
    assert same(here, old)


def test_versions_and_codecs_to_come():
    old, new = gaussian(rows=2)
    patch = encode(old, new)
    with pytest.raises(Unsupported, match="format 9"):
        decode(seal(patch[:7] + b"\x09" + patch[8:]))
    header = raw_header(patch)
    header[0] = 77
    with pytest.raises(Unsupported, match="77"):
        decode(rebuild(patch, header=bytes(header)))


def test_patch_is_described():
    patch = decode(encode(*gaussian(), model="m", step=3, base_version=4))
    assert isinstance(patch, Patch)
    assert (patch.base_version, patch.version, patch.meta) == (4, 5, {"model": "m", "step": 3})
    assert "body" not in repr(patch)
