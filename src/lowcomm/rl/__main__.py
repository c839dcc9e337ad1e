"""Command line of `lowcomm.rl`; see `conf/rl/rl.yaml`, or `python -m lowcomm.rl --help`."""

import logging
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lowcomm.blocks import ConfigError
from lowcomm.rl.config import ROOTS, checked, load_config

log = logging.getLogger("lowcomm.rl")


@hydra.main(version_base="1.3", config_path=str(ROOTS[0]), config_name="rl")
def main(cfg: DictConfig) -> float:
    """The command: one run; mistakes and interruptions end in one line. Returns the final error rate, for sweeps."""
    from lowcomm.outer.exchange import ConsensusError
    from lowcomm.pulse import PatchError
    from lowcomm.rl.outer_launch import launch, launches
    from lowcomm.rollout.dispatcher import RolloutError
    from lowcomm.run_dir import run_dir_of
    from lowcomm.train import Stopped

    overrides = list(HydraConfig.get().overrides.task)
    try:
        if launches(cfg):
            result = launch(checked(cfg), overrides, None)
        else:
            from lowcomm.rl.run import run  # TRL takes seconds to import: after the configuration's first check

            result = run(cfg, overrides)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    except FloatingPointError as error:
        raise SystemExit(f"stopped: {error}; the last good checkpoint is kept") from None
    except (OSError, RolloutError, PatchError, ConsensusError) as error:
        raise SystemExit(f"stopped: {error}; run the same command to go on from the last checkpoint") from None
    except Stopped as note:
        raise SystemExit(f"{note}") from None
    if not result:
        return 0.0  # another rank has it
    metrics = result["outcome"]["metrics"]
    log.info("%s: %s", run_dir_of(cfg), ", ".join(f"{k} {v:.4f}" for k, v in metrics.items()))
    return metrics["loss"]


def cli() -> None:
    """Explain a mistaken override before Hydra starts."""
    overrides = [a for a in sys.argv[1:] if not a.startswith("-")]
    if len(overrides) == len(sys.argv) - 1:
        try:
            load_config(overrides)
        except ConfigError as error:
            raise SystemExit(f"error: {error}") from None
    main()


if __name__ == "__main__":
    cli()
