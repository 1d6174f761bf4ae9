"""Several ranks: the same numbers as one process, nobody left waiting, clear errors before anything is loaded."""

import pytest
import torch
from helpers import ScriptedEngine, Toy, objective, random_batch, small_model, small_policy, whole
from ranks import run_ranks
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

import train
from distributed import exchange, shard
from distributed.world import World, place, start
from model import tiny
from model.policy import make_policy
from records.checkpoint import load_optimizers, save_checkpoint
from records.run_folder import latest_checkpoint, read_rows
from rollout import Rollout, rollout_chains, rollout_tree
from update import update


def policy_on(world, model, checkpointing=False):
    mesh = world.meshes({"p": range(world.size)})["p"]
    return make_policy("p", model, tiny.build_tokenizer(), 1e-2, "cpu", mesh, checkpointing)


def batch():
    """Groups of different sizes; the first one is dead."""
    samples = random_batch(groups=7, seed=3)
    for sample in samples[:4]:
        sample.advantage = 0.0
    return samples


@pytest.mark.parametrize(
    ("size", "groups", "options"),
    [
        *((size, 7, {}) for size in (1, 2, 3, 4)),
        *((size, 7, {"minibatches": 3, "epochs": 2, "micro_batch_tokens": 40}) for size in (2, 3)),
        (3, 7, {"loss": "sequence", "minibatches": 2, "grad_clip": 0.05}),
        (4, 1, {}),  # ranks without data take part in every collective and change nothing
        (4, 2, {}),
    ],
)
def test_an_update_on_several_ranks_is_that_of_one_process(size, groups, options):
    samples = [sample for sample in batch() if groups == 7 or 1 <= sample.key.env <= groups]
    alone = small_policy(lr=1e-2)
    expected_metrics = [update(alone, samples, objective(**options), (0, step)) for step in range(2)]

    def work(rank):
        policy = policy_on(start("cpu"), small_model())
        assert (size == 1) == (not any(isinstance(p, DTensor) for p in policy.model.parameters()))
        metrics = [update(policy, samples, objective(**options), (0, step)) for step in range(2)]
        return whole(policy), metrics

    for weights, metrics in run_ranks(size, work):
        torch.testing.assert_close(weights, whole(alone), atol=2e-5, rtol=1e-4)
        for found, one in zip(metrics, expected_metrics, strict=True):
            assert found == pytest.approx(one, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(("together", "units", "checkpointing"), [(1, 3, True), (2, 2, False), (9, 1, True)])
def test_how_a_model_is_sharded_does_not_change_a_step(monkeypatch, together, units, checkpointing):
    """Three layers one by one, as 2 and 1, and all together."""
    alone = small_policy(lr=1e-2, layers=3)
    layer = sum(weight.numel() for weight in alone.model.model.layers[0].parameters())
    monkeypatch.setattr(shard, "UNIT", together * layer)  # the ranks are forked

    def work(rank):
        policy = policy_on(start("cpu"), small_model(layers=3), checkpointing)
        for step in range(2):
            update(policy, batch(), objective(minibatches=2), (0, step))
        return whole(policy), len({id(layer._get_fsdp_state()) for layer in policy.model.model.layers})

    for step in range(2):
        update(alone, batch(), objective(minibatches=2), (0, step))
    for weights, found in run_ranks(2, work):
        assert found == units
        torch.testing.assert_close(weights, whole(alone), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("names", "size", "ranks", "expected"),
    [
        ("a", 1, [], {"a": [0]}),
        ("a", 4, [4], {"a": [0, 1, 2, 3]}),
        ("ab", 4, [], {"a": [0, 1], "b": [2, 3]}),
        ("ab", 3, [], {"a": [0, 1], "b": [2]}),
        ("abc", 8, [], {"a": [0, 1, 2], "b": [3, 4, 5], "c": [6, 7]}),
        ("abc", 2, [], {"a": [0, 1], "b": [0, 1], "c": [0, 1]}),
        ("ab", 4, [3, 1], {"a": [0, 1, 2], "b": [3]}),
        ("ab", 4, [3], "--ranks 3: a number for each of a, b, in all 4"),
        ("ab", 4, [2, 1], "--ranks 2 1: a number for each of a, b, in all 4"),
        ("abc", 2, [1, 1], "--ranks 1 1"),
    ],
)
def test_where_policies_live(names, size, ranks, expected):
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            place(names, size, ranks)
    else:
        assert place(names, size, ranks) == expected


POLICY_OF = {"ann": "a", "bob": "b"}


def team_rollout(world, envs, ranks_of, sample=rollout_tree):
    """The request decides what is answered, whoever answers."""
    answers, ids = ScriptedEngine(lambda request, k: str((request.seed + k) % 10)), world.mine(range(envs))
    engine = exchange.Exchange(world, ranks_of, POLICY_OF, lambda name, requests, n: answers(requests, n))
    options = {"encode": answers.encode, "decode": answers.decode, "num_candidates": 3, "max_turns": 2}
    result = sample([Toy(name=f"e{i}") for i in ids], engine, env_ids=ids, **options)
    return Rollout([episode for part in world.gather(result.episodes) for episode in part])


def summary(result):
    return [(s.key, tuple(s.prompt_ids), tuple(s.response_ids), s.reward, s.committed) for s in result.samples]


@pytest.mark.parametrize("sample", [rollout_tree, rollout_chains])
@pytest.mark.parametrize(
    ("envs", "ranks_of"),
    [(1, {"a": [0], "b": [1, 2]}), (5, {"a": [0], "b": [1, 2]}), (5, {"a": [0, 1, 2], "b": [0, 1, 2]})],
)
def test_what_is_sampled_does_not_depend_on_the_ranks(sample, envs, ranks_of):
    """One environment on three ranks: two ranks have none, and answer all the same."""
    expected = summary(team_rollout(World(), envs, {"a": [0], "b": [0]}, sample))
    found = run_ranks(3, lambda rank: summary(team_rollout(start("cpu"), envs, ranks_of, sample)))
    assert found == [expected] * 3
    assert len(expected) == envs * 3 * 2 * 2


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (4, 1)])
def test_a_checkpoint_goes_on_with_another_number_of_ranks(tmp_path, before, after):
    alone = small_policy(lr=1e-2)
    for step in range(2):
        update(alone, batch(), objective(), (0, step))

    def first(rank):
        world = start("cpu")
        policy = policy_on(world, small_model())
        update(policy, batch(), objective(), (0, 0))
        save_checkpoint(tmp_path, 1, {"p": policy}, 2, world)
        return True

    def second(rank):
        folder = latest_checkpoint(tmp_path)
        policy = policy_on(start("cpu"), AutoModelForCausalLM.from_pretrained(folder / "p"))
        load_optimizers(folder, {"p": policy})
        update(policy, batch(), objective(), (0, 1))
        return whole(policy)

    run_ranks(before, first)
    for weights in run_ranks(after, second):
        torch.testing.assert_close(weights, whole(alone), atol=4e-5, rtol=1e-3)


RUN = (
    "--steps 2 --warm-start 10 --envs-per-step 6 --num-candidates 3 --max-turns 2 --max-response-tokens 12 "
    "--eval-envs 5 --report-every 1"
)


def run_training(folder, size, options):
    argv = [*RUN.split(), *options, "--output-dir", str(folder), "--save-every", "1", "--lr", "1e-3"]
    if size == 0:
        train.main(argv)
    else:
        run_ranks(size, lambda rank: train.main(argv), limit=110)
    rows, last = read_rows(folder / "metrics.jsonl"), latest_checkpoint(folder)
    weights = {
        path.name: AutoModelForCausalLM.from_pretrained(path).state_dict() for path in last.iterdir() if path.is_dir()
    }
    first = [row for row in read_rows(folder / "boards.jsonl") if row["step"] == 0]  # trees: rank 0's
    return rows, weights, ([path.name for path in sorted(folder.iterdir())], first)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    cache = {}

    def get(options):
        if (key := " ".join(options)) not in cache:
            cache[key] = run_training(tmp_path_factory.mktemp("one") / "run", 0, options)
        return cache[key]

    return get


@pytest.mark.parametrize(
    ("options", "size", "ranks"),
    [
        (["--policies", "shared"], 3, []),
        (["--policies", "per_role"], 4, []),
        (["--policies", "per_role"], 3, ["--ranks", "1", "2"]),
        (["--envs-per-step", "2", "--eval-envs", "1"], 3, []),  # some ranks have no environment
    ],
)
def test_a_run_on_several_ranks_is_that_of_one_process(tmp_path, one_process, options, size, ranks):
    """Everything from options to checkpoints: the same levels and seeds, and the same weights after two steps."""
    rows, weights, files = one_process(options)
    found_rows, found_weights, found_files = run_training(tmp_path / "run", size, [*options, *ranks])
    assert found_files == files  # and what was recorded before the first update
    torch.testing.assert_close(found_weights, weights, atol=2e-5, rtol=1e-3)
    for found, one in zip(found_rows, rows, strict=True):
        assert list(found) == list(one)
        for key, value in one.items():
            assert found[key] == pytest.approx(value, rel=2e-3, abs=1e-4), key
