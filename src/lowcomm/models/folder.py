"""Where the files of a pretrained model lie: a folder, a pip package's, that of a run trained first, or the hub's."""

import re
from pathlib import Path

from lowcomm import hub
from lowcomm.blocks import ConfigError
from lowcomm.models import packaged, trained
from lowcomm.models.families import architecture
from lowcomm.schema import ModelConfig

SAVED = "a save_pretrained folder with safetensors weights (pickled .bin files are not read), or model.weights=random"


def checkpoint_folder(cfg: ModelConfig) -> Path:
    """The folder with config.json, safetensors and tokenizer: `model.path`, a package's (converted once), that of
    `model.recipe` (trained once), or the hub's snapshot (cached, else downloaded). Raises ConfigError.
    """
    architecture(cfg)  # a mistake in the config should not wait for a download
    if cfg.weights == "local":
        if not cfg.path or not Path(cfg.path).is_dir():
            raise ConfigError(f"model.path={cfg.path}: no such folder; give {SAVED}")
        folder = Path(cfg.path)
    elif cfg.weights == "package":
        folder = packaged.folder(cfg.hub)
    elif cfg.weights == "trained":
        folder = trained.folder(cfg.recipe)
    else:
        if not cfg.hub:
            raise ConfigError("model.hub=null: model.weights=hub needs a repository id; or take model.weights=random")
        if not re.fullmatch(r"[0-9a-f]{40}", cfg.revision or ""):
            why = f"pin the commit of {cfg.hub}, 40 hexadecimal digits; a branch would change under the results"
            raise ConfigError(f"model.revision={cfg.revision}: {why}")
        try:
            folder = hub.snapshot(cfg.hub, cfg.revision)
        except OSError as error:
            remedy = (
                "give a copy with model.weights=local model.path=FOLDER or in HF_HOME, or take model.weights=random"
            )
            why = f"not to be had ({' '.join(str(error).split())}); {remedy}"
            raise ConfigError(f"model.{source(cfg)}: {why}") from error
    if (name := hub.absent(folder)) is not None:
        raise ConfigError(f"model.{source(cfg)}: there is no {name}; give {SAVED}")
    return folder


def source(cfg: ModelConfig) -> str:
    """Where the weights come from, as the configuration says it; for messages."""
    of = {"local": f"path={cfg.path}", "package": f"weights=package ({cfg.hub})", "trained": "weights=trained"}
    return of.get(cfg.weights, f"hub={cfg.hub}@{cfg.revision}")
