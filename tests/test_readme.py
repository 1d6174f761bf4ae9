"""README.md is short, starts with what a visitor needs, and has the numbers that were recorded.

That its links, files, options and commands exist is tested with those of all pages in test_docs.py.
"""

import json
import re
from pathlib import Path

import pytest
from helpers import FENCE, tables

ROOT = Path(__file__).parent.parent
LINES, BYTES, COLUMNS = 130, 14_000, 99  # it is read before anything else, on one screen of a repository's page


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def readme():
    return page("../README.md")


def test_it_is_short(readme):
    assert len(readme.splitlines()) <= LINES
    assert len(readme.encode()) <= BYTES
    code = [line for _, block in FENCE.findall(readme) for line in block.splitlines()]
    assert [line for line in code if len(line) > COLUMNS] == []
    assert (ROOT / "docs" / "sample_report.html").stat().st_size < 500_000


def test_the_table_of_files_is_complete_and_true(readme):
    columns = [" ".join(row[0] for row in table[1:]) for table in tables(readme)]
    (files,) = [column for column in columns if "train.py" in column and "rollout.py" in column]
    named = re.findall(r"[\w./-]+\.\w+|[\w./-]+/", re.sub(r"\]\([^)]*\)", "]", files))
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert {path.name for path in ROOT.glob("*.py")} - set(named) == set()
    assert len(set(named)) == len(named), "a file is listed twice"


def test_two_commands_do_all_of_the_set_up(readme):
    """One trains, one tests; each also installs what it needs from files that are there."""
    code = "\n".join(block for _, block in FENCE.findall(readme)).replace("\\\n", " ")
    starts = [line for line in code.splitlines() if line.startswith("python3 -m venv .venv && ")]
    ends = [line.rpartition("&& ")[2] for line in starts]
    assert ends[:2] == [".venv/bin/python train.py", ".venv/bin/python -m pytest -n auto --dist loadfile"]
    files = [re.findall(r"-r (\S+)", line) for line in starts]
    assert files[:2] == [["requirements.txt"], ["requirements-dev.txt"]]
    assert all((ROOT / name).exists() for names in files for name in names)


def recorded(label, step):
    """Held-out success of a row of docs/real.json after some steps, as the pages write it."""
    runs = {run["label"]: run["evaluations"] for run in json.loads(page("real.json"))["runs"]}
    (found,) = [row["success"] for row in runs[label] if row["step"] == step]
    return f"{found:.2f}"


def test_sentences_about_real_models_are_the_records(readme):
    """What README.md and docs/real_models.md say outside of their tables."""
    team, fast, slow = "AT-GRPO, shared policy", "GRPO, learning rate 8e-6", "GRPO, learning rate 2e-6"
    a, b, c, d, e = (
        recorded(f"MAS + {row} (seed 2)", step)
        for row, step in ((team, 0), (team, 16), (fast, 4), (slow, 4), (slow, 16))
    )
    assert f"AT-GRPO went from {a} to {b}, MAS + GRPO from {a} to {c} in four steps" in readme
    assert f"with a slower rate to {d} in four and back to {e} after 16" in readme
    gsm8k = ("GSM8K, AT-GRPO, shared policy (second sitting)", "GSM8K, single agent + GRPO (second sitting)")
    mbpp = ("MBPP+, AT-GRPO, shared policy", "MBPP+, single coder + GRPO (fourth sitting)")
    for rows, other, steps in ((gsm8k, "single-agent GRPO", 16), (mbpp, "a single coder with GRPO", 12)):
        mine, theirs = ([recorded(label, step) for step in (0, steps)] for label in rows)
        assert f"went from {' to '.join(mine)} and of {other} from {' to '.join(theirs)}" in readme
    text, runs = page("real_models.md"), {run["name"]: run for run in json.loads(page("real.json"))["runs"]}
    formats = {row["step"]: f"{row['formats']['planner']:.2f}" for row in runs["third_c_grpo_2e6"]["evaluations"]}
    assert f"from {formats[0]} to {formats[4]} of its greedy ones at step 4 and fall back to {formats[16]}" in text
    seconds = [sum(runs[name]["step_s"]) for name in ("third_c_at_8e6", "third_c_grpo_2e6")]
    assert "The first two rows took {:.0f} s and {:.0f} s.".format(*seconds) in text
    metrics = runs["fourth_e_grpo"]["metrics"]
    tokens = [t / n for t, n in zip(metrics["tokens"], metrics["samples"], strict=True)]
    assert f"{tokens[0]:.0f} tokens an answer in the first step, {tokens[-1]:.0f} in the last" in text


@pytest.mark.parametrize("name", ["README.md", "docs/real_models.md"])
def test_the_tables_of_the_real_model_are_the_records(name):
    found = [t for t in tables((ROOT / name).read_text(encoding="utf-8")) if t[0][0].startswith("Plan-Path 10x10")]
    assert found
    for header, *rows in found:
        steps = {column: int((re.findall(r"\d+", title) or ["0"])[0]) for column, title in enumerate(header)}
        for label, *cells in rows:
            shown = [(steps[column], cell) for column, cell in enumerate(cells, 1) if re.fullmatch(r"\d\.\d\d", cell)]
            assert len(shown) >= 3
            assert [cell for _, cell in shown] == [recorded(label, step) for step, _ in shown]


def test_the_tables_of_mathematics_and_code_are_the_records():
    (table,) = [t for t in tables(page("real_models.md")) if t[0][0].startswith("greedy success on held-out")]
    runs = {run["label"]: run for run in json.loads(page("real.json"))["runs"]}
    for label, before, after, steps, problems, candidates in table[1:]:
        evaluations = runs[label]["evaluations"]
        assert [f"{row['success']:.2f}" for row in evaluations] == [value for value in (before, after) if "." in value]
        assert {row["n"] for row in evaluations} == {int(problems)}
        assert len(runs[label]["metrics"]["samples"]) == int(steps.split()[0])
        assert f"{sum(runs[label]['metrics']['samples']):,}" == candidates


def test_the_steps_against_trl_are_the_records():
    (table,) = [t for t in tables(page("real_models.md")) if t[0][0].startswith("GRPO on GSM8K")]
    for row, (_, *cells) in zip(json.loads(page("real.json"))["run_vs_trl_fourth"]["rows"], table[1:], strict=True):
        rewards = f"{sum(row['rewards'][:5]) / 5:.2f} {sum(row['rewards'][-5:]) / 5:.2f}"
        assert cells == [f"{row['step_s']:.2f}", f"{row['start_s']:.0f}", f"{row['peak_gb']:.0f}", rewards]


def test_the_first_run_is_the_one_that_was_recorded(readme):
    (curves,) = [table for table in tables(page("runs.md")) if table[0][:2] == ["steps", "0"]]
    ranges = [(min(cells), max(cells)) for cells in list(zip(*curves[1:], strict=True))[1:]]
    (found,) = re.findall(r"success of (\S+) to (\S+) before and.*?(\S+) to (\S+) after\*\*", readme)
    assert found == (*ranges[0], *ranges[-1])
