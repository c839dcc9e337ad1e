"""What rollout workers need beside the published weights: the model's shape, its end tokens, the tokenizer."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

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
    path = folder / "rollout.token"
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(16))
    return path.read_text()


def say_where(folder: Path, store: str, address: str, engine: str) -> str:
    """Write `rollout.json`; the command that starts a worker."""
    command = (
        f"python -m lowcomm.rollout store={store} trainer={address} engine={engine} model={folder / 'served'} "
        f"token_file={folder / 'rollout.token'}"
    )
    told = {"store": store, "trainer": address, "engine": engine, "command": command}
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
