"""experiments.py: equal budgets, what is run again and what is not, table and figure, and the ablations themselves."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from helpers import ScriptedEngine, Toy, make_results, make_sample
from safetensors.torch import load_file

import experiments
import train
from benchmarks.credit import share_between
from experiments import Plan
from grouping import assign_advantages, group_samples
from options import all_options, parse, parse_policies
from prepare import task_of
from records.checkpoint import latest_checkpoint
from rollout import rollout_tree
from studies import rows
from studies.ablations import METHODS as WAYS
from studies.ablations import agent_key, outcome, prompt_key, rollout_parallel, turn_key
from studies.results import BUDGETS, at_budget, collect, difference, equal_budgets, numbers, play_path, table
from studies.rows import ABLATIONS, CLAIMS, METHODS, NOTES, ROLES, TRAININGS


@pytest.fixture
def plan(tmp_path):
    return Plan(tmp_path / "runs", (0, 1), 50)


def write_run(job, successes, *, samples=(100,), groups=(1, 1, 2), n=200, config=True):
    """The logs of a run: successes {step: share}, one row of metrics for each of `samples`."""
    job.folder.mkdir(parents=True)
    kinds = dict(zip(("groups/trained", "groups/constant", "groups/singleton"), groups, strict=True))
    rows = [{"step": step, "success": value, "se": 0.0, "n": n} for step, value in successes.items()]
    (job.folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"step": step, "samples": value, "tokens": 5 * value, **kinds} for step, value in enumerate(samples)]
    (job.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"step": step, "step_s": 2.0} for step in range(len(samples))]
    (job.folder / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if config:
        options = all_options(*parse(job.options))
        (job.folder / "config.json").write_text(json.dumps(options))


# ---------------------------------------------------------------------------------------------------------------- plan


def test_every_training_samples_at_most_the_same_number_of_candidates_a_step(plan):
    """48 environments x 2 agents x 4 turns x 8 candidates = 3072; the others by hand."""
    by_hand = {"shared": 48, "mas_grpo": 48, "single_grpo": 96, "single_grpo_1": 384, "k_2": 192, "k_4": 96, "t_1": 192}
    assert {name: TRAININGS[name].envs for name in by_hand} == by_hand
    for name in TRAININGS:
        config, _ = parse(plan.job(name, 3).options)
        agents = len(task_of(config).training_env.agents)
        assert config.envs_per_step * agents * config.max_turns * config.num_candidates == 3072, name
        assert (config.device, config.steps, config.seed) == ("cpu", 50, 3)
        assert config.output_dir == str(plan.folder / f"{name}-seed3")


def test_the_rows_are_those_of_the_paper_and_differ_in_what_they_say(plan):
    assert [row.label for row in METHODS] == [
        "single agent, untrained", "single agent + GRPO, T = 1", "single agent + GRPO", "single agent + tree",
        "MAS, untrained", "MAS + GRPO", "MAS + AT-GRPO, shared policy", "MAS + AT-GRPO, policy per role",
    ]  # fmt: skip
    assert {label for pair in CLAIMS.values() for label in pair} <= {row.label for row in [*METHODS, *ROLES]}
    options = {name: " ".join(plan.job(name, 0).options[:-2]) for name in TRAININGS}
    assert len(set(options.values())) == len(TRAININGS), "two trainings with the same options"
    used = {name for row in [*METHODS, *ROLES, *ABLATIONS] for name in row.trainings}
    assert used == set(TRAININGS)
    for row in [*METHODS, *ROLES, *ABLATIONS]:
        for agent, (name, policy) in row.team.items():
            config, _ = parse(plan.job(name, 0).options)
            policies = parse_policies(config.policies, task_of(config).training_env.agents)
            assert agent in policies
            assert policy in policies.values()
    for label, option in {"alpha = 0.5": "--alpha 0.5", "outcome reward only": "--reward outcome"}.items():
        (row,) = [row for row in ABLATIONS if row.label == label]
        assert option in TRAININGS[row.training].options


def test_quick_has_the_methods_and_takes_less_than_twenty_minutes_of_two_cores(tmp_path):
    plan, options = experiments.parse(["--quick", "--output-dir", str(tmp_path)])
    assert options.jobs == os.cpu_count()
    assert (plan.seeds, plan.steps) == ((0, 1), 20)
    assert plan.sections["Methods"] == METHODS
    assert {row.training for row in plan.sections["Roles"]} == {"tool_user_alone", "per_role"}
    assert {row.training for row in plan.sections["Ablations"]} == {"turn_key"}
    seconds = sum(experiments.SET_UP + 20 * TRAININGS[job.name].cost for job in plan.jobs)
    assert seconds / 2 < 0.75 * 20 * 60


def test_the_longest_runs_start_first_and_no_two_share_a_folder(plan):
    jobs = plan.jobs
    assert len(jobs) == len({job.folder for job in jobs}) == 2 * len(TRAININGS)
    costs = [TRAININGS[job.name].cost for job in jobs]
    assert costs == sorted(costs, reverse=True)


def test_a_folder_remembers_what_it_was_made_with(plan):
    assert plan.save() == plan
    more = replace(plan, seeds=(3,)).save()
    assert more.seeds == (0, 1, 3)
    assert Plan.load(plan.folder) == more


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ("--jobs 0", "--jobs 0"),
        ("--jobs -1", "--jobs -1"),
        ("--jobs 1000000000", "--jobs 1000000000: 1 to 1000"),
        ("--jobs nan", "--jobs: invalid int value: 'nan'"),
        ("--steps 0", "--steps 0"),
        ("--steps -5", "--steps -5"),
        ("--steps 1000001", "--steps 1000001: 1 to 1000000"),
        ("--steps 1e3", "--steps: invalid int value: '1e3'"),
        ("--time-limit 0", "--time-limit 0"),
        ("--time-limit -1", "--time-limit -1"),
        ("--time-limit nan", "--time-limit nan"),
        ("--time-limit inf", "--time-limit inf"),
        ("--time-limit=-inf", "--time-limit -inf"),
        ("--time-limit 1e300", "--time-limit 1e+300: 1 to 10000000"),
        ("--seeds 1 1", "--seeds 1 1"),
        ("--seeds -1", "--seeds -1"),
        ("--seeds 0 65536", "--seeds 65536: 0 to 65535"),
        ("--seeds 0 nan", "--seeds: invalid int value: 'nan'"),
        ("--stepps 3", "unrecognized arguments: --stepps 3 (did you mean --steps?)"),
        ("--job-s=3", "unrecognized arguments: --job-s=3 (did you mean --jobs?)"),
        ("quick", "unrecognized arguments: quick (did you mean --quick?)"),
        ("--report-only --output-dir nowhere", "nowhere holds no experiments"),
        ("--report-only --output-dir runs/experimens", "run them first (did you mean runs/experiments-quick?)"),
        ("--report-only", "runs/experiments holds no experiments (no plan.json): run them first (did you mean runs/ex"),
    ],
)
def test_options_that_make_no_sense_are_named(argv, names, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Plan(Path("runs/experiments-quick"), (0,), 1).save()
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # main changes them: put back afterwards
    with pytest.raises(SystemExit) as exit_:
        experiments.main(argv.split())
    assert exit_.value.code not in (0, None)
    assert names in f"{exit_.value.code}{capsys.readouterr().err}"


# ------------------------------------------------------------------------------------------------------------ trainings


class FakeProcess:
    """Ends at its `polls`-th poll with `code`; writes the run's last evaluation when that is 0."""

    alive = most = 0

    def __init__(self, job, polls=2, code=0):
        self.job, self.left, self.code, self.returncode = job, polls, code, None
        FakeProcess.alive += 1
        FakeProcess.most = max(FakeProcess.most, FakeProcess.alive)

    def poll(self):
        self.left -= 1
        if self.left <= 0 and self.returncode is None:
            if self.code == 0:
                write_run(self.job, {0: 0.1, self.job.plan.steps: 0.5}, config=False)
            self.end(self.code)
        return self.returncode

    def end(self, code):
        FakeProcess.alive -= self.returncode is None
        self.returncode = code if self.returncode is None else self.returncode

    def terminate(self):
        self.end(-15)

    def wait(self, timeout=None):
        assert self.returncode is not None
        return self.returncode


@pytest.fixture
def fake():
    FakeProcess.alive = FakeProcess.most = 0
    return FakeProcess


def test_runs_that_are_finished_stay_and_no_more_than_jobs_run_at_once(plan, fake):
    done, begun = plan.jobs[0], plan.jobs[1]
    write_run(done, {0: 0.1, 25: 0.3, 50: 0.4}, config=False)
    write_run(begun, {0: 0.1, 25: 0.3}, config=False)
    started = []

    def start(job):
        started.append(job)
        if job == begun:  # the real one would go on; this one writes the whole run
            for file in job.folder.iterdir():
                file.unlink()
            job.folder.rmdir()
        return fake(job)

    assert experiments.run_trainings(plan.jobs, 3, start=start, poll=0) == []
    assert started == [job for job in plan.jobs if job != done]
    assert (fake.most, fake.alive) == (3, 0)
    assert all(job.finished for job in plan.jobs)
    assert experiments.run_trainings(plan.jobs, 3, start=None, poll=0) == [], "nothing is left to start"


def test_a_run_that_fails_is_reported_with_what_it_said_last_and_the_others_go_on(plan, fake):
    bad = plan.jobs[2]

    def start(job):
        if job == bad:
            job.folder.mkdir(parents=True)
            (job.folder / "train.log").write_text("step 1\ntrain.py: error: --lr 0: more than 0\n")
        return fake(job, code=1 if job == bad else 0)

    (message,) = experiments.run_trainings(plan.jobs, 2, start=start, poll=0)
    assert str(bad.folder) in message
    assert "exit 1" in message
    assert message.endswith("--lr 0: more than 0")
    assert [job for job in plan.jobs if not job.finished] == [bad]


def test_the_time_limit_ends_what_runs_and_starts_nothing_more(plan, fake, capsys):
    started = []

    def start(job):
        started.append(job)
        return fake(job, polls=10**9)

    assert experiments.run_trainings(plan.jobs, 2, seconds=0.05, start=start, poll=0.01) == []
    assert started == plan.jobs[:2]
    assert fake.alive == 0
    assert f"{len(plan.jobs)} runs are not finished; the same command goes on" in capsys.readouterr().out


def test_no_process_is_left_when_something_goes_wrong(plan, fake):
    def start(job):
        if job == plan.jobs[1]:
            raise OSError("no more processes")
        return fake(job)

    with pytest.raises(OSError, match="no more processes"):
        experiments.run_trainings(plan.jobs, 2, start=start, poll=0)
    assert fake.alive == 0


def test_a_process_that_does_not_listen_is_killed(monkeypatch):
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"on\n"
    patient = process.wait
    monkeypatch.setattr(process, "wait", lambda timeout=None: patient(timeout and 0.2))
    started = time.monotonic()
    experiments.stop([process])
    assert process.returncode == -signal.SIGKILL
    assert time.monotonic() - started < 5


def test_only_a_run_that_was_begun_is_resumed(plan, monkeypatch):
    commands = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    job = plan.job("shared", 1)
    experiments.start_training(job)
    (job.folder / "config.json").write_text("{}")
    experiments.start_training(job)
    fresh, resumed = commands
    assert fresh[0] == sys.executable
    assert fresh[1].endswith("train.py")
    assert fresh[2:] == job.options
    assert resumed == [*fresh, "--resume"]


def test_runs_with_other_options_are_not_mixed_in(plan):
    job = plan.job("k_4", 1)
    write_run(job, {0: 0.1})
    experiments.check_folders(plan)
    with pytest.raises(ValueError, match="k_4-seed1 holds a run with steps=50, not 60: name another --output-dir"):
        experiments.check_folders(replace(plan, steps=60))


# -------------------------------------------------------------------------------------------------------------- results


def numbers_of(row, plan):
    return numbers(row, plan.folder, plan.seeds, plan.steps)["runs"]


def test_numbers_of_a_row_come_from_complete_lines_of_its_runs(plan):
    write_run(plan.job("shared", 0), {0: 0.05, 25: 0.5, 50: 0.9}, samples=(100, 140), groups=(2, 1, 1))
    begun = plan.job("shared", 1)
    write_run(begun, {0: 0.06})
    with open(begun.folder / "evaluations.jsonl", "a") as file:
        file.write('{"step": 0, "success": 0.06, "se": 0, "n": 200}\n{"step": 25, "succ')  # twice step 0, then killed
    trained, untrained = (numbers_of(row, plan) for row in (METHODS[6], METHODS[4]))
    assert trained == [
        {
            "seed": 0,
            "curve": [[0, 0.05, 200], [25, 0.5, 200], [50, 0.9, 200]],
            "samples": 120.0,
            "signal": 0.5,
            "spent": {"candidates": [0, 240, 240], "tokens": [0, 1200, 1200], "seconds": [0, 4.0, 4.0]},
        }
    ]
    assert untrained == [{"seed": 0, "curve": [[0, 0.05, 200]]}, {"seed": 1, "curve": [[0, 0.06, 200]]}]


def test_a_team_has_a_number_only_when_it_was_played(plan):
    (row,) = [row for row in ROLES if row.label == "roles trained alone, then combined"]
    for name in ("tool_user_alone", "planner_alone"):
        write_run(plan.job(name, 0), {0: 0.05, 50: 0.9})
    assert numbers_of(row, plan) == []
    path = play_path(plan.folder, row, 0)
    path.parent.mkdir()
    path.write_text("[0.25, 100]")
    (run,) = numbers_of(row, plan)
    assert run["curve"] == [[50, 0.25, 100]], "not the success of the run that trained it"


def test_the_table_by_hand():
    """0.5, 0.6, 0.7: mean 0.6, standard deviation 0.1, standard error 0.1 / sqrt(3) = 0.058."""
    made = make_results(
        whole=[{0: 0.1, 50: 0.5}, {0: 0.1, 50: 0.6}, {0: 0.1, 50: 0.7}],
        stopped=[{0: 0.1, 25: 0.3, 50: 0.9}, {0: 0.1, 25: 0.5}],
        alone=[{0: 0.1, 50: 0.25}],
        absent=[],
    )
    markdown = table(made, NOTES)
    lines = markdown.splitlines()
    assert "| whole | 0.600 ± 0.058 | 3 | 0.500 0.600 0.700 | 1000 | 25% |" in lines
    assert "| stopped | 0.400 ± 0.100 (after 25 of 50 steps) | 2 of 3 | 0.300 0.500 | 1000 | 25% |" in lines
    assert "| alone | 0.250 | 1 of 3 | 0.250 | 1000 | 25% |" in lines
    assert "| absent | missing | 0 of 3 | | | |" in lines
    assert "50 steps, n = 200 held-out levels" in markdown
    assert (
        "- `python experiments.py --jobs 9`: 2026-01-02, 7.2 minutes, 4 trainings finished, 9 at a time; "
        "Linux, a processor, 64 cores" in lines
    )
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert widths == {7}


def made(label, *runs):
    """A method with these runs: each a list of (step, success, candidates, tokens, seconds)."""
    numbers = [
        {
            "seed": seed,
            "curve": [[step, value, 200] for step, value, *_ in run],
            "samples": 100,
            "signal": 0.5,
            "spent": {kind: [point[2 + i] for point in run] for i, kind in enumerate(BUDGETS)},
        }
        for seed, run in enumerate(runs)
    ]
    return {"section": "Methods", "label": label, "curves": True, "trainings": [label], "runs": numbers}


def test_equal_budgets_by_hand():
    """The tree stops at 100 candidates and 10 s, the chains at 400 and 20: a quarter and a half of their curve."""
    start = (0, 0.0, 0, 0, 0)
    tree = made("tree", [start, (10, 0.8, 100, 1000, 10)], [start, (10, 0.6, 100, 1000, 10)])
    chains = made("chains", [start, (10, 0.4, 400, 1000, 20)], [(0, 0.2, 0, 0, 0), (10, 0.4, 400, 1000, 20)])
    assert at_budget(chains["runs"][0], "candidates", 100) == pytest.approx(0.1)
    assert at_budget(chains["runs"][1], "seconds", 10) == pytest.approx(0.3)
    claims = {"the tree is better": ["tree", "chains"], "something else": ["tree", "a row that is not there"]}
    lines = equal_budgets({"rows": [tree, chains], "claims": claims, "steps": 10, "seeds": [0, 1]})
    assert lines[0] == "| equal budgets | after 100 candidates | after 1,000 tokens | after 10 s |"
    assert lines[2] == "| tree | 0.700 ± 0.100 | 0.700 ± 0.100 | 0.700 ± 0.100 |"
    assert lines[3] == "| chains | 0.175 ± 0.075 | 0.400 ± 0.000 | 0.250 ± 0.050 |"
    # differences 0.4 and 0.2: 0.3, standard error 0.1, t 12.706; at 100 candidates 0.7 and 0.35; at 10 s 0.6 and 0.3
    assert lines[-2] == (
        "| the tree is better | +0.300 [-0.971, +1.571], 2 of 2 | +0.525 [-1.699, +2.749], 2 of 2 "
        "| +0.450 [-1.456, +2.356], 2 of 2 |"
    )
    assert not [line for line in lines if "something else" in line]
    assert equal_budgets({"rows": [], "claims": {}}) == []


def test_differences_are_those_of_runs_with_the_same_seed():
    assert difference({0: 0.5, 1: 0.9}, {1: 0.4, 2: 0.1}) == "+0.500 (one seed)"
    assert difference({0: 0.5}, {1: 0.4}) == "missing"


def test_the_table_says_what_its_rows_are(plan):
    markdown = table(collect(plan.folder, plan.sections, plan.seeds, plan.steps, CLAIMS), NOTES)
    for row in [*METHODS, *ROLES, *ABLATIONS]:
        assert f"| {row.label} | missing | 0 of 2 |" in markdown
    assert "at most 3072 candidates" in markdown


def test_the_recorded_results_are_what_the_page_shows():
    docs = Path(experiments.__file__).parent / "docs"
    recorded = json.loads((docs / "experiments.json").read_text())
    assert (docs / "experiments.md").read_text() == table(recorded, NOTES)


def test_without_matplotlib_there_are_table_and_numbers_and_a_line_about_the_figure(plan, monkeypatch):
    plan.save()
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "studies.figure", raising=False)
    (plan.folder / "experiments.svg").write_text("of an older table")
    *_, written, last = experiments.write_report(plan).splitlines()
    assert written == f"written: {plan.folder}/experiments.md, .json"
    assert last.startswith("no figure (")
    assert "pip install -r requirements-dev.txt" in last
    assert "--report-only" in last
    assert {path.name for path in plan.folder.iterdir()} == {"plan.json", "experiments.md", "experiments.json"}


@pytest.mark.parametrize(
    ("file", "content", "names"),
    [
        ("plan.json", "{", "plan.json: not JSON"),
        ("plan.json", '{"seeds": [0]}', "plan.json: steps is missing"),
        ("sessions.jsonl", "x\n", "sessions.jsonl, line 1: not JSON"),
        ("per_role-seed0/evaluations.jsonl", '{"step": 0}\n', "evaluations.jsonl, line 1: success is missing"),
        ("per_role-seed0/metrics.jsonl", '{"step": 0}\n', "metrics.jsonl, line 1: samples is missing"),
        ("per_role-seed0/metrics.jsonl", "", "per_role-seed0 was evaluated after step 0, but its metrics.jsonl has no"),
        ("plays/policies_of_the_roles_swapped-seed0.json", "[0.5", "swapped-seed0.json is damaged: delete it"),
        ("plays/policies_of_the_roles_swapped-seed0.json", "0.5", "swapped-seed0.json is damaged: delete it"),
    ],
)
def test_damaged_files_are_named(plan, file, content, names):
    plan.save()
    write_run(plan.job("per_role", 0), {0: 0.1, 50: 0.5})
    (plan.folder / "plays").mkdir()
    (plan.folder / file).write_text(content)
    with pytest.raises(ValueError, match=re.escape(names)):
        experiments.write_report(Plan.load(plan.folder))


# ------------------------------------------------------------------------------------------------------------ ablations


def test_pooled_groups_by_hand():
    """Rewards 0 1 (ann, turn 0), 2 3 (bob, turn 0), 4 5 (ann, turn 1)."""
    places = [(0, "ann"), (0, "ann"), (0, "bob"), (0, "bob"), (1, "ann"), (1, "ann")]
    samples = [make_sample(r, prompt=(r // 2,), key=(7, *place)) for r, place in enumerate(places)]
    by_agent, by_turn = (group_samples(samples, key) for key in (agent_key, turn_key))
    assert [[s.reward for s in group] for group in by_agent.values()] == [[0, 1, 4, 5], [2, 3]]
    assert [[s.reward for s in group] for group in by_turn.values()] == [[0, 1, 2, 3], [4, 5]]
    other = make_sample(9, key=(8, 0, "ann"))
    assert len(group_samples([*samples, other], turn_key)) == 3, "never across environments"
    assign_advantages(by_turn)
    assert samples[3].advantage == pytest.approx(1.5 / math.sqrt(5 / 3), rel=1e-4)


def play_toy(rollout, answers, **options):
    """A rollout in one Toy of `ann` and `bob`: 2 turns, 3 candidates; `answers(request, k)` -> text."""
    engine = ScriptedEngine(answers)
    texts = {"encode": engine.encode, "decode": engine.decode}
    return rollout([Toy()], engine, **texts, num_candidates=3, max_turns=2, **options)


def test_parallel_chains_leave_groups_of_one_after_the_first_action():
    """Three chains, each with answers of its own: one group of three at ann's first prompt, then 3 x 3 of one."""
    numbers: dict[int, str] = {}

    def answers(request, k):
        return numbers.setdefault(request.seed, str(len(numbers) % 9 + 1))

    result = play_toy(rollout_parallel, answers)
    groups = group_samples(result.samples, prompt_key)
    assert sorted(len(group) for group in groups.values()) == [1] * 9 + [3]
    first = next(group for group in groups.values() if len(group) == 3)
    assert {sample.key for sample in first} == {(0, 0, "ann")}
    assert [sample.reward for sample in first] == [sample.local for sample in first], "its own reward, not a return"
    counts = assign_advantages(groups)
    assert (counts["trained"], counts["singleton"]) == (1, 9)
    assert all(sample.advantage == 0 for sample in result.samples if sample.key != (0, 0, "ann"))


def test_chains_that_saw_the_same_prompt_are_compared():
    result = play_toy(rollout_parallel, lambda request, k: "3")
    groups = group_samples(result.samples, prompt_key)
    assert [len(group) for group in groups.values()] == [3, 3, 3, 3]


def test_outcome_reward_counts_nothing_but_a_solved_task():
    """Candidates 9, 5 and 1! : the last one solves the task with the lowest local reward, and is committed."""
    result = play_toy(rollout_tree, lambda request, k: ["9", "5", "1!"][k], mix=outcome, alpha=0.0)
    assert [sample.reward for sample in result.samples] == [0, 0, 1]
    assert [sample.committed for sample in result.samples] == [False, False, True]
    with pytest.raises(ValueError, match="not finite"):
        play_toy(rollout_tree, lambda request, k: "nan", mix=outcome)


@pytest.mark.parametrize(
    ("reward", "tree", "chains"),
    [
        ("mixed", [0.1, 0.3, 2.2], [0.0, 0.0, 1.0]),
        ("dense", [0.1, 0.3, 2.2], [0.2, 0.2, 1.3]),
        ("outcome", [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]),
    ],
)
def test_the_rewards_of_trees_and_chains_by_hand(reward, tree, chains):
    """Local rewards .1 .3 and .2; the third answer solves (team 1, alpha 2). Chains: 1 then 3, 3 then 1, 4 then 2!."""
    found = play_toy(WAYS["tree", "agent_turn", reward][0], lambda request, k: ("1", "3", "2!")[k], alpha=2.0)
    assert [sample.reward for sample in found.samples] == pytest.approx(tree)

    def answers(request, k):
        return ("13", "31", "42")[request.seed % 3][request.agent == "bob"] + "!" * (
            request.seed % 3 == 2 and request.agent == "bob"
        )

    found = play_toy(WAYS["chains", "trajectory", reward][0], answers, alpha=2.0)
    lengths, returns = [4, 4, 2], iter(found.samples)
    for length, value in zip(lengths, chains, strict=True):
        assert [next(returns).reward for _ in range(length)] == pytest.approx([value] * length)


TINY = (
    "--device cpu --warm-start 20 --eval-envs 4 --envs-per-step 4 --num-candidates 4 --max-turns 2 --trees 0 "
    "--max-response-tokens 12"
)


def test_a_frozen_policy_keeps_every_bit_and_the_other_one_moves(tmp_path):
    options = f"{TINY} --steps 1 --policies per_role --frozen planner --output-dir {tmp_path}"
    train.main(options.split())
    start, end = (tmp_path / "checkpoints" / f"step-{step:06d}" for step in (0, 1))
    for policy, moved in (("planner", False), ("tool_user", True)):
        before, after = (load_file(folder / policy / "model.safetensors") for folder in (start, end))
        assert any(not torch.equal(before[name], after[name]) for name in before) == moved, policy


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("--frozen boss", "--frozen boss"),
        ("--frozen shared", "--frozen shared"),
        ("--sampling tree --grouping prompt", "--sampling tree --grouping prompt"),
        ("--sampling chains --grouping agent_turn", "--sampling chains --grouping agent_turn"),
        ("--sampling parallel --grouping prompt --reward outcome", "--reward outcome"),
    ],
)
def test_alternatives_that_do_not_fit_are_refused(options, names, tmp_path):
    with pytest.raises(SystemExit, match=names):
        train.main(f"{TINY} --steps 1 --output-dir {tmp_path / 'run'} --warm-start 1 {options}".split())


# --------------------------------------------------------------------------------------------------------------- whole


def test_one_command_trains_plays_and_writes_the_table(tmp_path, monkeypatch, capsys):
    """Real processes: one training of a policy per role, and the row in which the two are swapped."""
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # main changes them: put back afterwards
    small = "--eval-envs 12 --warm-start 20 --env-options rows=3 cols=3 blocks=0 max_moves=4 view=cells"
    monkeypatch.setattr(experiments, "COMMON", f"{experiments.COMMON} {small}")
    monkeypatch.setattr(rows, "BUDGET", 2 * 2 * 4 * 8)
    monkeypatch.setattr(experiments, "METHODS", [row for row in METHODS if row.trainings == ["per_role"]])
    monkeypatch.setattr(experiments, "ROLES", [row for row in ROLES if row.trainings == ["per_role"]])
    monkeypatch.setattr(experiments, "ABLATIONS", [])
    handler = signal.getsignal(signal.SIGTERM)
    folder = tmp_path / "out"
    command = ["--steps", "1", "--seeds", "5", "--jobs", "2", "--output-dir", str(folder)]
    try:
        experiments.main(command)
        first = capsys.readouterr().out
        monkeypatch.setattr(subprocess, "Popen", None)  # nothing is trained again
        experiments.main(command)
        experiments.main(["--report-only", "--output-dir", str(folder)])
    finally:
        signal.signal(signal.SIGTERM, handler)
    again = capsys.readouterr().out
    markdown = (folder / "experiments.md").read_text()
    assert markdown in first
    assert again.count(markdown) == 2
    saved = json.loads((folder / "experiments.json").read_text())
    own, swapped = (row["runs"][0]["curve"] for row in saved["rows"])
    assert [step for step, *_ in own] == [0, 1]
    assert 0 < own[-1][1] < 1, "a number that could be wrong"
    (session,) = saved["sessions"]
    assert session["finished"] == 1
    assert f"{os.cpu_count()} cores" in session["machine"]
    if find_spec("matplotlib"):
        assert ElementTree.parse(folder / "experiments.svg").getroot().tag.endswith("svg")

    run = str(folder / "per_role-seed5")
    assert latest_checkpoint(folder / "per_role-seed5").name == "step-000001"
    straight = {agent: (run, agent) for agent in ("tool_user", "planner")}
    experiments.play_team(straight, str(tmp_path / "straight.json"), experiments.COMMON.split())
    assert json.loads((tmp_path / "straight.json").read_text()) == own[-1][1:], "as the run evaluated itself"
    crossed = {"tool_user": (run, "planner"), "planner": (run, "tool_user")}
    experiments.play_team(crossed, str(tmp_path / "crossed.json"), experiments.COMMON.split())
    assert json.loads((tmp_path / "crossed.json").read_text()) == swapped[-1][1:]


def test_the_variance_between_first_answers_by_hand():
    """Means 0.5 and 2.5: variance 2. Within 0.5, of which half is in the means: 2 - 0.25."""
    assert share_between([[0, 1], [2, 3]]) == (1.75, 0.5)
    assert share_between([[0, 1], [0, 1]]) == (-0.25, 0.5)
