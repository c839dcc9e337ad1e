"""python -m lowcomm.patches [KEY=VALUE ...]: measure once and print; `--json FILE` also keeps the record."""

import argparse
import os
from pathlib import Path

from lowcomm.blocks import ConfigError
from lowcomm.patches import door
from lowcomm.results import record


def main(argv: list[str] | None = None) -> None:
    """The command: measure once, print what a person wants to know, keep the record where asked."""
    parser = argparse.ArgumentParser(
        "python -m lowcomm.patches", description="Bytes and seconds of the patches between versions of some weights."
    )
    parser.add_argument("overrides", nargs="*", help="source=gaussian|adam|training|store codec=... repeats=N ...")
    parser.add_argument("--json", type=Path, help="where to keep the record")
    args = parser.parse_args(argv)
    if args.json:  # before the measurement
        place = next(folder for folder in args.json.absolute().parents if folder.exists())
        if not (place.is_dir() and os.access(place, os.W_OK)):
            raise SystemExit(f"error: --json {args.json}: {place} can't be written; choose another place")
    try:
        made = door.run(args.overrides)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    print(door.report(made))
    if args.json:
        record.write(args.json, made)


if __name__ == "__main__":
    main()
