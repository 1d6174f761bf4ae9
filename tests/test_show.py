"""What a run shows of itself beside its metrics: boards, the spread of groups, and who started it with what."""

import json

import pytest
from helpers import ScriptedEngine, Toy

from distributed.world import World
from envs import make_env, picture
from grouping import assign_advantages, group_samples, trajectory_key
from records.boards import LEVELS, board_rows, replay
from records.groups import BINS, group_row
from records.log import Log
from records.trees import tree_rows
from rollout import evaluate, rollout_chains, rollout_tree
from tasks.plan_path import PlanPath

PLANS = {"tool_user": ["[R]", "[D]", "nothing"], "planner": ["[U]", "[R, R]", "[R]"]}


class Drawn(Toy):
    """A Toy that draws its log."""

    def render(self):
        return "|".join(self.log) or "empty"


class Moody(Drawn):
    """Its second life is worth something else than its first."""

    lives = 0

    def step(self, agent, text):
        type(self).lives += 1
        return super().step(agent, str(type(self).lives % 9))


def play(envs, script, sample=rollout_tree, k=3, turns=2):
    engine = ScriptedEngine(script)
    result = sample(envs, engine, encode=engine.encode, decode=engine.decode, num_candidates=k, max_turns=turns)
    assign_advantages(group_samples(result.samples, trajectory_key if sample is rollout_chains else lambda s: s.key))
    return result


def boards(row, episode=0):
    """(before, after each candidate) of every stage."""
    return [
        (row["boards"][stage["board"]], [row["boards"][c["board"]] for c in stage["candidates"]])
        for stage in row["episodes"][episode]["stages"]
    ]


# ---------------------------------------------------------------------------------------------------------------- trees


def test_a_tree_shows_the_board_before_a_stage_and_after_each_candidate():
    result = play([Drawn()], lambda request, k: "152"[k], turns=1)
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1, lambda env: Drawn())
    assert boards(row) == [
        ("empty", ["ann:1", "ann:5", "ann:2"]),
        ("ann:5", ["ann:5|bob:1", "ann:5|bob:5", "ann:5|bob:2"]),
    ]
    assert len(row["boards"]) == len(set(row["boards"]))  # each is written once


def test_chains_show_the_boards_of_each_trajectory():
    result = play([Drawn()], lambda request, k: str(request.seed % 3), rollout_chains, turns=1)
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1, lambda env: Drawn())
    assert [boards(row, k)[1] for k in range(3)] == [(f"ann:{k}", [f"ann:{k}|bob:{k}"]) for k in range(3)]


@pytest.mark.parametrize("view", ["grid", "cells"])
def test_a_real_board_is_drawn_whatever_its_agents_see(view):
    def level(env):
        return PlanPath.from_text("S.G\n...", view=view)

    result = play([level(0)], lambda request, k: f"#### {PLANS[request.agent][k]}", turns=1)
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1, level)
    tool_user, planner = [[before, *after] for before, after in boards(row)]
    assert {board.split("\n")[1] for board in tool_user} == {"P . G"}  # a proposal moves nobody
    assert [board.split("\n")[1] for board in planner] == ["P . G", "P . G", ". . P", ". P G"]


def test_an_environment_without_a_picture_has_no_boards():
    assert picture(Toy()) == ""
    assert picture(make_env("sudoku").reset(seed=1)).startswith("Puzzle:\n")
    result = play([Toy()], lambda request, k: "152"[k])
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1, lambda env: Toy())
    assert row == tree_rows(result, 0, ScriptedEngine.decode, 1)[0]
    assert "boards" not in row


def test_a_board_that_would_be_another_one_is_not_shown():
    result = play([Moody()], lambda request, k: "152"[k], turns=1)
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1, lambda env: Moody())
    assert row["boards"] == ["empty"]
    assert "board" not in row["episodes"][0]["stages"][1]


def test_candidates_that_were_not_scored_have_no_board():
    result = play([Drawn()], lambda request, k: ("infra", "4", "6")[k], turns=1)
    assert replay(Drawn(), result.samples, ScriptedEngine.decode)[0] == ("empty", ["", "ann:4", "ann:6"])


def test_where_scoring_is_slow_only_what_was_committed_is_played_again():
    env = Drawn()
    env.slow_scoring = True
    result = play([Drawn()], lambda request, k: "152"[k], turns=1)
    assert replay(env, result.samples, ScriptedEngine.decode) == [
        ("empty", ["", "ann:5", ""]), ("ann:5", ["", "ann:5|bob:5", ""]),
    ]  # fmt: skip


def test_what_is_recorded_are_the_environments_with_the_most_groups_with_a_signal():
    envs = [Toy(name="flat"), Toy(name="flat"), Toy(name="half"), Toy(name="full"), Toy(name="full")]
    names = [env.name for env in envs]

    def script(request, k):
        name = "".join(map(chr, request.prompt_ids)).split()[0]
        return str(k) if name == "full" or (name == "half" and request.agent == "ann") else "4"

    result = play(envs, script)
    recorded = [names[row["env"]] for row in tree_rows(result, 0, ScriptedEngine.decode, 3)]
    assert recorded == ["half", "full", "full"]
    assert [row["env"] for row in tree_rows(result, 0, ScriptedEngine.decode, 1)] == [3]


def test_small_differences_of_reward_are_recorded():
    result = play([Toy()], lambda request, k: "1")
    for k, sample in enumerate(result.samples):
        sample.reward = 1 + 1e-5 * (k % 3)
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1)
    assert [c["reward"] for c in row["episodes"][0]["stages"][0]["candidates"]] == [1.0, 1.00001, 1.00002]


# --------------------------------------------------------------------------------------------------------------- groups


def test_the_spread_of_a_step():
    """Turn 0: ann differs, bob does not; turn 1: nobody does."""

    def script(request, k):
        return str(k) if len(request.prompt_ids) == len("toy ann sees nothing") else "5"

    result = play([Toy(), Toy()], script)
    row = group_row(result.samples, 4)
    assert (row["step"], row["signal"], row["tokens"]) == (4, [0.5, 0.0], 2 * 4 * 3 * 2)
    assert (sum(row["advantages"]), len(row["advantages"])) == (24, BINS)
    assert row["advantages"][BINS // 2] == 18 + 2  # all fives, and 1 of 0 1 2
    assert row["reward_limit"] == 1.0
    assert {agent: sum(counts) for agent, counts in row["rewards"].items()} == {"ann": 12, "bob": 12}
    assert row["rewards"]["bob"][BINS // 2] == 12  # .5
    json.dumps(row)


def test_a_step_in_which_nothing_was_scored():
    row = group_row(play([Toy()], lambda request, k: "infra").samples, 0)
    assert (row["signal"], sum(row["advantages"]), row["rewards"], row["reward_limit"]) == ([0.0], 0, {}, 1.0)


# ----------------------------------------------------------------------------------------------------------- evaluation


def evaluation(level, script, count=6):
    engine = ScriptedEngine(script)
    return evaluate([level(i) for i in range(count)], engine, encode=engine.encode, decode=engine.decode, max_turns=2)


def make_log(folder, level=lambda number: Drawn(), trees=2):
    return Log(folder, World(), 2, ["ann", "bob"], ["p"], ScriptedEngine.decode, trees, lambda s, e: level(e), level)


def test_the_first_held_out_boards_are_recorded():
    result = evaluation(lambda number: Drawn(), lambda request, k: "3!" if request.agent == "bob" else "1")
    rows = board_rows(result.episodes, 25, ScriptedEngine.decode, lambda number: Drawn())
    assert [row["level"] for row in rows] == list(range(LEVELS))
    assert rows[0] == {
        "step": 25, "level": 0, "solved": True, "ended": "done", "board": "empty", "actions": [
            {"turn": 0, "agent": "ann", "text": "1", "board": "ann:1"},
            {"turn": 0, "agent": "bob", "text": "3!", "board": "ann:1|bob:3!"},
        ],
    }  # fmt: skip
    assert board_rows(result.episodes, 25, ScriptedEngine.decode, lambda number: Toy()) == []


def read(folder, name):
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_boards_of_evaluations_are_written_and_cut_like_the_evaluations(tmp_path):
    log, result = make_log(tmp_path), evaluation(lambda number: Drawn(), lambda request, k: "1")
    log.clear()
    for step in (0, 1, 2):
        log.evaluation(step, result)
    log.cut(1)
    assert [row["step"] for row in read(tmp_path, "evaluations.jsonl")] == [0, 1]
    assert [row["step"] for row in read(tmp_path, "boards.jsonl")] == [0] * LEVELS + [1] * LEVELS
    log.clear()
    assert not (tmp_path / "boards.jsonl").exists()
    make_log(tmp_path, trees=0).clear()


def test_a_run_that_records_no_trees_records_no_boards(tmp_path):
    log = make_log(tmp_path, trees=0)
    log.clear()
    log.evaluation(0, evaluation(lambda number: Drawn(), lambda request, k: "1"))
    assert not (tmp_path / "boards.jsonl").exists()


def test_every_command_that_worked_on_a_run_is_noted(tmp_path, monkeypatch):
    result = evaluation(lambda number: Drawn(), lambda request, k: "1")
    for arguments, begin in ((["a b"], lambda log: log.clear()), (["--resume"], lambda log: log.cut(0))):
        monkeypatch.setattr("sys.argv", ["train.py", *arguments])
        log = make_log(tmp_path)
        begin(log)
        log.evaluation(0, result)
    first, second = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["sessions"]
    assert (first["command"], second["command"]) == ("python train.py 'a b'", "python train.py --resume")
    assert set(first) == {"command", "date", "versions", "processes", "seconds"}
    assert set(first["versions"]) == {"python", "torch", "transformers", "numpy"}
    assert 0 <= first["seconds"] < 60
