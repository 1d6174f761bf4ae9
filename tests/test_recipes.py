"""The recipes: every published row has its command, all of them sample as many candidates, and every one of them runs.

The rows are those of the table in docs/reproduce.md: files of recipes/rows/ that follow the file of a task and a model.
"""

import json
import math
import re

import pytest
from helpers import ROOT

import evaluate
import train
from distributed.world import place
from options import parse, policy_map
from prepare import levels_of

PAGE = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
TASKS = ("plan_path", "sokoban", "sudoku", "math", "code")
BASES = [f"{task}_{size}" for task in TASKS for size in ("1.7b", "8b")]
ONE_GPU = {"plan_path": 320, "gsm8k": 1024, "mbppplus": 768}  # candidates a step at most
DATA = {  # a training and a held-out problem of each kind
    "math": [{"problem": "What is 1+1?", "answer": "2"}, {"question": "What is 2?", "final_answer": ["2"]}],
    "code": [
        {"question": "Print 2.", "input_output": '{"inputs": [""], "outputs": ["2"]}', "solutions": '["print(2)"]'},
        {"question": "Print two.", "tests": [{"input": "", "output": "2"}], "solutions": ["print(2)"]},
    ],
}
# published row -> files of recipes/rows/, and environments, agents, turns, candidates, and their product
ROWS = {
    row: (re.findall(r"`(\w+)\.args`", files), [*map(int, factors)], int(total.replace(",", "")))
    for row, files, *factors, total in re.findall(
        r"^\| ([^|]+?) \| ([^|]*?) \| (\d+) \* (\d+) \* (\d+) \* (\d+) = ([\d,]+) \|", PAGE, re.M
    )
}


def words(*files):
    return " ".join((ROOT / "recipes" / f"{file}.args").read_text(encoding="utf-8") for file in files).split()


def recipe(base, row):
    return words(base, *(f"rows/{file}" for file in ROWS[row][0]))


def problems(task, folder):
    """--data and --eval-data with hand-made problems, for tasks that read some."""
    made = []
    for option, row in zip(("--data", "--eval-data"), DATA.get(task, ()), strict=False):
        path = folder / f"{option.strip('-')}.jsonl"
        path.write_text(json.dumps(row), encoding="utf-8")
        made += [option, str(path)]
    return made


def candidates(config):
    """Environments, agents, turns and candidates of a step, and their product."""
    agents = levels_of(config, training=False).held_out_env.agents
    factors = [config.envs_per_step, len(agents), config.max_turns, config.num_candidates]
    return factors, math.prod(factors), list(dict.fromkeys(policy_map(config, agents).values()))


PAIRS = [(base, row) for base in BASES for row in ROWS if base.startswith("math") or not row.startswith("ensemble")]


@pytest.mark.parametrize(("base", "row"), PAIRS)
def test_every_row_finds_its_place_and_samples_as_many_candidates(base, row, tmp_path):
    config = parse([*recipe(base, row), *problems(base.split("_1")[0].split("_8")[0], tmp_path)])
    found, total, names = candidates(config)
    assert set().union(*place(names, 8).values()) == set(range(8))
    assert len(names) == (2 if "per role" in row else 1)
    grpo = "GRPO" in row and "AT-GRPO" not in row
    assert (config.sampling, config.grouping) == (("chains", "trajectory") if grpo else ("tree", "agent_turn"))
    assert config.reward == ("outcome" if "outcome" in row else "mixed")
    assert (found, total) == ROWS[row][1:]
    assert total <= 4096 < total + total // found[0], "as many environments as stay within the limit"


def test_every_file_is_used_and_every_recipe_is_on_the_page():
    rows, one_gpu = ({path.stem for path in (ROOT / "recipes" / folder).iterdir()} for folder in ("rows", "one_gpu"))
    assert rows == {file for files, *_ in ROWS.values() for file in files}
    assert {path.stem for path in (ROOT / "recipes").glob("*.args")} == set(BASES)
    shown = {*re.findall(r"recipes/([\w./]+?)\.args", PAGE)}
    assert {*BASES, *(f"one_gpu/{name}" for name in one_gpu)} <= shown
    (envs, candidates) = re.search(r"`--envs-per-step (\d+) --num-candidates (\d+)` after its files", PAGE).groups()
    assert int(envs) * int(candidates) == 4096
    times = [parse(words("code_1.7b", *more)).envs_per_step * 200 // 4000 for more in (["rows/single"], [])]
    assert "{} times, a team {} times".format(*times) in PAGE


@pytest.mark.parametrize("base", BASES)
def test_a_recipe_is_the_setting_of_the_paper(base):
    config = parse(words(base))
    task, size = base.rsplit("_", 1)
    assert (config.task, [name.lower() for name in config.model]) == (task, [f"qwen/qwen3-{size}"])
    assert (config.num_candidates, config.max_turns, config.alpha, config.envs_per_step) == (4, 4, 1, 128)
    assert (config.minibatches, config.epochs, config.policies, config.engine) == (2, 1, ("per_role",), "vllm")
    assert train.learning_rate(config, 0) == train.learning_rate(config, config.steps - 1) == 1e-6
    if task in ("math", "code"):
        assert config.eval_envs > 674, "all of OlympiadBench, the largest evaluation set"
    else:
        env = levels_of(config).training_env
        sizes = {"plan_path": ("rows", "cols", 10), "sokoban": ("rows", "cols", 6), "sudoku": ("size", 4)}[task]
        assert {getattr(env, name) for name in sizes[:-1]} == {sizes[-1]}
        assert env.tool == "python"


@pytest.mark.parametrize("name", ONE_GPU)
def test_rows_on_one_gpu_sample_as_many_candidates(name, tmp_path):
    for more in ([], ["rows/grpo"], [f"one_gpu/{name}_single_grpo"]):
        argv = words(f"one_gpu/{name}", *more)
        config = parse([*argv, *problems(parse(argv).task, tmp_path)])
        assert candidates(config)[1] == ONE_GPU[name], more


SMALL = (  # options that make any recipe small enough for a CPU; they follow the recipe's own and replace them
    "--model tiny --engine transformers --device cpu --warm-start 0 --steps 1 --envs-per-step 2 --num-candidates 3 "
    "--eval-envs 2 --max-response-tokens 4 --report-every 0 --trees 1"
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("base", "row"), [pair for pair in PAIRS if "8b" in pair[0]])
def test_every_row_runs(base, row, tmp_path, capsys):
    """A training for a step; what is untrained is evaluated. The recipes of 1.7B differ in the model alone."""
    task = base.rsplit("_", 1)[0]
    options = [*recipe(base, row), *SMALL.split(), *problems(task, tmp_path), "--output-dir", str(tmp_path / "run")]
    if "untrained" in row:
        evaluate.main(["tiny", *options, "--envs", "2"])
        assert re.search(r"success [01]\.\d+ \(n=\d, se 0\.\d+\)\n$", capsys.readouterr().out)
        return
    train.main(options)
    assert re.search(r"held-out success [01]\.\d+ -> [01]\.\d+ \(n=\d, se 0\.\d+\)\n$", capsys.readouterr().out)
    (metrics,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert metrics["samples"] > 0
