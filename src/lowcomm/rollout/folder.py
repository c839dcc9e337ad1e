"""Published weights as a folder that an inference server can load:

    python -m lowcomm.rollout.folder STORE SKELETON FOLDER

SKELETON is the run's `served`. A vLLM server that starts on FOLDER holds a version of the store and follows from there.
"""

import argparse
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from lowcomm.pulse import PatchError, Store, Subscriber


def write(store: Store, skeleton: Path | str, folder: Path | str, version: int | None = None) -> int:
    """Copy the configs and the tokenizer of ``skeleton``, and write the BF16 weights of ``version`` (None: the newest),
    verified, in checkpoint names. Returns the version.

    Raises ValueError if the skeleton has no config.json or the folder is there, PatchError for what the store lacks.
    """
    from lowcomm.rollout.transformers_engine import skeleton as empty

    folder, skeleton = Path(folder), Path(skeleton)
    if folder.exists():
        raise ValueError(f"{folder}: is there already; give another folder")
    parameters = dict(empty(skeleton).named_parameters())
    tensors = {n: torch.zeros_like(p, dtype=torch.bfloat16, requires_grad=False) for n, p in parameters.items()}
    reached = Subscriber(store, tensors).advance(version)
    aside = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)  # of one that was killed
    shutil.copytree(skeleton, aside, ignore=shutil.ignore_patterns("*.safetensors*", "*.bin"))
    save_file(tensors, aside / "model.safetensors", {"format": "pt"})
    os.rename(aside, folder)
    return reached


def main(argv: list[str] | None = None) -> None:
    """The command line; ``argv`` None: that of the process."""
    parser = argparse.ArgumentParser("python -m lowcomm.rollout.folder", description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="where the trainer publishes, as in rollout.json")
    parser.add_argument("skeleton", type=Path, help="the folder `served` of the run")
    parser.add_argument("folder", type=Path, help="to be made")
    args = parser.parse_args(argv)
    try:
        print(f"{args.folder}: version {write(Store(args.store), args.skeleton, args.folder)}")
    except (ValueError, OSError, PatchError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
