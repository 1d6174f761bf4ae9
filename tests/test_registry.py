"""Tasks of one's own: a class in a file or a module, and what cannot be found or does not fit."""

import copy
import pickle

import pytest

from envs import make_env

NEWS = """
from envs import Env, Reward

class News(Env):
    agents = ("writer",)
    def __init__(self, words=3):
        self.words = words
    def reset(self, seed): return self
    def observe(self, agent): return [{"role": "user", "content": f"{self.words} words"}]
    def step(self, agent, text): return Reward(0.0, 0.5)

class Loose:
    pass
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "news.py").write_text(NEWS)
    return tmp_path / "news.py"


def test_a_class_in_a_file_or_a_module(file, tmp_path, monkeypatch):
    env = make_env(f"{file}:News", words=5)
    assert env.observe("writer")[0]["content"] == "5 words"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "news.py").write_text(NEWS.replace("words=3", "words=4"))
    assert make_env(f"{tmp_path}/other/news.py:News").words == 4  # two files of one name are two modules
    monkeypatch.chdir(file.parent)
    assert type(make_env("news.py:News")) is type(env)  # a file is loaded once
    assert type(pickle.loads(pickle.dumps(env))) is type(copy.deepcopy(env)) is type(env)
    assert make_env("news:News").agents == ("writer",)


@pytest.mark.parametrize(
    ("source", "task", "options", "words"),
    [
        (NEWS, "chess", {}, "unknown task 'chess': choose one of plan_path, sokoban, sudoku, math, code, or file"),
        (NEWS, "nowhere.py:News", {}, "nowhere.py"),
        (NEWS, "FILE:Gazette", {}, "news.py has no class Gazette"),
        (NEWS, "FILE:Loose", {}, "Loose has to inherit from Env (from envs import Env)"),
        (NEWS.replace("def step", "def leap"), "FILE:News", {}, "abstract method"),
        (NEWS, "FILE:News", {"letters": 5}, "letters"),
        (NEWS, "FILE:News", {"workflow": "ensemble"}, "unexpected keyword argument 'workflow'"),
        ("def broken(:", "FILE:News", {}, "SyntaxError"),
        ("x = 1 / 0", "FILE:News", {}, "ZeroDivisionError: division by zero (<module>, line 1 of news.py)"),
        ("raise SystemExit(0)", "FILE:News", {}, "SystemExit"),
    ],
)
def test_what_cannot_be_built_is_one_line(file, source, task, options, words):
    file.write_text(source)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make_env(task.replace("FILE", str(file)), **options)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
