"""How many answers a second are compared: `python benchmarks/math_equal.py FOLDER`, the folder of the benchmark files.

Every gold against itself in a box, against itself spelled another way, and against the next gold. Prints comparisons a
second (one process asking up to `math_env.WORKERS` others).
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tasks.math_env import score_answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    folder = parser.parse_args().folder
    score_answers([r"\boxed{x^2}"], ["x*x"])  # start a worker
    for name in ("gsm8k_test", "gsm8k_train", "aime24", "aime25", "math500", "olympiadbench"):
        lines = (Path(folder) / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        golds = [json.loads(line)["answer"].rpartition("####")[2].strip() for line in lines]
        answers = [*golds, *(f"{gold}.0" if gold.isdigit() else f" {gold} " for gold in golds), *golds[1:], golds[0]]
        start, cpu = time.perf_counter(), time.process_time()
        scores = score_answers([rf"Therefore the answer is \boxed{{{answer}}}." for answer in answers], golds * 3)
        seconds = time.perf_counter() - start
        print(
            f"{name:14s} {len(answers):6d} comparisons, {sum(scores) / len(scores):.3f} equal, {seconds:6.2f} s, "
            f"{len(answers) / seconds:8.0f} a second "
            f"({len(answers) / (time.process_time() - cpu):.0f} a second of this process's CPU)"
        )


if __name__ == "__main__":
    main()
