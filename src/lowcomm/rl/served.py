"""What rollout workers need beside the published weights: the model's shape, its end tokens, the tokenizer."""

import contextlib
import json
import os
import secrets
import shlex
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lowcomm.checkpoint import write_bytes

# torchrun's, by which accelerate would wrap the model and average gradients at every step
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
         "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # fmt: skip


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every token that ends an answer: all that the model declares, and the tokenizer's."""
    declared = model.generation_config.eos_token_id
    ids = [declared] if isinstance(declared, int) else declared or []
    return frozenset([*ids, tokenizer.eos_token_id])


def save_skeleton(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Configs and tokenizer without weights: what `model=` of `python -m lowcomm.rollout` names."""
    folder.mkdir(exist_ok=True)
    model.generation_config.eos_token_id = sorted(end_tokens(model, tokenizer))
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def token_of(folder: Path) -> str:
    """The secret that this run's workers share with it, in a file that only its owner reads; made once."""
    path, aside = folder / "rollout.token", folder / ".rollout.token"
    if not path.exists():
        aside.unlink(missing_ok=True)  # of one that was killed
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(16))
        aside.rename(path)
    return path.read_text()


def asked_of(cfg: DictConfig, folder: Path, address: str) -> dict[str, str]:
    """The keys of `lowcomm.rollout` for a worker of this run, wherever on this machine it is started."""
    store = cfg.place.store or str(folder / "store")
    where = {
        "store": store if "://" in store else str(Path(store).absolute()),
        "trainer": address,
        "engine": cfg.rollout.engine,
        "model": str((folder / "served").absolute()),
        "token_file": str((folder / "rollout.token").absolute()),
    }
    # sums as the trainer makes them: with other threads they may differ in the last bit
    alike = {"device": cfg.scale.device, "threads": str(cfg.scale.threads)} if where["engine"] == "transformers" else {}
    return where | alike


def say_where(folder: Path, asked: dict[str, str]) -> str:
    """Write `rollout.json`; the command that starts a worker."""
    command = shlex.join(["python", "-m", "lowcomm.rollout", *(f"{key}={value}" for key, value in asked.items())])
    told = {key: asked[key] for key in ("store", "trainer", "engine")} | {"command": command}
    write_bytes(folder / "rollout.json", json.dumps(told, indent=1).encode())
    return command


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hide torchrun's variables, and forget what accelerate knew of an earlier run of this process."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    kept = {key: os.environ.pop(key) for key in RANKS if key in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
