"""Where versions of weights come from: made up, trained here, or published by a run.

A source is made with its own numbers and the run's seed; `chain()` yields BF16 weights by name, version after version,
and `describe()` says what they are, for the record. Records name a source by its path here.
"""

from lowcomm.patches.sources.invented import Adam, Gaussian
from lowcomm.patches.sources.published import Published
from lowcomm.patches.sources.reinforcement import Reinforcement
from lowcomm.patches.sources.training import Training

__all__ = ["Adam", "Gaussian", "Published", "Reinforcement", "Training"]
