"""What travels in a step: requests to a neighbour, and every sample to the rank that packs it."""

import random
import time

import pytest
from helpers import make_sample
from ranks import run_ranks

from distributed.exchange import Exchange, Outline, share_samples
from distributed.world import World, add, start
from grouping import assign_advantages, group_samples
from model.packing import balance, deal, with_signal
from sampling.requests import Completion, Request

POLICY_OF = {"ann": "a", "bob": "b"}
MINIBATCHES, SEED = 3, (0, 5)


def played(envs):
    """Samples with random tokens, the same for an environment whoever plays it; one is invalid, one group is dead."""
    samples = []
    for env in envs:
        numbers = random.Random(env)
        for agent in POLICY_OF:
            prompt = [numbers.randrange(100) for _ in range(numbers.randrange(30, 60))]
            for k in range(4):
                ids = [numbers.randrange(100) for _ in range(numbers.randrange(1, 30))]
                reward = 0.5 if env == 0 and agent == "ann" else numbers.random()
                samples.append(make_sample(reward, prompt, ids, key=(env, 0, agent), valid=(env, k) != (2, 1)))
    assign_advantages(group_samples(samples))
    return samples


def content(sample):
    return sample.prompt_ids, sample.response_ids, sample.logprobs, sample.advantage


def outline(sample):
    return sample.prompt_hash, len(sample.prompt_ids), len(sample.response_ids), bool(sample.advantage)


@pytest.mark.parametrize("envs", [1, 7])
@pytest.mark.parametrize(
    "ranks_of",
    [{"a": [0], "b": [1, 2]}, {"a": [0, 1, 2], "b": [0, 1, 2]}, {"a": [1, 2]}, {"b": [0]}],
    ids=["apart", "together", "one is frozen", "one is frozen, two ranks train nothing"],
)
def test_every_sample_arrives_where_it_is_packed_and_nowhere_else(ranks_of, envs):
    def work(rank):
        world = start("cpu")
        return share_samples(world, ranks_of, POLICY_OF, played(world.mine(range(envs))), MINIBATCHES, SEED)

    samples = played(range(envs))
    found = run_ranks(3, work)
    assert [list(batches) for batches in found] == [[n for n in ranks_of if rank in ranks_of[n]] for rank in range(3)]
    for name, ranks in ranks_of.items():
        alone = share_samples(World(), ranks_of, POLICY_OF, samples, MINIBATCHES, SEED)[name]
        assert alone == [s for s in samples if s.valid and POLICY_OF[s.key.agent] == name]
        for sample, *everywhere in zip(alone, *(found[rank][name] for rank in ranks), strict=True):
            assert {outline(other) for other in everywhere} == {outline(sample)}
            here = [content(other) for other in everywhere if not isinstance(other, Outline)]
            assert here == [content(sample)] * bool(sample.advantage)
        for part in deal(alone, MINIBATCHES, SEED):  # each has all that it packs
            for rank, groups in zip(ranks, balance(with_signal(part), len(ranks)), strict=True):
                packed = [next(i for i, s in enumerate(alone) if s is sample) for group in groups for sample in group]
                assert not any(isinstance(found[rank][name][i], Outline) for i in packed)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_collectives(size):
    def work(rank):
        world = start("cpu")
        return (
            world.send_to([[rank] * to for to in range(size)]),
            world.gather(rank),
            world.add_up({"all": 1, f"of {rank}": {"list": [rank, 1]}}),
            world.merge({"same": 0, f"of {rank}": rank}),
        )

    everybody = range(size)
    for rank, (sent, gathered, summed, merged) in enumerate(run_ranks(size, work)):
        assert sent == [[other] * rank for other in everybody]
        assert gathered == [*everybody]
        assert summed == {"all": size, **{f"of {r}": {"list": [r, 1]} for r in everybody}}
        assert list(merged) == ["same", *(f"of {r}" for r in everybody)]  # in order of rank
    assert list(add({"b": 1, "a": 1}, {"c": 1, "a": 1})) == ["b", "a", "c"]


@pytest.mark.parametrize("size", [2, 4])
def test_requests_go_to_one_neighbour_with_their_policy_and_to_nobody_else(size):
    """Two policies make pairs of ranks. Where an empty prompt leaves no room to answer, nothing comes back."""
    half = size // 2

    def work(rank):
        world = start("cpu")
        pair, ranks_of = world.neighbours({"a": [*range(half)], "b": [*range(half, size)]})

        def answer(name, requests, n):
            assert name == "ab"[rank >= half]
            return [[Completion([rank, k], [-0.5, -k / 4], "stop") for k in range(n if request.prompt_ids else 0)]
                    for request in requests]  # fmt: skip

        exchange = Exchange(pair, ranks_of, POLICY_OF, answer)
        requests = [Request(agent, [7] * i, seed=2**61 + rank) for i in range(4) for agent in ("ann", "bob", "bob")]
        replies = exchange(requests, 3)
        world.barrier()  # who leaves earlier would cut off those that still connect
        return pair.size, ranks_of, replies, exchange.cohorts

    for rank, (members, ranks_of, replies, cohorts) in enumerate(run_ranks(size, work)):
        assert (members, ranks_of, cohorts) == (2, {"a": [0], "b": [1]}, 2)
        for i, reply in enumerate(replies):
            who = rank % half + (half if i % 3 else 0)
            assert reply == [Completion([who, k], [-0.5, -k / 4], "stop") for k in range(3 if i >= 3 else 0)]


def test_policies_on_different_ranks_answer_at_the_same_time(tmp_path):
    """Each waits in its engine until the other is in its own: one after the other they would never meet."""
    ranks_of = {"a": [0], "b": [1]}

    def work(rank):
        world = start("cpu")

        def answer(name, requests, n):
            (tmp_path / name).touch()
            end = time.monotonic() + 20
            while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
                time.sleep(0.01)
            return [[Completion([len(list(tmp_path.iterdir()))], [0.0], "stop")] * n for _ in requests]

        replies = Exchange(world, ranks_of, POLICY_OF, answer)([Request(agent, [1], 0) for agent in POLICY_OF], 1)
        return [reply.ids for (reply,) in replies]

    assert run_ranks(2, work) == [[[2], [2]]] * 2
