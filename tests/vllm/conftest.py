"""These tests need vLLM, hence an environment of their own: `make test-vllm`. The main suite leaves them out."""

import os
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]

# before vLLM is imported: in this process, our plug-in only, nothing from outside, weights that can be read
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_PLUGINS": "pulse",
    "PULSE_VLLM_NO_PREPACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
