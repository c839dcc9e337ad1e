"""python -m lowcomm.pulse diff|apply|verify|inspect|bench: patches between safetensors checkpoints.

Exit status: 0 done, 2 wrong use or a file that is not there, 3 stale base, 4 corrupt, 5 missing tensor or object,
6 unsupported. Output is written aside and renamed, so that what carries the final name is whole.
"""

import argparse
import mmap
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lowcomm.disk import writable
from lowcomm.pulse import measure, report
from lowcomm.pulse.checkpoint import Checkpoint
from lowcomm.pulse.codec import write
from lowcomm.pulse.errors import Corrupt, Missing, PatchError, StaleBase, Unsupported
from lowcomm.pulse.patch import Patch, decode
from lowcomm.pulse.receive import apply, verify
from lowcomm.pulse.state import digest

STATUS = {StaleBase: 3, Corrupt: 4, Missing: 5, Unsupported: 6}


def main(argv: list[str] | None = None) -> int:
    """Run one command (``argv`` None: the process's own) and return its exit status; a refusal goes to stderr."""
    args = _parser().parse_args(argv)
    try:
        args.run(args)
    except PatchError as e:
        print(f"error: {e}", file=sys.stderr)
        return next(status for kind, status in STATUS.items() if isinstance(e, kind))
    except (ValueError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m lowcomm.pulse", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(required=True)

    def command(run: Callable, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(run.__name__.strip("_"), help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--threads", type=int, help="default: OMP_NUM_THREADS, or all cores")
        return sub

    sub = command(_diff, "write the patch that turns checkpoint OLD into NEW (files, or folders of shards)")
    sub.add_argument("old", type=Path)
    sub.add_argument("new", type=Path)
    sub.add_argument("-o", "--output", type=Path, required=True)
    sub.add_argument("--codec", choices=["packed", "paper", "full"], default="packed")
    sub.add_argument("--base-version", type=int, default=0)
    sub.add_argument("--version", type=int, help="default: base version + 1")
    sub.add_argument("--force", action="store_true", help="overwrite the output")

    sub = command(_apply, "apply patches to a checkpoint, in order, and write the result")
    sub.add_argument("base", type=Path)
    sub.add_argument("patches", type=Path, nargs="+")
    sub.add_argument("-o", "--output", type=Path, required=True)
    sub.add_argument("--force", action="store_true", help="overwrite the output")

    sub = command(_verify, "check a patch, and that it fits a base or led to a target, without writing anything")
    sub.add_argument("patch", type=Path)
    sub.add_argument("--base", type=Path)
    sub.add_argument("--target", type=Path)

    sub = command(_inspect, "say what a patch changes and where")
    sub.add_argument("patch", type=Path)
    sub.add_argument("--base", type=Path, help="also show where in each tensor (picture)")
    sub.add_argument("--picture", type=Path, help="an .svg, .png or .pdf to write")
    sub.add_argument("--all", action="store_true", help="list unchanged tensors too")

    sub = command(_bench, "measure the codecs on weights with the statistics of fine-tuning")
    sub.add_argument("--megabytes", type=int, default=256)
    sub.add_argument("--delta", type=float, default=3.4e-7, help="scale of the updates; the default changes about 1 %%")
    sub.add_argument("--repeats", type=int, default=3)
    return parser


def _diff(args: argparse.Namespace) -> None:
    _spare(args.output, False, args.old, args.new)
    with Checkpoint(args.old) as old, Checkpoint(args.new) as new, aside(args.output, args.force) as part:
        with part.open("wb") as out, progress("diff", new.nbytes) as count:
            numbers = {"base_version": args.base_version, "version": args.version, "threads": args.threads}
            patch = write(out, old, new, args.codec, progress=count, **numbers)
            out.flush()
            os.fsync(out.fileno())
        size = part.stat().st_size
    print(report.summary(patch, size))


def _apply(args: argparse.Namespace) -> None:
    base = [args.base] if args.base.resolve() != args.output.resolve() else []  # which may go on as the result
    _spare(args.output, args.base.is_dir(), *args.patches, *base)
    Checkpoint(args.base).__exit__()  # its faults before a copy of it is made
    patches = [(file, _read(file)) for file in args.patches]
    with aside(args.output, args.force) as part:
        (shutil.copytree if args.base.is_dir() else shutil.copyfile)(args.base, part)
        with Checkpoint(part, writable=True) as state:
            for file, patch in patches:
                apply(state, patch, args.threads)
                print(f"{file.name}: now version {patch.version}, {patch.target_digest.hex()}")
            state.flush()


def _verify(args: argparse.Namespace) -> None:
    patch = _read(args.patch)
    if args.base:
        with Checkpoint(args.base) as base:
            verify(base, patch, args.threads)
    if args.target:
        with Checkpoint(args.target) as target:
            if digest(target, args.threads) != patch.target_digest:
                raise StaleBase(f"{args.target} does not hold the target of this patch, version {patch.version}")
    fits = [f"fits base {args.base}"] if args.base else []
    fits += [f"leads to {args.target}"] if args.target else []
    print(", ".join(["the patch is whole", *fits]))


def _inspect(args: argparse.Namespace) -> None:
    patch = _read(args.patch)
    print(report.summary(patch, args.patch.stat().st_size))
    print(report.table(patch, args.all))
    if not args.picture:
        return
    with aside(args.picture, force=True) as part:
        if args.base:
            with Checkpoint(args.base) as base:
                report.picture(patch, part, base)
        else:
            report.picture(patch, part)


def _bench(args: argparse.Namespace) -> None:
    old, new = measure.gaussian(args.megabytes, args.delta)
    rows = measure.codecs(old, new, ("paper", "packed"), args.repeats, args.threads)
    print(measure.show(rows))
    print(measure.show([measure.plain(new, args.repeats)]))


def _read(file: Path) -> Patch:
    if file.is_dir():
        raise ValueError(f"{file} is a folder: give a patch, the one file that diff wrote to its --output")
    if not file.is_file():
        raise FileNotFoundError(f"{file}: there is no such patch; diff writes one to its --output")
    with file.open("rb") as f:  # an anchor is as large as the weights
        data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if file.stat().st_size else b""
    try:
        return decode(data)
    except (Corrupt, Unsupported) as e:
        raise type(e)(f"{file}: {e}") from e


def _spare(output: Path, folder: bool, *inputs: Path) -> None:
    if output.is_dir() and not folder:  # --force would remove all that is in it
        raise ValueError(f"{output} is a folder, and one file is written: give its name")
    for path in inputs:
        same = output.exists() and path.exists() and output.samefile(path)
        if same or output.resolve() in path.resolve().parents:
            raise ValueError(f"{output}: the output would replace an input; choose another output")


@contextmanager
def aside(path: Path, force: bool) -> Iterator[Path]:
    """A path beside ``path`` that takes its name if all went well, and is removed if not.

    Raises FileExistsError if ``path`` is there already without ``force``, FileNotFoundError where its folder is not,
    OSError naming ``path`` when the disk takes no more.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}; make it, or choose another output")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists: use --force to replace it")
    part = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        with writable(str(path), "free some space, or choose another output"):
            yield part
            if path.is_dir():
                shutil.rmtree(path)
            part.replace(path)
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Percent and MB/s on a terminal's error stream, nothing elsewhere."""
    done, start, shown = 0, time.monotonic(), 0.0

    def count(n: int) -> None:
        nonlocal done, shown
        done += n
        now = time.monotonic()
        if sys.stderr.isatty() and now - shown > 0.2:
            shown = now
            rate = done / 1e6 / max(now - start, 1e-9)
            print(f"\r{what}: {100 * done / max(total, 1):5.1f} %  {rate:,.0f} MB/s ", end="", file=sys.stderr)

    yield count
    if shown:
        print(file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
