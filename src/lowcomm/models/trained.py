"""Weights that are trained here first: a run of `lowcomm.train`, made on the first use (`model.weights=trained`).

For machines without the hub and families that no package brings: `model.recipe` names a run, the cache keeps its end as
an ordinary Hugging Face folder.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lowcomm.blocks import ConfigError
from lowcomm.workloads import cache

log = logging.getLogger(__name__)
FORM = 1  # raise it when the same run would give another folder
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def folder(recipe: Sequence[str]) -> Path:
    """The folder of the trained model, made on the first call (minutes) and kept in the cache.

    ``recipe``: overrides of `lowcomm.train`. Holds BF16 `model.safetensors`, `config.json`, the tokenizer and
    `training.json`. An interrupted training goes on where it was; of several processes one trains and the others wait.
    The same machine makes the same bits again. The cache is $LOWCOMM_CACHE, else `.cache/lowcomm`. Raises ConfigError
    when the recipe is mistaken, its run fails or is stopped.
    """
    from lowcomm.train import digest_of  # trains models, so it imports them

    if not recipe:
        raise ConfigError("model.recipe=[]: model.weights=trained needs overrides of lowcomm.train, such as "
                          "[model=qwen-nano, workload=arithmetic]; or take model.weights=random")  # fmt: skip
    try:
        digest = digest_of(list(recipe))
    except ConfigError as error:
        raise ConfigError(f"model.recipe={list(recipe)}: {error}") from error
    place = cache.root(None) / f"model-trained-{cache.digest([FORM, digest])[:16]}"
    if not place.is_dir():
        log.info("model.weights=trained: made once, by python -m lowcomm.train %s", " ".join(recipe))
    return cache.build_once(place, lambda aside: make(recipe, digest, place.with_name(place.name + ".run"), aside))


def make(recipe: Sequence[str], digest: str, run_dir: Path, out: Path) -> None:
    """Train in `run_dir`, round to BF16, save.

    A released checkpoint lies on the BF16 grid, and so does what reinforcement learning starts from here.
    """
    from lowcomm.export import export

    train(recipe, run_dir)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f"{out.name}.") as aside:
        export(run_dir, Path(aside))
        model = AutoModelForCausalLM.from_pretrained(aside, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(aside)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    made = json.loads((run_dir / "record.json").read_text())
    (out / "training.json").write_text(json.dumps(about(recipe, digest, made, out), indent=1))
    shutil.rmtree(run_dir)


def train(recipe: Sequence[str], run_dir: Path) -> None:
    """The run, in a process of its own: this one may be a trainer among several. Its progress is shown.

    Raises ConfigError when it does not come to its end; started again it goes on.
    """
    alone = {key: value for key, value in os.environ.items() if key not in RANKS}
    child = subprocess.Popen(
        [sys.executable, "-m", "lowcomm.train", *recipe, f"run_dir={run_dir}"], stdout=sys.stderr, env=alone
    )
    try:
        code = child.wait()
    except BaseException:  # Ctrl-C reaches the child too: it saves and ends
        child.terminate()
        child.wait()
        raise
    if code:
        command = f"python -m lowcomm.train {' '.join(recipe)}"
        raise ConfigError(f"model.weights=trained: {command} ended with {code}; its reason stands above. Once it is "
                          "removed, the same command goes on from the last checkpoint")  # fmt: skip


def about(recipe: Sequence[str], digest: str, made: dict, out: Path) -> dict:
    """What `training.json` says: how the weights were made, and their hash."""
    from lowcomm.results.describe import weights_hash

    return {
        "recipe": list(recipe),
        "digest": digest,
        "form": FORM,
        "weights": weights_hash(load_file(out / "model.safetensors")),
        "versions": made["environment"]["versions"],
        "code": {key: made["code"][key] for key in ("commit", "dirty", "sources")},
        "metrics": made["outcome"]["metrics"],
    }
