"""Write data sets as JSONL files that training reads without a network and without running anything.

    python -m tools.fetch NAME|all --output data/                          the sets of the paper's experiments
    python -m tools.fetch humaneval|mbpp|mbppplus --from FILE --to FILE    a local file whose tests are code, converted

Sources and splits are those of the authors' scripts (docs/reproduce.md). A row is written if it loads as a problem, and
in a training set if no evaluation set of its kind has the question.
"""

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from records.console import errors_in_one_line, say
from tasks import code_data, math_env
from tasks.data import UNREADABLE, Row, hub, normalize_question, read_rows
from tasks.sandbox import set_mode, use_bubblewrap
from tools.convert import READERS, plain_row

MATHEMATICS = ("problem", "question", "answer", "final_answer", "error", "is_multiple_answer", "unit", "id")  # kept


class Source(NamedTuple):
    """The rows of a file: a split of a data set on the hub, or a JSONL file in it."""

    kind: str  # "mathematics" or "code"
    path: str
    split: str
    config: str | None = None
    part: slice = slice(None)  # of its rows
    train: bool = False


APPS, CONTESTS, LIVE = "codeparrot/apps", "deepmind/code_contests", "livecodebench/code_generation_lite"
FILES = {  # first those without which no training set is written
    "aime24": Source("mathematics", "Maxwell-Jia/AIME_2024", "train"),
    "aime25": Source("mathematics", "yentinglin/aime_2025", "train"),
    "olympiadbench": Source("mathematics", "Hothan/OlympiadBench", "train", "OE_TO_maths_en_COMP"),
    "apps_test": Source("code", APPS, "test.jsonl", part=slice(500)),
    "code_contests_test": Source("code", CONTESTS, "test"),
    "livecodebench_v6": Source("code", LIVE, "test6.jsonl"),
    "polaris": Source("mathematics", "POLARIS-Project/Polaris-Dataset-53K", "train", train=True),
    "apps_train": Source("code", APPS, "test.jsonl", part=slice(500, 4500), train=True),  # from its test file too
    "apps_train_easier": Source("code", APPS, "train.jsonl", train=True),
    "code_contests_train": Source("code", CONTESTS, "train", train=True),
}
SETS = ("polaris", "aime24", "aime25", "olympiadbench", "apps", "code_contests", "livecodebench_v6")  # names begin so


def usable(source: Source, taken: set[str], counts: Counter[str]) -> Iterator[Row]:
    """The rows that load and are not `taken`. All are counted, by what was wrong."""
    load_dataset = hub(source.path).load_dataset
    if source.split.endswith(".jsonl"):
        files = {"rows": f"hf://datasets/{source.path}/{source.split}"}
        rows = load_dataset("json", data_files=files, split="rows")
    else:
        rows = load_dataset(source.path, source.config, split=source.split)
    for number in range(len(rows))[source.part]:
        row, reason = dict(rows[number]), "rows"
        try:
            if source.kind == "mathematics":
                row = {name: value for name, value in row.items() if name.lower() in MATHEMATICS}
            elif not (row := plain_row(code_data.read_problem(row)))["tests"]:
                reason = "left out: no tests"
            if question_of(row) in taken:
                reason = "left out: also in an evaluation set"
        except UNREADABLE:
            reason = "left out: unreadable"
        counts[reason] += 1
        if reason == "rows":
            yield row


def question_of(row: Row) -> str:
    """The normalised question of a row to write. ValueError if it is no problem."""
    return normalize_question(row["question"] if "tests" in row else math_env.read_problem(row).question)


def write(file: str, folder: Path) -> None:
    """Write one of `FILES`; before a training set, missing evaluation sets of its kind."""
    source, taken = FILES[file], set[str]()
    for other, evaluation in FILES.items():
        if source.train and not evaluation.train and evaluation.kind == source.kind:
            if not (path := folder / f"{other}.jsonl").exists():
                write(other, folder)
            taken |= set(map(question_of, read_rows(str(path))))
    counts = Counter(rows=0)
    save(folder / f"{file}.jsonl", usable(source, taken, counts))
    say(f"{folder / file}.jsonl: {'; '.join(f'{count} {what}' for what, count in counts.items())}")


def save(path: Path, rows: Iterable[Row]) -> None:
    """Write all rows or nothing. ValueError when there are none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        with open(part := Path(folder, path.name), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if not part.stat().st_size:
            raise ValueError(f"{path}: not a single row is usable")
        part.replace(path)


def convert_file(name: str, source: str, target: Path) -> None:
    """Rows that cannot be converted are left out and named."""
    use_bubblewrap()
    rows = read_rows(source)

    def converted(row: Row) -> Row | None:
        try:
            return {"task_id": row.get("task_id"), **READERS[name](row)}
        except (*UNREADABLE, StopIteration, SyntaxError) as error:
            say(f"left out {row.get('task_id')}: {type(error).__name__}: {error}")
            return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kept = [row for row in pool.map(converted, rows) if row]
    save(target, kept)
    say(f"{target}: {len(kept)} of {len(rows)} rows")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.fetch", description=(__doc__ or "").split("\n")[0])
    names = [*SETS, "all", *READERS]
    parser.add_argument("names", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--output", default="data", metavar="DIR", help="folder for the files (default: data)")
    parser.add_argument("--from", dest="source", metavar="FILE", help=f"a file of {', '.join(READERS)}")
    parser.add_argument("--to", metavar="FILE", help="the converted file")
    parser.add_argument("--sandbox", default="auto", help="where its programs run: auto (bubblewrap) or rlimit")
    given = parser.parse_args(argv)
    convert = READERS.keys() & given.names
    if convert and not (len(given.names) == 1 and given.source and given.to):
        parser.error(f"{', '.join(READERS)}: one name, with --from FILE and --to FILE")
    with errors_in_one_line("tools.fetch"):
        set_mode(given.sandbox)
        if convert:
            convert_file(given.names[0], given.source, Path(given.to))
        for file in FILES:
            if "all" in given.names or file.startswith(tuple(given.names)):
                write(file, Path(given.output))


if __name__ == "__main__":
    main()
