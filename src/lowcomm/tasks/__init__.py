"""Reinforcement-learning workloads: problems, prompts, rewards and evaluation. Knows nothing of TRL, Hydra or sync.

Light to import (no torch): the grader's processes import it too.
"""

from lowcomm.tasks.arithmetic import Arithmetic
from lowcomm.tasks.problem import Problem, Score, Task

__all__ = ["Arithmetic", "Problem", "Score", "Task"]
