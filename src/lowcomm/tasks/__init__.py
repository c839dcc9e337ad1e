"""Reinforcement-learning workloads: problems, prompts, rewards and evaluation. Knows nothing of TRL, Hydra or sync.

Light to import (no torch): the grader's processes import it too.
"""

from lowcomm.tasks.arithmetic import Arithmetic
from lowcomm.tasks.competition import Math
from lowcomm.tasks.gsm8k import Gsm8k
from lowcomm.tasks.mbpp import Mbpp
from lowcomm.tasks.problem import Problem, Score, Task

__all__ = ["Arithmetic", "Gsm8k", "Math", "Mbpp", "Problem", "Score", "Task"]
