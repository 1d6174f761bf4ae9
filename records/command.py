"""Command lines of the commands that read runs: errors name the option. It needs no torch, so --help is fast."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence

from records.values import nearest


def parse_args(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    limits: Mapping[str, tuple[float, float]] | None = None,
) -> argparse.Namespace:
    """As `parser.parse_args`. A mistyped option names the nearest one; `limits`: smallest and largest number by option.

    An option that was not given (None) is not checked.
    """
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        word = unknown[0].split("=")[0]
        hint = nearest(word, re.findall(r"--[a-z][a-z-]*", parser.format_usage()))
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    for name, (low, high) in (limits or {}).items():
        given = getattr(options, name.replace("-", "_"))
        for value in given if isinstance(given, list) else [given]:
            if value is not None and not low <= value <= high:  # NaN is in no range
                parser.error(f"--{name} {value}: {low} to {high}")
    return options
