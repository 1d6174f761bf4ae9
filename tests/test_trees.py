"""Recorded trees: texts, rewards, prompts and boards stand where they belong, for trees, chains and failures."""

import json

import pytest
from helpers import ScriptedEngine, Toy

from grouping import assign_advantages, group_samples, trajectory_key
from records.trees import transcript, tree_rows
from rollout import rollout_chains, rollout_tree
from tasks.plan_path import PlanPath


class Drawn(Toy):
    """A Toy that draws its log."""

    def render(self):
        return "|".join(self.log) or "empty"


class Slow(Drawn):
    slow_scoring = True


def record(envs, script, sample=rollout_tree, limit=1, turns=2):
    engine = ScriptedEngine(script)
    result = sample(envs, engine, encode=engine.encode, decode=engine.decode, num_candidates=3, max_turns=turns)
    key = (trajectory_key,) if sample is rollout_chains else ()
    assign_advantages(group_samples(result.samples, *key))
    return tree_rows(result, 7, engine.decode, limit, lambda env: envs[env])


def values(stage, name):
    return [candidate.get(name) for candidate in stage["candidates"]]


def boards(row, episode=0):
    """(before, after each candidate) of every stage; None where no board is shown."""
    shown = [*row["boards"], None]
    stages = row["episodes"][episode]["stages"]
    return [(shown[s.get("board", -1)], [shown[c.get("board", -1)] for c in s["candidates"]]) for s in stages]


def test_every_stage_has_its_own_prompt_and_its_own_candidates():
    script = {"ann": "152", "bob": "433"}
    (row,) = record([Toy()], lambda request, k: script[request.agent][k])
    (episode,) = row["episodes"]
    assert (row["step"], row["env"], row["boards"]) == (7, 0, [])
    assert (episode["trajectory"], episode["ended"]) == (None, "turns")
    places = [(stage["turn"], stage["agent"]) for stage in episode["stages"]]
    assert places == [(turn, agent) for turn in (0, 1) for agent in ("ann", "bob")]
    shown = [row["messages"][number]["content"][4:] for stage in episode["stages"] for number in stage["prompt"]]
    assert shown == ["ann sees nothing", "bob sees ann:5", "ann sees ann:5 bob:4", "bob sees ann:5 bob:4 ann:5"]
    ann, bob = episode["stages"][:2]
    assert values(ann, "text") == ["1", "5", "2"]
    assert values(ann, "committed") == [False, True, False]
    assert values(ann, "local") == values(ann, "reward") == [0.1, 0.5, 0.2]
    assert values(ann, "advantage") == [-0.800637, 1.120892, -0.320255]  # of .1 .5 .2: mean .2667, std .2082
    assert bob["candidates"][0] == {
        "text": "4", "tokens": 2, "team": 0.0, "local": 0.4, "reward": 0.4, "advantage": 1.154681, "truncated": False,
        "committed": True, "valid": True, "info": {"format": 1.0, "actions": 0.02},
    }  # fmt: skip
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize(("limit", "chosen"), [(0, []), (1, [2]), (2, [2, 3]), (3, [0, 2, 3])])
def test_the_first_environments_with_a_signal_are_recorded_in_order(limit, chosen):
    envs = [Toy(name=name) for name in ("flat", "flat", "full", "full")]

    def script(request, k):
        return str(k) if "full" in "".join(map(chr, request.prompt_ids)) else "4"

    assert [row["env"] for row in record(envs, script, limit=limit)] == chosen


def test_chains_are_k_episodes_that_share_one_comparison():
    """Trajectory 2 solves the task at once; the others never do. The reward of all its samples is the return."""
    (row,) = record([Toy()], lambda request, k: "9!" if request.seed % 3 == 2 else "1", rollout_chains)
    assert [episode["trajectory"] for episode in row["episodes"]] == [0, 1, 2]
    assert [episode["solved"] for episode in row["episodes"]] == [False, False, True]
    assert [len(episode["stages"]) for episode in row["episodes"]] == [4, 4, 1]
    first, last = row["episodes"][0], row["episodes"][2]
    assert [values(stage, "advantage") for stage in first["stages"]] == [[-0.577349]] * 4  # returns 0 0 1
    assert (values(last["stages"][0], "reward"), values(last["stages"][0], "advantage")) == ([1.0], [1.154699])
    assert [message["content"] for message in row["messages"]].count("toy ann sees nothing") == 1  # written once


def test_what_could_not_be_scored_is_marked_and_a_prompt_without_an_answer_is_shown_as_the_model_read_it():
    (row,) = record([Toy()], lambda request, k: "infra" if request.agent == "bob" or k == 0 else "46"[k - 1])
    (episode,) = row["episodes"]
    ann, bob = episode["stages"]
    assert episode["ended"] == "infra"
    assert (values(ann, "valid"), values(ann, "committed")) == ([False, True, True], [False, False, True])
    assert values(ann, "advantage")[0] == 0.0
    assert [row["messages"][n] for n in bob["prompt"]] == [{"role": "prompt", "content": "toy bob sees ann:6"}]
    assert values(bob, "committed") == [False] * 3


def test_the_board_before_a_stage_and_after_each_candidate():
    (row,) = record([Drawn()], lambda request, k: "152"[k], turns=1)
    assert boards(row) == [
        ("empty", ["ann:1", "ann:5", "ann:2"]),
        ("ann:5", ["ann:5|bob:1", "ann:5|bob:5", "ann:5|bob:2"]),
    ]
    assert len(row["boards"]) == len(set(row["boards"]))  # each is written once
    (row,) = record([Drawn()], lambda request, k: str(request.seed % 3), rollout_chains, turns=1)
    assert [boards(row, k)[1] for k in range(3)] == [(f"ann:{k}", [f"ann:{k}|bob:{k}"]) for k in range(3)]


@pytest.mark.parametrize(
    ("env", "script", "shown"),
    [
        (Toy, "152", [(None, [None] * 3)] * 2),  # draws nothing
        (Drawn, ("infra", "4", "6"),
         [("empty", [None, "ann:4", "ann:6"]), ("ann:6", [None, "ann:6|bob:4", "ann:6|bob:6"])]),
        (Slow, "152", [("empty", [None, "ann:5", None]), ("ann:5", [None, "ann:5|bob:5", None])]),  # what is committed
    ],
)  # fmt: skip
def test_boards_are_shown_where_they_are_known(env, script, shown):
    (row,) = record([env()], lambda request, k: script[k], turns=1)
    assert boards(row) == shown


def test_a_real_board_has_the_way_of_each_answer_and_the_console_draws_it():
    plans = {"tool_user": ["[R]", "[D]", "nothing"], "planner": ["[U]", "[D, R, R, U]", "[R]"]}
    env = PlanPath.from_text("S.G\n...")
    (row,) = record([env], lambda request, k: f"#### {plans[request.agent][k]}", turns=1)
    tool_user, planner = row["episodes"][0]["stages"]
    assert boards(row) == [
        (["P.G", "..."], [["P.G", "..."]] * 3),  # a proposal moves nobody
        (["P.G", "..."], [["P.G", "..."], ["..P", "..."], [".PG", "..."]]),
    ]
    assert values(tool_user, "way") == [((0, 0), (0, 1)), ((0, 0), (1, 0)), ((0, 0),)]
    assert values(planner, "way")[1] == ((0, 0), (1, 0), (1, 1), (1, 2), (0, 2))
    text = transcript(row)
    assert text.startswith("--- example, step 8, environment 1 ---\n[turn 1, tool_user sees]\n")
    assert "#### [R]\nP > G\n. . .\n" in text
    assert "[planner, best of 3: team 1.00, local 0.60]\n#### [D, R, R, U]\nP . G\nv > >\n" in text
    assert text.endswith("--- 2 actions, solved ---")
