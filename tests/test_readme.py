"""README.md says nothing that does not hold: its commands parse, its numbers were recorded, its files and links exist.

Addresses on the web are not opened: tests need no network.
"""

import json
import re
import shlex
from pathlib import Path

import pytest

import envs
import evaluate
import experiments
import train
from options import parse, parse_policies
from prepare import task_of
from tasks import play

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```\s*$", re.M)
# Options of pip, pytest, git, torchrun and of scripts in benchmarks/, which the README may use too.
OTHER_OPTIONS = {"--index-url", "--extra-index-url", "--no-deps", "--upgrade", "--durations", "--depth", "--help"}
OTHER_OPTIONS |= {"--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"}
OTHER_OPTIONS |= {"--groups", "--candidates", "--budget", "--shape", "--repeats"}
OTHER_OPTIONS |= {"--kill-on-bad-exit", "--nodes", "--ntasks-per-node", "--gpus-per-node"}


@pytest.fixture(scope="module")
def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def measured():
    """What was measured on GPUs."""
    return json.loads((ROOT / "docs" / "gpu.json").read_text(encoding="utf-8"))


def tables(text):
    """The tables of a text outside of fences: each a list of rows, each a list of cells, the header first."""
    found: list[list[list[str]]] = []
    previous = ""
    for line in FENCE.sub("", text).splitlines():
        if line.startswith("|"):
            if not previous.startswith("|"):
                found.append([])
            if not re.fullmatch(r"[|:\- ]+", line):
                found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))])
        previous = line
    return found


def help_of(main, capsys):
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["--help"])
    return set(re.findall(r"--[a-z][a-z0-9-]*", capsys.readouterr().out))


def commands(text):
    """(script, arguments) of every line of code that starts a script of ours."""
    for line in text.replace("\\\n", " ").splitlines():
        if found := re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*python3? (\w+\.py)(?: (.*))?$", line):
            yield found[1], shlex.split(found[2] or "", comments=True)


# ------------------------------------------------------------------------------------------------------ files and links


def test_the_table_of_files_is_complete_and_true(readme):
    columns = [" ".join(row[0] for row in table[1:]) for table in tables(readme)]
    (files,) = [column for column in columns if "train.py" in column and "rollout.py" in column]
    named = re.findall(r"[\w./-]+\.\w+|[\w./-]+/", re.sub(r"\]\([^)]*\)", "]", files))
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert {path.name for path in ROOT.glob("*.py")} - set(named) == set()
    assert len(set(named)) == len(named), "a file is listed twice"


def test_links_and_images_of_the_project_resolve(readme):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", readme))
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)", text) + re.findall(r"(?:src|href)=[\"']([^\"']+)", text)
    titles = re.findall(r"^#+ +(.*?)\s*$", FENCE.sub("", readme), re.M)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    for target in targets:
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        assert not path or (ROOT / path).exists(), f"{target}: no such file"
        assert path or anchor in anchors, f"{target}: no such heading"


def test_no_path_of_somebodys_machine(readme):
    """Absolute paths, but for those that every Linux has."""
    paths = re.findall(r"(?:^|[\s\"'`(=])(/[\w.-]+/[\w./-]*|~/[\w.-]+|[A-Za-z]:\\\w+)", readme, re.M)
    assert [path for path in paths if not path.startswith(("/usr/", "/proc/", "/dev/", "/etc/", "/tmp/"))] == []


# ------------------------------------------------------------------------------------------------------------- commands


def test_every_option_exists(readme, capsys):
    mains = (train.main, evaluate.main, experiments.main, play.play)
    known = set.union(*(help_of(main, capsys) for main in mains), OTHER_OPTIONS)
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", readme))
    assert used, "a README without commands"
    assert used - known == set()


def test_every_command_parses(readme, capsys):
    """Commands of train.py are set up up to their data and model; of the others, options and scripts exist."""
    found = list(commands(readme))
    assert {"train.py", "evaluate.py", "envs.py"} <= {script for script, _ in found}
    for script, argv in found:
        assert (ROOT / script).exists(), script
        if script == "train.py" and argv != ["--help"]:
            config, _ = parse(argv)
            if config.task in ("math", "code"):
                assert config.data, argv
                assert config.eval_data, argv
            else:
                parse_policies(config.policies, task_of(config).training.agents)
        if script == "envs.py":
            assert {word for word in argv if word.startswith("--")} <= help_of(play.play, capsys)
            assert argv[:1] == ["--help"] or argv[0] in envs.TASKS
        if script == "evaluate.py":
            own = help_of(evaluate.main, capsys)
            assert {word for word in argv if word.startswith("--")} <= own | help_of(train.main, capsys)


def test_the_experiments_are_those_that_were_recorded(readme):
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    recorded = {row[0]: [row[1], row[3]] for table in tables(page) for row in table[1:]}
    (methods,) = [table for table in tables(readme) if table[0] == ["", "held-out success", "each seed"]]
    assert len(methods) == 7
    for name, *numbers in methods[1:]:
        assert numbers == recorded[name]


def test_the_learning_on_gpus_is_what_was_recorded(readme, measured):
    curves = {(run["task"], run["row"]): dict(run["curve"]) for run in measured["learning"]}
    tasks = ("sudoku", "plan_path")

    (table,) = [table for table in tables(readme) if table[0][:3] == ["steps", "0", "10"]]
    for (_, *cells), task in zip(table[1:], tasks, strict=True):
        shown = {int(step): float(cell) for step, cell in zip(table[0][1:], cells, strict=True) if cell}
        assert shown == curves[task, "MAS + AT-GRPO, shared policy"]

    (table,) = [table for table in tables(readme) if table[0][1:2] == ["Sudoku, 30 steps"]]
    for row, *cells in table[2:]:
        for task, after_30, last in zip(tasks, cells[::2], cells[1::2], strict=True):
            curve = curves[task, row]
            step = max(curve)
            assert (float(after_30), last) == (curve[30], f"{curve[step]:.3f} ({step} steps)")
    assert [float(cell) for cell in table[1][1::2]] == [curves[task, "MAS + GRPO"][0] for task in tasks]


def test_steps_on_gpus_are_what_was_recorded(readme, measured):
    (table,) = [table for table in tables(readme) if table[0][:3] == ["model", "policies", "GPUs"]]
    for model, policies, gpus, *cells in table[1:]:
        key = (model.split(",")[0], policies.replace(" ", "_"), int(gpus))
        (ranks,) = [run["ranks"] for run in measured["steps"] if (run["model"], run["policies"], run["gpus"]) == key]
        slowest = [
            f"{max(rank['step_s'] for rank in ranks):.2f}",
            f"{min(rank['rollout_tokens_s_gpu'] for rank in ranks):,.0f}",
            f"{min(rank['update_tokens_s_gpu'] for rank in ranks):,.0f}",
            f"{max(rank['device_gb'] for rank in ranks):.0f}",
        ]
        assert cells == slowest


def test_the_wavefront_on_gpus_is_what_was_recorded(readme, measured):
    runs = {(run["turns"], run["run"]): run["ranks"] for run in measured["wavefront"]}
    seconds = {key: max(rank["step_s"] for rank in ranks) for key, ranks in runs.items()}
    (table,) = [table for table in tables(readme) if table[0][:2] == ["turns", "wavefront"]]
    assert len(table) == 5
    for turns, wavefront, *cells in table[1:]:
        key = (int(turns), "wavefront" if wavefront == "yes" else "no wavefront")
        idle = max(rank["idle"] for rank in runs[key])
        work = 2 * seconds[key[0], "one policy on one GPU"] / seconds[key]
        assert cells == [f"{seconds[key]:.2f}", f"{idle:.0%}", f"{work:.2f}"]


def test_the_update_on_gpus_is_what_was_recorded(readme, measured):
    (ours, trl) = ([run for run in measured["update_vs_trl"] if run["side"] == side] for side in ("ours", "trl"))
    text = " ".join(line for line in readme.splitlines() if "update_vs_trl.py" in line)
    for run in ours + trl:
        assert f"{float(format(run['raw_tokens_per_second'], '.3g')):,.0f}" in text
        assert f"at {run['peak_gib']:.1f} GiB" in text
    for run in ours:
        assert f"{run['raw_tokens_per_second'] / trl[0]['raw_tokens_per_second']:.1f}" in text
