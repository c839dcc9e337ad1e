"""Models: four Hugging Face families from their config (random weights), the hub, a pip package, a folder, or a run.

Always FP32 weights first, scaled-dot-product attention, no KV cache, no dropout unless the config asks for it, never
a pickle.
"""

from lowcomm.models.building import build, parameter_count
from lowcomm.models.families import FAMILIES, architecture
from lowcomm.models.folder import checkpoint_folder
from lowcomm.models.named import hidden_matrices, parameters
from lowcomm.models.tokenizer import load_tokenizer

__all__ = [
    "FAMILIES",
    "architecture",
    "build",
    "checkpoint_folder",
    "hidden_matrices",
    "load_tokenizer",
    "parameter_count",
    "parameters",
]
