"""`python -m lowcomm.results [SCALE]`: render all tables and figures from the records; no network, no training."""

import os
import sys

from lowcomm.results.page import count_lines
from lowcomm.results.render import render

SCALES = ("smoke", "cpu", "gpu", "paper")

if __name__ == "__main__":
    scale = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    if scale not in SCALES or len(sys.argv) > 2:
        raise SystemExit(f"usage: python -m lowcomm.results [{'|'.join(SCALES)}]")
    for path in render(scale=scale):
        print(f"wrote {os.path.relpath(path)}")
    print("\n".join(count_lines()))
