"""python -m lowcomm.deploy [KEY=VALUE ...] [--out FOLDER]: measure and print; skipped with a reason where it cannot be.

``--out`` keeps record.json, table.md and figure.svg; ``--render FOLDER`` makes the latter two again from the record.
"""

import argparse
from pathlib import Path

from lowcomm.blocks import ConfigError
from lowcomm.deploy import door, report
from lowcomm.results import record

CLAIM = {"paper": "pulsesync", "table": "deployment", "row": "ladder", "experiment": "pulsesync/deployment",
         "scale": "cpu", "tuned": None}  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """The command line; ``argv`` None: that of the process."""
    parser = argparse.ArgumentParser(
        "python -m lowcomm.deploy", description="Utilisation and sync time over thin links, by patches and by files."
    )
    parser.add_argument("overrides", nargs="*", help="rates=[1,10,100] delay_ms=20 loss=0.01 ...: see conf/deploy.yaml")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to keep record, table and figure")
    parser.add_argument("--render", type=Path, metavar="FOLDER", help="table and figure again, nothing is run")
    args = parser.parse_args(argv)
    if args.render:
        report.write(record.read(args.render / "record.json"), args.render)
        return
    try:
        made = door.run(args.overrides, CLAIM if args.out else None)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    except door.Unavailable as reason:
        print(f"skipped: {reason}")
        return
    print(report.table(made))
    if args.out:
        record.write(args.out / "record.json", made)
        report.write(made, args.out)


if __name__ == "__main__":
    main()
