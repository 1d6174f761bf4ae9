"""One self-contained HTML page of a run: learning curves, groups, boards, and the tree of candidates itself.

    python report.py runs/NAME                        writes runs/NAME/report.html; open it in any browser
    python report.py runs/NAME --output page.html
    python report.py runs/A runs/B ...                their curves in one page, runs/comparison.html

It also works during the run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from records.command import parse_args
from records.compare import comparison
from records.page import page, read_run


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="folders that train.py wrote")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: as above)")
    arguments = parse_args(parser, argv)
    first = arguments.runs[0]
    try:
        runs = [read_run(folder) for folder in arguments.runs]
        several = len(runs) > 1
        output = arguments.output or (first.resolve().parent / "comparison.html" if several else first / "report.html")
        output.write_text(comparison(runs) if several else page(runs[0]), encoding="utf-8")
    except (ValueError, OSError) as error:
        sys.exit(f"report.py: error: {error}")
    steps, trees = sum(len(run.metrics) for run in runs), sum(len(run.trees) for run in runs)
    of = f"{len(runs)} runs, {steps} steps" if several else f"{steps} steps, {trees} recorded trees"
    print(f"{output}: {of}, {output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
