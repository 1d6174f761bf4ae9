"""Write the data sets of the paper's experiments as JSONL files: python -m tools.fetch NAME|all --output data/

Sources and splits are those of the authors' scripts (docs/reproduce.md). This needs a network and the optional package
`datasets`; training then needs neither. A row is written as in its source, without the fields that are never read, and
only if it loads as a problem. A training set is written after the evaluation sets of its kind, without any question
that is in one of them. What is left out is counted, on the console and in `sources.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks import code_data, math_env
from tasks.code_grading import GOLDEN_TESTS
from tasks.data import Row, normalize_question

SOLUTIONS = 5  # reference programs a problem keeps; the first that passes its tests is the one that is used
KEEP = {  # format -> fields that are written, in any case
    "mathematics": ("problem", "question", "answer", "final_answer", "error", "is_multiple_answer", "unit", "id"),
    "APPS": ("question", "input_output", "solutions", "starter_code", "difficulty", "url"),
    "CodeContests": ("name", "description", "public_tests", "private_tests", "generated_tests", "solutions"),
    "LiveCodeBench": (
        "question_id", "question_content", "public_test_cases", "private_test_cases", "starter_code", "metadata",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where the rows of a file come from: a data set of the hub, or one JSONL file in it.

    split: the part to take; if empty, the first there is of test, validation, dev and train, as the authors do. first,
    last: which of its rows.
    """

    format: str
    path: str
    config: str | None = None
    file: str = ""
    split: str = ""
    first: int = 0
    last: int | None = None
    train: bool = False


APPS, CONTESTS, LIVE = "codeparrot/apps", "deepmind/code_contests", "livecodebench/code_generation_lite"
SETS: dict[str, dict[str, Source]] = {  # name on the command line -> files
    "polaris": {"polaris": Source("mathematics", "POLARIS-Project/Polaris-Dataset-53K", split="train", train=True)},
    "aime24": {"aime24": Source("mathematics", "Maxwell-Jia/AIME_2024")},
    "aime25": {"aime25": Source("mathematics", "yentinglin/aime_2025")},
    "olympiadbench": {"olympiadbench": Source("mathematics", "Hothan/OlympiadBench", config="OE_TO_maths_en_COMP")},
    "apps": {  # both parts are from its test file; `easier` is its own training file
        "apps_test": Source("APPS", APPS, file="test.jsonl", last=500),
        "apps_train": Source("APPS", APPS, file="test.jsonl", first=500, last=4500, train=True),
        "apps_train_easier": Source("APPS", APPS, file="train.jsonl", train=True),
    },
    "code_contests": {
        "code_contests_test": Source("CodeContests", CONTESTS, split="test"),
        "code_contests_train": Source("CodeContests", CONTESTS, split="train", train=True),
    },
    "livecodebench_v6": {"livecodebench_v6": Source("LiveCodeBench", LIVE, file="test6.jsonl")},
}
FILES = {file: source for files in SETS.values() for file, source in files.items()}


def load(source: Source) -> Iterable[Row]:
    """The rows of a source, one by one. ImportError without `datasets`; the package's own errors without a network."""
    try:
        import datasets
    except ImportError:
        raise ImportError("the data sets come from the hub through a package: pip install datasets") from None
    if source.file:
        files = {"rows": f"hf://datasets/{source.path}/{source.file}"}
        rows = datasets.load_dataset("json", data_files=files, split="rows")
    elif source.split:
        rows = datasets.load_dataset(source.path, source.config, split=source.split)
    else:
        parts = datasets.load_dataset(source.path, source.config)
        rows = next(parts[split] for split in ("test", "validation", "dev", "train") if split in parts)
    return (dict(rows[number]) for number in range(len(rows))[source.first : source.last])


def question_of(row: Row, format: str) -> str:
    """The normalised question of a row. Raises if the row is useless for both training and evaluation."""
    if format == "mathematics":
        return normalize_question(math_env.read_problem(row).question)
    (read,) = [read for name, _, read in code_data.FORMATS if name == format]
    problem = read(row) if row.get("input_output", True) else None
    if problem is None or not problem.tests:
        raise LookupError("no tests")
    return normalize_question(problem.question)


def shorten(row: Row, format: str) -> Row:
    """A row with the fields that are read, and no more tests and reference programs than are ever run."""
    row = {name: value for name, value in row.items() if name.lower() in KEEP[format]}
    if format == "APPS" and row.get("solutions"):
        row["solutions"] = json.dumps(json.loads(row["solutions"])[:SOLUTIONS])
    if format == "CodeContests":
        left = GOLDEN_TESTS
        for kind in ("public_tests", "private_tests", "generated_tests"):
            row[kind] = {side: list(row[kind][side])[:left] for side in ("input", "output")}
            left -= len(row[kind]["input"])
        pairs = zip(row["solutions"]["language"], row["solutions"]["solution"], strict=True)
        python = [code for language, code in pairs if language in (3, "PYTHON3")][:SOLUTIONS]
        row["solutions"] = {"language": [3] * len(python), "solution": python}
    return row


UNUSABLE = (AttributeError, LookupError, RecursionError, TypeError, ValueError, pickle.UnpicklingError, zlib.error)


def usable(source: Source, taken: set[str], counts: Counter[str]) -> Iterator[Row]:
    """The rows that load and whose question is not `taken`. Counts them, and the others by what was wrong."""
    for row in load(source):
        try:
            row = shorten(row, source.format)
            question = question_of(row, source.format)
        except UNUSABLE as error:
            counts["no tests" if error.args == ("no tests",) else f"unreadable: {type(error).__name__}"] += 1
            continue
        reason = "also in an evaluation set" if question in taken else "rows"
        counts[reason] += 1
        if reason == "rows":
            yield row


def write(file: str, folder: Path) -> None:
    """Write one file of `FILES`; before a training set, the evaluation sets of its kind that are missing.

    Raises ImportError without `datasets` and ValueError when not a single row is usable.
    """
    source, taken = FILES[file], set()
    for other, evaluation in FILES.items() if source.train else ():
        same_kind = (evaluation.format == "mathematics") == (source.format == "mathematics")
        if same_kind and not evaluation.train:
            path = folder / f"{other}.jsonl"
            if not path.exists():
                write(other, folder)
            with path.open(encoding="utf-8", newline="\n") as lines:
                taken |= {question_of(json.loads(line), evaluation.format) for line in lines}
    counts: Counter[str] = Counter(rows=0)
    path, part, digest = folder / f"{file}.jsonl", folder / f"{file}.jsonl.part", hashlib.sha256()
    with part.open("wb") as out:
        for row in usable(source, taken, counts):
            line = json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n"
            digest.update(line)
            out.write(line)
    if not counts["rows"]:
        part.unlink()
        raise ValueError(f"{file}: not a single row of {source.path} is usable ({dict(counts)})")
    os.replace(part, path)
    log = folder / "sources.json"  # where a folder is from, and whether it equals another one
    known = json.loads(log.read_text(encoding="utf-8")) if log.exists() else {}
    known[file] = {**asdict(source), "counts": counts, "sha256": digest.hexdigest()}
    log.write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")
    left_out = "; ".join(f"left out {count} ({why})" for why, count in counts.items() if why != "rows")
    print(f"{path}: {counts['rows']} rows; {left_out or 'nothing left out'}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.fetch", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="+", choices=[*SETS, "all"], metavar="NAME", help=f"all, {', '.join(SETS)}")
    parser.add_argument("--output", default="data", metavar="DIR", help="folder for the files (default: data)")
    arguments = parser.parse_args(argv)
    names = SETS if "all" in arguments.names else arguments.names
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # tests of APPS hold integers of more digits than Python reads by default
    try:
        Path(arguments.output).mkdir(parents=True, exist_ok=True)
        for file in sorted((file for name in names for file in SETS[name]), key=lambda file: FILES[file].train):
            write(file, Path(arguments.output))
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"tools.fetch: error: {error}")


if __name__ == "__main__":
    main()
