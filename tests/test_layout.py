"""The rooms of the project: who may import whom, and how long things may grow. CONTRIBUTING.md says why."""

import ast
import dataclasses
import doctest
import graphlib
import importlib
import operator
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import options

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "records" / "page.html"
COMMANDS = {"train", "evaluate", "report", "experiments"}
# A floor imports its own rooms and the floors below. A name stands for a module or for all modules of a folder.
FLOORS = (
    {"options", "envs", "grouping", "tasks.registry", "sampling.requests", "distributed.world", "distributed.shard",
     "records.console", "records.run_folder", "records.stop"},
    {"rollout", "tasks", "model", "examples"},
    {"update", "sampling", "records", "distributed", "studies.ablations", "tools.check"},
    {"prepare"},
    {*COMMANDS, "studies", "tools", "exercises"},
)  # fmt: skip
APART = ("rollout", "tasks", "model")  # the rooms of the second floor do not know each other
ALGORITHM = ("train", "grouping", "rollout", "update", "envs")
WITHOUT_TORCH = ("grouping", "envs", "rollout", "sampling.requests", "tasks", "tools", "examples", "options")


def modules():
    """Dotted name -> file of every module of the product."""
    files = [path for path in ROOT.rglob("*.py") if not re.match(r"\.|tests$|docs$|benchmarks$|runs$", top(path))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}


def top(path):
    return path.relative_to(ROOT).parts[0]


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path, known):
    """Modules of ours that are imported when this one is: imports inside functions and for types are not."""

    def statements(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                yield child
            elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            ):
                yield from statements(child)

    found = set()
    for node in statements(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names} & known
            found |= names or {node.module}
    return found & known


@pytest.fixture(scope="module")
def graph():
    files = modules()
    return {name: imports(path, set(files)) for name, path in files.items() if path.stem != "__init__"}


def floor(name):
    """The floor of a module: that of its own name, else that of its folder."""
    for part in (name, name.partition(".")[0]):
        for number, rooms in enumerate(FLOORS):
            if part in rooms:
                return number
    raise AssertionError(f"{name} is in no room: see CONTRIBUTING.md")


# -------------------------------------------------------------------------------------------------------------- imports


def test_imports_have_no_cycle(graph):
    assert len(graph) > 40
    assert {"update", "prepare"} <= graph["train"]
    graphlib.TopologicalSorter(graph).prepare()  # CycleError, which shows the cycle


def test_imports_go_down(graph):
    upwards = [f"{name} imports {other}" for name in graph for other in graph[name] if floor(other) > floor(name)]
    assert upwards == []


def test_the_rooms_of_the_second_floor_do_not_know_each_other(graph):
    rooms = {name: name.partition(".")[0] for name in graph}
    known = {(rooms[a], rooms[b]) for a in graph for b in graph[a] if {rooms[a], rooms[b]} <= set(APART)}
    assert [pair for pair in known if pair[0] != pair[1]] == []


def test_the_algorithm_and_the_tasks_need_no_torch():
    names = [name for name in modules() if name in WITHOUT_TORCH or name.partition(".")[0] in WITHOUT_TORCH]
    assert len(names) > 20
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    code += "    assert 'torch' not in sys.modules, name\n    assert 'transformers' not in sys.modules, name\n"
    names = [name.removesuffix(".__init__") for name in names]
    run = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


# -------------------------------------------------------------------------------------------------------------- lengths


def lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def product():
    """Python and HTML that a user runs: no tests, benchmarks, docs, examples or exercises."""
    return [path for name, path in modules().items() if top(path) not in ("examples", "exercises")] + [PAGE]


def function(module, name):
    (found,) = [node for node in ast.walk(tree(modules()[module])) if getattr(node, "name", "") == name]
    return found


def nesting(node):
    """The deepest block inside blocks of a function."""
    blocks = (ast.For, ast.While, ast.If, ast.With, ast.Try)
    return max((isinstance(child, blocks) + nesting(child) for child in ast.iter_child_nodes(node)), default=0)


def test_the_house_grows_no_more():
    """These limits may only fall."""
    assert sum(map(lines, product())) <= 9_200
    assert sum(path.stat().st_size for path in product()) <= 460 * 1024
    assert sum(map(lines, (ROOT / "tests").rglob("*.py"))) <= 10_000
    assert sum(map(lines, (ROOT / "exercises").rglob("*.py"))) <= 600
    assert lines(PAGE) <= 400
    assert sum(field.type != "Constant" for field in dataclasses.fields(options.Config)) <= 47


def test_few_files_lie_at_the_top():
    names = {path.stem for path in ROOT.glob("*.py")}
    assert len(names) <= 10
    assert names <= {*ALGORITHM, "options", "prepare", *COMMANDS}


def test_the_algorithm_its_processes_and_every_file_are_short():
    for rooms, limit in ((ALGORITHM, 1000), (("distributed",), 400)):
        assert sum(lines(path) for name, path in modules().items() if name.partition(".")[0] in rooms) <= limit
    assert [name for name, path in modules().items() if lines(path) > 330] == []


def test_a_tenth_of_the_code_is_explained():
    """Comment lines over lines of code, docstrings apart."""
    comments, code = 0, 0
    for path in set(product()) - {PAGE}:
        with open(path, "rb") as file:
            tokens = list(tokenize.tokenize(file.readline))
        alone = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
        words = [token for token in tokens[1:] if token.string.strip() and token.type != tokenize.COMMENT]
        written = {row for token in words for row in range(token.start[0], token.end[0] + 1)}
        texts = {
            row
            for node in ast.walk(tree(path))
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node)
            for row in range(node.body[0].lineno, node.body[0].end_lineno + 1)
        }
        comments += len(alone)
        code += len(written - texts)
    assert comments / code >= 0.09, f"{comments} comments, {code} lines of code"


def test_the_command_line_enters_few_files(graph):
    """Of all that is imported with train.py, those that read it, or that make or change the options."""
    reached, left = set(), {"train"}
    while left:
        reached |= left
        left = {other for name in left for other in graph[name]} - reached
    pattern = re.compile(r"\bargv\b|\bparse\(|\bConfig\(|replace\((self|config|saved)\b")
    assert sum(bool(pattern.search(modules()[name].read_text(encoding="utf-8"))) for name in reached) <= 8


@pytest.mark.parametrize(("module", "name", "limit"), [("train", "train", 55), ("rollout", "_play", 45)])
def test_the_two_loops_fit_on_a_screen(module, name, limit):
    found = function(module, name)
    assert found.end_lineno - found.lineno + 1 <= limit
    assert nesting(found) <= 4


# ---------------------------------------------------------------------------------------------------------------- names

NAMES = """
grouping: GroupKey Sample agent_turn_key trajectory_key group_samples assign_advantages
envs: make_env Env Env.reset Env.observe Env.step Env.copy Env.render Reward InfraError mixed_reward
rollout: Request Completion rollout_tree rollout_chains
update: UpdateConfig update policy_loss loss_weights
tasks.plan_path: PlanPath.from_text
tasks.sokoban: Sokoban.from_text
tasks.sudoku: Sudoku.from_rows
tasks.boards: parse_answer
tasks.sandbox: run_program set_mode use_bubblewrap
tasks.fences: extract_code
tasks.code_env: CodeEnv grade_program
tasks.code_data: load_problems
tasks.code_grading: grade_program golden_tests reference_solution
tasks.math_text: clean
tasks.math_env: MathEnv read_problem load_problems extract_answer math_equal score_answers
model.loading: load_model encode
model.policy: decode
model.lora: load_whole
records.metrics: rollout_metrics
records.track: make_tracker
sampling.requests: Completion
"""


@pytest.mark.parametrize("line", NAMES.strip().splitlines())
def test_names_that_others_call_are_there(line):
    module, _, names = line.partition(":")
    for name in names.split():
        assert callable(operator.attrgetter(name)(importlib.import_module(module)))


# ------------------------------------------------------------------------------------------------------------ the page


def test_contributing_names_every_room():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) < 60
    floors = re.findall(r"^\| (\d) \| ([^|]*) \|", page, re.M)
    assert [int(number) for number, _ in floors] == list(range(1, len(FLOORS) + 1))
    for (_, cell), rooms in zip(floors, FLOORS, strict=True):
        assert {
            name.rstrip("/").replace("/", ".").removesuffix(".py") for name in re.findall(r"`([^`]+)`", cell)
        } == rooms


@pytest.mark.parametrize(
    "module", [name for name, path in modules().items() if ">>>" in path.read_text(encoding="utf-8")]
)
def test_examples_in_docstrings_hold(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0
