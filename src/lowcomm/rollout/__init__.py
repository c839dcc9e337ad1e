"""Text from the newest weights: engines that generate, a worker that follows the store, the trainer's dispatcher."""

from lowcomm.rollout.generation import Completion, Engine, Job, Sampling, seed_of

__all__ = ["Completion", "Engine", "Job", "Sampling", "seed_of"]
