"""What travels in a step: requests to a neighbour, and every sample to the rank that packs it."""

import random

import pytest
import torch
from helpers import make_sample, objective, small_policy, weights_of
from ranks import run_ranks

from distributed.exchange import Exchange, Outline, share_samples
from distributed.world import World, add, start
from grouping import GroupKey, Sample, assign_advantages, group_samples
from model.packing import balance, by_prompt, deal, with_signal
from records.metrics import groups_per_turn, rollout_metrics
from rollout import Episode, Rollout
from sampling.requests import Completion, Request
from update import update

POLICY_OF = {"ann": "a", "bob": "b"}
MINIBATCHES, SEED = 3, (0, 5)


def played(envs, prompt=60, response=30, candidates=4, turns=2):
    """Episodes with random tokens, the same for an environment whoever plays it."""
    episodes = []
    for env in envs:
        numbers, samples = random.Random(env), []
        for turn in range(turns):
            for agent in POLICY_OF:
                shared = [numbers.randrange(100) for _ in range(numbers.randrange(prompt // 2, prompt))]
                for k in range(candidates):
                    ids = [numbers.randrange(100) for _ in range(numbers.randrange(1, response))]
                    logprobs = [-numbers.random() for _ in ids]
                    reward = 0.5 if turn == 1 and env % 3 == 0 else numbers.random()
                    infos = {"format": 1.0, f"only in {env % 2}": 0.25}
                    samples.append(Sample(GroupKey(env, turn, agent), shared, ids, logprobs, reward, info=infos,
                                          valid=(env, turn, agent, k) != (2, 0, "bob", 1)))  # fmt: skip
        episodes.append(Episode(env, solved=env % 2 == 0, turns=turns, samples=samples))
    result = Rollout(episodes)
    return result, assign_advantages(groups := group_samples(result.samples)) | groups_per_turn(groups)


def content(sample):
    return sample.prompt_ids, sample.response_ids, sample.logprobs, sample.advantage


# ------------------------------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize("envs", [1, 7])
@pytest.mark.parametrize(
    "ranks_of",
    [{"a": [0], "b": [1, 2]}, {"a": [0, 1, 2], "b": [0, 1, 2]}, {"a": [1, 2]}, {"b": [0]}],
    ids=["apart", "together", "one is frozen", "one is frozen, two ranks train nothing"],
)
def test_every_sample_arrives_where_it_is_packed_and_nowhere_else(ranks_of, envs):
    def work(rank):
        world = start("cpu")
        result, _ = played(world.mine(range(envs)))
        batches = share_samples(world, ranks_of, POLICY_OF, result.samples, MINIBATCHES, SEED)
        assert list(batches) == [name for name in ranks_of if rank in ranks_of[name]]
        for batch in batches.values():
            for sample in batch:  # what it has not sampled itself it knows by its outline
                assert isinstance(sample, Outline) or len(sample.logprobs) == len(sample.response_ids)
        return batches

    samples = played(range(envs))[0].samples
    found = run_ranks(3, work)
    for name, ranks in ranks_of.items():
        alone = share_samples(World(), ranks_of, POLICY_OF, samples, MINIBATCHES, SEED)[name]
        assert alone == [s for s in samples if s.valid and POLICY_OF[s.key.agent] == name]
        for sample, *everywhere in zip(alone, *(found[rank][name] for rank in ranks), strict=True):
            for other in everywhere:
                assert (other.prompt_hash, len(other.prompt_ids), len(other.response_ids), bool(other.advantage)) == (
                    sample.prompt_hash, len(sample.prompt_ids), len(sample.response_ids), bool(sample.advantage),
                )  # fmt: skip
            here = [other for other in everywhere if not isinstance(other, Outline)]
            assert [content(other) for other in here] == [content(sample)] * bool(sample.advantage)
        for part in deal(alone, MINIBATCHES, SEED):  # each has all that it packs
            for place, groups in enumerate(balance(with_signal(part), len(ranks))):
                batch = found[ranks[place]][name]
                where = [next(i for i, s in enumerate(alone) if s is sample) for group in groups for sample in group]
                assert not any(isinstance(batch[i], Outline) for i in where)


def test_an_update_from_outlines_is_that_of_one_process():
    alone = small_policy(lr=1e-2)
    result, _ = played(range(5), prompt=20, response=8)
    for sample in result.samples:
        sample.prompt_ids, sample.response_ids = (
            [i % 31 for i in ids] for ids in (sample.prompt_ids, sample.response_ids)
        )
    config = objective(minibatches=MINIBATCHES, micro_batch_tokens=100)
    expected = update(alone, share_samples(World(), {"a": [0]}, POLICY_OF, result.samples, MINIBATCHES, SEED)["a"],
                      config, SEED)  # fmt: skip

    def work(rank):
        from test_distributed import policy_on, whole

        world = start("cpu")
        mine = [sample for sample in result.samples if sample.key.env in world.mine(range(5))]
        policy = policy_on(world)
        batch = share_samples(world, {"a": range(3)}, POLICY_OF, mine, MINIBATCHES, SEED)["a"]
        return update(policy, batch, config, SEED), whole(policy)

    for metrics, weights in run_ranks(3, work):
        assert metrics == pytest.approx(expected, rel=1e-3, abs=1e-5)
        for name, weight in weights.items():
            torch.testing.assert_close(weight, weights_of(alone)[name], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_two_prompts_with_one_hash_are_still_two_prompts(monkeypatch, minibatches):
    """All prompts collide: they land in one minibatch, and the gradient is the one that it has to be."""
    samples = [
        make_sample(reward, prompt, response, key=(env, 0, "a"))
        for env, prompt in enumerate([[5, 6, 7], [8, 9], [5, 6, 8]])
        for reward, response in ((0.0, [4, 3]), (1.0, [9]), (0.4, [7, 7, 7]))
    ]
    assign_advantages(group_samples(samples))
    policies = small_policy(lr=1e-2), small_policy(lr=1e-2)
    expected = update(policies[0], samples, objective())
    monkeypatch.setattr(Sample, "prompt_hash", 7)
    assert len(by_prompt(samples)) == 1
    assert update(policies[1], samples, objective(minibatches=minibatches)) == pytest.approx(expected, abs=1e-6)
    for name, weight in weights_of(policies[1]).items():
        torch.testing.assert_close(weight, weights_of(policies[0])[name])


def test_equal_prompts_have_equal_numbers():
    """Also in another process with another hash seed: numbers are not salted."""
    assert make_sample(prompt=[1, 2, 3]).prompt_hash == make_sample(prompt=[1, 2, 3]).prompt_hash == hash((1, 2, 3))
    numbers = random.Random(0)
    prompts = {tuple(numbers.randrange(150_000) for _ in range(numbers.randrange(1, 9))) for _ in range(20_000)}
    assert len({make_sample(prompt=prompt).prompt_hash for prompt in prompts}) == len(prompts)


# --------------------------------------------------------------------------------------------------------- collectives


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_collectives(size):
    def work(rank):
        world = start("cpu")
        return (
            world.send_to([[rank] * to for to in range(size)]),
            world.gather(rank),
            world.add_up({"all": 1, f"of {rank}": {"list": [rank, 1]}}),
            world.merge({"same": 0, f"of {rank}": rank}),
            (world.most(rank), world.most(-rank / 2), world.any(rank == 1), world.any(False)),
        )

    everybody = range(size)
    for rank, (sent, gathered, summed, merged, most) in enumerate(run_ranks(size, work)):
        assert sent == [[other] * rank for other in everybody]
        assert gathered == [*everybody]
        assert summed == {"all": size, **{f"of {r}": {"list": [r, 1]} for r in everybody}}
        assert list(merged) == ["same", *(f"of {r}" for r in everybody)]  # in order of rank
        assert most == (size - 1, 0.0, size > 1, False)


def test_adding_up_keeps_the_first_order_and_refuses_lists_that_differ():
    assert list(add({"b": 1, "a": 1}, {"c": 1, "a": 1})) == ["b", "a", "c"]
    with pytest.raises(ValueError, match="argument 2 is"):
        add([1], [1, 2])


@pytest.mark.parametrize("size", [2, 4])
def test_metrics_of_all_ranks_are_those_of_one_process(size):
    result, counts = played(range(6))
    alone = rollout_metrics(result, counts)

    def work(rank):
        world = start("cpu")
        return rollout_metrics(*played(world.mine(range(6))), world.add_up)

    for row in run_ranks(size, work):
        assert list(row) == list(alone)
        for name, value in row.items():
            assert value == pytest.approx(alone[name], rel=1e-12), name


# ------------------------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize("size", [2, 4])
def test_requests_go_to_one_neighbour_with_their_policy_and_to_nobody_else(size):
    """Two policies make pairs of ranks."""
    half = size // 2

    def work(rank):
        world = start("cpu")
        pair, ranks_of = world.neighbours({"a": [*range(half)], "b": [*range(half, size)]})

        def answer(name, requests, n):
            assert name == "ab"[rank >= half]
            return [[Completion([rank, k], [-0.5, -k / 4], "stop") for k in range(n)]
                    if request.prompt_ids else [] for request in requests]  # fmt: skip

        exchange = Exchange(pair, ranks_of, POLICY_OF, answer)
        requests = [Request(agent, [7] * i, seed=2**61 + rank) for i in range(4) for agent in ("ann", "bob", "bob")]
        replies = exchange(requests, 3)
        world.barrier()
        return pair.size, ranks_of, replies, exchange.cohorts

    for rank, (members, ranks_of, replies, cohorts) in enumerate(run_ranks(size, work)):
        assert (members, ranks_of, cohorts) == (2, {"a": [0], "b": [1]}, 2)
        for i, reply in enumerate(replies):
            who = rank % half + (half if i % 3 else 0)
            room = range(3 if i >= 3 else 0)  # there was no room to answer an empty prompt
            assert reply == [Completion([who, k], [-0.5, -k / 4], "stop") for k in room]


@pytest.mark.parametrize(
    ("ranks_of", "found"),
    [
        ({"a": [0, 1], "b": [2, 3]}, [({"a": [0], "b": [1]}, 2)] * 4),
        ({"a": [0], "b": [1, 2, 3]}, [({"a": [0], "b": [1, 2, 3]}, 4)] * 4),
        ({"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}, [({"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}, 4)] * 4),
    ],
)
def test_neighbours_are_as_few_as_have_every_policy(ranks_of, found):
    def work(rank):
        everybody = start("cpu")
        world, places = everybody.neighbours(ranks_of)
        everybody.barrier()  # who leaves earlier would cut off those that still connect
        return places, world.size

    assert run_ranks(4, work) == found
