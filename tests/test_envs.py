"""The three board games: levels, rules, rewards worked out by hand, and answers as models write them.

The solvers in this file read the board from the prompt, as a player does, and share no code with `tasks/`.
"""

import hashlib
import io
import json
import os
import random
import re
import subprocess
import sys
import time
import types
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs import InfraError, Reward, make_env, mixed_reward
from tasks import boards, sokoban, sudoku
from tasks.boards import parse_answer
from tasks.plan_path import PlanPath
from tasks.sokoban import Sokoban
from tasks.sudoku import Sudoku
from tools import play

STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
ROOT = Path(__file__).resolve().parent.parent
BOARDS = ["plan_path", "sokoban", "sudoku"]


def prompt(env, agent="planner"):
    return env.observe(agent)[-1]["content"]


def plan(moves):
    return f"#### [{', '.join(moves)}]"


def read_plan_path(env):
    """{(row, column): character} of the drawn board."""
    rows = [line.split(" ") for line in prompt(env).splitlines() if re.fullmatch(r"[PG#.]( [PG#.])+", line)]
    return {(r, c): char for r, row in enumerate(rows) for c, char in enumerate(row)}


def solve_plan_path(env):
    """A shortest list of moves to the goal, None without one."""
    board = read_plan_path(env)
    start = next(cell for cell, char in board.items() if char == "P")
    paths: dict[tuple[int, int], list[str]] = {start: []}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        if board[cell] == "G":
            return paths[cell]
        for move, (r, c) in STEPS.items():
            there = cell[0] + r, cell[1] + c
            if board.get(there, "#") != "#" and there not in paths:
                paths[there] = [*paths[cell], move]
                queue.append(there)
    return None


def read_sokoban(env):
    """(floor, goals, boxes, player) of the drawn board."""
    rows = prompt(env).split("Board:\n")[1].split("\nYou are at")[0].split("\n")
    cells = {(r, c): char for r, row in enumerate(rows) for c, char in enumerate(row)}
    pick = lambda chars: frozenset(cell for cell, char in cells.items() if char in chars)  # noqa: E731
    (player,) = pick("@+")
    return pick(" .$*@+"), pick(".*+"), pick("$*"), player


def solve_sokoban(env, position=None):
    """Moves of a solution with the fewest moves by trying all of them, None for a deadlock."""
    floor, goals, boxes, player = position or read_sokoban(env)
    paths, queue = {(player, boxes): ""}, deque([(player, boxes)])
    while queue:
        player, boxes = queue.popleft()
        path = paths[player, boxes]
        if boxes == goals:
            return list(path)
        for move, (r, c) in STEPS.items():
            there, behind, pushed = (player[0] + r, player[1] + c), (player[0] + 2 * r, player[1] + 2 * c), boxes
            if there in boxes and behind in floor and behind not in boxes:
                pushed = boxes - {there} | {behind}
            if there in floor and there not in pushed and (there, pushed) not in paths:
                paths[there, pushed] = path + move
                queue.append((there, pushed))
    return None


def read_sudoku(env):
    """(clues, grid) as lists of rows."""
    text = prompt(env).replace("The grid is as in the puzzle.", "")
    rows = [[int(char) for char in line.split()] for line in text.splitlines() if re.fullmatch(r"\d( \d)+", line)]
    size = len(rows[0])
    return rows[:size], rows[-size:]


def sudoku_rules(rows):
    """The cells that are filled break no rule."""
    size = len(rows)
    height, width = {4: (2, 2), 6: (2, 3), 9: (3, 3)}[size]
    units = [[(r, c) for c in range(size)] for r in range(size)] + [[(r, c) for r in range(size)] for c in range(size)]
    units += [
        [(r + i, c + j) for i in range(height) for j in range(width)]
        for r in range(0, size, height)
        for c in range(0, size, width)
    ]
    filled = [[rows[r][c] for r, c in unit if rows[r][c]] for unit in units]
    return all(len(values) == len(set(values)) for values in filled)


def solve_sudoku(rows):
    """Every completion, by filling the most constrained cell (written for this test, slow and plain)."""
    size = len(rows)
    best = None
    for r in range(size):
        for c in range(size):
            if not rows[r][c]:
                fits = []
                for value in range(1, size + 1):
                    rows[r][c] = value
                    fits += [value] * sudoku_rules(rows)
                rows[r][c] = 0
                if best is None or len(fits) < len(best[2]):
                    best = r, c, fits
                    if len(fits) < 2:
                        break
        if best and len(best[2]) < 2:
            break
    if best is None:
        return [[list(row) for row in rows]]
    r, c, fits = best
    found = []
    for value in fits:
        rows[r][c] = value
        found += solve_sudoku(rows)
    rows[r][c] = 0
    return found


# --------------------------------------------------------------------------------------------------------------- levels


def test_thousand_plan_path_levels_are_solvable():
    seen = set()
    env = make_env("plan_path", "single")
    for seed in range(1000):
        seen.add(prompt(env.reset(seed=seed)))
        moves = solve_plan_path(env)
        assert len(moves) >= 5
        assert env.step("planner", plan(moves)) == Reward(1.0, 1.0, {"format": 1.0, "legal": 1.0})
        assert env.done
        assert env.solved
    assert len(seen) == 1000


def test_thousand_sokoban_levels_are_solvable_and_take_pushes():
    seen = set()
    env = make_env("sokoban", "single")
    for seed in range(1000):
        seen.add(prompt(env.reset(seed=seed)))
        moves = solve_sokoban(env)
        assert len(moves) >= 3
        assert env.step("planner", plan(moves)) == Reward(1.0, 1.0, {"format": 1.0, "legal": 1.0})
        assert env.done
        assert env.solved
    assert len(seen) >= 980  # a 4x4 inside leaves room for chance repeats


def test_thousand_sudokus_have_one_solution():
    seen = set()
    env = make_env("sudoku", "single")
    for seed in range(1000):
        seen.add(prompt(env.reset(seed=seed)))
        clues, _ = read_sudoku(env)
        assert sum(row.count(0) for row in clues) == 8
        (solution,) = solve_sudoku(clues)
        assert env.step("planner", f"#### {solution}") == Reward(1.0, 1.0, {"format": 1.0, "legal": 1.0})
        assert env.solved
    assert len(seen) >= 990


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("plan_path", {"rows": 3, "cols": 5, "blocks": 0.0}),
        ("plan_path", {"rows": 1, "cols": 2}),
        ("sokoban", {"boxes": 2}),
        ("sokoban", {"rows": 5, "cols": 9, "boxes": 2}),
        ("sokoban", {"rows": 7, "cols": 7, "boxes": 3}),
        ("sudoku", {"size": 6}),
        ("sudoku", {"size": 9}),
        ("sudoku", {"size": 4, "blanks": 10}),
    ],
)
def test_other_sizes(task, options):
    env = make_env(task, "single", **options)
    for seed in range(10):
        env.reset(seed=seed)
        if task == "sudoku":
            (answer,) = solve_sudoku(read_sudoku(env)[0])
        else:
            answer = solve_plan_path(env) if task == "plan_path" else solve_sokoban(env)
        reward = env.step("planner", f"#### {json.dumps(answer)}")
        assert (reward.team, reward.local, env.solved) == (1.0, 1.0, True)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("plan_path", {"rows": 1, "cols": 200, "blocks": 0.6}),
        ("plan_path", {"rows": 200, "cols": 1, "blocks": 0.6}),
        ("plan_path", {"rows": 2, "cols": 100, "blocks": 0.6}),
        ("plan_path", {"rows": 100, "cols": 100, "blocks": 0.6}),
        ("sokoban", {"rows": 3, "cols": 40, "boxes": 8}),
        ("sokoban", {"rows": 4, "cols": 4, "boxes": 1}),
    ],
)
def test_a_generator_that_finds_no_level_says_so(task, options):
    start = time.process_time()
    with pytest.raises(ValueError, match="found no level") as error:
        make_env(task, **options).reset(seed=0)
    assert all(f"{name}={value}" in str(error.value) for name, value in options.items())
    assert time.process_time() - start < 20


def test_a_sudoku_that_takes_forever_to_solve_is_an_error():
    """Norvig's puzzle without a solution took half an hour there."""
    puzzle = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."
    with pytest.raises(ValueError, match=r"Sudoku: .*no solution"):
        Sudoku.from_rows([puzzle[i : i + 9] for i in range(0, 81, 9)])
    hard = "4.....8.5.3..........7......2.....6.....8.4......1.......6.3.7.5..2.....1.4......"  # one solution
    assert 0 not in Sudoku.from_rows([hard[i : i + 9] for i in range(0, 81, 9)]).solution


def test_a_sudoku_that_is_never_found_is_an_error(monkeypatch):
    monkeypatch.setattr(sudoku, "_dig", lambda solution, size, blanks, rng: list(solution))
    with pytest.raises(ValueError, match="size=4, blanks=10: found no puzzle"):
        Sudoku(blanks=10).reset(seed=0)


def test_levels_are_those_of_ever():
    """Recorded runs are compared with: prompts of the direct tool, levels and rewards, to the character."""
    digest = hashlib.sha256()
    for task, options in (
        ("plan_path", {}),
        ("plan_path", {"rows": 4, "cols": 4, "blocks": 0.25, "max_moves": 2, "view": "cells"}),
        ("plan_path", {"rows": 8, "cols": 8, "blocks": 0.6}),
        ("sokoban", {}),
        ("sudoku", {}),
    ):
        for workflow in ("mas", "single"):
            env = make_env(task, workflow, **options)
            for seed in range(20):
                env.reset(seed=seed)
                for _ in range(2):
                    for agent in env.agents:
                        digest.update(repr([env.observe(agent), env.step(agent, "#### [R, D, L]")]).encode())
    assert digest.hexdigest()[:16] == "90067263b86dc7c5"


def test_same_seed_same_level_in_any_process():
    program = (
        "import envs, hashlib\n"
        f"for task in {BOARDS}:\n"
        "    env = envs.make_env(task)\n"
        "    texts = [env.reset(seed=seed).observe('planner')[-1]['content'] for seed in range(30)]\n"
        "    print(hashlib.sha256('\\n'.join(texts).encode()).hexdigest())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(set(outputs.pop().split())) == 3


@pytest.mark.parametrize("task", BOARDS)
def test_levels_leave_the_global_generators_alone(task):
    before = random.getstate(), np.random.get_state()
    env = make_env(task).reset(seed=3)
    env.copy().step("planner", "#### [R]")
    after = random.getstate(), np.random.get_state()
    assert before[0] == after[0]
    assert all(np.array_equal(x, y) for x, y in zip(before[1], after[1], strict=True))


def test_siblings_share_the_level_and_the_next_seed_differs():
    for task in BOARDS:
        a, b, other = (make_env(task).reset(seed=seed) for seed in (7, 7, 8))
        assert prompt(a) == prompt(b) == prompt(a.copy())
        assert prompt(a) != prompt(other)


@pytest.mark.parametrize("task", BOARDS)
def test_generation_is_not_slow(task):
    """A tenth of what benchmarks/levels.py shows, so that a busy machine does not fail it."""
    env, start = make_env(task), time.process_time()
    for seed in range(100):
        env.reset(seed=seed)
    assert 100 / (time.process_time() - start) >= 200


# -------------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### [U, D]", ["U", "D"]),
        ("#### [up, 'Down', \"LEFT\", r] and that is it", ["up", "Down", "LEFT", "r"]),
        ("#### [U]\nno, better:\n####   [D]", ["D"]),
        ("#### []", []),
        ("####[[1, 2],\n [3, 4]]", [[1, 2], [3, 4]]),
        ("[U, D]", None),
        ("#### U, D", None),
        ("#### [U, D", None),
        ("#### [U]\n####", None),  # the last marker counts
        ("", None),
        ("#### [__import__('os').getpid()]", None),
        ("Actions: [__import__('os').getpid()]", None),
        ("#### [[[[[1]]]]]", None),
    ],
)
def test_parse_answer(text, answer):
    assert parse_answer(text) == answer


def test_answers_are_never_evaluated(tmp_path):
    """E10: code in an answer has no effect and is no move."""
    target = tmp_path / "owned"
    for task in BOARDS:
        env = make_env(task).reset(seed=0)
        for code in (f"open('{target}', 'w').close()", f"__import__('pathlib').Path('{target}').touch()"):
            for agent in env.agents:
                before = prompt(env).split("This is")[0].split("Your last")[0]
                reward = env.step(agent, f"#### [{code}]")
                assert (reward.team, reward.local, reward.info["format"]) == (0.0, 0.0, 0.0)
                assert prompt(env).startswith(before)
    assert not target.exists()


def test_a_long_answer_is_cut_at_200_moves():
    env = PlanPath.from_text("S" + "." * 249 + "G", workflow="single")
    env.step("planner", plan("R" * 250))
    assert "You are at (0,200)" in prompt(env)
    assert not env.done


@pytest.mark.parametrize("task", BOARDS)
def test_noisy_answers_for_a_warm_start(task):
    """Always well formed; all good ones solve the level in a few turns, all random ones hardly ever."""
    rng, solved = np.random.default_rng(0), {0.0: 0, 1.0: 0}
    for good in solved:
        for seed in range(20):
            env: Any = make_env(task, "single").reset(seed=seed)
            for _ in range(20):
                before = prompt(env)
                answer = env.noisy_answer(rng, good)
                assert prompt(env) == before
                assert env.step("planner", answer).info["format"] == 1
                if env.done:
                    solved[good] += 1
                    break
    assert solved[1.0] == 20
    assert solved[0.0] <= 10


@pytest.mark.parametrize("task", BOARDS)
def test_noisy_programs_for_a_warm_start(task):
    """Good plans are better than random ones, one program in five does not run; the planner answers with a line."""
    rng, runs, team = np.random.default_rng(0), [], []
    for seed in range(60):
        env: Any = make_env(task, tool="python").reset(seed=seed)
        text = env.noisy_answer(rng, 1.0 if seed < 20 else 0.0)
        assert text.startswith("```python\nprint('####'")
        reward = env.step("tool_user", text)
        assert reward.info["format"] == 1
        runs.append(reward.info["executes"])
        team.append(reward.team * reward.info["executes"])
        assert env.step("planner", env.noisy_answer(rng, 0.5)).info["format"] == 1
    assert 0.6 < np.mean(runs) < 0.95
    assert np.mean(team[:20]) > 0.1 + np.mean(team[20:])
    env = make_env(task, tool="python").reset(seed=0)
    env.step("tool_user", "no program")
    assert env.noisy_answer(rng, 0.5).startswith("#### [")


def test_a_noisy_program_is_good_as_a_whole():
    rng, env = np.random.default_rng(0), make_env("sudoku", tool="python").reset(seed=0)
    texts = [env.noisy_answer(rng, 0.5) for _ in range(100)]
    assert 30 < max(map(texts.count, texts)) * 100 / 80 < 70  # one in five has a mistake


def test_mixed_reward():
    assert mixed_reward(Reward(0.5, 0.25)) == 0.75
    assert mixed_reward(Reward(0.5, 0.25), alpha=2.0) == 1.25


def test_unknown_names_are_errors_that_name_the_choices():
    with pytest.raises(ValueError, match=r"unknown task 'chess'.*sokoban"):
        make_env("chess")
    for task in BOARDS:
        with pytest.raises(ValueError, match=r"workflow='duo'.*mas or single"):
            make_env(task, "duo")
        with pytest.raises(ValueError, match="wings"):
            make_env(task, wings=2)
        with pytest.raises(ValueError, match=r"tool='abacus'.*direct.*python"):
            make_env(task, tool="abacus")
        env = make_env(task, "single").reset(seed=0)
        with pytest.raises(ValueError, match=r"unknown agent 'tool_user'.*planner"):
            env.step("tool_user", "#### []")


# ------------------------------------------------------------------------------------------------------------ Plan-Path

OPEN = "S....\n.....\n....G"  # 3 rows, 5 columns, distance 6
WALL = "S.#\n..#\n..G"


@pytest.mark.parametrize(
    ("moves", "team", "local", "place"),
    [
        ("RRRRDD", 1, 1.0, (2, 4)),
        ("RRR", 3 / 6, 0.2 + 0.8 * 3 / 6, (0, 3)),
        ("RRRL", 2 / 6, 0.2 + 0.8 * 2 / 6, (0, 2)),  # net steps: going back is no progress
        ("RRRRRRDD", 1, 0.1 + 0.8 * 6 / 8, (2, 4)),  # two bumps: not legal, and 8 moves for 6 steps
        ("", 0, 0.1, (0, 0)),
        ("LUUL", 0, 0.1, (0, 0)),
        ("RLRLRL", 0, 0.2, (0, 0)),
    ],
)
def test_plan_path_rewards(moves, team, local, place):
    for agent in ("planner", "tool_user"):
        env = PlanPath.from_text(OPEN)
        reward = env.step(agent, plan(moves))
        assert reward.team == pytest.approx(team)
        assert reward.local == pytest.approx(local)
        if agent == "planner":
            assert env.solved == env.done == (team == 1)
            if not env.done:
                assert f"You are at ({place[0]},{place[1]})" in prompt(env)
        else:
            assert not env.done
            assert "You are at (0,0)" in prompt(env)  # a proposal moves nobody
            assert f"proposal [{', '.join(moves)}]" in prompt(env).split("\n")


def test_plan_path_goes_on_from_the_current_cell():
    env = PlanPath.from_text(OPEN, workflow="single")
    env.step("planner", plan("RR"))
    assert "You are at (0,2), the goal is at (2,4)" in prompt(env)
    reward = env.step("planner", plan("RD"))  # two of the four steps that are left, two of six in all
    assert (reward.team, reward.local) == (pytest.approx(2 / 6), pytest.approx(0.2 + 0.8 * 2 / 4))
    assert read_plan_path(env)[1, 3] == "P"
    reward = env.step("planner", plan("LL"))  # away
    assert (reward.team, reward.local) == (0.0, pytest.approx(0.2))


def test_plan_path_rows_and_columns_and_steps_after_the_end():
    """C11: not a square, (row, column) from the top left, and nothing happens after the goal."""
    env = PlanPath.from_text("S...G\n.....\n.....", workflow="single")
    system = env.observe("planner")[0]["content"]
    assert "3 rows and 5 columns" in system
    assert "(row, column), (0,0) is top left" in system
    assert env.step("planner", plan("RRRRDD")).team == 1.0  # the moves after the goal are ignored
    assert "You are at (0,4)" in prompt(env)
    after = prompt(env)
    assert env.step("planner", plan("DD")) == Reward(0.0, 0.0, {"format": 0.0})
    assert prompt(env) == after
    assert env.solved


@pytest.mark.parametrize("word", ["R", "r", "right", "Right", "RIGHT", "'R'", '"right"', " R "])
def test_spellings_of_a_move(word):
    env = PlanPath.from_text(OPEN, workflow="single")
    assert env.step("planner", f"#### [{word}]").info == {"format": 1.0, "legal": 1.0}
    assert "You are at (0,1)" in prompt(env)


@pytest.mark.parametrize("word", ["push up", "X", "None", "null", "7", "1.5", "true", "['R']", "R" * 300, "''", "UR"])
def test_what_is_no_move_changes_nothing_and_is_illegal(word):
    """C7."""
    for text, make in ((OPEN, PlanPath.from_text), (LEVEL, Sokoban.from_text)):
        env = make(text, workflow="single")
        before = prompt(env).split("You are at")[0]
        reward = env.step("planner", f"#### [{word}]")
        assert reward.team == 0.0
        assert reward.local == pytest.approx(0.1 * reward.info["format"])
        assert reward.info["legal"] == 0.0
        assert prompt(env).split("You are at")[0] == before


def test_feedback_is_there_from_the_first_turn():
    """C7: the reason of what happened is in the prompt, and a first prompt says that it is the first."""
    for make in (lambda: PlanPath.from_text(WALL), lambda: Sokoban.from_text(LEVEL), lambda: Sudoku.from_rows(TWO)):
        env = make()
        assert "first turn" in prompt(env)
        env.step("planner", "no marker")
        assert "no readable answer line" in prompt(env)
    env = PlanPath.from_text(WALL)
    env.step("planner", plan("RRD"))
    assert "3 moves, 1 of them impossible" in prompt(env)


def test_a_turn_has_max_moves():
    for env in (PlanPath.from_text("S.....G", max_moves=2), Sokoban.from_text("@  $ .", max_moves=2)):
        reward = env.step("planner", plan("RRRRRR"))
        assert reward.info["legal"] == 0.0
        assert "You are at (0,2)" in prompt(env)
        assert not env.done


@pytest.mark.parametrize("text", ["", "S..", "SG\n.", "SSG", "SGG", "S#G", "S.X.G", "S.\n##\n.G"])
def test_malformed_plan_path_levels(text):
    with pytest.raises(ValueError, match="Plan-Path level"):
        PlanPath.from_text(text)


@pytest.mark.parametrize(
    "options",
    [{"rows": 0}, {"blocks": 0.9}, {"max_moves": 0}, {"max_moves": 201}, {"view": "vr"}],
)
def test_plan_path_options_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        PlanPath(**options)


# -------------------------------------------------------------------------------------------------------------- Sokoban

LEVEL = "######\n#+ $ #\n#    #\n######"  # C6: the player starts on the goal
TWO_BOXES = "#######\n#.$@$.#\n#     #\n#######"


def test_player_on_a_goal():
    """C6."""
    env = Sokoban.from_text(LEVEL, workflow="single")
    assert "You are at (1,1), boxes at (1,3), goals at (1,1)" in prompt(env)
    env.step("planner", plan("R"))
    assert "#.@$ #" in prompt(env).splitlines()
    assert env.reset(seed=0).step("planner", plan("DRRRULL")).team == 1.0
    assert env.solved
    assert "#*@  #" in prompt(env).splitlines()


@pytest.mark.parametrize(
    ("moves", "team", "local"),
    [
        ("DRRRULL", 1.0, 1.0),  # two pushes of two
        ("DRRRUL", 0.0, 0.2 + 0.8 / 2),  # one of them
        ("DRRRULLR", 1.0, 1.0),  # what follows the last push is not played
        ("DRRR", 0.0, 0.2),  # walking only
        ("RR", 0.0, 0.2),  # pushes the box to the right wall, from where no push leads back: a deadlock
        ("", 0.0, 0.1),
        ("UL", 0.0, 0.1),  # bumps
        ("DRRRURRLL", 1.0, 0.9),  # solved all the same, but two of the moves were impossible
    ],
)
def test_sokoban_rewards(moves, team, local):
    for agent in ("planner", "tool_user"):
        reward = Sokoban.from_text(LEVEL).step(agent, plan(moves))
        assert reward.team == team
        assert reward.local == pytest.approx(local)


def test_sokoban_boxes_on_goals():
    env = Sokoban.from_text(TWO_BOXES, workflow="single")
    reward = env.step("planner", plan("L"))
    assert (reward.team, reward.local) == (0.5, pytest.approx(0.2 + 0.8 / 2))
    assert "#*@ $.#" in prompt(env).splitlines()
    reward = env.step("planner", plan(["right", "Right"]))
    assert (reward.team, reward.local) == (1.0, pytest.approx(0.2 + 0.8 / 2))
    assert env.solved


def test_a_box_is_not_pushed_into_a_box_or_a_wall_and_only_one_at_a_time():
    env = Sokoban.from_text("#######\n#     #\n#@$$..#\n#     #\n#     #\n#######", workflow="single")
    assert env.step("planner", plan("R")).info["legal"] == 0.0
    assert "#@$$..#" in prompt(env)
    env = Sokoban.from_text("@$.\n.$ \n   ", workflow="single")
    env.step("planner", plan("RL"))
    assert prompt(env).split("\n")[2] == "@ *"


def test_running_out_of_moves_is_not_success():
    """C5: three moves into a wall end nothing, earn no win and are counted as impossible."""
    env = Sokoban.from_text(LEVEL, workflow="single", max_moves=3)
    reward = env.step("planner", plan("LLL"))
    assert (reward.team, reward.local) == (0.0, pytest.approx(0.1))
    assert not env.solved
    assert "3 moves, 3 of them impossible" in prompt(env)


def test_sokoban_text_as_level_files_have_it():
    """Ragged rows, spaces outside of the walls, a box that starts on its goal."""
    env = Sokoban.from_text(
        "\n    #####\n    #   #\n    #$  #\n  ###  $##\n  #  * $ #\n### .  ..#\n#   @  ###\n########\n"
    )
    _, goals, boxes, player = read_sokoban(env)
    assert (len(goals), len(boxes), player) == (4, 4, (6, 4))
    assert env.step("planner", "#### []").team == 1 / 4
    assert not env.done


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#####\n#@ .#\n#####", "0 boxes"),
        ("#####\n#@  #\n#####", "0 boxes"),
        ("", "0 players"),
        ("######\n#@$..#\n######", "1 boxes and 2 goals"),
        ("######\n#@@$.#\n######", "2 players"),
        ("######\n# $. #\n######", "0 players"),
        ("######\n#@x$.#\n######", r"unknown symbols \['x'\]"),
        ("######\n#$@ .#\n######", "cannot be solved"),
        ("#####\n#@#$.#\n#####", "cannot be solved"),
    ],
)
def test_malformed_sokoban_levels(text, message):
    with pytest.raises(ValueError, match=message):
        Sokoban.from_text(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"boxes": 0}, "boxes=0"),
        ({"rows": 0}, "rows=0"),
        ({"max_moves": 0}, "max_moves=0"),
        ({"rows": 3, "cols": 4, "boxes": 2}, "rows=3, cols=4, boxes=2"),
    ],
)
def test_sokoban_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Sokoban(**options).reset(seed=0)


def test_a_sokoban_level_too_large_to_search_is_an_error(monkeypatch):
    monkeypatch.setattr(sokoban, "MAX_POSITIONS", 100)
    with pytest.raises(ValueError, match="more than 100 positions; choose fewer boxes"):
        Sokoban(rows=8, cols=8, boxes=3).reset(seed=0)


def test_pushes_to_go_are_exact():
    """Against a search that plays single moves from every position of some levels, deadlocks included."""
    for seed in range(3):
        env = Sokoban(boxes=2).reset(seed=seed)
        floor, goals, _, _ = read_sokoban(env)
        rng = np.random.default_rng(seed)
        cells = sorted(floor)
        for _ in range(60):
            *boxes, player = (cells[i] for i in rng.choice(len(cells), 3, replace=False))
            moves = solve_sokoban(None, (floor, goals, frozenset(boxes), player))
            pushes = env._pushes(env._mask(boxes), env._mask([player]))
            assert (moves is None) == (pushes is None)
            if moves is not None:
                assert pushes <= count_pushes(moves, boxes, player)  # fewest moves need not be fewest pushes


def count_pushes(moves, boxes, player):
    boxes, pushes = set(boxes), 0
    for move in moves:
        r, c = STEPS[move]
        player = player[0] + r, player[1] + c
        if player in boxes:
            boxes = boxes - {player} | {(player[0] + r, player[1] + c)}
            pushes += 1
    return pushes


# --------------------------------------------------------------------------------------------------------------- Sudoku

ROWS = ["1..4", "..1.", ".1..", "4..1"]
TWO = ["2...", "1.2.", "4231", "31.."]  # C2: exactly two completions


def grid(text):
    return f"#### {[[int(char) for char in row] for row in text.split('/')]}"


def test_sudoku_accepts_every_completion_of_an_ambiguous_puzzle():
    """C2."""
    for text in ("2314/1423/4231/3142", "2413/1324/4231/3142"):
        env = Sudoku.from_rows(TWO, workflow="single")
        reward = env.step("planner", grid(text))
        assert (reward.team, reward.local) == (1.0, pytest.approx(1.0))
        assert env.solved


UNIQUE = ["1.3.", "3412", "2143", "4.21"]  # solution 1234/3412/2143/4321, three blanks


@pytest.mark.parametrize(
    ("text", "team", "local", "after"),
    [
        ("1234/3412/2143/4321", 1.0, 1.0, "1234/3412/2143/4321"),
        ("1234/3412/2143/4021", 0.0, 0.2 + 0.8 * 2 / 3, "1234/3412/2143/4021"),
        ("1200/3412/2143/4021", 0.0, 0.1, "1030/3412/2143/4021"),  # a clue was taken away: not used
        ("1030/3412/2143/4021", 0.0, 0.1, "1030/3412/2143/4021"),  # the puzzle itself
        ("1030/3412/2143/4321", 0.0, 0.2 + 0.8 / 3, "1030/3412/2143/4321"),
        (
            "1432/3412/2143/4321",
            0.0,
            0.1,
            "1030/3412/2143/4321",
        ),  # 4 and 2 repeat in their columns, 3 stays: one right, two wrong
        ("1231/3412/2143/4321", 0.0, 0.1 + 0.8 / 3, "1230/3412/2143/4321"),  # 1 repeats: two right, one wrong
        ("1111/1111/1111/1111", 0.0, 0.1, "1030/3412/2143/4021"),
        ("1234/2341/3412/4123", 0.0, 0.1, "1030/3412/2143/4021"),  # a fine grid of another puzzle
    ],
)
def test_sudoku_rewards(text, team, local, after):
    for agent in ("planner", "tool_user"):
        env = Sudoku.from_rows(UNIQUE)
        reward = env.step(agent, grid(text))
        assert reward.team == team
        assert reward.local == pytest.approx(local)
        if agent == "planner":
            assert read_sudoku(env)[1] == [[int(char) for char in row] for row in after.split("/")]
            assert env.solved == env.done == (team == 1.0)


def test_sudoku_wrong_numbers_count_against_right_ones_and_can_be_revised():
    puzzle = ["12..", "....", "....", "..12"]
    env = Sudoku.from_rows(puzzle, workflow="single")
    solution = list(env.solution)
    right = [solution[i : i + 4] for i in (0, 4, 8, 12)]
    clues = [[int(char) for char in row.replace(".", "0")] for row in puzzle]
    wrong = [list(row) for row in clues]
    wrong[0][2] = 7 - right[0][2]  # 3 and 4 change places in the first row: no rule is broken yet
    reward = env.step("planner", f"#### {wrong}")
    assert reward.local == pytest.approx(0.2)
    assert read_sudoku(env)[1] == wrong
    wrong[0][2] = right[0][2]
    wrong[0][3] = right[0][3]
    assert env.step("planner", f"#### {wrong}").local == pytest.approx(0.2 + 0.8 * 2 / 12)
    assert env.step("planner", f"#### {wrong}").local == pytest.approx(0.1)  # nothing new
    assert env.step("planner", f"#### {right}").local == pytest.approx(0.2 + 0.8 * 10 / 12)
    assert env.solved


@pytest.mark.parametrize(
    "answer",
    [
        "[[1, 2, 3, 4]]",
        "[[1, 2, 3], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]",
        "[[1.0, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]",
        '[["1", 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]',
        "[[true, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]",
        "[[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1], []]",
        "[[1, 2, 3, 5], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]",
        "[[1, 2, 3, -4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]",
        "[[1, 2, 3, 4.9], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]",
        "[1, 2, 3, 4]",
        "[]",
    ],
)
def test_what_is_no_grid_of_whole_numbers_earns_its_format_only(answer):
    """C12: nothing is rounded, converted or read as a set."""
    env = Sudoku.from_rows(UNIQUE, workflow="single")
    reward = env.step("planner", f"#### {answer}")
    assert (reward.team, reward.local) == (0.0, pytest.approx(0.1))
    assert read_sudoku(env)[0] == read_sudoku(env)[1]


def test_sudoku_rows_are_read_in_three_spellings():
    same: list[Any] = [
        UNIQUE,
        ["1 0 3 0", "3412", "2143", "4.21"],
        [[1, 0, 3, 0], [3, 4, 1, 2], (2, 1, 4, 3), [4, 0, 2, 1]],
    ]
    assert len({prompt(Sudoku.from_rows(rows)) for rows in same}) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["12", "34"], "size=2"),
        (["1...", "...", "....", "...."], "4 rows of 4 numbers"),
        (["1...", "....", "....", "...x"], "4 rows of 4 numbers"),
        (["1...", "....", "....", "...5"], "4 rows of 4 numbers"),
        ([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, -1]], "4 rows of 4 numbers"),
        (["1..1", "....", "....", "...."], r"repeat a number at \[\(0, 0\), \(0, 3\)\]"),
        (["12..", "..3.", "...4", "...."], "no solution"),
        ([], "size=0"),
    ],
)
def test_malformed_sudokus(rows, message):
    with pytest.raises(ValueError, match=message):
        Sudoku.from_rows(rows)


@pytest.mark.parametrize("options", [{"size": 5}, {"blanks": 0}, {"blanks": 11}, {"size": 9, "blanks": 60}])
def test_sudoku_options_are_checked(options):
    with pytest.raises(ValueError, match="choose"):
        Sudoku(**options)


# ------------------------------------------------------------------------------------------------------------- progress


def test_progress_is_that_of_the_whole_episode():
    """A stalled last turn does not forget what was achieved before it, and going back does."""
    env: Any = PlanPath.from_text(OPEN)
    seen = [env.progress]
    for moves in ("RRR", "", "UU", "L", "LLLL", "RRRRDD"):
        env.step("tool_user", plan("RRRRDD"))
        assert env.progress == seen[-1]  # a proposal moves nobody
        env.step("planner", plan(moves))
        seen.append(env.progress)
    assert seen == pytest.approx([0, 3 / 6, 3 / 6, 3 / 6, 2 / 6, 0, 1])
    env = PlanPath.from_text(".S.G", workflow="single")
    env.step("planner", plan("L"))
    assert env.progress == 0  # farther than at the start
    env = Sokoban.from_text(TWO_BOXES, workflow="single")
    seen = [env.progress]
    for moves in ("L", "", "RR"):
        env.step("planner", plan(moves))
        seen.append(env.progress)
    assert seen == [0, 0.5, 0.5, 1]
    env = Sudoku.from_rows(UNIQUE, workflow="single")
    for text, progress in (("1234/3412/2143/4021", 0), ("1234/3412/2143/4321", 1)):
        env.step("planner", grid(text))
        assert env.progress == progress


@pytest.mark.parametrize("task", BOARDS)
def test_progress_is_one_exactly_when_solved(task):
    rng = np.random.default_rng(0)
    ended = set()
    for seed in range(60):
        env: Any = make_env(task).reset(seed=seed)
        assert env.progress == 0
        for _ in range(6):
            for agent in env.agents:
                env.step(agent, env.noisy_answer(rng, seed / 60))
                assert 0 <= env.progress <= 1
                assert (env.progress == 1) == env.solved
        ended.add(env.solved)
        assert env.reset(seed=seed).progress == 0
    assert ended == {False, True}


@pytest.mark.parametrize("task", BOARDS)
def test_a_board_is_drawn_without_an_agent(task):
    env: Any = make_env(task, "single").reset(seed=0)
    assert prompt(env) == f"planner\n{env.render()}"


# -------------------------------------------------------------------------------------------------------- the two roles


def test_each_role_reads_its_own_prompt():
    """E11: each role is told its own part; only the planner sees the proposal, for one turn."""
    for task in BOARDS:
        env = make_env(task).reset(seed=1)
        tool_user, planner = env.observe("tool_user"), env.observe("planner")
        assert "You are the tool user" in tool_user[0]["content"]
        assert "You are the planner" in planner[0]["content"]
        assert "You are the planner" not in tool_user[0]["content"]
        assert "proposal none" in planner[1]["content"]
        env.step("tool_user", "#### [[1, 2], up]")
        assert "proposal [[1, 2], up]" in prompt(env)
        assert "proposal" not in prompt(env, "tool_user")
        env.step("planner", "#### []")
        assert "proposal none" in prompt(env)


# ------------------------------------------------------------------------------------------------ programs as proposals


def fake_sandbox(monkeypatch, status="ok", stdout="", stderr=""):
    """A sandbox that returns this result; the programs it was given are in `.seen`."""
    module: Any = types.ModuleType("sandbox")
    module.seen = []

    def run_program(code, stdin="", timeout=10.0):
        module.seen.append((code, stdin))
        return types.SimpleNamespace(status=status, stdout=stdout, stderr=stderr)

    module.run_program = run_program
    monkeypatch.setattr(boards, "sandbox", module)
    return module


def board(task, **options):
    """A level of the task and the answer that solves it."""
    if task == "plan_path":
        return PlanPath.from_text(OPEN, **options), "[R, R, R, R, D, D]"
    if task == "sokoban":
        return Sokoban.from_text(LEVEL, **options), "[D, R, R, R, U, L, L]"
    return Sudoku.from_rows(UNIQUE, **options), "[[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]"


@pytest.mark.parametrize("task", BOARDS)
def test_the_printed_answer_line_is_the_proposal(task, monkeypatch):
    env, answer = board(task, tool="python")
    sandbox = fake_sandbox(monkeypatch, stdout=f"thinking\n#### {answer}\n")
    assert "```python" in env.observe("tool_user")[0]["content"]
    assert "```python" not in env.observe("planner")[0]["content"]
    reward = env.step("tool_user", "I search.\n```python\nprint(solve())\n```\n#### [L]")
    assert sandbox.seen == [("print(solve())\n", "")]
    assert reward == Reward(1.0, 1.0, {"format": 1.0, "executes": 1.0})
    assert not env.done
    assert f"proposal {answer}" in prompt(env).split("\n")


@pytest.mark.parametrize("task", BOARDS)
@pytest.mark.parametrize(
    ("text", "status", "stdout", "local"),
    [
        ("no program #### [R]", "ok", "", 0.0),
        ("```python\ncrash\n```", "error", "ANSWER", 0.1),  # what a failed program printed does not count
        ("```python\nloop\n```", "timeout", "ANSWER", 0.1),
        ("```python\nfill\n```", "memory", "", 0.1),
        ("```python\nflood\n```", "output", "ANSWER", 0.1),
        ("```python\nquiet\n```", "ok", "", 0.2),
        ("```python\nempty\n```", "ok", "#### []", 0.2),
    ],
)
def test_programs_without_a_good_proposal(task, text, status, stdout, local, monkeypatch):
    env, answer = board(task, tool="python")
    fake_sandbox(monkeypatch, status, stdout.replace("ANSWER", f"#### {answer}"))
    reward = env.step("tool_user", text)
    assert reward.team == 0.0
    assert reward.local == pytest.approx(local)
    assert "proposal none" in prompt(env) or stdout == "#### []"


@pytest.mark.parametrize("task", BOARDS)
def test_a_sandbox_that_fails_is_not_the_models_fault(task, monkeypatch):
    env, _ = board(task, tool="python")
    env.step("tool_user", "nothing")
    before = env.observe("planner")
    fake_sandbox(monkeypatch, "infra", stderr="bwrap is missing")
    with pytest.raises(InfraError, match="bwrap is missing"):
        env.step("tool_user", "```python\nprint(1)\n```")
    assert env.observe("planner") == before


def test_only_programs_are_slow_to_score():
    for task in BOARDS:
        envs: list[Any] = [make_env(task, tool=tool) for tool in ("python", "direct")]
        assert [env.slow_scoring for env in envs] == [True, False]


@pytest.mark.parametrize("task", BOARDS)
def test_the_prompt_says_that_the_program_prints_the_answer(task):
    """And the direct tool user, as ever, that it writes the line itself."""
    env, direct = make_env(task, tool="python").reset(seed=0), make_env(task).reset(seed=0)
    ending = direct.observe("tool_user")[0]["content"].split("End with one line: ")[1]
    system = env.observe("tool_user")[0]["content"]
    assert system.endswith(f"The program must print it in its last line: {ending}")
    assert "End with one line" not in system
    assert env.observe("planner") == direct.observe("planner")


@pytest.mark.parametrize("task", BOARDS)
@pytest.mark.parametrize("printed", ["ANSWER", "hm [1]\nANSWER\n", "#### [1]\n#### ANSWER", "[1]\nANSWER\n\n"])
def test_a_bare_printed_list_counts(task, printed, monkeypatch):
    env, answer = board(task, tool="python")
    fake_sandbox(monkeypatch, stdout=printed.replace("ANSWER", answer))
    assert env.step("tool_user", "```python\nprint(x)\n```").team == 1.0
    assert f"proposal {answer}" in prompt(env).split("\n")


@pytest.mark.parametrize("printed", ["", "[", "R R", "so [R]", "#### R\n[R]", "[R", "x\n]", "[[[[[1]]]]]", "[0 1]"])
def test_other_printed_texts_are_no_answer(printed, monkeypatch):
    env, _ = board("plan_path", tool="python")
    fake_sandbox(monkeypatch, stdout=printed)
    assert env.step("tool_user", "```python\nprint(x)\n```").local == pytest.approx(0.2)
    assert "proposal none" in prompt(env)
    assert "no readable answer line" in prompt(env)


def test_a_grid_printed_over_several_lines_counts(monkeypatch):
    env, answer = board("sudoku", tool="python")
    fake_sandbox(monkeypatch, stdout=answer.replace("], ", "],\n "))
    assert env.step("tool_user", "```python\nprint(x)\n```").team == 1.0


@pytest.mark.parametrize("task", BOARDS)
@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "told"),
    [
        ("ok", "hm\n#### [U]\n", "", "It printed:\nhm\n#### [U]"),
        ("ok", "", "", "It printed:\nnothing\nThat has no readable answer line."),
        ("error", "half", "Traceback\n  line 1\nZeroDivisionError: division", "ZeroDivisionError: division"),
        ("timeout", "", "", "more than 5 seconds"),
        ("memory", "", "", "too much memory"),
        ("output", "aaa", "", "printed too much"),
    ],
)
def test_both_see_the_program_and_what_came_of_it(task, status, stdout, stderr, told, monkeypatch):
    env, _ = board(task, tool="python")
    first = prompt(env, "tool_user")
    fake_sandbox(monkeypatch, status, stdout, stderr)
    env.step("tool_user", "thoughts\n```python\nx = solve()\nprint(x)\n```")
    assert f"The tool user's program:\nx = solve()\nprint(x)\n{'It failed' * (status != 'ok')}" in prompt(env)
    assert told in prompt(env)
    assert "thoughts" not in prompt(env)
    env.step("planner", "#### []")
    assert "program" not in prompt(env)  # the next turn's is not there yet
    again = prompt(env, "tool_user")
    assert "Your last program:\nx = solve()\nprint(x)\n" in again
    assert told in again
    env.step("tool_user", "no program")
    assert "no fenced python block" in prompt(env)
    assert "no fenced python block" in prompt(env, "tool_user")
    assert prompt(env.reset(seed=0), "tool_user") == first


def test_what_agents_see_of_a_program_is_short(monkeypatch):
    env, _ = board("plan_path", tool="python")
    before = len(prompt(env))
    fake_sandbox(monkeypatch, "error", "", "E" * 50_000 + "ValueError: the end")
    env.step("tool_user", "```python\n" + "#" * 20_000 + "\nlast_line()\n```")
    for agent in env.agents:
        assert len(prompt(env, agent)) < before + boards.MAX_PROGRAM + boards.MAX_OUTPUT + 100
        assert "ValueError: the end" in prompt(env, agent)
        assert "last_line()" in prompt(env, agent)


def test_programs_run_in_the_real_sandbox():
    pytest.importorskip("tasks.sandbox")
    env, _ = board("plan_path", tool="python")
    reward = env.step("tool_user", "```python\nprint('####', ['R'] * 4 + ['D'] * 2)\n```")
    assert reward == Reward(1.0, 1.0, {"format": 1.0, "executes": 1.0})
    reward = env.step("tool_user", "```python\nprint('####', ['R'] * 4)\n1 / 0\n```")
    assert (reward.team, reward.local) == (0.0, pytest.approx(0.1))
    assert "ZeroDivisionError: division by zero" in prompt(env)
    twin = env.copy()
    twin.step("tool_user", "```python\nprint('####', ['R'] * 4)\n1 / 0\n```")
    assert prompt(twin) == prompt(env)  # no name of a folder, no address: the same text every time


# --------------------------------------------------------------------------------------------------------- play by hand


def played(arguments, text, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    play.main(arguments)
    return capsys.readouterr().out


@pytest.mark.parametrize("task", BOARDS)
def test_end_of_input_ends_the_game(task, monkeypatch, capsys):
    out = played([task, "--seed", "3"], "", monkeypatch, capsys)
    assert "[tool_user: system]" in out
    assert out.endswith("End of input.\n")


def test_a_game_played_to_the_end(monkeypatch, capsys):
    moves = solve_plan_path(make_env("plan_path").reset(seed=3))
    text = f"I think\nthis: {plan(moves[:2])}\n\n{plan(moves)}\n"
    out = played(["plan_path", "--seed", "3"], text, monkeypatch, capsys)
    assert f"proposal [{', '.join(moves[:2])}]" in out
    assert out.count("-> team=") == 2
    assert "team=1.00 local=1.00 format=1.00 legal=1.00" in out
    assert out.endswith("Solved.\n")


@pytest.mark.parametrize("task", BOARDS)
def test_the_board_is_drawn_once_a_turn_and_the_rules_once(task, monkeypatch, capsys):
    env = make_env(task).reset(seed=3)
    out = played([task, "--seed", "3"], "#### []\n" * 5, monkeypatch, capsys)  # three turns but the last answer
    assert out.count("[tool_user: user]") == 3
    assert out.count("[planner: user]") == 3
    assert out.count(env.render().rpartition("\n")[0]) == 3  # but for what it says about the last answer
    rules = {message["content"] for agent in env.agents for message in env.observe(agent)[:1]}
    for line in {line for text in rules for line in text.split("\n")}:
        assert out.count(line) == 1
    assert out.count("(the board above)") == 3


def test_a_board_that_no_agent_sees_is_drawn_for_the_player(monkeypatch, capsys):
    level = PlanPath.from_text("S.G", view="cells")
    monkeypatch.setattr(play, "make_env", lambda task, **options: level)
    out = played(["plan_path"], "#### []\n#### [R]\n#### []\n#### [R]\n", monkeypatch, capsys)
    assert [out.count(row) for row in ("P . G", ". P G", ". . P")] == [1, 1, 1]
    assert out.endswith("Solved.\n")


def test_a_program_is_one_answer(monkeypatch, capsys):
    sandbox = fake_sandbox(monkeypatch, stdout="#### [U]")
    program = "```python\nx = 1\n\nprint('#### [U]')\n```\n"
    played(["sokoban", "tool=python"], program + plan("U"), monkeypatch, capsys)
    assert sandbox.seen == [("x = 1\n\nprint('#### [U]')\n", "")]


def test_math_and_code_are_played_from_a_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "math.jsonl").write_text('{"question": "What is 4 + 5?", "answer": "9"}\n')
    text = "I add.\n\\boxed{9}\n\n```python\nprint(9)\n```\n"
    out = played(["math", "--data", str(tmp_path / "math.jsonl")], text, monkeypatch, capsys)
    assert out.count("What is 4 + 5?") == 2
    assert out.count("team=1.00 local=1.00") == 2
    assert out.endswith("Solved.\n")
    row = {"question": "Print 7.", "tests": [{"input": "", "output": "7\n"}], "solutions": ["print(7)"]}
    (tmp_path / "code.jsonl").write_text(json.dumps(row) + "\n")
    arguments = ["code", "--workflow", "single", "--data", str(tmp_path / "code.jsonl")]
    out = played(arguments, "```python\nprint(7)\n```\n", monkeypatch, capsys)
    assert "Print 7." in out
    assert "team=1.00 local=1.00" in out
    with pytest.raises(SystemExit):
        play.main(["math", "--data", str(tmp_path / "nowhere.jsonl")])
    assert "nowhere.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("task", BOARDS)
def test_the_command(task):
    command = [sys.executable, "-m", "tools.play", task, "--workflow", "single", "--seed", "2"]
    done = subprocess.run(command, cwd=ROOT, input="#### []\n", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert prompt(make_env(task, "single").reset(seed=2)) in done.stdout
    assert "team=0.00 local=0.10" in done.stdout
    assert done.stdout.endswith("End of input.\n")


def test_options_that_a_task_does_not_have_end_with_a_message(capsys):
    for arguments in (["sudoku", "--data", "x.jsonl"], ["sudoku", "--workflow", "ensemble"]):
        with pytest.raises(SystemExit) as error:
            play.main(arguments)
        assert error.value.code == 2
        assert arguments[1].strip("-") in capsys.readouterr().err


@pytest.mark.parametrize("view", ["grid", "cells"])
def test_a_planner_that_sees_less_knows_its_neighbours_and_the_proposal(view):
    """A wall two cells away is the tool user's to tell; the same board, moves and rewards otherwise."""
    level = "S.#G\n....\n...."
    near, whole = (PlanPath.from_text(level, view=view, planner_sees=sees) for sees in ("near", "board"))
    assert near.observe("tool_user")[1] == whole.observe("tool_user")[1]
    assert near.step("tool_user", "#### [D, R, R, R, U]") == whole.step("tool_user", "#### [D, R, R, R, U]")
    prompt = near.observe("planner")[1]["content"]
    assert prompt == "planner\nproposal [D, R, R, R, U]\nnear at (0,0) free - D - R"
    assert "The planner sees only its cell" in near.observe("planner")[0]["content"]
    assert near.step("planner", "#### [D, R, R, R, U]").team == 1
    alone = PlanPath.from_text(level, workflow="single", view=view, planner_sees="near")
    assert "near at (0,0)" in alone.observe("planner")[1]["content"]


def test_what_the_planner_sees_is_one_of_two():
    with pytest.raises(ValueError, match="planner_sees='all': choose board or near"):
        PlanPath(planner_sees="all")
