"""GRPO on verifiable rewards, with the weights published to inference workers after every step.

    python -m lowcomm.rl model=smollm2-135m workload=arithmetic algorithm=pulsesync scale=cpu seed=1
    torchrun --nproc-per-node 2 -m lowcomm.rl algorithm=pulseloco workers=2

Importable as `run_overrides([...])`, which returns the record of the run. Importing this loads no torch.
"""

import os
from typing import Any

# TRL and its libraries read these when they are imported; a run must not wait for a network.
for _key, _value in {"HF_HUB_DISABLE_TELEMETRY": "1", "TRL_EXPERIMENTAL_SILENCE": "1",
                     "TOKENIZERS_PARALLELISM": "false"}.items():  # fmt: skip
    os.environ.setdefault(_key, _value)


def run_overrides(overrides: list[str], claim: dict[str, Any] | None = None) -> dict[str, Any]:
    """Compose `conf/rl/rl.yaml` with overrides and run it in this process; its record."""
    from lowcomm.rl.config import checked, load_config
    from lowcomm.rl.outer_launch import launch, launches

    cfg = load_config(overrides)
    if launches(cfg):
        return launch(checked(cfg), overrides, claim)
    from lowcomm.rl.run import run

    return run(cfg, overrides, claim)


def digest_of(overrides: list[str]) -> str:
    """Digest of a run's configuration, composed and checked without training (64 hexadecimal digits)."""
    from lowcomm.config import digest
    from lowcomm.rl.config import checked, load_config

    return digest(checked(load_config(overrides)))
