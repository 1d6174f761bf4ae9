"""The recipes: every published row has its command, all of them sample as many candidates, and every one of them runs.

The rows are those of the table in docs/reproduce.md: files of recipes/rows/ that follow the file of a task and a model.
"""

import json
import math
import os
import re
from pathlib import Path

import pytest

import evaluate
import train
from distributed.world import place
from options import parse, parse_policies
from prepare import task_of
from sampling.team import Team

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
TASKS = ("plan_path", "sokoban", "sudoku", "math", "code")
BASES = [f"{task}_{size}" for task in TASKS for size in ("1.7b", "8b")]
CANDIDATES = 4096  # a step has at most so many

# Problems of each kind in the formats that tools/fetch.py writes, one for training and one held out.
DATA = {
    "math": [{"problem": "What is 1+1?", "answer": "2"}, {"question": "What is 2?", "final_answer": ["2"]}],
    "code": [
        {"question": "Print 2.", "input_output": '{"inputs": [""], "outputs": ["2"]}', "solutions": '["print(2)"]'},
        {
            "question_content": "Print two.",
            "public_test_cases": '[{"input": "", "output": "2"}]',
            "private_test_cases": '[{"input": "1", "output": "2"}]',
        },
    ],
}
REPLIES = {  # what agents say in the rehearsal: something right, something readable, something that is neither
    "planner": ("#### [R, D, R, D]", "#### [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]", "none"),
    "tool_user": ("```python\nprint(2)\nprint('#### [R, D, L]')\n```", "```python\nprint(2)\n```", "none"),
    "reasoner": (r"\boxed{2}", r"\boxed{3}", "none"),
    "judge": (r"\boxed{2}", r"\boxed{3}", "none"),
    "coder": ("```python\nprint(2)\n```", "```python\nprint(3)\n```", "none"),
    "tester": ('```json\n[{"input": "", "output": "2"}]\n```', "none", "none"),
}


def table():
    """(published row, files of recipes/rows/, environments, agents, turns, candidates) of the table of rows."""
    found = re.findall(r"^\| ([^|]+?) \| ([^|]*?) \| (\d+) \* (\d+) \* (\d+) \* (\d+) = ([\d,]+) \|", PAGE, re.M)
    return [
        (row, re.findall(r"`(\w+)\.args`", files), *map(int, factors), int(total.replace(",", "")))
        for row, files, *factors, total in found
    ]


ROWS = {row: files for row, files, *_ in table()}


def words(base, files):
    paths = [ROOT / "recipes" / f"{base}.args", *(ROOT / "recipes" / "rows" / f"{file}.args" for file in files)]
    return " ".join(path.read_text(encoding="utf-8") for path in paths).split()


def fits(base, row):
    """Ensembles are for mathematics."""
    return base.startswith("math") or not row.startswith("ensemble")


def environment(config, tmp_path):
    """The training environment of a recipe; hand-made problems in place of a data set."""
    rows = DATA.get(config.task)
    if rows:
        path = tmp_path / "data.jsonl"
        path.write_text(json.dumps(rows[0]), encoding="utf-8")
        config.data = config.eval_data = str(path)
    return task_of(config, training=False).held_out_env


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("base", BASES)
def test_every_combination_parses_and_finds_its_place(base, row, tmp_path):
    if not fits(base, row):
        return
    config, _ = parse(words(base, ROWS[row]))
    agents = environment(config, tmp_path).agents
    names = list(dict.fromkeys(parse_policies(config.policies, agents).values()))
    assert set().union(*place(names, 8, config.ranks).values()) == set(range(8))
    grpo = "GRPO" in row and "AT-GRPO" not in row
    assert (config.sampling, config.grouping) == (("chains", "trajectory") if grpo else ("tree", "agent_turn"))
    assert config.reward == ("outcome" if "outcome" in row else "mixed")
    assert len(names) == (2 if "per role" in row or "outcome" in row else 1)


def test_every_row_has_the_same_number_of_candidates(tmp_path):
    """Environments * agents * turns * candidates: as many environments as stay within the limit."""
    assert len(ROWS) >= 12
    for row, files, envs, agents, turns, candidates, total in table():
        config, _ = parse(words("math_8b", files))
        assert (envs, turns, candidates) == (config.envs_per_step, config.max_turns, config.num_candidates), row
        assert agents == len(environment(config, tmp_path).agents), row
        assert total == envs * agents * turns * candidates, row
        assert total <= CANDIDATES < total + agents * turns * candidates, row


def test_the_other_way_to_as_many_candidates():
    (envs, candidates) = re.search(r"`--envs-per-step (\d+) --num-candidates (\d+)` after its files", PAGE).groups()
    assert int(envs) * int(candidates) == CANDIDATES
    times = [
        parse(words("code_1.7b", files))[0].envs_per_step * 200 // 4000 for files in (ROWS["single agent + GRPO"], ())
    ]
    assert "{} times, a team {} times".format(*times) in PAGE


def test_every_file_of_a_row_is_used_and_every_recipe_is_on_the_page():
    used = {file for files in ROWS.values() for file in files}
    assert used == {path.stem for path in (ROOT / "recipes" / "rows").glob("*.args")}
    assert {path.stem for path in (ROOT / "recipes").glob("*.args")} == set(BASES)
    assert set(BASES) <= set(re.findall(r"recipes/([\w.]+)\.args", PAGE))


@pytest.mark.parametrize("base", BASES)
def test_a_recipe_is_the_setting_of_the_paper(base):
    config, objective = parse(words(base, ()))
    task, size = base.rsplit("_", 1)
    assert (config.task, [name.lower() for name in config.model]) == (task, [f"qwen/qwen3-{size}"])
    assert (config.num_candidates, config.max_turns, config.alpha) == (4, 4, 1)
    assert (config.envs_per_step, objective.minibatches, objective.epochs) == (128, 2, 1)
    assert (config.sampling, config.grouping, config.policies) == ("tree", "agent_turn", ["per_role"])
    assert (objective.temperature, config.engine, config.sandbox) == (1, "vllm", "require")
    assert train.learning_rate(config, 0) == train.learning_rate(config, config.steps - 1) == 1e-6
    if task in ("math", "code"):
        assert config.eval_envs > 674, "all of OlympiadBench, the largest evaluation set"
        return
    env = task_of(config).training_env
    assert env.tool == "python"
    *names, expected = {"plan_path": ("rows", "cols", 10), "sokoban": ("rows", "cols", 6), "sudoku": ("size", 4)}[task]
    assert {getattr(env, name) for name in names} == {expected}


@pytest.mark.skipif("AT_GRPO_DATA" not in os.environ, reason="AT_GRPO_DATA names no folder with data sets")
def test_recipes_of_mathematics_read_aime():
    config, _ = parse(words("math_1.7b", ()))
    for name in ("aime24", "aime25", "olympiadbench"):
        config.eval_data = str(Path(os.environ["AT_GRPO_DATA"]) / f"{name}.jsonl")
        env = task_of(config, training=False).held_out_env
        assert len(env.problems) >= 30
        assert env.agents == ("reasoner", "tool_user")


# ----------------------------------------------------------------------------------------------------------- rehearsal


def small(task, tmp_path):
    """Options that make any recipe small enough for a CPU. They follow the recipe's own and replace them."""
    options = (
        "--model tiny --engine transformers --device cpu --sandbox auto --warm-start 0 --steps 1 --envs-per-step 2"
    )
    options += " --num-candidates 3 --eval-envs 2 --max-response-tokens 4 --report-every 0 --trees 1"
    for option, row in zip(("--data", "--eval-data"), DATA.get(task, ()), strict=False):
        path = tmp_path / f"{option.strip('-')}.jsonl"
        path.write_text(json.dumps(row), encoding="utf-8")
        options += f" {option} {path}"
    return [*options.split(), "--output-dir", str(tmp_path / "run")]


@pytest.fixture
def talkative(monkeypatch):
    """A random model says nothing that can be read: what it says stands for one of the replies of its role."""

    def decode(team, agent, ids):
        return REPLIES[agent.rstrip("_0123456789")][sum(ids) % 3]

    monkeypatch.setattr(Team, "decode", decode)


REHEARSED = [(f"{task}_8b", row) for task in TASKS for row in ROWS if fits(task, row) and "untrained" not in row]
REHEARSED += [(f"{task}_1.7b", "MAS + AT-GRPO, per role") for task in TASKS]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("base", "row"), REHEARSED)
def test_every_training_runs_for_a_step(base, row, tmp_path, capsys, talkative):
    task = base.rsplit("_", 1)[0]
    train.main([*words(base, ROWS[row]), *small(task, tmp_path)])
    assert re.search(r"held-out success [01]\.\d+ -> [01]\.\d+ \(n=\d, se 0\.\d+\)\n$", capsys.readouterr().out)
    (metrics,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert metrics["samples"] > 0
    if "AT-GRPO" in row and "outcome" not in row:  # so few whole trajectories may well all fail, candidates do not
        assert metrics["groups/trained"] > 0
        assert all(math.isfinite(value) for name, value in metrics.items() if name.endswith("/grad_norm"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", [row for row in ROWS if "untrained" in row])
@pytest.mark.parametrize("task", TASKS)
def test_every_untrained_team_is_evaluated(task, row, tmp_path, capsys, talkative):
    options = small(task, tmp_path)
    evaluate.main(["tiny", *words(f"{task}_8b", ROWS[row]), *options, "--envs", "2"])
    assert re.search(r"success [01]\.\d+ \(n=\d, se 0\.\d+\)\n$", capsys.readouterr().out)
