"""Bytes, speed and memory of the patch codecs; prints Markdown.

    python bench/pulse_codec.py                        sizes and MB/s at several densities, beside copy and xxh3
    python bench/pulse_codec.py --checkpoint-gb 4      peak memory of `diff` and `apply` on files of that size
    python bench/pulse_codec.py --old A --new B        the same for two real checkpoints (files or folders)
    python bench/pulse_codec.py --chain V0 V1 V2 ...   all codecs along a chain of BF16 checkpoints (`synthetic`: ours)

Run it alone on the machine: `OMP_NUM_THREADS=2` is what the figures mean by two cores.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from lowcomm.pulse import measure, synthetic
from lowcomm.pulse.checkpoint import Checkpoint

CODECS = ("paper", "packed")
LINKS = (0.1, 1, 10, 100)  # Gbit/s


def markdown(rows: list[dict]) -> str:
    head = list(rows[0])
    lines = [head, ["---"] * len(head)]
    lines += [
        [f"{v:,.2f}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else v for v in r.values()]
        for r in rows
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def link_seconds(row: dict, dense: float) -> dict:
    """Encode + transfer + apply, with nothing overlapped."""
    compute = dense / 1e6 * (1 / row["diff+encode MB/s"] + 1 / row["apply+verify MB/s"])
    return {f"{g} Gbit/s, s": compute + 8 * row["bytes"] / (g * 1e9) for g in LINKS}


def sizes(megabytes: int, repeats: int) -> None:
    rows, links = [], []
    for delta in (3e-8, 1e-7, 3.4e-7, 1e-6, 1e-5):
        old, new = measure.gaussian(megabytes, delta)
        for row in measure.codecs(old, new, CODECS, repeats):
            rows.append(row)
            links.append({"codec": row["codec"], "density %": row["density %"], **link_seconds(row, megabytes * 1e6)})
    print(f"Gaussian weights, {megabytes} MB BF16, {torch.get_num_threads()} threads\n")
    print(markdown(rows), "\n")
    print(markdown(links), "\n")
    print(markdown([measure.plain(new, repeats)]))


def bf16(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """A BF16 checkpoint in memory; other dtypes as plain words."""
    with Checkpoint(path) as state:
        words = {n: state.read(n, 0, e.numel).reshape(e.shape) for n, e in state.entries.items()}
        return {n: bf16(w) if state.entries[n].dtype == "BF16" else torch.from_numpy(w) for n, w in words.items()}


def real(old: Path, new: Path, repeats: int) -> None:
    print(markdown(measure.codecs(tensors(old), tensors(new), CODECS, repeats)))


def write_checkpoint(file: Path, gigabytes: float, new: bool) -> None:
    """Four tensors, the largest a quarter of the file; a tile of 64 MB repeated, about 1 % changed in the new one."""
    tile = synthetic.weights(32 << 20)
    if new:
        tile = synthetic.update(tile, 3.4e-7)
    columns = 1 << 14
    rows = int(gigabytes * 1e9) // 2 // columns // 4
    header, size = {}, rows * columns * 2
    for i in range(4):
        header[f"w{i}"] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [i * size, (i + 1) * size]}
    text = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        left = 4 * size
        while left:
            left -= out.write(memoryview(tile).cast("B")[: min(left, tile.nbytes)])


def peak(arguments: list[str]) -> tuple[float, float]:
    """(MB of resident memory at the peak, seconds) of a command of ours in a process of its own."""
    # not ru_maxrss, which a child inherits from a large parent
    code = (
        "import sys; from lowcomm.pulse.__main__ import main; status = main(sys.argv[1:]);"
        "print([x.split()[1] for x in open('/proc/self/status') if x.startswith('VmHWM')][0]); sys.exit(status)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1]) * 1.024e-3, time.perf_counter() - start


def memory(gigabytes: float, folder: str | None) -> None:
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place)
        for name in ("old", "new"):
            write_checkpoint(path / f"{name}.safetensors", gigabytes, name == "new")
        old, new, out = (str(path / f"{n}.safetensors") for n in ("old", "new", "out"))
        start, _ = peak(["bench", "--megabytes", "1", "--repeats", "1"])
        for codec in CODECS:
            patch = str(path / f"{codec}.pulse")
            diff = peak(["diff", old, new, "-o", patch, "--codec", codec])
            apply = peak(["apply", old, patch, "-o", out, "--force"])
            rows.append(
                {
                    "codec": codec,
                    "patch bytes": Path(patch).stat().st_size,
                    "diff peak MB": diff[0],
                    "diff s": diff[1],
                    "apply peak MB": apply[0],
                    "apply s": apply[1],
                }
            )
            Path(out).unlink()
        largest = max(np.prod(e.shape) * e.layout.width for e in Checkpoint(old).entries.values())
    print(f"{gigabytes} GB, largest tensor {largest / 1e6:.0f} MB, {torch.get_num_threads()} threads;")
    print(f"the program alone (imports, 1 MB of weights): {start:.0f} MB\n")
    print(markdown(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--checkpoint-gb", type=float)
    parser.add_argument("--folder", help="where the test checkpoints go (three times their size)")
    parser.add_argument("--chain", nargs="+")
    parser.add_argument("--lr", type=float, default=3e-6, help="of the synthetic chain")
    parser.add_argument("--old", type=Path)
    parser.add_argument("--new", type=Path)
    args = parser.parse_args()
    if args.chain:
        ours = synthetic.chain(args.megabytes * 500_000, 10, args.lr)
        versions = map(tensors, args.chain) if args.chain != ["synthetic"] else ({"w": bf16(bits)} for bits in ours)
        print(markdown(measure.chain(versions)))
    elif args.checkpoint_gb:
        memory(args.checkpoint_gb, args.folder)
    elif args.old and args.new:
        real(args.old, args.new, args.repeats)
    else:
        sizes(args.megabytes, args.repeats)


if __name__ == "__main__":
    main()
