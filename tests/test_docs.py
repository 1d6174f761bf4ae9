"""The pages say nothing that does not hold: numbers, commands, names, links. What only the README has: test_readme.py.

Addresses on the web are not opened: tests need no network.
"""

import argparse
import ast
import doctest
import json
import math
import re
import shlex
import sys
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pytest
from helpers import FENCE, tables

import evaluate
import exercises.__main__ as exercises
from benchmarks import break_it
from distributed.world import place
from options import Config, parse, policy_map
from options import read as read_options
from prepare import levels_of
from records import metrics
from tools import fetch, play

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "docs"))

import estimate  # noqa: E402
import tour as tour_script  # noqa: E402

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
OTHERS = """shutdown-timeout nproc-per-node nnodes nodes ntasks-per-node gpus-per-node kill-on-bad-exit rdzv-id
rdzv-backend rdzv-endpoint no-deps extra-index-url dist durations check logdir served-model-name write pack prompts warm
groups candidates budget shape repeats memory limit-gb"""  # of torchrun, srun, pip, pytest, vLLM, benchmarks/ ...
GONE = {"--placement", "--adam-beta2", "--adam-eps", "--engine-sleep", "--report-only"}  # changes.md names them

pytestmark = pytest.mark.filterwarnings("ignore")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def read(path):
    return path.read_text(encoding="utf-8")


def prose(text):
    return FENCE.sub("", text)


def help_of(main):
    """The options in the help of a command."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr("sys.argv", ["command", "--help"])
        with pytest.raises(SystemExit):
            main()
    return set(re.findall(r"--[a-z][a-z0-9_-]*", printed.getvalue()))


@pytest.fixture(scope="module")
def options():
    """All options of the commands."""
    commands = [import_module(path.stem).main for path in ROOT.glob("*.py") if "\ndef main(" in read(path)]
    others = {f"--{name}" for name in OTHERS.split()}
    more = [play.main, estimate.main, fetch.main, exercises.main, break_it.main]
    return others.union(*map(help_of, [*commands, *more]))


# ----------------------------------------------------------------------------------------------------------- the tour


@pytest.fixture(scope="module")
def tour():
    return dict(tour_script.BLOCK.findall(read(tour_script.TOUR))), *tour_script.blocks()


def same(written, found):
    """Words and whole numbers equal; measured ones to 2%: other processors add up in another order."""
    pairs = zip(NUMBER.findall(written), NUMBER.findall(found), strict=False)
    return NUMBER.split(written) == NUMBER.split(found) and all(
        math.isclose(float(a), float(b), rel_tol=0.02, abs_tol=0.002) if "." in a else a == b for a, b in pairs
    )


def test_every_block_and_the_picture_of_the_tour_are_what_the_run_gives(tour):
    written, found, drawn = tour
    assert written.keys() == found.keys()
    assert len(found) >= 12
    for name in found:
        assert same(written[name], found[name]), f"{name} is now\n{found[name]}"
    picture = read(tour_script.PICTURE)
    assert same(picture, drawn)
    assert picture.count('class="best"') == len(re.findall(r"\*", written["spine"])) == 4
    (command,) = re.findall(r"python train\.py (--steps 2 .*) --output-dir runs/tour", read(tour_script.TOUR))
    assert command == tour_script.OPTIONS


def test_numbers_in_the_text_of_the_tour_are_in_its_blocks(tour):
    written, *_ = tour
    text = re.sub(r"^\|.*$|`[^`\n]*`", "", prose(read(tour_script.TOUR)), flags=re.M)
    shares = {"0.1", "0.8"}  # of the local reward: tests/test_envs.py
    assert metrics.LOGPROB_GAP == 0.1
    loose = [n for n in re.findall(r"\d+\.\d+", text) if n not in shares and not any(n in b for b in written.values())]
    assert loose == []
    (trained,) = re.findall(r"of the (\d+) that were trained", text)
    assert re.search(rf"groups/trained +{trained}\n", written["row"])


# ---------------------------------------------------------------------------------------------------- names and links


def functions(path):
    """The dotted names of every function and class of a file, methods too."""

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                yield prefix + child.name
                yield from visit(child, f"{prefix}{child.name}.")

    return set(visit(ast.parse(read(path)), ""))


@each_page
def test_links_resolve(page):
    text = re.sub(r"(?<!\[)`[^`\n]*`", "", prose(read(page)))
    targets = re.findall(r"\]\(\s*([^)\s]+)\)", text) + re.findall(r"(?:src|href)=[\"']([^\"']+)", text)
    for target in targets:
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target}: no such file"
        if anchor:
            titles = re.findall(r"^#+ +(.*?)\s*$", prose(read(file)), re.M)
            assert anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, target


@each_page
def test_names_exist(page):
    """Functions that are linked, tests that prove something, files that are named in code; no path of a machine."""
    text = read(page)
    for name, path in re.findall(r"\[`([\w.]+)`\]\(([\w./]+\.py)\)", text):
        file = (page.parent / path).resolve()
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        assert path.endswith(name) or name.removeprefix(f"{module}.") in functions(file), f"{name} is linked to {path}"
    for file, name in re.findall(r"`(tests/\w+\.py)::(\w+)`", text):
        assert name in functions(ROOT / file), f"{file}::{name}"
    ours = prose(text.split("\n## Sources")[0])  # the others are of other projects
    named = set(re.findall(r"(?<![\w/.])((?:recipes|docs|tests|benchmarks|distributed)/[\w./-]+\.\w+)", ours))
    assert [name for name in named if not any((base / name).exists() for base in (ROOT, page.parent))] == []
    paths = re.findall(r"(?:^|[\s\"'`(=])(/[\w.-]+/[\w./-]*|~/[\w.-]+|[A-Za-z]:\\\w+)", text, re.M)
    assert [path for path in paths if not path.startswith(("/usr/", "/proc/", "/dev/", "/etc/", "/tmp/"))] == []


# ------------------------------------------------------------------------------------------------- commands and recipes


def words(arguments):
    """The words of a command line, with recipes read in."""
    text = re.sub(r"\$\(cat ([\w./ ]+)\)", lambda match: " ".join(read(ROOT / p) for p in match[1].split()), arguments)
    return shlex.split(text, comments=True)


def commands(page):
    """(script, ranks, words) of every line of code that starts a script of ours, on `ranks` processes; and of code in
    the text, unless capitals stand there for something.
    """
    start = re.compile(
        r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:torchrun --nproc-per-node (\d+)|python3?(?: -m)?) ([\w/.]+)(?: (.*))?$"
    )
    code = [line for _, block in FENCE.findall(read(page)) for line in block.replace("\\\n", " ").splitlines()]
    if page.name != "changes.md":  # it names what is gone
        found = re.findall(r"(?<!`)`(python3? [^`]+)`", read(page))
        code += [line for line in found if not re.search(r"\b[A-Z]+\b", line)]
    for line in " && ".join(code).split(" && "):
        if (match := start.match(line)) and match[2] not in ("pytest", "pip", "venv"):
            name = match[2].removesuffix(".py").replace(".", "/")
            name = f"{name}/__main__" if (ROOT / name).is_dir() else name
            yield f"{name}.py", int(match[1] or 1), words(match[3] or "")


class TakenError(Exception):
    """The parser of a command takes its words, and the command goes no further."""


def check_words(script, argv, patch):
    """SystemExit or ValueError unless the parser of this command takes these words."""
    if script == "evaluate.py":
        read_options(evaluate.Options, argv, evaluate.Options())
    elif "parse_args(" in read(ROOT / script):
        take = argparse.ArgumentParser.parse_args

        def stop(self, args=None, namespace=None):
            raise TakenError(take(self, args, namespace))

        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.setattr("sys.argv", [script, *argv])
        with pytest.raises(TakenError):
            import_module(script.removesuffix(".py").replace("/", ".")).main()


def check_training(argv, ranks):
    config = parse(argv)
    if config.task in ("math", "code"):
        assert config.data
        assert config.eval_data
        agents = {"math": ("reasoner", "tool_user"), "code": ("coder", "tester")}[config.task]
    else:
        agents = levels_of(config).training_env.agents
    names = list(dict.fromkeys(policy_map(config, agents).values()))
    assert set().union(*place(names, ranks, config.ranks).values()) == set(range(ranks))


@each_page
def test_commands_parse(page, options, monkeypatch):
    monkeypatch.setattr("options.load", lambda run: Config().resolved())  # the runs of a page are not there
    found = list(commands(page))
    without = "features experiments differences changes glossary real_models primer credit"
    assert found or page.stem in without.split()
    for script, ranks, argv in found:
        assert (ROOT / script).exists(), script
        assert {word for word in argv if word.startswith("--")} <= options, argv
        if script == "train.py" and "--help" not in argv:
            check_training(argv, ranks)
        elif script != "train.py":
            with monkeypatch.context() as patch:
                check_words(script, argv, patch)


@each_page
def test_options_exist(page, options):
    text = read(page).replace("__", "").replace("_", "-")  # __init__ is no option
    known = {option.replace("_", "-") for option in options | (GONE if page.name == "changes.md" else set())}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) - known == set()


# ------------------------------------------------------------------------------------------------------------- numbers


def test_the_estimates_of_memory_time_and_responses_are_those_of_the_script():
    page = read(ROOT / "docs" / "reproduce.md")
    assert estimate.table() in page
    assert estimate.times() in page
    assert doctest.testmod(estimate).failed == 0
    for name, (total, layer, ends) in estimate.MODELS.items():
        assert round((total - ends) / layer) == {"Qwen3-1.7B": 28, "Qwen3-8B": 36}[name]
    config = parse(read(ROOT / "recipes" / "plan_path_8b.args").split())
    agents = len(levels_of(config).training_env.agents)
    factors = (config.envs_per_step, agents, config.max_turns, config.num_candidates)
    assert f"{' * '.join(map(str, factors))} = {math.prod(factors)} responses" in page
    assert estimate.step_seconds(0, 1, 1, math.inf) == math.prod(factors)
    errors = r"With (\d+) problems the standard error of 0\.5 is ([\d.]+), with the (\d+) of AIME it is ([\d.]+):"
    ((n, error, few, larger),) = re.findall(errors, page)
    assert math.sqrt(0.25 / int(n)) == pytest.approx(float(error), abs=5e-4)
    assert math.sqrt(0.25 / int(few)) == pytest.approx(float(larger), abs=5e-3)


def test_the_experiments_are_those_that_were_recorded():
    """Rows of runs.md are rows of experiments.md, whole or by the columns that both have."""
    recorded = tables(read(ROOT / "docs" / "experiments.md"))
    for name, length in (("methods", 9), ("roles", 8), ("differences", 9)):
        (shown,) = [table for table in tables(read(ROOT / "docs" / "runs.md")) if table[0][0] == name]
        (whole,) = [table for table in recorded if table[0][0] == name]
        columns = [whole[0].index(title) for title in shown[0]]
        assert shown == [[row[column] for column in columns] for row in whole]
        assert len(shown) == length


@pytest.fixture(scope="module")
def measured():
    """What was measured on GPUs."""
    return json.loads(read(ROOT / "docs" / "gpu.json"))


def shown(*head):
    """The rows of the table of gpu.md with these columns; its header first."""
    found = tables(read(ROOT / "docs" / "gpu.md"))
    return next(table for table in found if [*head] in (table[0][: len(head)], table[0][1:2]))


def test_the_learning_on_gpus_is_what_was_recorded(measured):
    (_, *steps), *rows = shown("beta2, epsilon")
    recorded = {f"{run['beta2']}, {run['eps']}": dict(run["curve"]) for run in measured["adam"]["runs"]}
    assert {name: dict(zip(map(int, steps), map(float, cells), strict=True)) for name, *cells in rows} == recorded
    curves = {(run["task"], run["row"]): dict(run["curve"]) for run in measured["learning"]}
    table = shown("steps", "0", "10")
    for (_, *cells), task in zip(table[1:], ("sudoku", "plan_path"), strict=True):
        found = {int(step): float(cell) for step, cell in zip(table[0][1:], cells, strict=True) if cell}
        assert found == curves[task, "MAS + AT-GRPO, shared policy"]
    table = shown("Plan-Path, 30 steps")
    for row, *cells in table[2:]:
        curve = curves["plan_path", row]
        assert cells == [f"{curve[30]:.3f}", f"{curve[max(curve)]:.3f} ({max(curve)} steps)"]
    assert float(table[1][1]) == curves["plan_path", "MAS + GRPO"][0]


def test_the_methods_with_a_real_model_are_what_was_recorded(measured):
    runs = measured["sudoku_rows"]["runs"]
    table = shown("Sudoku, held-out success")
    assert [row for row, *_ in table[1:]] == list(dict.fromkeys(run["row"] for run in runs))
    for row, signal, *cells in table[1:]:
        mine = [run for run in runs if run["row"] == row]
        assert [run["seed"] for run in mine] == [1, 2, 3]
        values = {step: [value for run in mine for at, value, *_ in run["curve"] if at == step] for step in range(61)}
        assert all(len(found) in (0, 3) for found in values.values())
        means = [f"{fmean(values[step]):.3f}" if values[step] else "" for step in (15, 30, 45, 60)]
        seeds = [" ".join(f"{value:.3f}" for value in values[step]) for step in (30, 60)]
        assert cells == [*means, *seeds]
        assert signal == f"{fmean(run['signal_first_15'] for run in mine):.0%}"
    for row, *cells in shown("22,389 candidates")[1:]:
        mine = [run for run in runs if run["row"] == row]
        columns = [list(zip(*run["curve"], strict=True)) for run in mine]  # step, success, candidates, tokens, seconds
        costs = ((2, 22389), (4, 243.6))
        assert cells == [f"{fmean(np.interp(at, run[kind], run[1]) for run in columns):.3f}" for kind, at in costs]


def test_steps_on_gpus_are_what_was_recorded(measured):
    for model, policies, gpus, *cells in shown("model", "policies", "GPUs")[1:]:
        key = (model.split(",")[0], policies.replace(" ", "_"), int(gpus))
        (ranks,) = [run["ranks"] for run in measured["steps"] if (run["model"], run["policies"], run["gpus"]) == key]
        assert cells == [
            f"{max(rank['step_s'] for rank in ranks):.2f}",
            f"{min(rank['rollout_tokens_s_gpu'] for rank in ranks):,.0f}",
            f"{min(rank['update_tokens_s_gpu'] for rank in ranks):,.0f}",
            f"{max(rank['device_gb'] for rank in ranks):.0f}",
        ]
    runs = {(run["turns"], run["run"]): run["ranks"] for run in measured["wavefront"]}
    seconds = {key: max(rank["step_s"] for rank in ranks) for key, ranks in runs.items()}
    for turns, wavefront, *cells in shown("turns", "wavefront")[1:]:
        key = (int(turns), "wavefront" if wavefront == "yes" else "no wavefront")
        idle = max(rank["idle"] for rank in runs[key])
        work = 2 * seconds[key[0], "one policy on one GPU"] / seconds[key]
        assert cells == [f"{seconds[key]:.2f}", f"{idle:.0%}", f"{work:.2f}"]


def test_cards_and_two_gpus_are_what_was_recorded(measured):
    cards = measured["two_gpus"]["cards"]
    rows = {row[1]: [row[0], *row[2:]] for row in shown("card, GB", "model")[1:]}
    assert list(rows) == [card["model"] for card in cards]
    for card in cards:
        late = [step for step in card["steps"] if step["step"]]
        peak, used = (max(step[name] for step in card["steps"]) for name in ("peak_gb", "device_gb"))
        expected = [f"{card['pack_tokens']:,}", f"{peak:.1f}", f"{used:.1f}", f"{fmean(s['step_s'] for s in late):.2f}"]
        limit, command, *measures = rows[card["model"]]
        assert (int(limit), measures) == (card["card_gb"], expected)
        assert sorted(f"--envs 8 --steps 3 {command.strip('`')}".split()) == sorted(card["options"].split())
        assert peak <= card["card_gb"]

    def medians(run, turns, key):
        """Of each rank, over the steps after the first; none where there are no steps."""
        steps = [s for r in measured["two_gpus_again"]["runs"] if r["run"] == run for s in r["steps"]]
        late = [s for s in steps if s["turns"] == turns and s["step"]]
        return [median([s[key] for s in late if s["rank"] == rank]) for rank in sorted({s["rank"] for s in late})]

    for model, turns, *cells in shown("two H200s", "turns")[1:]:
        ways = ("one policy on one GPU", "two policies on two GPUs", "one policy on two GPUs")
        one, roles, two = (max(medians(f"{model}, {way}", int(turns), "step_s"), default=0) for way in ways)
        idle = " ".join(f"{share:.0%}" for share in medians(f"{model}, {ways[1]}", int(turns), "idle"))
        weak = [f"{two:.2f}", f"{one / two:.2f}"] if two else ["", ""]
        assert cells == [f"{one:.2f}", f"{roles:.2f}", idle, f"{2 * one / roles:.2f}", *weak]


def test_seconds_of_starts_and_of_the_default_run_are_what_was_recorded(measured):
    page, runs = read(ROOT / "docs" / "gpu.md"), measured["default_run"]["runs"]
    assert ", ".join(f"{run['seconds']} s against {run['against']['seconds']} s" for run in runs) in page
    assert ", ".join(f"{run['success']:.3f} and {run['against']['success']:.3f}" for run in runs) in page
    ratios = [f"{run['seconds'] / run['against']['seconds']:.2f}" for run in runs]
    assert f"{ratios[0]}, {ratios[1]} and {ratios[2]} of the time" in page
    (text,) = [line for line in page.splitlines() if line.startswith("**The start**")]
    stages = ("torch", "engine", "first evaluation", "first step")
    recorded = [f"{run[stage]:.0f}" for run in measured["start"]["runs"] for stage in stages]
    assert re.findall(r"after (\d+)", text) == recorded


def test_the_update_on_gpus_is_what_was_recorded(measured):
    (ours, trl) = ([run for run in measured["update_vs_trl"] if run["side"] == side] for side in ("ours", "trl"))
    text = " ".join(line for line in read(ROOT / "docs" / "gpu.md").splitlines() if "update_vs_trl.py" in line)
    for run in ours + trl:
        assert f"{float(format(run['raw_tokens_per_second'], '.3g')):,.0f}" in text
        assert f"at {run['peak_gib']:.1f} GiB" in text
    for run in ours:
        assert f"{run['raw_tokens_per_second'] / trl[0]['raw_tokens_per_second']:.1f}" in text
    rows = measured["update"]["rows"]
    table = shown("commit", "K", "`--budget`")
    recorded = [
        [
            row["commit"], str(row["k"]), f"{row['budget']:,}", row["options"], f"{sorted(row['steps'])[1]:.3f}",
            f"{row['raw_tokens_per_second']:,}", f"{row['peak_gib']:.1f}", f"{row['tflops'] / 766:.0%}",
        ]
        for row in rows
    ]  # fmt: skip
    assert len(table) == 10
    assert all(row in recorded for row in table[1:])
