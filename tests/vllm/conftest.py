"""These tests need vLLM, hence an environment of their own: `make test-vllm`. The main suite leaves them out."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = find_spec("vllm") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]

if HERE:  # before vLLM is imported: in this process, our plug-in only, nothing from outside, weights that can be read
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_PLUGINS": "pulse",
        "PULSE_VLLM_NO_PREPACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        # the main environment's numba has another version, and each would discard what the other compiled
        "NUMBA_CACHE_DIR": str(Path(sys.prefix) / ".numba"),
    }
