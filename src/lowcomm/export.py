"""A finished run as an ordinary Hugging Face folder:  python -m lowcomm.export RUN_DIR FOLDER

Then, anywhere: model=local model.family=qwen2 model.path=FOLDER.
"""

import json
import sys
from pathlib import Path

import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file

from lowcomm import models
from lowcomm.blocks import ConfigError
from lowcomm.schema import ModelConfig


def export(run_dir: Path, folder: Path) -> None:
    """Weights, config and tokenizer of the run's final model, FP32 as trained, into an empty or new `folder`.

    The tokenizer is the checkpoint's that the run started from; for random weights that of bytes, and only after
    training on workload=arithmetic, which writes with it. Raises ConfigError for anything else.
    """
    for name in ("config.json", "weights.safetensors"):
        if not (run_dir / name).is_file():
            raise ConfigError(f"{run_dir}: there is no {name}; give the folder of a finished run")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: not empty; choose another folder")
    identity = json.loads((run_dir / "config.json").read_text())
    cfg = OmegaConf.merge(OmegaConf.structured(ModelConfig), identity["model"])
    if cfg.weights == "random" and identity["workload"].get("name") != "arithmetic":
        why = "its tokens are not those of the tokenizer of bytes"
        raise ConfigError(
            f"{run_dir}: trained on workload={identity['workload'].get('name')}, {why}; export it yourself"
        )
    tokenizer = models.load_tokenizer(cfg)
    model = models.build(cfg, seed=0)
    weights, parameters = load_file(run_dir / "weights.safetensors"), models.parameters(model)
    if weights.keys() != parameters.keys():
        differ = sorted(weights.keys() ^ parameters.keys())
        raise ConfigError(f"{run_dir}: weights.safetensors does not fit its config.json ({differ[0]})")
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(weights[name])
    for ours in (model.config, model.generation_config):
        ours.eos_token_id, ours.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
        ours.bos_token_id = tokenizer.bos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(arguments: list[str]) -> int:
    """The command; returns its exit status, 2 for wrong use."""
    if len(arguments) != 2:
        print("python -m lowcomm.export RUN_DIR FOLDER", file=sys.stderr)
        return 2
    try:
        export(Path(arguments[0]), Path(arguments[1]))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
