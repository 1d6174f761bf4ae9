"""The three board games: levels, rules, rewards worked out by hand, and answers as models write them.

The solvers in this file read the board from the prompt, as a player does, and share no code with `tasks/`.
"""

import hashlib
import re
import types
from collections import deque
from typing import Any

import numpy as np
import pytest

import envs
from envs import InfraError, Reward, make_env
from tasks import boards
from tasks.boards import parse_answer
from tasks.plan_path import PlanPath
from tasks.sokoban import Sokoban
from tasks.sudoku import Sudoku

STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
BOARDS = ["plan_path", "sokoban", "sudoku"]


def prompt(env, agent=""):
    """What the agent that decides sees of the state, or another one."""
    return env.observe(agent or env.agents[-1])[-1]["content"]


def plan(moves):
    return f"#### [{', '.join(moves)}]"


def read_plan_path(env):
    """{(row, column): character} of the drawn board."""
    rows = [line.split(" ") for line in prompt(env).splitlines() if re.fullmatch(r"[PG#.]( [PG#.])+", line)]
    return {(r, c): char for r, row in enumerate(rows) for c, char in enumerate(row)}


def search(start, neighbours, ends):
    """The first shortest list of moves, all tried breadth first; None without one."""
    paths, queue = {start: []}, deque([start])
    while queue:
        here = queue.popleft()
        if ends(here):
            return paths[here]
        for move, there in neighbours(here):
            if there not in paths:
                paths[there] = [*paths[here], move]
                queue.append(there)
    return None


def moved(cell, move, times=1):
    return cell[0] + times * STEPS[move][0], cell[1] + times * STEPS[move][1]


def solve_plan_path(env):
    """A shortest list of moves to the goal, None without one."""
    board = read_plan_path(env)
    start = next(cell for cell, char in board.items() if char == "P")
    free = lambda cell: [(m, moved(cell, m)) for m in STEPS if board.get(moved(cell, m), "#") != "#"]  # noqa: E731
    return search(start, free, lambda cell: board[cell] == "G")


def read_sokoban(env):
    """(floor, goals, boxes, player) of the drawn board."""
    rows = prompt(env).split("Board:\n")[1].split("\nYou are at")[0].split("\n")
    cells = {(r, c): char for r, row in enumerate(rows) for c, char in enumerate(row)}
    pick = lambda chars: frozenset(cell for cell, char in cells.items() if char in chars)  # noqa: E731
    (player,) = pick("@+")
    return pick(" .$*@+"), pick(".*+"), pick("$*"), player


def solve_sokoban(env, position=None):
    """Moves of a solution with the fewest moves, None for a deadlock."""
    floor, goals, boxes, player = position or read_sokoban(env)

    def neighbours(here):
        player, boxes = here
        for move in STEPS:
            there, behind = moved(player, move), moved(player, move, 2)
            after = boxes - {there} | {behind} if there in boxes and behind in floor - boxes else boxes
            if there in floor - after:
                yield move, (there, after)

    return search((player, boxes), neighbours, lambda here: here[1] == goals)


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
    seen = [
        (unit, rows[r][c])
        for r in range(size)
        for c in range(size)
        for unit in (("row", r), ("column", c), (r // height, c // width))
        if rows[r][c]
    ]
    return len(seen) == len(set(seen))


def solve_sudoku(rows):
    """Every completion, by filling the most constrained cell (written for this test, slow and plain)."""
    fits = {}
    for r, c in ((r, c) for r, row in enumerate(rows) for c, value in enumerate(row) if not value):
        tried = [
            [[*row[:c], v, *row[c + 1 :]] if row is rows[r] else row for row in rows] for v in range(1, len(rows) + 1)
        ]
        fits[r, c] = [grid for grid in tried if sudoku_rules(grid)]
        if len(fits[r, c]) < 2:
            break
    if not fits:
        return [[list(row) for row in rows]]
    return [found for grid in min(fits.values(), key=len) for found in solve_sudoku(grid)]


# --------------------------------------------------------------------------------------------------------------- levels


def solution(env):
    """An answer line that solves a level, worked out from the prompt of the agent that decides."""
    if "Puzzle:" in prompt(env):
        (rows,) = solve_sudoku(read_sudoku(env)[0])  # exactly one
        return f"#### {rows}"
    return plan(solve_plan_path(env) if "P you" in prompt(env) else solve_sokoban(env))


@pytest.mark.parametrize(
    ("task", "options", "levels", "different", "shortest"),
    [
        ("plan_path", {}, 400, 400, 5),
        ("sokoban", {}, 400, 396, 3),  # a 4x4 inside leaves room for chance repeats
        ("sudoku", {}, 400, 399, 16),
        ("plan_path", {"rows": 3, "cols": 5, "blocks": 0.0}, 10, 8, 1),
        ("sokoban", {"rows": 5, "cols": 9, "boxes": 2}, 10, 10, 4),
        ("sudoku", {"size": 9}, 10, 10, 81),
        ("sudoku", {"size": 4, "blanks": 10}, 10, 10, 16),
    ],
)
def test_levels_are_solvable_and_differ(task, options, levels, different, shortest):
    seen, env = set(), make_env(task, "single", **options)
    for seed in range(levels):
        seen.add(prompt(env.reset(seed=seed)))
        answer = solution(env)
        assert len(re.findall(r"\w", answer)) >= shortest
        assert env.step("planner", answer) == Reward(1.0, 1.0, {"format": 1.0, "legal": 1.0})
        assert (env.done, env.solved) == (True, True)
    assert len(seen) >= different


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


# -------------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### [U, D]", ["U", "D"]),
        ("#### [up, 'Down', \"LEFT\", r] and that is it", ["up", "Down", "LEFT", "r"]),
        ("#### [U]\nno, better:\n####   [D]", ["D"]),
        ("#### []", []),
        ("####[[1, 2],\n [3, 4]]", [[1, 2], [3, 4]]),
        ("#### [U, D,] so ]", ["U", "D"]),
        ("[U, D]", None),
        ("#### U, D", None),
        ("#### [U, D", None),
        ("#### [U]\n####", None),  # the last marker counts
        ("", None),
        ("#### [__import__('os').getpid()]", None),  # E10: never evaluated
        ("#### [[[[[1]]]]]", None),
    ],
)
def test_parse_answer(text, answer):
    assert parse_answer(text) == answer


@pytest.mark.parametrize("task", BOARDS)
def test_noisy_answers_for_a_warm_start(task):
    """Always well formed; all good ones solve the level in a few turns, all random ones hardly ever."""
    rng, solved = np.random.default_rng(0), {0.0: 0, 1.0: 0}
    for good in solved:
        for seed in range(20):
            env: Any = make_env(task, "single").reset(seed=seed)
            rewards = [env.step("planner", env.noisy_answer(rng, good)) for _ in range(20) if not env.done]
            assert all(reward.info["format"] == 1 for reward in rewards)
            solved[good] += env.solved
    assert (solved[1.0], solved[0.0] <= 10) == (20, True)


def test_the_turn_at_the_top_of_envs_is_a_real_one():
    env: Any = make_env("plan_path", rows=4, cols=4).reset(seed=3)
    shown = str(envs.__doc__)
    assert prompt(env, "tool_user") in "\n".join(line[22:] for line in shown.splitlines())
    answers = re.findall(r"(\S[^\n]*?) {2,}team (\S+) local (\S+)", shown.replace("answers ", "        "))
    assert len(answers) == 5
    for text, team, local in answers:
        agent = "planner" if "below the goal" in text else "tool_user"
        if agent == "planner":
            env.step("tool_user", answers[0][0])
            assert prompt(env).startswith("planner\nproposal [R, R, U]\n")
        reward = env.copy().step(agent, text)
        assert (f"{reward.team:.2f}", f"{reward.local:.2f}") == (team, local)


NORVIG = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."  # took half an hour there
REFUSED = [  # (what is made, its options or its text, what is said)
    ("chess", {}, r"unknown task 'chess'.*sokoban"),
    ("sudoku", {"workflow": "duo"}, "workflow='duo': choose mas or single or tool"),
    ("sokoban", {"tool": "abacus"}, "tool='abacus': choose direct or python"),
    ("sokoban", {"workflow": "single", "calls": 3}, "calls=3: choose 1 to 2"),
    ("plan_path", {"planner_sees": "all"}, "planner_sees='all': choose board or near"),
    ("plan_path", {"blocks": float("nan")}, "blocks=nan: choose 0.0 to 0.6"),
    ("sudoku", {"size": 5}, "size=5: choose 4 or 6 or 9"),
    ("sudoku", {"blanks": 11}, "blanks=11: choose 1 to 10"),
    ("plan_path", {"rows": 1, "cols": 200, "blocks": 0.6}, "no level found in 10000 tries"),
    ("sokoban", {"rows": 3, "cols": 40, "boxes": 8}, "or fewer blocks or boxes"),
    *((PlanPath.from_text, text, "Plan-Path level") for text in ("", "SG\n.", "SSG", "S..", "S.X.G")),
    (PlanPath.from_text, "S.\n##\n.G", "the goal cannot be reached"),
    *((Sokoban.from_text, text, "as many goals as boxes") for text in ("", "#@ .#", "#@$..#", "#@$.@#", "#@$.x#")),
    (Sokoban.from_text, "######\n#$@ .#\n######", "cannot be solved"),
    (Sudoku.from_rows, ["1...", "....", "....", "...5"], "4 rows of 4 numbers"),
    (Sudoku.from_rows, ["1..1", "....", "....", "...."], "no solution"),
    (Sudoku.from_rows, ["12..", "..3.", "...4", "...."], "no solution"),
    (Sudoku.from_rows, [NORVIG[i : i + 9] for i in range(0, 81, 9)], "no solution"),
]


@pytest.mark.parametrize(("made", "given", "words"), REFUSED)
def test_options_and_levels_that_do_not_fit_are_refused(made, given, words):
    with pytest.raises(ValueError, match=words):
        make_env(made, **given).reset(seed=0) if isinstance(made, str) else made(given)


# -------------------------------------------------------------------------------------------------------------- rewards

OPEN = "S....\n.....\n....G"  # 3 rows, 5 columns, distance 6
LEVEL = "######\n#+ $ #\n#    #\n######"  # C6: the player starts on the goal
TWO_BOXES = "#######\n#.$@$.#\n#     #\n#######"
UNIQUE = ["1.3.", "3412", "2143", "4.21"]  # solution 1234/3412/2143/4321, three blanks
TWO = ["2...", "1.2.", "4231", "31.."]  # C2: exactly two completions


def level(task, **options):
    """A level of the task and the answer that solves it."""
    if task == "plan_path":
        return PlanPath.from_text(OPEN, **options), "[R, R, R, R, D, D]"
    if task == "sokoban":
        return Sokoban.from_text(LEVEL, **options), "[D, R, R, R, U, L, L]"
    return Sudoku.from_rows(UNIQUE, **options), "[[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]"


def grid(text):
    return f"#### {[[int(char) for char in row] for row in text.split('/')]}"


REWARDS = {  # answer: team reward, local reward, what the planner sees then
    "plan_path": [
        (plan("RRRRDD"), 1, 1.0, "at (2,4)"),
        (plan("RRR"), 3 / 6, 0.2 + 0.8 * 3 / 6, "at (0,3)"),
        (plan("RRRL"), 2 / 6, 0.2 + 0.8 * 2 / 6, "at (0,2)"),  # net steps: going back is no progress
        (plan("RRRRRRDD"), 1, 0.1 + 0.8 * 6 / 8, "at (2,4)"),  # two bumps: not legal, and 8 moves for 6 steps
        (plan(""), 0, 0.1, "at (0,0)"),
        (plan("LUUL"), 0, 0.1, "4 moves, 4 of them impossible"),
        (plan("RLRLRL"), 0, 0.2, "at (0,0)"),
    ],
    "sokoban": [
        (plan("DRRRULL"), 1.0, 1.0, "#*@  #"),  # two pushes of two
        (plan("DRRRUL"), 0.0, 0.2 + 0.8 / 2, "#.$@ #"),  # one of them
        (plan("DRRRULLR"), 1.0, 1.0, "#*@  #"),  # what follows the last push is not played
        (plan("DRRR"), 0.0, 0.2, "#   @#"),  # walking only
        (plan("RR"), 0.0, 0.2, "#. @$#"),  # pushes the box to the right wall, from where no push leads back: a deadlock
        (plan(""), 0.0, 0.1, "#+ $ #"),
        (plan("UL"), 0.0, 0.1, "2 moves, 2 of them impossible"),  # bumps
        (plan("DRRRURRLL"), 1.0, 0.9, "#*@  #"),  # solved all the same, but two of the moves were impossible
    ],
    "sudoku": [
        (grid("1234/3412/2143/4321"), 1.0, 1.0, "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1"),
        (grid("1234/3412/2143/4021"), 0.0, 0.2 + 0.8 * 2 / 3, "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 0 2 1"),
        (grid("1200/3412/2143/4021"), 0.0, 0.1, "changed a clue"),  # not used
        (grid("1030/3412/2143/4321"), 0.0, 0.2 + 0.8 / 3, "1 0 3 0\n3 4 1 2\n2 1 4 3\n4 3 2 1"),
        # 4 and 2 repeat in their columns, 3 stays: one right, two wrong
        (grid("1432/3412/2143/4321"), 0.0, 0.1, "1 0 3 0\n3 4 1 2\n2 1 4 3\n4 3 2 1"),
        (grid("1231/3412/2143/4321"), 0.0, 0.1 + 0.8 / 3, "1 2 3 0\n"),  # 1 repeats: two right, one wrong
        (grid("1234/2341/3412/4123"), 0.0, 0.1, "as in the puzzle"),  # a fine grid of another puzzle
        # C12: nothing is rounded, converted or read as a set
        ("#### [[1, 2, 3, 4]]", 0.0, 0.1, "not 4 rows of 4 numbers"),
        ("#### [[1.0, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]", 0.0, 0.1, "as in the puzzle"),
        ("#### [[true, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]", 0.0, 0.1, "as in the puzzle"),
        ("#### [[1, 2, 3, -4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]", 0.0, 0.1, "as in the puzzle"),
    ],
}


@pytest.mark.parametrize(("task", "row"), [(task, row) for task, rows in REWARDS.items() for row in rows])
def test_rewards(task, row):
    """The planner moves, a proposal moves nobody and earns the same; alone, each of them does what it says."""
    text, team, local, after = row
    for workflow in ("mas", "single", "tool"):
        start, _ = level(task, workflow=workflow)
        for agent in start.agents:
            env = start.copy()
            reward = env.step(agent, text)
            assert reward.team == pytest.approx(team)
            assert reward.local == pytest.approx(local)
            if agent == env.agents[-1]:
                assert env.solved == env.done == (team == 1)
                assert after in env.render()
                assert env.progress == pytest.approx(0 if task == "sudoku" and team < 1 else team)
            else:
                assert not env.done
                assert env.render() == start.render()
                assert env.progress == 0
                assert "proposal [" in prompt(env)


STARTS: dict[str, Any] = {
    "walk": lambda: PlanPath.from_text(OPEN, workflow="single"),
    "back": lambda: PlanPath.from_text("....SG", workflow="single"),
    "push": lambda: Sokoban.from_text(TWO_BOXES, workflow="single"),
    "fill": lambda: Sudoku.from_rows(["12..", "....", "....", "..12"], workflow="single"),
    "one": lambda: Sudoku.from_rows(TWO, workflow="single"),
    "other": lambda: Sudoku.from_rows(TWO, workflow="single"),
}
TURNS = [  # (level, answer, team, local, progress) turn after turn
    ("walk", plan("RR"), 2 / 6, 0.2 + 0.8 * 2 / 6, 2 / 6),
    ("walk", plan("RD"), 2 / 6, 0.2 + 0.8 * 2 / 4, 4 / 6),  # two of the four steps that are left, two of six in all
    ("walk", plan(""), 0, 0.1, 4 / 6),  # a stalled turn forgets nothing
    ("walk", plan("LL"), 0, 0.2, 2 / 6),  # away
    ("walk", plan("RRRDDDD"), 1.0, 0.2 + 0.8 * 4 / 7, 1),
    ("back", plan("LLLL"), 0, 0.2, 0),  # farther than at the start; the way back is worth no more than 1
    ("back", plan("RRR"), 1, 0.2 + 0.8 * 3 / 5, 0),
    ("push", plan("L"), 0.5, 0.2 + 0.8 / 2, 0.5),
    ("push", plan(""), 0.5, 0.1, 0.5),
    ("push", plan(["right", "Right"]), 1.0, 0.2 + 0.8 / 2, 1),
    ("fill", grid("1243/0000/0000/0012"), 0, 0.2, 0),  # 3 and 4 change places: two wrong, no rule is broken yet
    ("fill", grid("1234/0000/0000/0012"), 0, 0.2 + 0.8 * 2 / 12, 0),
    ("fill", grid("1234/0000/0000/0012"), 0, 0.1, 0),  # nothing new
    ("fill", grid("1234/4321/2143/3412"), 1, 0.2 + 0.8 * 10 / 12, 1),
    ("one", grid("2314/1423/4231/3142"), 1, 1, 1),  # C2: either completion
    ("other", grid("2413/1324/4231/3142"), 1, 1, 1),
]


@pytest.mark.parametrize("start", STARTS)
def test_rewards_turn_after_turn(start):
    env = STARTS[start]()
    for _, text, team, local, progress in (turn for turn in TURNS if turn[0] == start):
        reward = env.step("planner", text)
        assert (reward.team, reward.local) == (pytest.approx(team), pytest.approx(local))
        assert env.progress == pytest.approx(progress)
        if isinstance(env, PlanPath):  # the prompt shows where the walk goes on
            assert read_plan_path(env)[env.position] == "P"
            assert "You are at ({},{})".format(*env.position) in prompt(env)


# ---------------------------------------------------------------------------------------------------------------- rules


FREE = "#######\n#     #\n#@$$..#\n#     #\n#     #\n#######"
RAGGED = "\n    #####\n    #   #\n    #$  #\n  ###  $##\n  #  * $ #\n### .  ..#\n#   @  ###\n########\n"
RULES = [  # (level, options, answer, is it legal, what is seen then)
    *((OPEN, {}, f"[{word}]", True, "at (0,1)") for word in ("R", "right", "RIGHT", "'R'", '"right"', " R ")),
    *((OPEN, {}, f"[{word}]", False, "at (0,0)") for word in ("push up", "null", "7", "['R']", "R" * 300, "''", "UR")),
    *(
        (LEVEL, {}, f"[{word}]", False, "at (1,1), boxes at (1,3), goals at (1,1)")
        for word in ("push up", "true", "UR")
    ),
    ("S...G\n.....\n.....", {}, "[R, R, R, R, D, D]", True, "at (0,4)"),  # (row, column); after the goal nothing moves
    ("@  $ .", {"max_moves": 2}, "[R, R, R, R]", False, "at (0,2)"),
    ("S" + "." * 249 + "G", {}, str(["R"] * 250), True, "at (0,200)"),  # no more are read
    (FREE, {}, "[R]", False, "#@$$..#"),  # one box at a time
    (LEVEL, {}, "[R]", True, "#.@$ #"),  # a goal under the player stays a goal
    (RAGGED, {}, "[]", False, "at (6,4), boxes at (2,5) (3,7) (4,5) (4,7), goals at (4,5) (5,4) (5,7) (5,8)"),
]


@pytest.mark.parametrize(("text", "options", "answer", "legal", "seen"), RULES)
def test_rules(text, options, answer, legal, seen):
    read = PlanPath.from_text if "S" in text else Sokoban.from_text
    env = read(text, workflow="single", **options)
    assert env.step("planner", f"#### {answer}").info["legal"] == legal
    assert seen in prompt(env)


def test_sudoku_rows_are_read_in_two_spellings():
    assert prompt(Sudoku.from_rows(["1 0 3 0", *UNIQUE[1:]])) == prompt(Sudoku.from_rows(UNIQUE))
    assert Sudoku.from_rows([[int(char) for char in row.replace(".", "0")] for row in UNIQUE]).picture() == UNIQUE


# -------------------------------------------------------------------------------------------------------- the two roles


@pytest.mark.parametrize("task", BOARDS)
def test_what_the_roles_see_of_a_turn(task):
    """Only the planner sees the proposal, for one turn; both are told what came of the last answer."""
    env = make_env(task).reset(seed=1)
    assert "proposal none" in prompt(env)
    assert "This is the first turn" in prompt(env)
    env.step("tool_user", "#### [[1, 2], up]")
    assert "proposal [[1, 2], up]" in prompt(env)
    assert "proposal" not in prompt(env, "tool_user")
    env.step("planner", "no marker")
    assert "proposal none" in prompt(env)
    assert all("no readable answer line" in prompt(env, agent) for agent in env.agents)


@pytest.mark.parametrize("task", BOARDS)
def test_a_single_agent_with_the_rights_of_the_team_sees_its_draft(task):
    """Two answers a turn: what the first one would do is not done, the second one decides."""
    env, answer = level(task, workflow="single", calls=2)
    first, second = (env.observe(agent)[0]["content"] for agent in env.agents)
    assert "This answer is a draft" in first
    assert "Your answer is what the team does" in second
    for agent, solved in (("planner_1", False), ("planner_2", True)):
        assert (f"proposal {answer}" in prompt(env, "planner_2").split("\n")) == solved
        assert env.step(agent, f"#### {answer}") == Reward(1.0, 1.0, {"format": 1.0, "legal": 1.0})
        assert env.solved == env.done == solved


@pytest.mark.parametrize("view", ["grid", "cells"])
def test_a_planner_that_sees_less_knows_its_neighbours_and_the_proposal(view):
    """A wall two cells away is the tool user's to tell; the same board, moves and rewards otherwise."""
    near, whole = (PlanPath.from_text("S.#G\n....\n....", view=view, planner_sees=sees) for sees in ("near", "board"))
    assert near.observe("tool_user")[1] == whole.observe("tool_user")[1]
    assert near.step("tool_user", "#### [D, R, R, R, U]") == whole.step("tool_user", "#### [D, R, R, R, U]")
    assert prompt(near) == "planner\nproposal [D, R, R, R, U]\nnear at (0,0) free - D - R"
    assert "The planner sees only its cell" in near.observe("planner")[0]["content"]
    assert near.step("planner", "#### [D, R, R, R, U]").team == 1


# ------------------------------------------------------------------------------------------------ programs as proposals


def fake_sandbox(monkeypatch, status="ok", stdout="", stderr=""):
    """A sandbox that returns this result; the programs it was given are in the list."""
    seen: list[str] = []
    result = types.SimpleNamespace(status=status, stdout=stdout, stderr=stderr)
    monkeypatch.setattr(boards.sandbox, "run_program", lambda code, **limits: (seen.append(code.strip()), result)[1])
    return seen


@pytest.mark.parametrize("printed", ["thinking\n#### ANSWER\n", "hm [1]\nANSWER\n", "#### [1]\n#### ANSWER", "ROWS"])
def test_the_printed_answer_is_the_proposal(printed, monkeypatch):
    env, answer = level("sudoku", tool="python")
    printed = printed.replace("ROWS", answer.replace("], ", "],\n "))  # a grid over several lines
    seen = fake_sandbox(monkeypatch, stdout=printed.replace("ANSWER", answer))
    reward = env.step("tool_user", "I search.\n```python\nprint(solve())\n```\n#### [L]")
    assert (seen, reward) == (["print(solve())"], Reward(1.0, 1.0, {"format": 1.0, "executes": 1.0}))
    assert f"proposal {answer}" in prompt(env).split("\n")


@pytest.mark.parametrize(
    ("program", "status", "stdout", "local", "told"),
    [
        ("", "ok", "", 0.0, "no fenced python block"),
        ("crash()", "error", "#### ANSWER", 0.1, "It failed (error):\nZeroDivisionError: division"),
        ("loop()", "timeout", "#### ANSWER", 0.1, "It failed (timeout)"),  # what it printed until then does not count
        ("empty()", "ok", "#### []", 0.2, "It printed:\n#### []"),
        # a program that ends well and says nothing that can be read earns its format only
        ("# #### [D, D]", "ok", "", 0.1, "It printed:\nnothing\nThat has no readable answer line."),
        *(("quiet()", "ok", text, 0.1, "no readable answer line") for text in ("R R", "so [R]", "#### R\n[R]", "x\n]")),
    ],
)
def test_programs_without_a_good_proposal(program, status, stdout, local, told, monkeypatch):
    """Both roles see the program and what came of it: the planner at once, its author in the next turn."""
    env, answer = level("plan_path", tool="python")
    fake_sandbox(monkeypatch, status, stdout.replace("ANSWER", answer), "ZeroDivisionError: division")
    reward = env.step("tool_user", f"thoughts\n```python\n{program}\n```" if program else "thoughts #### [R]")
    assert (reward.team, reward.local) == (0.0, pytest.approx(local))
    assert "proposal none" in prompt(env) or stdout == "#### []"
    assert re.search("The tool user's program:\n(?s:.*)" + re.escape(told), prompt(env))
    assert "thoughts" not in prompt(env)
    env.step("planner", "#### []")
    assert "program" not in prompt(env)  # the next turn's is not there yet
    assert re.search("Your last program:\n(?s:.*)" + re.escape(told), prompt(env, "tool_user"))


def test_a_sandbox_that_fails_is_not_the_models_fault(monkeypatch):
    env, _ = level("plan_path", tool="python")
    env.step("tool_user", "nothing")
    before = env.observe("planner")
    fake_sandbox(monkeypatch, "infra", stderr="bwrap is missing")
    with pytest.raises(InfraError, match="bwrap is missing"):
        env.step("tool_user", "```python\nprint(1)\n```")
    assert env.observe("planner") == before
    assert (env.slow_scoring, level("plan_path")[0].slow_scoring) == (True, False)


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("plan_path", {"board": ["....."] * 3, "start": (0, 0), "goal": (2, 4), "steps": STEPS}),
        ("sokoban", {"board": ["######", "#....#", "#....#", "######"], "player": (1, 1), "boxes": [(1, 3)]}),
        ("sudoku", {"rows": [[1, 0, 3, 0], [3, 4, 1, 2], [2, 1, 4, 3], [4, 0, 2, 1]], "size": 4, "height": 2}),
    ],
)
@pytest.mark.parametrize(("workflow", "calls"), [("mas", 1), ("tool", 1), ("single", 2)])
def test_the_prompt_for_programs_has_the_board_as_python(task, names, workflow, calls):
    """Its definitions are those of the level; the planner's prompt is as ever."""
    env, answer = level(task, workflow=workflow, calls=calls, tool="python")
    system, user = (message["content"] for message in env.observe(env.agents[0]))
    assert re.search("```python(?s:.*)print\\('####', ", system)
    found: dict[str, Any] = {}
    exec(user.partition("The board in Python:\n")[2], found)
    assert {name: found[name] for name in names} == names
    assert answer not in user
    assert workflow != "mas" or level(task)[0].observe("planner")[0] == env.observe("planner")[0]


def test_programs_run_in_the_real_sandbox():
    env, _ = level("plan_path", tool="python")
    reward = env.step("tool_user", "```python\nprint('####', ['R'] * 4 + ['D'] * 2)\n```")
    assert reward == Reward(1.0, 1.0, {"format": 1.0, "executes": 1.0})
    reward = env.step("tool_user", "```python\nprint('####', ['R'] * 4)\n1 / 0\n```")
    assert "ZeroDivisionError: division by zero" in prompt(env)
    twin = env.copy()
    twin.step("tool_user", "```python\nprint('####', ['R'] * 4)\n1 / 0\n```")
    assert prompt(twin) == prompt(env)  # no name of a folder, no address: the same text every time
