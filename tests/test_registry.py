"""Tasks of one's own: a class in a file or a module, from any folder."""

import copy
import pickle

import pytest

from envs import make_env

NEWS = """
from envs import Env, Reward

class News(Env):
    agents, simultaneous, done, solved = ("writer",), False, False, False
    def __init__(self, words=3):
        self.words = words
    def reset(self, seed): return self
    def observe(self, agent): return [{"role": "user", "content": f"{self.words} words"}]
    def step(self, agent, text): return Reward(0.0, 0.5)
    def copy(self): return self
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "news.py").write_text(NEWS)
    return tmp_path / "news.py"


def test_a_class_in_a_file(file, monkeypatch):
    env = make_env(f"{file}:News", words=5)
    assert env.observe("writer")[0]["content"] == "5 words"
    monkeypatch.chdir(file.parent)
    assert type(make_env("news.py:News")) is type(env)  # the file is loaded once
    assert type(pickle.loads(pickle.dumps(env))) is type(copy.deepcopy(env)) is type(env)


def test_a_class_in_a_module(file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent))
    assert make_env("news:News").agents == ("writer",)


def test_two_files_of_one_name_are_two_modules(file, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "news.py").write_text(NEWS.replace("words=3", "words=4"))
    assert make_env(f"{file}:News").words == 3
    assert make_env(f"{tmp_path}/other/news.py:News").words == 4


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("chess", ["chess", "plan_path, sokoban, sudoku, math, code", "file.py:Class"]),
        ("nowhere.py:News", ["nowhere.py"]),
        ("nowhere_at_all:News", ["nowhere_at_all"]),
        ("{file}:Gazette", ["news.py", "no class Gazette"]),
        ("{file}:Reward.x", ["no class Reward.x"]),
    ],
)
def test_a_task_that_is_not_there_is_named(file, task, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make_env(task.format(file=file))
    assert all(word in str(error.value) for word in words)


def test_a_file_that_cannot_be_loaded_is_named(file):
    file.write_text("def broken(:")
    with pytest.raises(ValueError, match=r"news\.py"):
        make_env(f"{file}:News")


def test_options_and_workflows_that_a_class_does_not_take_are_refused(file):
    with pytest.raises(ValueError, match="letters"):
        make_env(f"{file}:News", letters=5)
    with pytest.raises(ValueError, match="'ensemble'"):
        make_env(f"{file}:News", "ensemble")


def test_a_class_that_does_not_inherit_is_refused_in_one_line(file):
    file.write_text(NEWS.replace("class News(Env)", "class News"))
    with pytest.raises(ValueError, match=r"News has to inherit from Env \(from envs import Env\)"):
        make_env(f"{file}:News")
