"""Searches for answers that pay more than they are worth: loops, bumps, empty plans, guesses, other people's grids.

The share of progress is what a local reward holds beside format and legality. Every search checks it against an
independent measure: what a player who reads the board can work out.
"""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_envs import STEPS, plan, read_sokoban, read_sudoku, solve_plan_path, solve_sokoban, solve_sudoku, sudoku_rules

from envs import make_env
from tasks.plan_path import PlanPath
from tasks.sokoban import Sokoban

settings.register_profile("project", deadline=None, derandomize=True)  # the same search everywhere, however slow
settings.load_profile("project")

seeds = st.integers(0, 10**6)
plans = st.lists(st.sampled_from([*STEPS, "jump"]), max_size=30)
TASKS = {"plan_path": {"rows": 6, "cols": 6}, "sokoban": {"boxes": 2}, "sudoku": {}}


def progress(reward):
    """The .8 share of a planner's local reward, 0 to 1."""
    return (reward.local - 0.1 * reward.info["format"] - 0.1 * reward.info["legal"]) / 0.8


def level(task, seed, workflow="single"):
    return make_env(task, workflow, **TASKS[task]).reset(seed=seed)


@given(st.sampled_from([*TASKS]), seeds, st.text(max_size=60), st.booleans())
def test_garbage_earns_nothing_and_an_empty_answer_its_format(task, seed, text, marked):
    env = level(task, seed, "mas")
    for agent in env.agents:
        reward = env.copy().step(agent, ("#### " if marked else "") + text.replace("[", "("))
        assert (reward.team, reward.local) == (0.0, 0.0)
        reward = env.step(agent, "#### []")
        assert (reward.team, reward.local) == (0.0, pytest.approx(0.1))


@given(seeds, st.lists(plans, min_size=1, max_size=3))
def test_only_net_steps_towards_the_goal_pay(seed, turns):
    env = level("plan_path", seed)
    for moves in turns:
        before = len(solve_plan_path(env))
        reward = env.step("planner", plan(moves))
        if env.done:
            assert reward.team == 1.0
            assert progress(reward) <= before / max(before, len(moves)) + 1e-9
            break
        gain = before - len(solve_plan_path(env))
        assert progress(reward) == pytest.approx(max(0, gain) / max(before, len(moves)))
        assert (reward.team > 0) == (gain > 0)
        assert progress(reward) < 1


def test_of_all_short_plans_the_shortest_solutions_pay_most():
    """All 5,461 plans of up to six moves on one level of each: a search that misses nothing of that length."""
    walk = PlanPath.from_text("S.#.\n#...\n..#G\n....", workflow="single")
    push = Sokoban.from_text("######\n#@   #\n#. $ #\n#   ##\n######", workflow="single")
    for env, solver in ((walk, solve_plan_path), (push, solve_sokoban)):
        solved: list[float] = []
        unsolved: list[float] = []
        for moves in itertools.chain(*(itertools.product(STEPS, repeat=size) for size in range(7))):
            twin = env.copy()
            reward = twin.step("planner", plan(moves))
            (solved if twin.solved else unsolved).append(reward.team + reward.local)
            stayed = len(solve_plan_path(twin) or "") >= 5 if env is walk else read_sokoban(twin)[2] == {(2, 3)}
            if stayed:
                assert (reward.team, reward.local <= 0.2) == (0, True)
            if twin.solved and len(moves) == len(solver(env)):
                assert reward.local == pytest.approx(1)
        assert max(solved) == pytest.approx(2)
        assert min(solved) > max(unsolved)


def test_bumping_into_the_wall_is_worth_less_than_walking():
    env = PlanPath.from_text("S..\n##.\nG..", workflow="single")
    bump, walk, blocked = (env.copy().step("planner", plan(moves)).local for moves in ("RRRRRR", "RR", "DDDD"))
    assert pytest.approx(0.1) == blocked < bump < walk


@given(seeds, st.lists(plans, min_size=1, max_size=5))
def test_sokoban_pays_each_step_to_the_solution_once(seed, turns):
    env = level("sokoban", seed)
    paid = 0.0
    for moves in turns:
        _, goals, boxes, _ = read_sokoban(env)
        reward = env.step("planner", plan(moves))
        share = progress(reward)
        paid += share
        _, _, after, _ = position = read_sokoban(env)
        assert reward.team == len(after & goals) / 2
        if share > 1e-9:
            assert after != boxes  # something was pushed
            assert solve_sokoban(None, position) is not None  # and can still be solved
        if env.done:
            assert paid == pytest.approx(1)
            break
        assert paid < 1 - 1e-9  # only a solution is worth all of it


def test_pushing_a_box_on_and_off_its_goal_pays_once():
    """In one plan, and turn after turn: one push of three is made, undone and made again."""
    text = "########\n#      #\n# @$.  #\n#   $ .#\n#      #\n########"
    env = Sokoban.from_text(text, workflow="single")
    on, off, on_again = "R", "URRDL", "ULLDR"
    assert progress(env.copy().step("planner", plan(on))) == pytest.approx(1 / 3)
    assert progress(env.copy().step("planner", plan(on + off))) == pytest.approx(0)
    assert progress(env.copy().step("planner", plan(on + off + on_again))) == pytest.approx(1 / 3)
    rewards = [env.step("planner", plan(moves)) for moves in (on, off, on_again, off, on_again)]
    assert [reward.team for reward in rewards] == [0.5, 0, 0.5, 0, 0.5]
    assert [progress(reward) for reward in rewards] == pytest.approx([1 / 3, 0, 0, 0, 0])
    solution = env.step("planner", plan(solve_sokoban(env)))
    assert (solution.team, progress(solution)) == (1.0, pytest.approx(2 / 3))


def test_deadlocks_pay_nothing():
    env = Sokoban.from_text("######\n#  @ #\n#  $ #\n#    #\n#  . #\n######", workflow="single")
    assert progress(env.copy().step("planner", plan("D"))) == pytest.approx(0.5)
    stuck = env.step("planner", plan("LDR"))  # the box is at the right wall, the goal is not
    assert (stuck.team, stuck.local) == (0.0, pytest.approx(0.2))
    assert solve_sokoban(env) is None
    assert env.step("planner", plan("URD")).local == pytest.approx(0.2)


cells = st.integers(0, 4)
grids = st.lists(st.lists(cells, min_size=4, max_size=4), min_size=4, max_size=4)


def with_clues(clues, guess):
    return [[clue or value for clue, value in zip(*rows, strict=True)] for rows in zip(clues, guess, strict=True)]


@given(seeds, grids, st.booleans())
def test_a_sudoku_answer_is_worth_its_right_cells_less_its_wrong_ones(seed, guess, keep_clues):
    env = level("sudoku", seed)
    clues, _ = read_sudoku(env)
    (solution,) = solve_sudoku([list(row) for row in clues])
    if keep_clues:
        guess = with_clues(clues, guess)
    reward = env.step("planner", f"#### {guess}")
    _, grid = read_sudoku(env)
    assert sudoku_rules(grid)  # whatever was answered, the grid breaks no rule
    kept = [(r, c) for r in range(4) for c in range(4) if clues[r][c]]
    assert all(grid[r][c] == clues[r][c] for r, c in kept)
    assert env.solved == (reward.team == 1.0) == (guess == solution)
    if any(guess[r][c] != clues[r][c] for r, c in kept):
        assert (reward.local, grid) == (pytest.approx(0.1), clues)
        return
    new = [(guess[r][c], solution[r][c]) for r in range(4) for c in range(4) if guess[r][c] and not clues[r][c]]
    score = sum(1 if value == right else -1 for value, right in new)
    assert progress(reward) == pytest.approx(max(0, score) / 8)


@given(seeds, st.lists(grids, min_size=2, max_size=5))
def test_sudoku_pays_each_cell_once(seed, guesses):
    env = level("sudoku", seed)
    clues, _ = read_sudoku(env)
    paid = 0.0
    for guess in guesses * 2:
        if not env.done:
            paid += progress(env.step("planner", f"#### {with_clues(clues, guess)}"))
    assert paid <= 1 + 1e-9
    assert env.solved or paid < 1


def test_constant_grids_and_solutions_of_other_puzzles_pay_nothing():
    solutions = [solve_sudoku(read_sudoku(level("sudoku", seed))[0])[0] for seed in range(30)]
    for seed in range(30):
        env = level("sudoku", seed)
        clues, _ = read_sudoku(env)
        constant = [[[clue * kept or value for clue in row] for row in clues] for value in range(5) for kept in (0, 1)]
        for grid in constant + solutions:
            reward = (twin := env.copy()).step("planner", f"#### {grid}")
            assert twin.solved == (grid == solutions[seed])
            assert twin.solved or (reward.team, reward.local) == (0.0, pytest.approx(0.1))
