"""A class of one's own in a file or a module: from any folder, with data, with max_turns, in every command."""

import copy
import json
import pickle
import re

import pytest
from helpers import refuses

import evaluate
import train
from envs import make_env
from tasks.levels import list_options, make_levels, parse_pairs
from tools import check

QUIZ = '''
import json

from envs import Env, Reward
from words import HELLO


class Quiz(Env):
    """Answer a question of a file within a number of turns."""

    agents = ("ann", "bob")

    def __init__(self, data: str, max_turns: int = 2, hint="none", weight=1):
        self.problems = [json.loads(line)["question"] for line in open(data)]
        self.max_turns, self.hint, self.weight = max_turns, hint, weight

    def reset(self, seed):
        self.question, self.left = self.problems[seed % len(self.problems)], self.max_turns
        self.done = self.solved = False
        return self

    def observe(self, agent):
        return [{"role": "user", "content": f"{HELLO} {agent}, {self.question}, {self.left} left"}]

    def step(self, agent, text):
        if self.done:
            return Reward(0.0, 0.0)
        self.left -= agent == "bob"
        self.solved = text == self.question
        self.done = self.solved or not self.left
        return Reward(float(self.solved), 0.5)
'''
LOOSE = "\n\nclass Loose:\n    pass\n"
SMALL = "--steps 1 --envs-per-step 2 --num-candidates 2 --warm-start 0 --eval-envs 9 --max-turns 3 --device cpu"
FREE = {"data: str, ": "", "open(data)": "[]", "self.problems": "self.words"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "quiz.py").write_text(QUIZ)
    (tmp_path / "words.py").write_text("HELLO = 'hello'\n")
    for name, numbers in (("train", range(4)), ("test", range(4, 7))):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"question": "number {n}"}}\n' for n in numbers))
    return tmp_path


def task(folder):
    data = ["--data", f"{folder}/train.jsonl", "--eval-data", f"{folder}/test.jsonl"]
    return ["--task", f"{folder}/quiz.py:Quiz", *data]


def test_two_files_of_one_name_are_two_modules(folder, tmp_path, monkeypatch):
    data = f"{folder}/test.jsonl"
    env = make_env(f"{folder}/quiz.py:Quiz", data=data)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "quiz.py").write_text(QUIZ.replace("weight=1", "weight=4"))
    assert make_env(f"{tmp_path}/other/quiz.py:Quiz", data=data).weight == 4
    monkeypatch.chdir(folder)
    assert type(make_env("quiz.py:Quiz", data=data)) is type(env)  # a file is loaded once
    assert type(pickle.loads(pickle.dumps(env))) is type(copy.deepcopy(env)) is type(env)


@pytest.mark.parametrize(
    ("source", "task", "options", "words"),
    [
        ("", "chess", {}, "unknown task 'chess': choose one of plan_path, sokoban, sudoku, math, code, or file"),
        ("", "nowhere.py:News", {}, "nowhere.py"),
        (QUIZ, "FILE:Gazette", {}, "quiz.py has no class Gazette"),
        (QUIZ + LOOSE, "FILE:Loose", {}, "Loose has to inherit from Env (from envs import Env)"),
        (QUIZ.replace("def step", "def leap"), "FILE:Quiz", {}, "abstract method"),
        ("def broken(:", "FILE:News", {}, "SyntaxError"),
        ("x = 1 / 0", "FILE:News", {}, "ZeroDivisionError: division by zero (<module>, line 1 of quiz.py)"),
    ],
)
def test_what_cannot_be_built_is_one_line(folder, source, task, options, words):
    (folder / "quiz.py").write_text(source)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make_env(task.replace("FILE", f"{folder}/quiz.py"), **options)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_from_any_folder(folder, monkeypatch, capsys):
    """A class in the working directory, whose file imports its neighbour; a file is found again from elsewhere.

    Data and turns reach a class that takes them.
    """
    monkeypatch.chdir(folder)
    data = ["--data", "train.jsonl", "--eval-data", "test.jsonl"]
    train.main(["--task", "quiz.py:Quiz", *data, *SMALL.split(), "--output-dir", str(folder / "run")])
    assert re.search(r"hello ann, number \d, 3 left", capsys.readouterr().out)
    assert json.loads((folder / "run" / "metrics.jsonl").read_text())["turns"] <= 3
    monkeypatch.chdir(folder.parent)
    evaluate.main([str(folder / "run"), "--task", f"{folder}/quiz.py:Quiz"])
    assert "(n=3, se " in capsys.readouterr().out.splitlines()[-1]  # each held-out problem once
    monkeypatch.chdir(folder)
    check.main(["quiz:Quiz", "--data", "train.jsonl"])
    assert capsys.readouterr().out == "options: hint=none weight=1\nquiz:Quiz: no mistake found\n"


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({}, "--data {}/train.jsonl --eval-data {}/train.jsonl", "both contain the question 'number 0'"),
        ({}, "--data {}/train.jsonl", "needs --eval-data"),
        ({}, "", "needs --data"),
        ({"self.problems": "self.hidden"}, "--data {}/train.jsonl --eval-data {}/test.jsonl", "needs `problems`"),
        (FREE, "--eval-data x.jsonl", "its constructor takes no `data`"),
        ({"import json\n": "x = 1 / 0\n"}, "", "ZeroDivisionError: division by zero"),
        ({"agents = (": "names = ("}, "--data {}/train.jsonl --eval-data {}/test.jsonl", "no attribute 'agents'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_trained(folder, change, words, message):
    source = QUIZ
    for old, new in change.items():
        source = source.replace(old, new)
    (folder / "quiz.py").write_text(source)
    argv = ["--task", f"{folder}/quiz.py:Quiz", *words.format(folder, folder).split(), *SMALL.split()]
    assert message in refuses(train.main, *argv, "--output-dir", folder / "run")
    assert not (folder / "run" / "metrics.jsonl").exists()


def test_options_are_read_from_the_signature(folder):
    quiz = task(folder)[1]
    assert list_options(quiz) == "hint=none weight=1"
    assert parse_pairs(quiz, ["hint=5", "weight=0.5"]) == {"hint": "5", "weight": 0.5}  # text stays text
    assert parse_pairs("sudoku", ["blanks=None", "size=4"]) == {"blanks": None, "size": 4}


@pytest.mark.parametrize(
    ("name", "pair", "words"),
    [
        ("plan_path", "hieght=4", "plan_path has tool=direct rows=10 cols=10 blocks=0.22"),
        ("plan_path", "rows", "not KEY=VALUE"),
        ("plan_path", "blocks=1e999", "blocks=inf"),
        ("math", "self=1", "math has config=None"),
        ("quiz", "max_turns=3", "hint=none weight=1"),
    ],
)
def test_a_wrong_task_option_is_explained(folder, name, pair, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make_levels(task(folder)[1] if name == "quiz" else name, env_options=[pair])
    assert words in str(error.value)


def test_all_problems_or_200_levels_are_evaluated_unless_told_otherwise(folder):
    board = make_levels("plan_path")
    assert [len(board.held_out_numbers(n)) for n in (0, 3, 500)] == [200, 3, 500]
    quiz = make_levels(task(folder)[1], eval_data=task(folder)[-1], training=False)
    assert [len(quiz.held_out_numbers(n)) for n in (0, 2, 500)] == [3, 2, 3]
