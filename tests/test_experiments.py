"""experiments.py: equal budgets, what is run again and what is not, the table, and the ablations."""

import json
import math
import os
import signal
import subprocess
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest
import torch
from helpers import ScriptedEngine, Toy, make_results, make_sample
from safetensors.torch import load_file

import experiments
import train
from benchmarks.credit import share_between
from experiments import Plan, finished, make_plan, run, run_trainings
from grouping import assign_advantages, group_samples
from options import parse, policy_map
from prepare import levels_of
from studies import rows
from studies.ablations import METHODS
from studies.results import collect, holm, numbers, run_folder, shown, t_test, table
from studies.rows import CHAINS, CLAIMS, ROLES, SINGLE, TABLES, Method

ROWS = [row for part in TABLES.values() for row in part]
DOCS = Path(rows.__file__).parents[1] / "docs"


@pytest.fixture
def plan(tmp_path):
    return Plan(tmp_path / "runs", (0, 1), 60, TABLES)


def write_run(folder, successes, samples=(100,), groups=(1, 1, 2)):
    """The logs of a run: successes {step: share}, one row of metrics for each of `samples`."""
    kinds = dict(zip(("groups/trained", "groups/constant", "groups/singleton"), groups, strict=True))
    curve = [{"step": step, "success": value, "se": 0.0, "n": 200} for step, value in successes.items()]
    steps = [{"step": step, "samples": value, **kinds} for step, value in enumerate(samples)]
    folder.mkdir(parents=True)
    for name, logged in (("evaluations", curve), ("metrics", steps)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in logged))


@pytest.fixture
def command(monkeypatch):
    """experiments.main, which changes signals and the environment, without that."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "alarm", lambda _: None)
    return experiments.main


# ---------------------------------------------------------------------------------------------------------------- plan


def test_every_training_samples_at_most_the_same_number_of_candidates_a_step(plan):
    """48 environments x 2 agents x 4 turns x 8 candidates = 3072."""
    steps = {f"{SINGLE} {CHAINS} --steps 67%": 40, f"{CHAINS} --steps 56%": 34}
    trainings = list(dict.fromkeys(name for row in ROWS for name in row.trainings))
    assert {*steps} <= {*trainings}
    for name in trainings:
        folder = run_folder(plan.folder, name, 1)
        config = parse(plan.runs[folder])
        agents = len(levels_of(config).training_env.agents)
        assert config.envs_per_step * agents * config.max_turns * config.num_candidates == 3072, name
        assert (config.device, config.steps, config.seed) == ("cpu", steps.get(name, 60), 1)
        assert config.output_dir == str(folder)
        assert plan.runs[folder].count("--steps") == 1
    assert len({" ".join(words[:-2]) for words in plan.runs.values()}) == len(plan.runs) == 2 * len(trainings)
    assert {label for labels in CLAIMS.values() for label in labels} <= {row.label for row in ROWS}
    assert len({row.label for row in ROWS}) == len(ROWS)
    for row in ROWS:
        for agent, (name, policy) in row.team.items():
            config = parse(plan.runs[run_folder(plan.folder, name, 0)])
            policies = policy_map(config, levels_of(config).training_env.agents)
            assert agent in policies
            assert policy in policies.values()


def test_quick_has_the_methods_and_options_go_to_all_trainings():
    own = Namespace(quick=True, tables=None, seeds=None, steps=None, output_dir=Path("runs/experiments"))
    quick = make_plan(own, ["--task", "sokoban"])
    assert (quick.seeds, quick.steps) == ([0, 1], 20)
    assert {name: len(part) for name, part in quick.tables.items()} == dict(methods=8, roles=2)
    assert all(words[:2] == ["--task", "sokoban"] for words in quick.runs.values())


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ("--tables mine", "invalid choice: 'mine'"),
        ("--task plan_pat", "plan_path"),
        ("--page nowhere.json", "nowhere.json"),
        ("--jobs 0", "--jobs 0"),
    ],
)
def test_options_that_make_no_sense_are_named(argv, names, command, capsys):
    with pytest.raises(SystemExit) as exit_:
        command(argv.split())
    assert exit_.value.code not in (0, None)
    assert names in f"{exit_.value.code}{capsys.readouterr().err}"


# ------------------------------------------------------------------------------------------------------------ trainings

TRAIN = """
import sys, time
from pathlib import Path
folder, steps = Path(sys.argv[sys.argv.index("--output-dir") + 1]), sys.argv[sys.argv.index("--steps") + 1]
(folder / "started").write_text(" ".join(sys.argv[1:]))
if "candidates-2" in folder.name:
    sys.exit("step 1\\ntrain.py: error: --lr 0: more than 0")
time.sleep(60 if "candidates-4" in folder.name else 0)
(folder / "evaluations.jsonl").write_text('{"step": %s, "success": 0.5, "n": 9}\\n' % steps)
"""


@pytest.fixture
def quickly(tmp_path, monkeypatch):
    """Trainings that end at once, fail (K = 2) or take too long (K = 4)."""
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.setattr(experiments, "__file__", str(tmp_path / "experiments.py"))

    def some(plan, *labels):
        return replace(plan, tables={"ablations": [row for row in TABLES["ablations"] if row.label in labels]})

    return some


def test_a_run_that_fails_is_reported_with_what_it_said_last_and_finished_ones_stay(plan, quickly):
    two = quickly(plan, "K = 2", "K = 8")
    done, other = (run_folder(plan.folder, "", seed) for seed in plan.seeds)
    write_run(done, {0: 0.1, 60: 0.4})
    failures = run(two, 3)
    assert len(failures) == 2
    assert all("failed (exit 1): train.py: error: --lr 0: more than 0" in message for message in failures)
    assert not (done / "started").exists()
    assert finished(other, two.runs[other])
    (session,) = map(json.loads, (plan.folder / "sessions.jsonl").read_text().splitlines())
    assert (session["finished"], session["jobs"]) == (1, 3)


def test_an_interrupt_ends_what_runs_and_starts_nothing_more(plan, quickly, capsys, monkeypatch):
    processes, popen = [], subprocess.Popen

    def begin(*args, **more):
        Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        processes.append(popen(*args, **more))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", begin)
    signal.signal(signal.SIGUSR1, signal.default_int_handler)  # in the background nobody hears SIGINT
    assert run_trainings(quickly(plan, "K = 4").runs, 1) == []
    assert [process.poll() for process in processes] == [-signal.SIGTERM]
    assert "some runs are not finished; the same command goes on" in capsys.readouterr().out


def test_only_a_run_that_was_begun_is_resumed_and_others_are_not_mixed_in(plan, quickly):
    some = quickly(plan, "K = 8")
    first, second = some.runs
    run_trainings({first: some.runs[first]}, 1)
    assert (first / "started").read_text() == " ".join(some.runs[first])
    (first / "config.json").write_text("{}")
    run_trainings({first: some.runs[first]}, 1)
    assert (first / "started").read_text() == " ".join([*some.runs[first], "--resume"])
    with pytest.raises(ValueError, match="shared-seed0 holds a run with other options: name another --output-dir"):
        run(replace(some, steps=70), 1)
    assert not second.exists()


# -------------------------------------------------------------------------------------------------------------- results


def test_numbers_of_a_row_come_from_complete_lines_of_its_runs(plan):
    shared, begun = (run_folder(plan.folder, "", seed) for seed in plan.seeds)
    write_run(shared, {0: 0.05, 25: 0.5, 50: 0.9}, samples=(100, 140), groups=(2, 1, 1))
    write_run(begun, {0: 0.06})
    with open(begun / "evaluations.jsonl", "a") as file:
        file.write('{"step": 25, "succ')  # killed
    found = {
        label: [numbers(row, plan.folder, seed) for row in ROWS if row.label == label for seed in plan.seeds]
        for label in ("MAS + AT-GRPO, shared policy", "MAS, untrained")
    }
    curve = [[0, 0.05, 200], [25, 0.5, 200], [50, 0.9, 200]]
    spent = {"candidates": [0, 240, 240]}
    assert [*found.values()] == [
        [[{"seed": 0, "curve": curve, "signal": 0.5, "spent": spent}], []],
        [[{"seed": 0, "curve": curve[:1]}], [{"seed": 1, "curve": [[0, 0.06, 200]]}]],
    ]


def test_the_table_by_hand():
    """0.5, 0.6, 0.7: mean 0.6, standard deviation 0.1, standard error 0.1 / sqrt(3) = 0.058."""
    made = make_results(
        whole=[{0: 0.1, 50: 0.5}, {0: 0.1, 50: 0.6}, {0: 0.1, 50: 0.7}],
        stopped=[{0: 0.1, 25: 0.3, 50: 0.9}, {0: 0.1, 25: 0.5}],
        absent=[],
    )
    lines = table(made).splitlines()
    assert "| whole | 0.600 ± 0.058 | 0.350 ± 0.029 | 0.500 0.600 0.700 | 1000 | 25% |" in lines
    assert "| stopped | 0.400 ± 0.100 (after 25 of 50 steps) | 0.400 ± 0.100 | 0.300 0.500 | 1000 | 25% |" in lines
    assert "| absent | missing |  |  |  |  |" in lines


def test_equal_budgets_and_differences_by_hand():
    """The tree stops at 100 candidates, the chains at 400: a quarter of their curve. Half of them ends at 180."""
    made = make_results(tree=[{0: 0.0, 50: 0.8}, {0: 0.0, 50: 0.6}], chains=[{0: 0.0, 50: 0.4}, {0: 0.2, 50: 0.4}],
                        half=[{0: 0.0, 25: 0.3}, {0: 0.0, 25: 0.3}])  # fmt: skip
    for row, candidates in zip(made["rows"], (100, 400, 180), strict=True):
        row["steps"] = row["runs"][0]["curve"][-1][0]
        for each in row["runs"]:
            each["spent"] = {"candidates": [0, candidates]}
    made["claims"] = {
        "the tree is better": ["tree", "chains"], "as many": ["tree", "chains", "half"], "else": ["tree", "not there"]
    }  # fmt: skip
    lines = table(made).splitlines()
    assert "| methods | held-out success | after 100 candidates | each seed | candidates a step | signal |" in lines
    assert "| tree | 0.700 ± 0.100 | 0.700 ± 0.100 | 0.800 0.600 | 2 | 25% |" in lines
    assert "| chains | 0.400 ± 0.000 | 0.175 ± 0.075 | 0.400 0.400 | 8 | 25% |" in lines
    # differences 0.4 and 0.2: 0.3, standard error 0.1, t 12.706; at 100 candidates 0.7 and 0.35. p = 0.205, twice
    assert "| the tree is better | +0.300 [-0.971, +1.571], 2 of 2 | +0.525 [-1.699, +2.749], 2 of 2 | 0.410 |" in lines
    assert "| as many | +0.300 [-0.971, +1.571], 2 of 2 | +0.400 [-0.871, +1.671], 2 of 2 | 0.410 |" in lines
    assert not [line for line in lines if line.startswith("| else")]


def test_intervals_and_p_are_those_of_the_tables_of_t():
    """Mean 3, standard error sqrt(2.5 / 5): t = 4.2426; 2.7764 of them to each side. Holm by hand."""
    half, p = t_test([1, 2, 3, 4, 5])
    assert (half, p) == (pytest.approx(2.7764 * math.sqrt(0.5), rel=1e-4), pytest.approx(0.01324, rel=1e-3))
    assert holm([0.02, 0.01, 0.9, 0.03]) == pytest.approx([0.06, 0.04, 0.9, 0.06])
    assert [shown([0.5]), shown([])] == ["+0.500", ""]


def test_the_recorded_results_are_what_the_page_shows(plan):
    recorded = json.loads((DOCS / "experiments.json").read_text())
    assert (DOCS / "experiments.md").read_text() == table(recorded)
    for name in ("credit", "roles"):
        markdown = table(json.loads((DOCS / f"{name}.json").read_text()))
        assert markdown.split("\n", 2)[2].strip() in (DOCS / "credit.md").read_text()
    markdown = table(collect(plan.folder, plan.tables, plan.seeds, plan.steps))
    assert all(f"| {row.label} | missing |  |" in markdown for row in ROWS)


# ------------------------------------------------------------------------------------------------------------ ablations


def test_pooled_groups_by_hand():
    """Rewards 0 1 (ann, turn 0), 2 3 (bob, turn 0), 4 5 (ann, turn 1)."""
    places = [(0, "ann"), (0, "ann"), (0, "bob"), (0, "bob"), (1, "ann"), (1, "ann")]
    samples = [make_sample(r, prompt=(r // 2,), key=(7, *place)) for r, place in enumerate(places)]
    agent_key, turn_key = (METHODS["tree", pooled, "mixed"][1] for pooled in ("agent", "turn"))
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

    rollout, key = METHODS["parallel", "prompt", "mixed"]
    result = play_toy(rollout, answers)
    groups = group_samples(result.samples, key)
    assert sorted(len(group) for group in groups.values()) == [1] * 9 + [3]
    first = next(group for group in groups.values() if len(group) == 3)
    assert {sample.key for sample in first} == {(0, 0, "ann")}
    assert [sample.reward for sample in first] == [sample.local for sample in first], "its own reward, not a return"
    counts = assign_advantages(groups)
    assert (counts["trained"], counts["singleton"]) == (1, 9)
    assert all(sample.advantage == 0 for sample in result.samples if sample.key != (0, 0, "ann"))


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
    found = play_toy(METHODS["tree", "agent_turn", reward][0], lambda request, k: ("1", "3", "2!")[k], alpha=2.0)
    assert [sample.reward for sample in found.samples] == pytest.approx(tree)
    assert [sample.committed for sample in found.samples] == [False, False, True], "whatever its local reward"
    plans = (("1", "3"), ("3", "1"), ("4", "2!"))
    found = play_toy(METHODS["chains", "trajectory", reward][0],
                     lambda request, k: plans[request.seed % 3][request.agent == "bob"], alpha=2.0)  # fmt: skip
    expected = [value for value, length in zip(chains, (4, 4, 2), strict=True) for _ in range(length)]
    assert [sample.reward for sample in found.samples] == pytest.approx(expected)


def test_a_frozen_policy_keeps_every_bit_and_the_other_one_moves(tmp_path):
    small = "--warm-start 20 --eval-envs 4 --envs-per-step 4 --num-candidates 4 --max-turns 2 --max-response-tokens 12"
    options = f"{small} --device cpu --steps 1 --policies per_role --frozen planner --output-dir {tmp_path}"
    train.main(options.split())
    start, end = (tmp_path / "checkpoints" / f"step-{step:06d}" for step in (0, 1))
    for policy, moved in (("planner", False), ("tool_user", True)):
        before, after = (load_file(folder / policy / "model.safetensors") for folder in (start, end))
        assert any(not torch.equal(before[name], after[name]) for name in before) == moved, policy


# --------------------------------------------------------------------------------------------------------------- whole


def test_one_command_trains_plays_and_writes_the_table(tmp_path, monkeypatch, capsys, command):
    """Real processes: one training of a policy per role, and the rows in which the two play, swapped and not."""
    monkeypatch.setattr(rows, "BUDGET", 2 * 2 * 4 * 8)
    straight = Method("straight", team={agent: (ROLES, agent) for agent in ("tool_user", "planner")})
    for name, part in TABLES.items():
        monkeypatch.setitem(TABLES, name, [row for row in part if row.trainings == [ROLES]])
    TABLES["roles"].append(straight)
    folder = tmp_path / "out"
    words = f"--steps 1 --seeds 5 --jobs 2 --output-dir {folder} --eval-envs 12 --warm-start 20".split()
    words += ["--env-options", "rows=3", "cols=3", "blocks=0", "max_moves=4", "view=cells"]
    command(words)
    first = capsys.readouterr().out
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing is trained again
    command(words)
    command(["--page", str(folder / "experiments.json")])
    markdown = (folder / "experiments.md").read_text()
    assert first.count("held-out levels") == 1
    assert capsys.readouterr().out.count(markdown) == 2
    found = {
        row["label"]: row["runs"][0]["curve"] for row in json.loads((folder / "experiments.json").read_text())["rows"]
    }
    own, swapped = found["MAS + AT-GRPO, policy per role"], found["policies of the roles swapped"]
    assert [step for step, *_ in own] == [0, 1]
    assert 0 < own[-1][1] < 1, "a number that could be wrong"
    assert found["straight"] == own[-1:], "as the run evaluated itself"
    assert swapped[-1][2] == 12
    assert f"{os.cpu_count()} cores" in markdown


def test_the_variance_between_first_answers_by_hand():
    """Means 0.5 and 2.5: variance 2. Within 0.5, of which half is in the means: 2 - 0.25."""
    assert share_between([[0, 1], [2, 3]]) == (1.75, 0.5)
    assert share_between([[0, 1], [0, 1]]) == (-0.25, 0.5)
