"""One self-contained HTML page of a run: learning curves, groups, and the tree of candidates itself.

    python report.py runs/NAME                        writes runs/NAME/report.html; open it in any browser
    python report.py runs/NAME --output page.html

It also works during the run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from records.command import parse_args
from records.page import page, read_run


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", type=Path, help="the folder that train.py wrote")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: RUN/report.html)")
    arguments = parse_args(parser, argv)
    try:
        run = read_run(arguments.run)
        output = arguments.output or arguments.run / "report.html"
        output.write_text(page(run), encoding="utf-8")
    except (ValueError, OSError) as error:
        sys.exit(f"report.py: error: {error}")
    print(f"{output}: {len(run.metrics)} steps, {len(run.trees)} recorded trees, {output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
