"""Recorded trees: texts, rewards and prompts stand where they belong, for trees, chains and failures of the scorer."""

import json

from helpers import ScriptedEngine, Toy, make_sample

from grouping import assign_advantages, group_samples, trajectory_key
from records.checkpoint import append_row, cut_log
from records.trees import tree_rows
from rollout import Episode, Rollout, rollout_chains, rollout_tree


def record(envs, script, sample=rollout_tree, limit=1, k=3, turns=2):
    engine = ScriptedEngine(script)
    result = sample(
        envs, engine, encode=engine.encode, decode=engine.decode, num_candidates=k, max_turns=turns, alpha=1.0
    )
    groups = (
        group_samples(result.samples, trajectory_key) if sample is rollout_chains else group_samples(result.samples)
    )
    assign_advantages(groups)
    return tree_rows(result, 7, engine.decode, limit)


def values(stage, name):
    return [candidate[name] for candidate in stage["candidates"]]


def prompts(row, episode):
    return [[row["messages"][number] for number in stage["prompt"]] for stage in episode["stages"]]


def contents(row, episode):
    return [[message["content"] for message in prompt] for prompt in prompts(row, episode)]


def test_every_stage_has_its_own_prompt_and_its_own_candidates():
    script = {"ann": "152", "bob": "433"}
    (row,) = record([Toy()], lambda request, k: script[request.agent][k])
    (episode,) = row["episodes"]
    assert (row["step"], row["env"], episode["trajectory"], episode["ended"]) == (7, 0, None, "turns")
    assert [(stage["turn"], stage["agent"]) for stage in episode["stages"]] == [
        (0, "ann"), (0, "bob"), (1, "ann"), (1, "bob"),
    ]  # fmt: skip
    assert contents(row, episode) == [
        ["toy ann sees nothing"],
        ["toy bob sees ann:5"],
        ["toy ann sees ann:5 bob:4"],
        ["toy bob sees ann:5 bob:4 ann:5"],
    ]
    ann, bob = episode["stages"][:2]
    assert values(ann, "text") == ["1", "5", "2"]
    assert values(ann, "committed") == [False, True, False]
    assert values(ann, "local") == values(ann, "reward") == [0.1, 0.5, 0.2]
    assert values(ann, "advantage") == [-0.8006369, 1.120892, -0.3202548]  # of .1 .5 .2: mean .2667, std .2082
    assert values(ann, "tokens") == [2, 2, 2]  # the digit and the stop token
    assert values(bob, "text") == ["4", "3", "3"]
    assert bob["candidates"][0]["info"] == {"format": 1.0, "actions": 2.0}


def test_every_number_of_a_candidate_is_recorded_under_its_own_name():
    sample = make_sample(
        1.25, response=(52, 50, 0), key=(0, 0, "ann"), team=0.75, local=0.5, advantage=-0.33333, truncated=True,
        committed=True, info={"format": 1.0},
    )  # fmt: skip
    rollout = Rollout([Episode(0, samples=[sample])])
    (row,) = tree_rows(rollout, 0, ScriptedEngine.decode, 1)
    assert row["episodes"][0]["stages"][0]["candidates"] == [
        {
            "text": "42", "tokens": 3, "team": 0.75, "local": 0.5, "reward": 1.25, "advantage": -0.33333,
            "truncated": True, "committed": True, "valid": True, "info": {"format": 1.0},
        }
    ]  # fmt: skip


def test_only_the_first_environments_are_recorded_in_order():
    rows = record([Toy(), Toy(), Toy()], lambda request, k: str(k), limit=2)
    assert [row["env"] for row in rows] == [0, 1]


def test_chains_are_k_episodes_that_share_one_comparison():
    """Trajectory 2 solves the task at once; the others never do. The reward of all its samples is the return."""
    (row,) = record([Toy()], lambda request, k: "9!" if request.seed % 3 == 2 else "1", sample=rollout_chains)
    assert [episode["trajectory"] for episode in row["episodes"]] == [0, 1, 2]
    assert [episode["solved"] for episode in row["episodes"]] == [False, False, True]
    assert [len(episode["stages"]) for episode in row["episodes"]] == [4, 4, 1]
    assert all(len(stage["candidates"]) == 1 for episode in row["episodes"] for stage in episode["stages"])
    first, last = row["episodes"][0], row["episodes"][2]
    assert [values(stage, "advantage") for stage in first["stages"]] == [[-0.5773493]] * 4  # returns 0 0 1
    assert values(last["stages"][0], "reward") == [1.0]
    assert values(last["stages"][0], "advantage") == [1.154699]
    assert contents(row, first)[1] == ["toy bob sees ann:1"]
    assert contents(row, last) == [["toy ann sees nothing"]]
    assert [message["content"] for message in row["messages"]].count("toy ann sees nothing") == 1  # written once


def test_a_candidate_that_could_not_be_scored_is_marked():
    (row,) = record([Toy()], lambda request, k: ("infra", "4", "6")[k], turns=1)
    stage = row["episodes"][0]["stages"][0]
    assert values(stage, "valid") == [False, True, True]
    assert values(stage, "advantage")[0] == 0.0
    assert values(stage, "committed") == [False, False, True]


def test_a_stage_that_nobody_could_score_shows_the_prompt_as_the_model_read_it():
    (row,) = record([Toy()], lambda request, k: "infra" if request.agent == "bob" else "3")
    (episode,) = row["episodes"]
    assert episode["ended"] == "infra"
    assert prompts(row, episode) == [
        [{"role": "user", "content": "toy ann sees nothing"}],
        [{"role": "prompt", "content": "toy bob sees ann:3"}],
    ]
    assert values(episode["stages"][1], "committed") == [False] * 3


def test_simultaneous_agents_keep_the_prompts_they_were_given():
    (row,) = record([Toy(simultaneous=True)], lambda request, k: str(k), turns=1)
    assert contents(row, row["episodes"][0]) == [
        ["toy ann sees nothing"], ["toy bob sees nothing"],
    ]  # fmt: skip


def test_rows_are_plain_json_and_are_cut_like_the_metrics(tmp_path):
    path = tmp_path / "trees.jsonl"
    rows = record([Toy(), Toy()], lambda request, k: str(k), limit=2)
    for step in (0, 1, 2):
        for row in rows:
            append_row(path, {**row, "step": step})
    cut_log(path, 2)
    kept = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert kept == [{**row, "step": step} for step in (0, 1) for row in rows]
