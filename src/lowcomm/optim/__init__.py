"""Optimizers of our own; all others come from torch.optim and schedulefree."""

from lowcomm.optim.gpa import GPA
from lowcomm.optim.gpa_adamw import GPAAdamW
from lowcomm.optim.horizon import mu_x_from_horizon
from lowcomm.optim.muon import MuonAdamW

__all__ = ["GPA", "GPAAdamW", "MuonAdamW", "mu_x_from_horizon"]
