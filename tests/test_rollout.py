"""Tree, chains and evaluation with scripted engines: who sees what, what is committed, what is recorded."""

from concurrent.futures import ThreadPoolExecutor
from math import inf, nan, sqrt
from typing import ClassVar

import pytest
from helpers import ScriptedEngine, Toy

from envs import Reward
from grouping import GroupKey, assign_advantages, group_samples, trajectory_key
from rollout import evaluate, rollout_chains, rollout_tree
from sampling.requests import Completion
from tasks.plan_path import PlanPath
from tasks.sokoban import Sokoban


def tree(envs, script, k=3, turns=2, sample=rollout_tree, **options):
    """Roll out with a script (request, candidate) -> text; returns the result and the engine."""
    engine = script if isinstance(script, ScriptedEngine) else ScriptedEngine(script)
    result = sample(
        envs, engine, encode=engine.encode, decode=engine.decode, num_candidates=k, max_turns=turns, **options
    )
    return result, engine


def digits(request, candidate):
    """Candidate 1 is the best, whatever the number of candidates."""
    return "372456"[candidate] if candidate else "1"


def seen(request):
    return ScriptedEngine.decode("", request.prompt_ids)


# ----------------------------------------------------------------------------------------------------------------- tree


def test_agents_in_sequence_see_what_was_committed_before_them():
    result, engine = tree([Toy()], lambda request, k: f"{k}" if request.agent == "ann" else f"{5 - k}", k=3)
    assert [seen(request) for request in engine.requests] == [
        "toy ann sees nothing",
        "toy bob sees ann:2",
        "toy ann sees ann:2 bob:5",
        "toy bob sees ann:2 bob:5 ann:2",
    ]
    sent = [request.prompt_ids for request in engine.requests]
    assert [group[0].prompt_ids for group in group_samples(result.samples).values()] == sent
    found = [sample.info["actions"] for sample in result.samples]
    assert found == [n / 100 for n in (1, 2, 3, 4) for _ in range(3)], "candidates never share state"


def test_simultaneous_agents_see_the_start_of_the_turn_only_and_act_in_order():
    result, engine = tree([Toy(simultaneous=True)], lambda request, k: f"{k}", k=3)
    assert [seen(request) for request in engine.requests] == [
        "toy ann sees nothing",
        "toy bob sees nothing",
        "toy ann sees ann:2 bob:2",
        "toy bob sees ann:2 bob:2",
    ]
    found = [sample.info["actions"] for sample in result.samples]
    assert found == [n / 100 for n in (1, 2, 3, 4) for _ in range(3)], "bob is scored after the commit of ann"


def test_the_planner_sees_the_committed_proposal_of_the_same_turn():
    """On a real task: the only proposal that walks towards the goal is committed and shown."""
    plans = ["#### [U]", "#### [R]", "#### [L]"]
    env = PlanPath.from_text("S.G\n...")
    _, engine = tree([env], lambda request, k: plans[k], turns=1)
    before, after = map(seen, engine.requests)
    assert "[R]" not in before
    assert "proposal [R]" in after


def test_every_agent_gets_a_group_with_spread_at_every_turn():
    result, engine = tree([Toy(), Toy()], digits, k=4, turns=3)
    assert len(engine.requests) == 2 * 2 * 3
    assert len(result.samples) == 4 * len(engine.requests), "K * N * T generations an environment"
    groups = group_samples(result.samples)
    assert list(groups) == [
        GroupKey(env, turn, agent) for env in (0, 1) for turn in range(3) for agent in ("ann", "bob")
    ]
    counts = assign_advantages(groups)
    assert counts == {"groups": 12, "trained": 12, "constant": 0, "singleton": 0, "invalid": 0}
    for group in groups.values():
        assert len(group) == 4
        assert len({sample.advantage for sample in group}) == 4


def test_candidates_never_share_state():
    result, _ = tree([Toy()], lambda request, k: f"{k}", k=5, turns=2)
    assert [sample.info["actions"] for sample in result.samples] == [n / 100 for n in (1, 2, 3, 4) for _ in range(5)]


def test_the_best_candidate_is_committed_and_the_first_of_equals():
    result, _ = tree([Toy(("ann",))], lambda request, k: "2772"[k], k=4, turns=2)
    assert [sample.committed for sample in result.samples] == [False, True, False, False] * 2
    assert [action.text for action in result.episodes[0].actions] == ["7", "7"]
    result, _ = tree([Toy(("ann",))], lambda request, k: "5" * (k + 1), k=3, turns=1)
    assert [action.text for action in result.episodes[0].actions] == ["5"]


def test_reward_is_alpha_times_team_plus_local():
    result, _ = tree([Toy(("ann",))], lambda request, k: ("4", "3!")[k], k=2, turns=1, alpha=0.5)
    assert [(s.reward, s.team, s.local) for s in result.samples] == [(0.4, 0.0, 0.4), (0.8, 1.0, 0.3)]
    result, _ = tree([Toy(("ann",))], lambda request, k: ("4", "3!")[k], k=2, turns=1, alpha=0.0)
    assert [sample.committed for sample in result.samples] == [True, False]


def test_an_environment_ends_when_it_says_so_even_inside_a_turn():
    """And then it is solved only if it says that too."""
    answers = {"long": "1", "short": "1!", "lost": "1."}
    result, _ = tree([Toy(name=name) for name in answers], lambda r, k: answers[seen(r).split()[0]], k=2, turns=3)
    long, short, lost = result.episodes
    assert (long.ended, long.solved, long.turns, len(long.samples)) == ("turns", False, 3, 12)
    assert (short.ended, short.solved, short.turns, len(short.samples)) == ("done", True, 1, 2)
    assert (lost.ended, lost.solved, lost.turns, len(lost.samples)) == ("done", False, 1, 2)


# ------------------------------------------------------------------------------------------------------------- failures


def test_a_candidate_that_could_not_be_scored_is_excluded_and_the_rest_goes_on():
    result, _ = tree([Toy()], lambda request, k: ("infra", "0", "2")[k], turns=1)
    assert [sample.valid for sample in result.samples] == [False, True, True] * 2
    assert [sample.committed for sample in result.samples] == [False, False, True] * 2
    assert [action.text for action in result.episodes[0].actions] == ["2", "2"]
    counts = assign_advantages(group_samples(result.samples))
    assert counts == {"groups": 2, "trained": 2, "constant": 0, "singleton": 0, "invalid": 2}
    assert [round(sample.advantage, 3) for sample in result.samples] == [0.0, -0.707, 0.707] * 2


def test_an_environment_where_nothing_could_be_scored_ends():
    envs = [Toy(name="broken"), Toy(name="fine")]
    result, engine = tree(envs, lambda request, k: "infra" if "broken" in seen(request) else f"{k}", k=2, turns=2)
    assert [episode.ended for episode in result.episodes] == ["infra", "turns"]
    assert [sample.valid for sample in result.episodes[0].samples] == [False, False]
    assert result.episodes[0].actions == []
    assert sum("broken" in seen(request) for request in engine.requests) == 1


@pytest.mark.parametrize(
    ("reward", "error"),
    [
        (Reward(50.0, 0.0), "agent='ann'.*go from 0 to 1"),
        (Reward(0.0, float("nan")), "go from 0 to 1"),
        (Reward(0.0, -3.0), "go from 0 to 1"),
        (Reward(0.0, 0.0, {"words": 7.0}), "go from 0 to 1"),
        (Reward(0.0, 0.0, {"words": 1e300}), "go from 0 to 1"),
        ((0.0, 0.5), "go from 0 to 1"),
        (SystemExit(0), "ann.*called sys.exit"),
        (ValueError("of its own"), "of its own"),  # is not hidden
    ],
)
def test_a_task_that_breaks_the_contract_ends_the_rollout(reward, error):
    class Breaks(Toy):
        def step(self, agent, text):
            if isinstance(reward, BaseException):
                raise reward
            return reward

    with pytest.raises((ValueError, RuntimeError), match=error):
        tree([Breaks()], lambda request, k: "1")


@pytest.mark.parametrize(
    ("generate", "message"),
    [
        (lambda engine, requests: engine(requests, 3)[:1], "is shorter than argument 1"),
        (lambda engine, requests: engine(requests, 2), "returned 2 completions for agent ann, expected 3"),
        (lambda *_: [[Completion([49, 50], [-1.0], "stop")] * 3] * 2, "2 response ids but 1 log-probs"),
        *(
            (lambda *_, value=value: [[Completion([49, 0], [-1.0, value], "stop")] * 3] * 2, "agent='ann'.*not finite")
            for value in (nan, inf, -inf)
        ),
    ],
)
def test_an_engine_that_returns_something_else_raises_with_both_numbers(generate, message):
    class Odd(ScriptedEngine):
        def __call__(self, requests, n):
            return generate(super().__call__, requests)

    with pytest.raises(ValueError, match=message):
        tree([Toy(), Toy()], Odd(digits))


def test_a_prompt_without_room_for_an_answer_ends_its_environment_only():
    class Short(ScriptedEngine):
        def __call__(self, requests, n):
            answers = super().__call__(requests, n)
            return [[] if "tight" in seen(r) else found for r, found in zip(requests, answers, strict=True)]

    result, _ = tree([Toy(name="tight"), Toy(name="roomy")], Short(digits), k=2)
    tight, roomy = result.episodes
    assert (tight.ended, tight.solved, len(tight.samples)) == ("prompt", False, 0)
    assert (roomy.ended, len(roomy.samples)) == ("turns", 8)


@pytest.mark.parametrize("ids", [[0], [1, 1], [0, 1, 2]])
def test_environment_ids_are_distinct_and_as_many_as_environments(ids):
    with pytest.raises(ValueError, match="env_ids: 2 distinct numbers"):
        tree([Toy(), Toy()], digits, env_ids=ids)


# ---------------------------------------------------------------------------------------------- what is recorded, seeds


class Pieces:
    """An engine whose vocabulary can spell one text in two ways: `hello` is 3, or 1 and 2."""

    words: ClassVar[dict[int, str]] = {0: "", 1: "he", 2: "llo", 3: "hello", 4: "1"}

    def __call__(self, requests, n):
        cut = Completion([1, 2, 4, 0], [-0.1, -0.2, -0.3, -0.4], "length")
        return [[cut, Completion([1, 2, 4], [-0.1, -0.2, -0.3], "stop")] for _ in requests]

    def decode(self, agent, ids):
        return "".join(self.words[i] for i in ids).replace("hello", "")

    def encode(self, agent, messages):
        return [3]


def test_trained_ids_and_the_reason_of_the_end_are_those_of_the_engine():
    engine = Pieces()
    result = rollout_tree([Toy()], engine, encode=engine.encode, decode=engine.decode, num_candidates=2, max_turns=1)
    for sample in result.samples:
        assert sample.prompt_ids == [3]
        assert sample.response_ids == [1, 2, 4, 0][: len(sample.logprobs)]
        assert sample.logprobs == [-0.1, -0.2, -0.3, -0.4][: 4 if sample.truncated else 3]
    assert [sample.truncated for sample in result.samples] == [True, False] * 2, "not a matter of the last token"
    assert result.episodes[0].actions[0].text == "1"


def test_seeds_are_distinct_and_leave_room_for_the_candidates():
    _, engine = tree([Toy() for _ in range(8)], digits, k=4, turns=3)
    seeds = [request.seed for request in engine.requests]
    assert len(seeds) == len(set(seeds)) == 8 * 2 * 3
    assert all(seed % 4 == 0 and 0 <= seed < 2**62 for seed in seeds)


def test_a_seed_depends_on_run_step_and_environment_and_on_nothing_else():
    def seeds(count, **options):
        _, engine = tree([Toy() for _ in range(count)], digits, k=2, turns=1, **options)
        return [request.seed for request in engine.requests if request.agent == "ann"]

    four = seeds(4, seed=(1, 5))
    assert seeds(1, seed=(1, 5), env_ids=[2]) == four[2:3]
    assert seeds(2, seed=(1, 5), env_ids=[3, 0]) == [four[3], four[0]]
    assert not set(four) & set(seeds(4, seed=(1, 6))) | set(four) & set(seeds(4, seed=(2, 5)))


def test_a_pool_of_threads_gives_the_same_result():
    script = lambda request, k: f"{(request.seed >> 8) % 7 + k}"  # noqa: E731
    plain, _ = tree([Toy() for _ in range(6)], script, turns=3)
    with ThreadPoolExecutor(4) as pool:
        threaded, _ = tree([Toy() for _ in range(6)], script, turns=3, pool=pool)
    assert threaded == plain


def test_environments_of_the_caller_stay_as_they_were():
    for sample in (rollout_tree, rollout_chains):
        envs = [Toy()]
        tree(envs, digits, sample=sample)
        assert envs[0].log == []


# --------------------------------------------------------------------------------------------------------------- chains


def test_chains_are_independent_trajectories_that_carry_their_return():
    def script(request, k):  # only trajectory 2 solves, in its last action
        return "1!" if request.seed % 3 == 2 and seen(request).count(":") == 3 else f"{request.seed % 3}"

    result, engine = tree([Toy()], script, sample=rollout_chains)
    assert [episode.trajectory for episode in result.episodes] == [0, 1, 2]
    assert [episode.solved for episode in result.episodes] == [False, False, True]
    for chain, episode in enumerate(result.episodes):
        assert [sample.trajectory for sample in episode.samples] == [chain] * 4
        assert [sample.reward for sample in episode.samples] == [float(chain == 2)] * 4
        assert all(sample.committed for sample in episode.samples)
    assert {seen(request) for request in engine.requests if seen(request).count(":") == 1} == {
        f"toy bob sees ann:{chain}" for chain in range(3)
    }
    assert len(engine.requests) == 3 * 2 * 2  # as many generations as the tree: K*N*T
    counts = assign_advantages(group_samples(result.samples, trajectory_key))
    assert counts == {"groups": 1, "trained": 1, "constant": 0, "singleton": 0, "invalid": 0}
    # returns 0, 0, 1: mean 1/3, deviation 0.57735
    assert [sample.advantage for sample in result.samples] == pytest.approx([-0.57735] * 8 + [1.154699] * 4, abs=1e-5)


def test_the_first_prompts_of_the_chains_are_one_and_their_seeds_differ():
    _, engine = tree([Toy(), Toy()], digits, turns=1, sample=rollout_chains)
    first = [request for request in engine.requests if request.agent == "ann"]
    assert [request.seed % 3 for request in first] == [0, 1, 2, 0, 1, 2]
    assert len({tuple(request.prompt_ids) for request in first}) == 1
    assert len({request.seed for request in first}) == 6


def test_a_chain_with_an_action_that_could_not_be_scored_is_invalid_as_a_whole():
    answers = ("2", "infra", "2!")
    result, _ = tree([Toy()], lambda r, k: answers[r.seed % 3] if r.agent == "bob" else "2", sample=rollout_chains)
    assert [episode.ended for episode in result.episodes] == ["turns", "infra", "done"]
    assert [all(sample.valid for sample in episode.samples) for episode in result.episodes] == [True, False, True]
    counts = assign_advantages(group_samples(result.samples, trajectory_key))
    assert counts == {"groups": 1, "trained": 1, "constant": 0, "singleton": 0, "invalid": 2}
    assert [round(sample.advantage, 3) for sample in result.samples] == [-0.707] * 4 + [0.0] * 2 + [0.707] * 2


# ----------------------------------------------------------------------------------------------------------- evaluation


def run_evaluation(envs, script, turns=1):
    engine = ScriptedEngine(script)
    return evaluate(envs, engine, encode=engine.encode, decode=engine.decode, max_turns=turns), engine


def test_evaluation_counts_environments_and_gives_the_standard_error():
    class Sloppy(Toy):
        def step(self, agent, text):
            reward = super().step(agent, text)
            return Reward(reward.team, reward.local, {"format": float(agent == "ann")})

    envs = [Toy(name="easy")] + [Sloppy(name="hard") for _ in range(4)]
    result, engine = run_evaluation(envs, lambda request, k: "1!" if "easy" in seen(request) else "1", turns=3)
    assert (result.success, result.n) == (0.2, 5)
    assert result.se == pytest.approx(sqrt(0.2 * 0.8 / 5))
    assert result.turns == pytest.approx((1 + 4 * 3) / 5)
    assert result.formats == {"ann": 1.0, "bob": 0.0}  # the easy one ends before bob
    assert len(engine.requests) == 1 + 4 * 3 * 2  # one chain an environment, no candidates


def test_environments_that_could_not_be_scored_are_no_failures():
    envs = [Toy(name="broken"), Toy(name="good"), Toy(name="bad")]
    answers = {"broken": "infra", "good": "1!", "bad": "1"}
    result, _ = run_evaluation(envs, lambda request, k: answers[seen(request).split()[0]])
    assert (result.success, result.n) == (0.5, 2)
    with pytest.raises(RuntimeError, match="not a single environment"):
        run_evaluation(envs[:1], lambda request, k: "infra")


def test_an_environment_that_starts_solved_needs_no_requests():
    solved = Sokoban.from_text("#####\n#@* #\n#####", workflow="single")
    result, engine = tree([solved], digits)
    assert (result.samples, engine.requests) == ([], [])
    assert [(e.ended, e.solved, e.turns) for e in result.episodes] == [("done", True, 0)]
    assert run_evaluation([solved], digits)[0].success == 1.0
