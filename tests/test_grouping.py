"""Groups and advantages, with numbers worked out by hand."""

import math

import numpy as np
import pytest
from helpers import make_sample

from grouping import GroupKey, assign_advantages, group_samples, trajectory_key

HALF = 1 / math.sqrt(2)  # of two different rewards one is 0.5 * sqrt(2) sample deviations above the mean


def advantages(rewards, normalize="std", **fields):
    samples = [make_sample(reward, **fields) for reward in rewards]
    counts = assign_advantages(group_samples(samples), normalize)
    return [sample.advantage for sample in samples], counts


def test_groups_are_environment_turn_and_agent():
    rows = [("A", 0, 0), ("B", 0, 3), ("A", 0, 1), ("B", 0, 5), ("A", 1, 2), ("B", 1, 0), ("A", 1, 2), ("B", 1, 4)]
    samples = [make_sample(reward, key=("task", turn, agent)) for agent, turn, reward in rows]
    groups = group_samples(samples)
    assert list(groups) == [GroupKey("task", *rest) for rest in ((0, "A"), (0, "B"), (1, "A"), (1, "B"))]
    counts = assign_advantages(groups)
    expected = [-HALF, -HALF, HALF, HALF, 0, -HALF, 0, HALF]
    assert [sample.advantage for sample in samples] == pytest.approx(expected, abs=1e-5)
    assert counts == {"groups": 4, "trained": 3, "constant": 1, "singleton": 0, "invalid": 0}


def test_environments_are_not_pooled():
    samples = [make_sample(reward, key=(env, 0, "a")) for env, reward in ((0, 0), (1, 5), (0, 1), (1, 5))]
    assign_advantages(group_samples(samples))
    assert [sample.advantage for sample in samples] == pytest.approx([-HALF, 0, HALF, 0], abs=1e-5)
    assert [sample.reward for sample in samples] == [0, 5, 1, 5], "rewards stay what they were"


@pytest.mark.parametrize(("normalize", "scale"), [("std", 0.454606), ("mean_only", 1)])
def test_advantage_uses_the_sample_deviation_or_none(normalize, scale):
    # mean 0.4, squared deviations 0.16 + 0.01 + 0.36 + 0.09 = 0.62, sqrt(0.62 / 3) = 0.454606
    found, counts = advantages([0.0, 0.5, 1.0, 0.1], normalize)
    assert found == pytest.approx([value / scale for value in (-0.4, 0.1, 0.6, -0.3)], abs=1e-5)
    assert counts["trained"] == 1


@pytest.mark.parametrize("normalize", ["std", "mean_only"])
@pytest.mark.parametrize(
    "rewards",
    [
        [0.35] * 7,
        [float(np.float32(1.1))] * 12,
        [0.1 + 0.2, 0.3, 0.3, 0.3],  # float residue
        [1.1 + 1e-8 * k for k in range(12)],
        [1e6, 1e6 + 0.1],  # relative to the size of the rewards
        [0.0] * 8,
    ],
)
def test_equal_rewards_teach_exactly_nothing(rewards, normalize):
    found, counts = advantages(rewards, normalize)
    assert found == [0.0] * len(rewards)
    assert counts == {"groups": 1, "trained": 0, "constant": 1, "singleton": 0, "invalid": 0}


def test_a_small_real_difference_is_not_rounding():
    found, counts = advantages([0.5, 0.5, 0.5, 0.501])
    assert found == pytest.approx([-0.499, -0.499, -0.499, 1.497], abs=2e-3)
    assert counts["trained"] == 1


def test_candidates_that_could_not_be_scored_are_left_out():
    samples = [make_sample(1.0), make_sample(math.nan, valid=False), make_sample(0.0), make_sample(0.0, valid=False)]
    counts = assign_advantages(group_samples(samples))
    assert [sample.advantage for sample in samples] == pytest.approx([HALF, 0, -HALF, 0], abs=1e-5)
    assert counts == {"groups": 1, "trained": 1, "constant": 0, "singleton": 0, "invalid": 2}


@pytest.mark.parametrize("valid", [[True], [True, False, False], [False, False, False]])
def test_fewer_than_two_scored_candidates_teach_nothing(valid):
    samples = [make_sample(float(i), valid=v, advantage=9.0) for i, v in enumerate(valid)]
    counts = assign_advantages(group_samples(samples))
    assert all(sample.advantage == 0.0 for sample in samples)
    assert counts == {"groups": 1, "trained": 0, "constant": 0, "singleton": 1, "invalid": valid.count(False)}


def test_trajectories_may_mix_prompts_and_weigh_the_same_whatever_their_length():
    # returns 1, 0, 0: mean 1/3, deviation sqrt(((2/3)^2 + 2 (1/3)^2) / 2) = 0.577350; by samples the mean would be 3/5
    rows = [(0, 1.0), (1, 0.0), (0, 1.0), (2, 0.0), (0, 1.0)]
    samples = [
        make_sample(reward, prompt=[1, position + 1], key=(4, position, "ab"[position % 2]), trajectory=trajectory)
        for position, (trajectory, reward) in enumerate(rows)
    ]
    groups = group_samples(samples, trajectory_key)
    assert list(groups) == [4]
    counts = assign_advantages(groups)
    up, down = 1.154699, -0.577350
    assert [sample.advantage for sample in samples] == pytest.approx([up, down, up, down, up], abs=1e-5)
    assert counts["trained"] == 1


def test_a_trajectory_has_one_return_and_alone_it_is_a_singleton_however_long():
    samples = [make_sample(1.0, key=(0, turn, "a"), trajectory=0) for turn in range(3)]
    assert assign_advantages(group_samples(samples, trajectory_key))["singleton"] == 1
    assert [sample.advantage for sample in samples] == [0.0, 0.0, 0.0]
    samples[1].reward = 0.5
    with pytest.raises(ValueError, match=r"trajectory 0 has rewards 1\.0 and 0\.5"):
        assign_advantages(group_samples(samples, trajectory_key))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: advantages([1.0, math.nan], key=(7, 2, "planner")), "turn=2.*agent='planner'.*nan"),
        (lambda: advantages([1.0, -math.inf]), "reward -inf"),
        (lambda: advantages([0.0, 1.0], "median"), "'median'"),
        (lambda: make_sample(response=[1, 2, 3], logprobs=[-1.0]), "3 response ids but 1 log-probs"),
        (lambda: make_sample(response=[]), "empty response"),
        (lambda: group_samples([make_sample(prompt=[1, 2]), make_sample(prompt=[1, 3])]), "different prompts"),
    ],
)
def test_what_cannot_be_compared_raises(make, message):
    with pytest.raises(ValueError, match=message):
        make()
