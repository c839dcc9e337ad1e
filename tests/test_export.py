"""A finished run becomes a checkpoint folder that every loader takes."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from lowcomm.blocks import ConfigError
from lowcomm.byte_tokenizer import PIECES, SIZE, byte_tokenizer
from lowcomm.export import export, main
from lowcomm.models import build, load_tokenizer, parameters
from tests.models.test_building import same, tiny


@pytest.fixture
def run(tmp_path):
    """The folder of a run that trained the tiny Qwen on arithmetic, as far as an export looks at it."""
    cfg = tiny("qwen2", {"vocab_size": SIZE})
    model = build(cfg, seed=4)
    folder = tmp_path / "run"
    folder.mkdir()
    save_file({n: p.detach().contiguous() for n, p in parameters(model).items()}, folder / "weights.safetensors")
    identity = {"model": vars(cfg), "workload": {"name": "arithmetic"}}
    (folder / "config.json").write_text(json.dumps(identity))
    return folder, model


def test_exported_run_is_loaded_bitwise(run, tmp_path):
    folder, model = run
    assert main([str(folder), str(tmp_path / "out")]) == 0
    cfg = tiny("qwen2", {"vocab_size": SIZE}, weights="local", path=str(tmp_path / "out"))
    again = build(cfg, seed=0)
    assert same(model, again)
    assert again.generation_config.eos_token_id == 0
    tokenizer = load_tokenizer(cfg)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.padding_side) == (0, 1, "left")
    text = "What is 3 + 8?\n\\boxed{11}"
    assert tokenizer.encode(text) == byte_tokenizer().encode(text).ids
    assert AutoTokenizer.from_pretrained(tmp_path / "out").decode(tokenizer.encode(text)) == text


def test_what_cannot_be_exported(run, tmp_path, capsys):
    folder, _ = run
    with pytest.raises(ConfigError, match="there is no config.json; give the folder of a finished run"):
        export(tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match="run: not empty; choose another folder"):
        export(folder, folder)
    identity = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(identity | {"workload": {"name": "pycode"}}))
    assert main([str(folder), str(tmp_path / "out")]) == 1
    assert "trained on workload=pycode" in capsys.readouterr().err
    assert main([]) == 2
    assert not (tmp_path / "out").exists()


def test_weights_of_another_model(run, tmp_path):
    folder, _ = run
    save_file({"x": torch.zeros(1)}, folder / "weights.safetensors")
    with pytest.raises(ConfigError, match="weights.safetensors does not fit its config.json"):
        export(folder, tmp_path / "out")


@pytest.mark.parametrize("text", ["", "3 + 8 = 11", "é ∞ \u2028 \x00", "<|endoftext|>", "What is 3 + 8?\n\\boxed{11}"])
def test_bytes_come_back(text):
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_tokens_of_a_problem():
    tokenizer = byte_tokenizer()
    assert tokenizer.get_vocab_size() == SIZE
    ids = tokenizer.encode("What is 13 + 8?\n\\boxed{21}").ids
    assert [tokenizer.decode([i]) for i in ids] == ["What is ", "1", "3", " + ", "8", "?\n", "\\boxed{", "2", "1", "}"]
    assert [tokenizer.token_to_id(piece) for piece in PIECES] == list(range(258, SIZE))
