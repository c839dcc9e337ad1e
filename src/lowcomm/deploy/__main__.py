"""python -m lowcomm.deploy [KEY=VALUE ...] [--json FILE]: measure, print, keep the record; skipped with a reason."""

import argparse
from pathlib import Path

from lowcomm.blocks import ConfigError
from lowcomm.deploy import door, report
from lowcomm.results import record


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m lowcomm.deploy", description="Utilisation and sync time over thin links, by patches and by files."
    )
    parser.add_argument("overrides", nargs="*", help="rates=[1,10,100] delay_ms=20 loss=0.01 ...: see conf/deploy.yaml")
    parser.add_argument("--json", type=Path, help="where to keep the record")
    args = parser.parse_args(argv)
    try:
        made = door.run(args.overrides)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
    except door.Unavailable as reason:
        print(f"skipped: {reason}")
        return
    print(report.table(made))
    if args.json:
        record.write(args.json, made)


if __name__ == "__main__":
    main()
