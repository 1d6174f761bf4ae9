"""What travels in a step: every sample to the rank that packs it, few bytes, and no more of them with more ranks."""

import math
import random
from collections import Counter

import pytest
import torch
from helpers import make_sample, objective, small_policy, weights_of
from ranks import run_ranks

from distributed.exchange import Exchange, Outline, pack_rows, share_samples, unpack_rows
from distributed.world import World, add, start
from grouping import GroupKey, Sample, assign_advantages, group_samples
from model.packing import balance, by_prompt, deal, with_signal
from records.groups import group_row
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
                    logprobs = [torch.tensor(-numbers.random()).item() for _ in ids]  # as engines give them: 32 bits
                    reward = 0.5 if turn == 1 and env % 3 == 0 else numbers.random()
                    infos = {"format": 1.0, f"only in {env % 2}": 0.25}
                    samples.append(Sample(GroupKey(env, turn, agent), shared, ids, logprobs, reward, info=infos,
                                          valid=(env, turn, agent, k) != (2, 0, "bob", 1)))  # fmt: skip
        episodes.append(Episode(env, solved=env % 2 == 0, turns=turns, samples=samples))
    result = Rollout(episodes)
    return result, assign_advantages(groups := group_samples(result.samples)) | groups_per_turn(groups)


def content(sample):
    return sample.prompt_ids, sample.response_ids, sample.logprobs, pytest.approx(sample.advantage, rel=1e-6)


# ------------------------------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize("envs", [1, 7])
@pytest.mark.parametrize(
    "homes",
    [{"a": [0], "b": [1, 2]}, {"a": [0, 1, 2], "b": [0, 1, 2]}, {"a": [1, 2]}, {"b": [0]}],
    ids=["apart", "together", "one is frozen", "one is frozen, two ranks train nothing"],
)
def test_every_sample_arrives_where_it_is_packed_and_nowhere_else(homes, envs):
    def work(rank):
        world = start("cpu")
        result, _ = played(world.mine(range(envs)))
        batches = share_samples(world, homes, POLICY_OF, result.samples, MINIBATCHES, SEED)
        assert list(batches) == [name for name in homes if rank in homes[name]]
        for batch in batches.values():
            for sample in batch:  # what it has not sampled itself it knows by its outline
                assert isinstance(sample, Outline) or len(sample.logprobs) == len(sample.response_ids)
        return batches

    samples = played(range(envs))[0].samples
    found = run_ranks(3, work)
    for name, ranks in homes.items():
        alone = share_samples(World(), homes, POLICY_OF, samples, MINIBATCHES, SEED)[name]
        assert alone == [s for s in samples if s.valid and POLICY_OF[s.key.agent] == name]
        for sample, *everywhere in zip(alone, *(found[rank][name] for rank in ranks), strict=True):
            for other in everywhere:
                assert (other.prompt, len(other.prompt_ids), len(other.response_ids), bool(other.advantage)) == (
                    sample.prompt, len(sample.prompt_ids), len(sample.response_ids), bool(sample.advantage),
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
    monkeypatch.setattr(Sample, "prompt", 7)
    assert len(by_prompt(samples)) == 1
    assert update(policies[1], samples, objective(minibatches=minibatches)) == pytest.approx(expected, abs=1e-6)
    for name, weight in weights_of(policies[1]).items():
        torch.testing.assert_close(weight, weights_of(policies[0])[name])


def test_equal_prompts_have_equal_numbers():
    """Also in another process with another hash seed: numbers are not salted."""
    assert make_sample(prompt=[1, 2, 3]).prompt == make_sample(prompt=[1, 2, 3]).prompt == hash((1, 2, 3))
    numbers = random.Random(0)
    prompts = {tuple(numbers.randrange(150_000) for _ in range(numbers.randrange(1, 9))) for _ in range(20_000)}
    prompts |= {(*prompt, 7) for prompt in prompts} | {(7, *prompt) for prompt in prompts}
    assert len({make_sample(prompt=prompt).prompt for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize("rows", [[], [([], [], [])], [([2**62, -1], [150_000], [-0.5, math.inf]), ([], [1, 2], [])]])
def test_rows_come_out_as_they_went_in(rows):
    assert unpack_rows(pack_rows(rows)) == rows


# --------------------------------------------------------------------------------------------------------- collectives


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_collectives(size):
    def work(rank):
        world = start("cpu")
        parts = [torch.full((rank * to,), rank, dtype=torch.uint8) for to in range(size)]
        return (
            [part.tolist() for part in world.send_to(parts, "test")],
            world.reduce([rank], lambda a, b: a + b),
            world.add_up({"all": 1, f"of {rank}": {"list": [rank, 1]}}),
            world.merge({"same": 0, f"of {rank}": rank}),
            (world.most(rank), world.most(-rank / 2), world.any(rank == 1), world.any(False)),
            world.traffic,
        )

    everybody = range(size)
    for rank, (sent, reduced, summed, merged, most, traffic) in enumerate(run_ranks(size, work)):
        assert sent == [[other] * (rank * other) for other in everybody]
        assert reduced == ([*everybody] if rank == 0 else None)
        assert summed == {"all": size, **{f"of {r}": {"list": [r, 1]} for r in everybody}}
        assert list(merged) == ["same", *(f"of {r}" for r in everybody)]  # in order of rank
        assert most == (size - 1, 0.0, size > 1, False)
        assert traffic["test sent"] == rank * sum(to for to in everybody if to != rank)
        assert traffic["test received"] == rank * sum(other for other in everybody if other != rank)


def test_adding_up_keeps_the_first_order_and_refuses_lists_that_differ():
    assert list(add({"b": 1, "a": 1}, {"c": 1, "a": 1})) == ["b", "a", "c"]
    with pytest.raises(ValueError, match="argument 2 is"):
        add([1], [1, 2])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_metrics_and_histograms_of_all_ranks_are_those_of_one_process(size):
    result, counts = played(range(6))
    alone = rollout_metrics(result, counts), group_row(result.samples, 3)

    def work(rank):
        world = start("cpu")
        mine, mine_counts = played(world.mine(range(6)))
        return rollout_metrics(mine, mine_counts, world.add_up), group_row(mine.samples, 3, world)

    for row, groups in run_ranks(size, work):
        assert list(row) == list(alone[0])
        for name, value in row.items():
            assert value == pytest.approx(alone[0][name], rel=1e-12), name
        assert groups == alone[1]
        assert list(groups["rewards"]) == list(alone[1]["rewards"])


# -------------------------------------------------------------------------------------------------------- weak scaling

ENVS = 6  # of each rank


@pytest.mark.timeout(100)
@pytest.mark.parametrize("apart", [False, True], ids=["one home", "policies apart"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_bytes_of_a_rank_do_not_grow_with_the_number_of_ranks(size, apart):
    """A rank sends at most what it has sampled, once, and receives as much. Two things go everywhere, outlines of 20
    bytes a sample, and the sizes of messages; sums go up and down a tree, in which rank 0 has log2(ranks) branches."""
    half = size // 2
    homes = {"a": range(half), "b": range(half, size)} if apart else {"a": range(size), "b": range(size)}

    def work(rank):
        world = start("cpu")
        result, counts = played(world.mine(range(ENVS * size)))
        share_samples(world, homes, POLICY_OF, result.samples, MINIBATCHES, SEED)
        rollout_metrics(result, counts, world.add_up)
        group_row(result.samples, 0, world)
        trained = [sample for sample in result.samples if sample.advantage]
        own = len(pack_rows([([0] * 3, s.prompt_ids + s.response_ids, [0.0, *s.logprobs]) for s in trained]))
        return world.traffic, own, len([sample for sample in result.samples if sample.valid])

    found = run_ranks(size, work, limit=90)
    payload = max(own for _, own, _ in found)  # of a rank, each prompt as often as it was answered
    samples = sum(count for *_, count in found)
    for rank, (traffic, own, count) in enumerate(found):
        assert 0 < traffic["samples sent"] <= own
        assert 0 < traffic["samples received"] <= 1.25 * payload
        assert traffic["outlines sent"] == 20 * count * (size - 1)
        assert traffic["outlines received"] == 20 * (samples - count)
        branches = math.log2(size) if rank == 0 else math.log2(size) / 2 + 1
        assert traffic["sums sent"] + traffic["sums received"] <= 2 * 2 * 3000 * branches
    assert sum((Counter(t) for t, *_ in found), Counter())["samples sent"] == sum(
        t["samples received"] for t, *_ in found
    )


@pytest.mark.timeout(100)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_requests_go_to_one_neighbour_with_their_policy_and_to_nobody_else(size):
    """Two policies make pairs of ranks; what a pair sends each other does not depend on how many pairs there are."""
    half = size // 2

    def work(rank):
        world = start("cpu")
        pair, homes = world.neighbours({"a": range(half), "b": range(half, size)})

        def answer(name, requests, n):
            assert name == "ab"[rank >= half]
            return [[Completion([rank, k], [-0.5, -k / 4], "stop" if k else "length") for k in range(n)]
                    if request.prompt_ids else [] for request in requests]  # fmt: skip

        exchange = Exchange(pair, homes, POLICY_OF, answer)
        requests = [Request(agent, [7] * i, seed=2**61 + rank) for i in range(4) for agent in ("ann", "bob", "bob")]
        replies = exchange(requests, 3)
        world.barrier()
        return pair.size, homes, replies, exchange.cohorts, world.traffic

    for rank, (members, homes, replies, cohorts, traffic) in enumerate(run_ranks(size, work, limit=90)):
        assert (members, homes, cohorts) == (2, {"a": [0], "b": [1]}, 2)
        ann, bob = rank % half, rank % half + half
        for i, reply in enumerate(replies):
            who = bob if i % 3 else ann
            ends = [("length", 0), ("stop", 1), ("stop", 2)] if i >= 3 else []  # there was no room to answer
            assert reply == [Completion([who, k], [-0.5, -k / 4], reason) for reason, k in ends]
        other = 4 if rank >= half else 8  # requests for the policy of the neighbour
        # a row of three numbers takes 48 bytes, one of two 40, ids and log-probs 4 each
        assert traffic["requests sent"] == 8 + other * 48 + other // 4 * (0 + 1 + 2 + 3) * 4
        assert traffic["answers received"] == 8 + other * 3 // 4 * 3 * (40 + 2 * 8)


@pytest.mark.parametrize(
    ("homes", "found"),
    [
        ({"a": [0, 1], "b": [2, 3]}, [({"a": [0], "b": [1]}, 2)] * 4),
        ({"a": [0], "b": [1, 2, 3]}, [({"a": [0], "b": [1, 2, 3]}, 4)] * 4),
        ({"a": [0, 1], "b": [0, 1], "c": [2, 3]}, [({"a": [0, 1], "b": [0, 1], "c": [2, 3]}, 4)] * 4),
        ({"a": [2, 3], "b": [0, 1]}, [({"a": [1], "b": [0]}, 2)] * 4),
    ],
)
def test_neighbours_are_as_few_as_have_every_policy(homes, found):
    def work(rank):
        everybody = start("cpu")
        world, places = everybody.neighbours(homes)
        everybody.barrier()  # who leaves earlier would cut off those that still connect
        return places, world.size

    assert run_ranks(4, work) == found
