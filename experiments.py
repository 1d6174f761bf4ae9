"""The paper's table of methods and its ablations with the tiny model on plan_path or another task, on CPU cores only.

    python experiments.py --quick                 methods and a few other rows, 2 seeds: within 20 minutes on 2 cores
    python experiments.py                         everything, 5 seeds
    python experiments.py --jobs 50 --time-limit 500      the same on a large machine that you have for only minutes
    python experiments.py --quick --task file.py:Class      the rows that a task of your own has
    python experiments.py --report-only           rebuild table and figure from the existing runs

Every training is a single-threaded `train.py` with its own folder under --output-dir. Repeat the command to continue
after a stop: finished runs are kept, unfinished ones resume. At the end, or at --time-limit, `experiments.md`,
`experiments.svg` and `experiments.json` are written there.

Equal budgets: a step samples at most BUDGET candidates, environments * agents * turns * K, whatever the row (less when
environments are solved early). Every row is the greedy success on the same held-out levels, played with TURNS turns
(one in the row with one turn). Rows and sizes are in studies/rows.py.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tqdm import tqdm

from envs import make_env
from records.command import parse_args
from records.reading import nearest_folder, read_object
from studies.results import collect, learning_curve, machine, play_path, run_folder, table
from studies.rows import ABLATIONS, AGENTS, CLAIMS, METHODS, NEAR, NOTES, ROLES, TRAININGS, TURNS, Method
from tasks.levels import parse_pairs
from tasks.registry import located

EVERY = 10  # steps between held-out evaluations and checkpoints
SET_UP = 40  # seconds of a run apart from its steps: imports, warm start, evaluations
COMMON = f"--device cpu --trees 0 --keep 1 --report-every {EVERY} --save-every {EVERY}"
LIMITS = {"jobs": (1, 1000), "steps": (1, 10**6), "time-limit": (1, 10**7), "seeds": (0, 2**16 - 1)}  # of the options


@dataclass(frozen=True)
class Plan:
    """What is to be run: everything that the results depend on."""

    folder: Path
    seeds: tuple[int, ...]
    steps: int
    quick: bool = False
    task: tuple[str, ...] = ()  # options of train.py that say which task; none: plan_path

    def save(self) -> Plan:
        """Save the plan in the folder; returns it with the seeds of earlier commands added."""
        before = Plan.load(self.folder).seeds if (self.folder / "plan.json").exists() else ()
        plan = replace(self, seeds=tuple(sorted({*before, *self.seeds})))
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {"seeds": plan.seeds, "steps": plan.steps, "quick": plan.quick, "task": plan.task}
        (self.folder / "plan.json").write_text(json.dumps(content), encoding="utf-8")
        return plan

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """The plan that a folder was made with. FileNotFoundError when it holds none."""
        if not (folder / "plan.json").is_file():
            hint = nearest_folder(folder, "plan.json")
            raise FileNotFoundError(f"{folder} holds no experiments (no plan.json): run them first{hint}")
        content = read_object(folder / "plan.json", ("seeds", "steps", "quick"))
        task = content.get("task", ())
        return cls(folder, tuple(content["seeds"]), content["steps"], content["quick"], tuple(task))

    @property
    def sections(self) -> dict[str, list[Method]]:
        """Rows of the table by heading, without those that need roles or a workflow that the task does not have."""
        agents, alone = (agents_of(self.task, workflow) for workflow in ("mas", "single"))
        boards = not self.task  # what the planner sees is an option of plan_path

        def fits(row: Method) -> bool:
            uses = [TRAININGS[name] for name in row.trainings]
            has_workflow = alone or all(training.agents > 1 for training in uses)
            has_option = boards or not any(NEAR in training.options for training in uses)
            return {*row.team} <= {*agents} and has_workflow and has_option

        def wanted(rows: list[Method]) -> list[Method]:
            return [row for row in rows if fits(row) and (row.quick or row in METHODS or not self.quick)]

        return {"Methods": wanted(METHODS), "Roles": wanted(ROLES), "Ablations": wanted(ABLATIONS)}

    @property
    def rows(self) -> list[Method]:
        return [row for rows in self.sections.values() for row in rows]

    @property
    def jobs(self) -> list[Job]:
        """Every training with every seed, the longest first, so that no long one is left at the end."""
        names = dict.fromkeys(name for row in self.rows for name in row.trainings)
        jobs = [self.job(name, seed) for name in names for seed in self.seeds]
        return sorted(jobs, key=lambda job: -TRAININGS[job.name].cost)

    def job(self, name: str, seed: int) -> Job:
        return Job(name, seed, self)


@dataclass(frozen=True)
class Job:
    """One training with one seed: a run folder of train.py."""

    name: str
    seed: int
    plan: Plan

    @property
    def folder(self) -> Path:
        return run_folder(self.plan.folder, self.name, self.seed)

    @property
    def options(self) -> list[str]:
        """The command line of train.py (without --resume)."""
        kind = TRAININGS[self.name]
        agents = len(agents_of(self.plan.task, "mas")) if kind.agents == AGENTS else 1
        envs = max(1, kind.envs * kind.agents // agents)
        sizes = f"--envs-per-step {envs} --max-turns {kind.turns} --num-candidates {kind.candidates}"
        run = ["--steps", str(self.plan.steps), "--seed", str(self.seed), "--output-dir", str(self.folder)]
        return [*COMMON.split(), *self.plan.task, *sizes.split(), *kind.options.split(), *run]

    @property
    def finished(self) -> bool:
        curve = learning_curve(self.folder)
        return bool(curve) and curve[-1]["step"] == self.plan.steps

    @property
    def steps_done(self) -> int:
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0


# ------------------------------------------------------------------------------------------------------------ training


def check_folders(plan: Plan) -> None:
    """ValueError when a folder holds a run with other options: its numbers would not belong in this table."""
    from options import all_options, parse  # takes seconds (torch), and --help should not

    for job in plan.jobs:
        if (job.folder / "config.json").exists():
            saved = read_object(job.folder / "config.json")
            for name, value in all_options(*parse(job.options)).items():
                if name not in ("output_dir", "resume") and saved.get(name) != value:
                    raise ValueError(
                        f"{job.folder} holds a run with {name}={saved.get(name)!r}, not {value!r}: "
                        "name another --output-dir, or delete it"
                    )


def start_training(job: Job) -> subprocess.Popen:
    """train.py in a process of its own; what it prints goes to train.log in its folder."""
    job.folder.mkdir(parents=True, exist_ok=True)
    resume = ["--resume"] if (job.folder / "config.json").exists() else []
    with open(job.folder / "train.log", "ab") as log:
        command = [sys.executable, str(Path(__file__).with_name("train.py")), *job.options, *resume]
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def run_trainings(
    jobs: Sequence[Job],
    parallel: int,
    seconds: float = math.inf,
    start: Callable[[Job], subprocess.Popen] = start_training,
    poll: float = 1.0,
) -> list[str]:
    """Run unfinished trainings, `parallel` at a time, for at most `seconds`. Returns a message for each that failed.

    No process is left behind, however this ends.
    """
    waiting = [job for job in jobs if not job.finished]
    running: list[tuple[Job, subprocess.Popen]] = []
    failures: list[str] = []
    deadline = time.monotonic() + seconds
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left{postfix}"
    total = sum(job.plan.steps * TRAININGS[job.name].cost for job in jobs)
    bar = tqdm(desc="experiments", total=total, initial=seconds_done(jobs), bar_format=form)
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < parallel:
                running.append((waiting[0], start(waiting.pop(0))))
            time.sleep(poll)
            for job, process in [pair for pair in running if pair[1].poll() is not None]:
                running.remove((job, process))
                if process.returncode:
                    failures.append(f"{job.folder} failed (exit {process.returncode}): {last_line(job.folder)}")
            bar.n = seconds_done(jobs)
            bar.set_postfix_str(f"{sum(job.finished for job in jobs)}/{len(jobs)} runs")
    finally:
        bar.close()
        stop([process for _, process in running])
    if waiting or running:
        print(f"{len(waiting) + len(running)} runs are not finished; the same command goes on with them")
    return failures


def seconds_done(jobs: Sequence[Job]) -> float:
    """The cost of the finished steps of all runs, in core-seconds: counting steps alone would be a poor clock."""
    return sum(min(job.steps_done, job.plan.steps) * TRAININGS[job.name].cost for job in jobs)


def stop(processes: Sequence[subprocess.Popen]) -> None:
    """End processes; a training can be resumed no matter when it is stopped."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_line(folder: Path) -> str:
    log = folder / "train.log"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it printed nothing"


# ------------------------------------------------------------------------------------------------- teams of checkpoints


def play_teams(plan: Plan, parallel: int) -> None:
    """Evaluate the rows that combine checkpoints, where their runs are finished."""
    tasks = []
    for row in plan.rows:
        for seed in plan.seeds:
            jobs = [plan.job(name, seed) for name in row.trainings]
            path = play_path(plan.folder, row, seed)
            if row.team and not path.exists() and all(job.finished for job in jobs):
                sources = {agent: (str(plan.job(name, seed).folder), who) for agent, (name, who) in row.team.items()}
                tasks.append((sources, str(path)))
    if tasks:
        (plan.folder / "plays").mkdir(exist_ok=True)
        context = multiprocessing.get_context("spawn")  # a forked torch may hang
        with ProcessPoolExecutor(min(parallel, len(tasks)), context) as pool:
            words = [*COMMON.split(), *plan.task]
            futures = [pool.submit(play_team, *task, words) for task in tasks]
            for future in tqdm(futures, "teams of checkpoints"):
                future.result()


def play_team(sources: dict[str, tuple[str, str]], path: str, options: Sequence[str]) -> None:
    """Held-out success of a team whose agents are played by policies of finished runs: agent -> (run, policy)."""
    from evaluate import load_team
    from prepare import held_out
    from records.checkpoint import latest_checkpoint, write_text

    folders = [f"{agent}={latest_checkpoint(Path(run)) / policy}" for agent, (run, policy) in sources.items()]
    _, config, task, team = load_team(folders, "", [], [*options, "--max-turns", str(TURNS)])
    result = held_out(config, team, task, None)
    write_text(Path(path), json.dumps([result.success, result.n]))


# ------------------------------------------------------------------------------------------------------------ commands


def run(plan: Plan, parallel: int, seconds: float, command: str) -> list[str]:
    """Train what is missing, play the teams of checkpoints, record where and when. Returns messages of failed runs."""
    missing = [job for job in plan.jobs if not job.finished]
    cost = sum(SET_UP + plan.steps * TRAININGS[job.name].cost for job in missing)
    print(
        f"{len(plan.jobs)} runs of {plan.steps} steps, {len(missing)} of them not finished: about {cost / 60:.0f} "
        f"minutes of one core; {parallel} at a time",
        flush=True,
    )
    started = time.time()
    failures = run_trainings(plan.jobs, parallel, seconds)
    play_teams(plan, parallel)
    session = {
        "command": command,
        "date": time.strftime("%Y-%m-%d", time.gmtime(started)),
        "minutes": (time.time() - started) / 60,
        "finished": sum(job.finished for job in missing),
        "jobs": parallel,
        "machine": machine(),
    }
    if missing:
        with open(plan.folder / "sessions.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(session) + "\n")
    return failures


def write_report(plan: Plan) -> str:
    """Write table, figure and their numbers; returns the table and says what was written."""
    results = collect(plan.folder, plan.sections, plan.seeds, plan.steps, CLAIMS)
    markdown = table(results, NOTES)
    (plan.folder / "experiments.md").write_text(markdown, encoding="utf-8")
    (plan.folder / "experiments.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    written = f"{markdown}\nwritten: {plan.folder}/experiments.md, .json"
    svg = plan.folder / "experiments.svg"
    svg.unlink(missing_ok=True)  # an older figure would not match the table
    try:
        from studies.figure import figure  # the only use of matplotlib
    except ImportError as error:
        how = "pip install -r requirements-dev.txt, then the same command with --report-only"
        return f"{written}\nno figure ({error}): {how}"
    svg.write_text(figure(results), encoding="utf-8")
    return f"{written}, .svg"


def parse(argv: Sequence[str] | None) -> tuple[Plan, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="methods and a few other rows, 2 seeds, 20 steps")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="default: 0 1 2 3 4 (quick: 0 1)")
    parser.add_argument("--steps", type=int, metavar="N", help="training steps of a run (default: 60; quick: 20)")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: cores)")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="stop the trainings then (default: never)")
    parser.add_argument("--output-dir", metavar="DIR", help="default: runs/experiments (quick: runs/experiments-quick)")
    parser.add_argument("--task", default="plan_path", metavar="NAME", help="as in train.py (default: plan_path)")
    parser.add_argument("--env-options", nargs="+", default=[], metavar="KEY=VALUE", help="as in train.py")
    for option in ("--data", "--eval-data"):
        parser.add_argument(option, metavar="FILE", help="as in train.py")
    parser.add_argument("--report-only", action="store_true", help="train nothing, only rewrite table and figure")
    options = parse_args(parser, argv, LIMITS)
    options.seeds = options.seeds or ([0, 1] if options.quick else [0, 1, 2, 3, 4])
    options.steps = options.steps or (20 if options.quick else 60)
    options.jobs = options.jobs or os.cpu_count() or 1
    if len(set(options.seeds)) < len(options.seeds):
        parser.error(f"--seeds {' '.join(map(str, options.seeds))}: each once")
    name = "" if options.task == "plan_path" else f"-{options.task.rpartition(':')[2]}"
    folder = Path(options.output_dir or f"runs/experiments{name}{'-quick' * options.quick}")
    task = task_words(options.task, options.env_options, options.data, options.eval_data)
    return Plan(folder, tuple(options.seeds), options.steps, options.quick, task), options


def task_words(task: str, pairs: Sequence[str], data: str, eval_data: str) -> tuple[str, ...]:
    """A task as options of train.py, which any folder understands; none for plan_path as it is."""
    words = [] if task == "plan_path" else ["--task", located(task)]
    words += ["--env-options", *pairs] if pairs else []
    words += ["--data", data] if data else []
    return (*words, *(["--eval-data", eval_data] if eval_data else []))


@cache
def agents_of(words: Sequence[str], workflow: str) -> tuple[str, ...]:
    """The agents of the task in these options of train.py (plan_path without); none if it lacks the workflow."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--task", default="plan_path")
    parser.add_argument("--env-options", nargs="+", default=[])
    parser.add_argument("--data")
    given, _ = parser.parse_known_args(words)
    options = parse_pairs(given.task, given.env_options) | ({"data": given.data} if given.data else {})
    try:
        return make_env(given.task, workflow, **options).agents
    except ValueError:
        if workflow == "mas":
            raise
        return ()


def main(argv: Sequence[str] | None = None) -> None:
    plan, options = parse(argv)
    # for the children: one thread each, no GPU, and no warning of tokenizers in forked processes
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` ends the children
    failures: list[str] = []
    try:
        if options.report_only:
            plan = Plan.load(plan.folder)
        else:
            command = " ".join(["python experiments.py", *(sys.argv[1:] if argv is None else argv)])
            check_folders(plan)
            whole = plan.save()
            failures = run(plan, options.jobs, options.time_limit or math.inf, command)
            plan = whole
        print(write_report(plan))
    except (ValueError, OSError) as error:
        sys.exit(f"experiments.py: error: {error}")
    if failures:
        sys.exit("experiments.py: error: " + "\n".join(failures))


if __name__ == "__main__":
    main()
