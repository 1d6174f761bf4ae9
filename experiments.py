"""The paper's table of methods and its ablations with the tiny model, on CPU cores only.

    python experiments.py --quick                               methods and roles, 2 seeds, 20 steps
    python experiments.py --jobs 50 --time-limit 500            everything, on a large machine for a few minutes
    python experiments.py --tables credit --task file.py:Class  the rows of a table that a task of your own has
    python experiments.py --page docs/experiments.json          the tables of recorded results once more

Every training is a single-threaded `train.py` in a folder of --output-dir; options that are not listed below go to all.
Repeat the command after a stop: finished runs are kept, unfinished ones resume. At the end, at --time-limit or at
Ctrl-C, `experiments.md` and `experiments.json` are written there.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from options import parse
from records.console import errors_in_one_line, say
from records.run_folder import append_row, latest_checkpoint, read_object
from studies.results import collect, learning_curve, run_folder, table
from studies.rows import NEAR, SINGLE, TABLES, TURNS, Method, options_of

COMMON = "--device cpu --trees 0 --keep 1 --report-every 10 --save-every 10"


@dataclass(frozen=True)
class Plan:
    """Rows by heading, and `words` for train.py in all runs."""

    folder: Path
    seeds: Sequence[int]
    steps: int
    tables: Mapping[str, Sequence[Method]]
    words: Sequence[str] = ()
    agents: int = 2

    @property
    def runs(self) -> dict[Path, list[str]]:
        """The folders of all trainings, and their options of train.py."""
        names = dict.fromkeys(name for rows in self.tables.values() for row in rows for name in row.trainings)
        found = {}
        for seed in self.seeds:  # whole seeds first
            for name in names:
                folder = run_folder(self.folder, name, seed)
                options = [*COMMON.split(), *options_of(name, self.steps, self.agents), "--seed", str(seed)]
                found[folder] = [*self.words, *options, "--output-dir", str(folder)]
        return found


def make_plan(own: argparse.Namespace, words: Sequence[str]) -> Plan:
    """The rows that were asked for and whose roles and workflow the task has."""
    from prepare import levels_of  # takes seconds (torch)

    config = parse(words)
    team = levels_of(config).training_env.agents
    lacks = [] if config.task == "plan_path" and "--env-options" not in words else [NEAR]
    try:
        levels_of(parse([*words, *SINGLE.split()]))
    except ValueError:
        lacks.append(SINGLE)

    def fits(row: Method) -> bool:
        return {*row.team} <= {*team} and not any(word in " ".join(row.trainings) for word in lacks)

    seeds, steps, names = ([0, 1], 20, ("methods", "roles")) if own.quick else (range(5), 60, TABLES)
    tables = {name: rows for name in own.tables or names if (rows := list(filter(fits, TABLES[name])))}
    return Plan(own.output_dir, own.seeds or seeds, own.steps or steps, tables, words, len(team))


def finished(folder: Path, options: Sequence[str]) -> bool:
    steps = options[options.index("--steps") + 1]
    return [str(step) for step, *_ in learning_curve(folder)][-1:] == [steps]


def run_trainings(runs: Mapping[Path, Sequence[str]], parallel: int) -> list[str]:
    """Run trainings, `parallel` at a time, until all end or somebody interrupts. Returns what failed."""
    begun = list[subprocess.Popen]()

    def train(folder: Path) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.args").write_text(" ".join(runs[folder]), encoding="utf-8")
        command = [sys.executable, str(Path(__file__).with_name("train.py")), *runs[folder]]
        command += ["--resume"] if (folder / "config.json").exists() else []
        with open(folder / "train.log", "ab") as log:
            begun.append(process := subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        if code := process.wait():
            said = (folder / "train.log").read_text(encoding="utf-8", errors="replace").strip()
            return f"{folder} failed (exit {code}): {said.rpartition(chr(10))[2]}"
        return ""

    with ThreadPoolExecutor(parallel) as pool:
        try:
            return list(filter(None, tqdm(pool.map(train, runs), "trainings", len(runs))))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            print("some runs are not finished; the same command goes on with them")
            time.sleep(1)  # one may just be starting
            for process in begun:
                process.terminate()  # it saves first
    return []


def play_teams(plan: Plan) -> None:
    """Evaluate the rows that combine checkpoints of finished runs."""
    from evaluate import load_team
    from prepare import held_out

    teams = [(row, seed) for rows in plan.tables.values() for row in rows for seed in plan.seeds if row.team]
    for row, seed in tqdm(teams, "teams of checkpoints"):
        played = run_folder(plan.folder / "plays", row.label, seed)
        runs = {name: run_folder(plan.folder, name, seed) for name in row.trainings}
        if not learning_curve(played) and all(finished(run, plan.runs[run]) for run in runs.values()):
            team = [f"{agent}={latest_checkpoint(runs[name]) / who}" for agent, (name, who) in row.team.items()]
            words = [*plan.words, *COMMON.split(), "--max-turns", str(TURNS)]
            _, config, task, loaded = load_team(["--team", *team, *words])
            result = held_out(config, loaded, task, None)
            played.mkdir(parents=True, exist_ok=True)
            append_row(played / "evaluations.jsonl", {"step": plan.steps, "success": result.success, "n": result.n})


def run(plan: Plan, parallel: int) -> list[str]:
    """Train what is missing, play the teams of checkpoints, note where and when. Returns what failed."""
    for folder, options in plan.runs.items():  # before anything starts
        note = folder / "train.args"
        if (folder / "config.json").exists() and not (note.exists() and note.read_text() == " ".join(options)):
            raise ValueError(f"{folder} holds a run with other options: name another --output-dir, or delete it")
    started, missing = time.time(), {run: words for run, words in plan.runs.items() if not finished(run, words)}
    failures = run_trainings(missing, parallel)
    signal.alarm(0)  # there is time to play and to write
    play_teams(plan)
    session = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d", time.gmtime(started)),
        "minutes": (time.time() - started) / 60,
        "finished": sum(finished(run, words) for run, words in missing.items()),
        "jobs": parallel,
        "machine": f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    append_row(plan.folder / "sessions.jsonl", session)
    return failures


def main(argv: Sequence[str] | None = None) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter trainings")
    parser.add_argument("--tables", nargs="+", choices=TABLES, help="default: all of them (quick: methods roles)")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="default: 0 1 2 3 4 (quick: 0 1)")
    parser.add_argument("--steps", type=int, metavar="N", help="training steps of a run (default: 60; quick: 20)")
    parser.add_argument("--jobs", type=int, metavar="N", default=os.cpu_count(), help="runs at a time (default: cores)")
    parser.add_argument("--time-limit", type=int, metavar="SECONDS", default=0, help="then trainings stop")
    parser.add_argument("--output-dir", type=Path, default="runs/experiments", help="default: runs/experiments")
    parser.add_argument("--page", metavar="FILE", type=Path, help="train nothing: the tables of these results")
    own, words = parser.parse_known_args(argv)
    # for the children: one thread each, no GPU, no warning of tokenizers in forks
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
    for ending in (signal.SIGTERM, signal.SIGALRM):  # as Ctrl-C: the children end, and the table is written
        signal.signal(ending, signal.default_int_handler)
    with errors_in_one_line("experiments.py"):
        if own.jobs < 1 or not 0 <= own.time_limit < 2**31:
            raise ValueError(f"--jobs {own.jobs} --time-limit {own.time_limit}: at least 1 and 0")
        signal.alarm(own.time_limit)
        if own.page:
            path, failures, results = own.page, [], read_object(own.page)
            if "rows" not in results:
                raise ValueError(f"{path} holds no results of this command")
        else:
            plan = make_plan(own, words)
            path, failures = plan.folder / "experiments.json", run(plan, own.jobs)
            results = collect(plan.folder, plan.tables, plan.seeds, plan.steps)
            path.write_text(json.dumps(results, indent=1), encoding="utf-8")
        path.with_suffix(".md").write_text(page := table(results), encoding="utf-8")
        say(page)
        if failures:
            raise ValueError("; ".join(failures))


if __name__ == "__main__":
    main()
