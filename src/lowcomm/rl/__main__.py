"""Command line of `lowcomm.rl`; see `conf/rl/rl.yaml`, or `python -m lowcomm.rl --help`."""

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lowcomm.command import explain_first, final_loss, one_line
from lowcomm.rl.config import ROOTS, checked, load_config


@hydra.main(version_base="1.3", config_path=str(ROOTS[0]), config_name="rl")
def main(cfg: DictConfig) -> float:
    """The command: one run; mistakes and interruptions end in one line. Returns the final error rate, for sweeps."""
    from safetensors import SafetensorError

    from lowcomm.outer.exchange import ConsensusError
    from lowcomm.pulse import PatchError
    from lowcomm.rl.outer_launch import launch, launches
    from lowcomm.rollout.dispatcher import RolloutError
    from lowcomm.run_dir import run_dir_of
    from lowcomm.session import name_ranks

    name_ranks()
    overrides = list(HydraConfig.get().overrides.task)
    with one_line(OSError, SafetensorError, RolloutError, PatchError, ConsensusError):
        if launches(cfg):
            result = launch(checked(cfg), overrides, None)
        else:
            from lowcomm.rl.run import run  # TRL takes seconds to import: after the configuration's first check

            result = run(cfg, overrides)
    return final_loss(result, run_dir_of(cfg))


if __name__ == "__main__":
    explain_first(load_config)
    main()
