"""The update: the objective by hand, gradients against a plain loop over samples, and what must not change them."""

import copy
import math

import pytest
import torch
from helpers import gradients_agree, make_sample, objective, random_batch, reference_logprobs, same, small_policy
from helpers import watch_gradients as watch
from helpers import weights_of as weights
from torch import tensor

import update as update_module
from grouping import Sample, assign_advantages, group_samples
from model import packing
from model.packing import pack_samples
from sampling.team import Team
from update import loss_weights, policy_loss, update

LOSSES = ["token", "sequence", "constant"]


def plain_gradients(policy, samples, config):
    """The same objective, one sample at a time, at ratio 1; `samples` are all that count in the normalisation."""
    total = torch.zeros(())
    tokens, longest = sum(len(s.response_ids) for s in samples), config.max_response_tokens
    for sample in samples:
        logprobs = reference_logprobs(policy.model, sample, config.temperature)
        correction = (logprobs.detach() - tensor(sample.logprobs)).exp().clamp(max=config.mismatch_clamp)
        per_token = -(logprobs - logprobs.detach()).exp() * correction * sample.advantage
        total += {
            "token": per_token.sum() / tokens,
            "sequence": per_token.mean() / len(samples),
            "constant": per_token.sum() / (len(samples) * longest),
        }[config.loss]
    policy.model.zero_grad()
    total.backward()
    return {name: p.grad.clone() for name, p in policy.model.named_parameters()}


@pytest.fixture
def packs(monkeypatch):
    """The samples of each pack that an update makes, in order."""
    made: list[list[Sample]] = []

    def spy(groups, *args):
        made.append([sample for group in groups for sample in group])
        return pack_samples(groups, *args)

    monkeypatch.setattr(packing, "pack_samples", spy)
    return made


def gradients_of(samples, config, **layout):
    policy = small_policy(**layout)
    seen = watch(policy)
    update(policy, samples, config)
    assert len(seen) == 1
    return seen[0]


@pytest.mark.parametrize(("loss", "expected"), [("token", 6.0), ("sequence", 7.5), ("constant", 3.75)])
def test_the_three_normalisations_by_hand(loss, expected):
    samples = [make_sample(response=[1, 2, 3, 4]), make_sample(response=[5])]
    weights = loss_weights(samples, loss, max_response_tokens=4)
    assert weights[0] * (2 + 4 + 6 + 8) + weights[1] * 10 == pytest.approx(expected)


def test_constant_normalisation_needs_the_true_limit():
    with pytest.raises(ValueError, match="max_response_tokens=3"):
        loss_weights([make_sample(response=[1, 2, 3, 4])], "constant", 3)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped", "slope"),
    [
        (1.0, 2.0, -2.0, 0, -2.0),
        (1.5, 1.0, -1.2, 1, 0.0),  # already more likely than the clip allows: no gradient
        (1.5, -1.0, 1.5, 0, 1.5),  # more likely and bad: full gradient
        (0.5, 1.0, -0.5, 0, -0.5),
        (0.5, -1.0, 0.8, 1, 0.0),
        (1.1, 1.0, -1.1, 0, -1.1),
    ],
)
def test_the_clipped_objective_by_hand(ratio, advantage, loss, clipped, slope):
    old = tensor([-1.0])
    logprobs = (old + math.log(ratio)).requires_grad_()
    found, info = policy_loss(logprobs, old, old, tensor([advantage]), tensor([1.0]), objective())
    found.backward()
    assert logprobs.grad is not None
    assert found.item() == pytest.approx(loss, abs=1e-6)
    assert logprobs.grad.item() == pytest.approx(slope, abs=1e-6)
    assert info["clip_fraction"].item() == clipped


@pytest.mark.parametrize(
    ("gap", "weight"), [(0.0, 1.0), (math.log(1.5), 1.5), (math.log(8.0), 2.0), (-math.log(4.0), 0.25)]
)
def test_the_mismatch_weight_is_clamped_above(gap, weight):
    """An engine that gave a token `gap` nats less than the trainer does."""
    old = tensor([-1.0])
    loss, info = policy_loss(old, old, old - gap, tensor([1.0]), tensor([1.0]), objective())
    assert loss.item() == pytest.approx(-weight, abs=1e-6)
    assert info["logprob_gap"].item() == pytest.approx(abs(gap), abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_gradients_equal_a_plain_loop_over_samples(loss, tie, temperature):
    config = objective(loss=loss, temperature=temperature)
    samples = random_batch()
    expected = plain_gradients(small_policy(tie=tie), samples, config)
    gradients_agree(gradients_of(samples, config, tie=tie), expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_do_not_depend_on_the_micro_batches(loss):
    samples = random_batch(groups=7)
    whole = gradients_of(samples, objective(loss=loss, micro_batch_tokens=100_000))
    for budget in (1, 40, 90):
        gradients_agree(gradients_of(samples, objective(loss=loss, micro_batch_tokens=budget)), whole)


@pytest.mark.parametrize("loss", LOSSES)
def test_samples_without_advantage_count_and_do_nothing_else(loss):
    live, dead = random_batch(groups=3), random_batch(groups=2, seed=1)
    for sample in dead:
        sample.advantage = 0.0
    config = objective(loss=loss)
    found = gradients_of(live + dead, config)
    gradients_agree(found, plain_gradients(small_policy(), live + dead, config))
    counted = [len(s.response_ids) if loss == "token" else 1 for s in live + dead]
    share = sum(counted[: len(live)]) / sum(counted)
    alone = gradients_of(live, config)
    gradients_agree(found, {name: gradient * share for name, gradient in alone.items()})


def test_samples_that_could_not_be_scored_are_not_there():
    good, bad = random_batch(groups=3), random_batch(groups=2, seed=1, valid=False)
    gradients_agree(gradients_of(good + bad, objective()), gradients_of(good, objective()))


def test_the_stop_token_is_trained():
    """Answers that differ in nothing but where they stop: the one that stopped gains."""
    policy = small_policy(lr=1e-2)
    stops, goes_on = make_sample(1.0, [5, 6], [7, 2]), make_sample(0.0, [5, 6], [7, 8, 2])
    assign_advantages(group_samples([stops, goes_on]))
    before = reference_logprobs(policy.model, stops)[1].item()
    update(policy, [stops, goes_on], objective())
    assert reference_logprobs(policy.model, stops)[1].item() > before + 0.01


@pytest.fixture
def objective_calls(monkeypatch):
    """What the objective was called with: a list of (log-probs, old log-probs)."""
    calls = []

    def spy(logprobs, old, *rest):
        calls.append((logprobs.detach().clone(), old.clone()))
        return policy_loss(logprobs, old, *rest)

    monkeypatch.setattr(update_module, "policy_loss", spy)
    return calls


@pytest.mark.parametrize("minibatches", [1, 3])
@pytest.mark.parametrize("budget", [30, 100_000])
def test_the_ratio_is_exactly_one_on_the_first_step(objective_calls, minibatches, budget):
    config = objective(minibatches=minibatches, micro_batch_tokens=budget)
    update(small_policy(lr=1e-2), random_batch(groups=6), config)
    first = objective_calls[: len(objective_calls) // minibatches] if budget > 1000 else objective_calls[:1]
    for logprobs, old in first:
        assert torch.equal(logprobs, old)
    if minibatches > 1:
        assert not torch.equal(*objective_calls[-1])


@pytest.mark.parametrize("dead", [[], [0], [0, 1, 2, 3]])
def test_old_log_probs_are_those_before_the_first_step(packs, objective_calls, dead):
    """In every minibatch of both epochs, also when the first minibatch has nothing to train."""
    samples = random_batch(groups=6)
    for sample in samples:
        if sample.key.env in dead:
            sample.advantage = 0.0
    policy = small_policy(lr=1e-2)
    start = copy.deepcopy(policy.model)
    metrics = update(policy, samples, objective(minibatches=3, epochs=2))
    assert 2 * len(packs) == len(objective_calls) == metrics["optimizer_steps"]
    for pack, (_, old) in zip(packs * 2, objective_calls, strict=True):  # each epoch has the same minibatches
        with torch.no_grad():
            expected = torch.cat([reference_logprobs(start, sample) for sample in pack])
        torch.testing.assert_close(old, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(*objective_calls[0])


def test_an_engine_that_computes_the_same_numbers_saves_the_pass_before_the_first_step(packs, objective_calls):
    policy = small_policy(lr=1e-2)
    policy.exact_engine = True
    update(policy, random_batch(groups=6), objective(minibatches=3))
    for pack, (_, old) in zip(packs[1:], objective_calls[1:], strict=True):
        torch.testing.assert_close(old, tensor([value for sample in pack for value in sample.logprobs]))


def test_an_epoch_uses_every_sample_once_and_keeps_prompts_together(packs):
    samples = random_batch(groups=6)
    trained = [sample for sample in samples if sample.advantage]
    update(small_policy(), samples, objective(minibatches=3))
    assert sorted(id(s) for pack in packs for s in pack) == sorted(map(id, trained))
    assert [sorted({s.key.env for s in pack}) for pack in packs] != [[0, 1], [2, 3], [4, 5]]  # shuffled
    envs = [env for pack in packs for env in {s.key.env for s in pack}]
    assert len(envs) == len(set(envs)) == 6


def test_float32_masters_move_at_a_tiny_learning_rate():
    policy = small_policy(lr=1e-6)
    assert all(p.dtype == torch.float32 for p in policy.model.parameters())
    before = weights(policy)
    update(policy, random_batch(), objective())
    moved = {name: (policy.model.state_dict()[name] - value).abs().max().item() for name, value in before.items()}
    assert all(0 < change < 2e-6 for change in moved.values()), moved


def optimizer_of(policy):
    states = enumerate(policy.optimizer.state.values())
    return {f"{i} {key}": value.clone() for i, state in states for key, value in state.items()}


def train_team(policies, policy_of, samples):
    """As in train.py: every policy takes the samples of its own agents."""
    team = Team(policies, policy_of, {})
    for name, policy in team.policies.items():
        update(policy, [s for s in samples if team.policy_of[s.key.agent] == name], objective())


def test_only_the_policy_of_the_agent_changes():
    """Samples of agent A alone: the weights of B and its optimizer stay as they are, to the bit."""
    policies = {"A": small_policy("A", 1e-2, seed=0), "B": small_policy("B", 1e-2, seed=1)}
    both = random_batch(groups=2)
    for sample in both[:4]:
        sample.key = sample.key._replace(agent="b")
    train_team(policies, {"a": "A", "b": "B"}, both)  # so that both optimizers have a state
    before = {name: (weights(policy), optimizer_of(policy)) for name, policy in policies.items()}
    train_team(policies, {"a": "A", "b": "B"}, both[4:])
    assert same(weights(policies["B"]), before["B"][0])
    assert same(optimizer_of(policies["B"]), before["B"][1])
    assert not same(weights(policies["A"]), before["A"][0])


@pytest.mark.parametrize("kind", ["none", "invalid", "without signal"])
def test_a_policy_without_samples_is_left_alone(kind):
    policy, samples = small_policy(lr=1e-2), random_batch(groups=2, valid=kind != "invalid") if kind != "none" else []
    before = weights(policy)
    for sample in samples:
        sample.advantage = 0.0
    assert update(policy, samples, objective(minibatches=4)) == {}
    assert same(weights(policy), before)
    assert not policy.optimizer.state


def test_a_shared_policy_learns_from_all_its_agents_in_one_update():
    samples = random_batch(groups=2)
    for sample in samples[:4]:
        sample.key = sample.key._replace(agent="b")
    policy = small_policy(lr=1e-2)
    seen = watch(policy)
    train_team({"shared": policy}, {"a": "shared", "b": "shared"}, samples)
    assert len(seen) == 1
    gradients_agree(seen[0], plain_gradients(small_policy(), samples, objective()))
    for part in (samples[:4], samples[4:]):
        assert any(g.abs().sum() > 0 for g in plain_gradients(small_policy(), part, objective()).values())


def test_a_gradient_that_is_no_number_raises_and_leaves_the_weights():
    policy = small_policy(lr=1e-2)
    before = weights(policy)
    samples = random_batch(groups=1)
    samples[0].advantage = math.inf
    with pytest.raises(FloatingPointError, match="policy p"):
        update(policy, samples, objective())
    assert same(weights(policy), before)


def test_metrics_are_means_over_response_tokens():
    policy = small_policy()
    samples = random_batch(groups=2)
    with torch.no_grad():
        logprobs = [reference_logprobs(policy.model, sample) for sample in samples]
    for sample, values in zip(samples, logprobs, strict=True):
        sample.logprobs = (values - 0.25).tolist()
    metrics = update(policy, samples, objective())
    assert metrics["logprob_gap"] == pytest.approx(0.25, abs=1e-5)
    assert metrics["clip_fraction"] == 0
    assert 0 < metrics["entropy"] <= math.log(31)
    expected = -math.exp(0.25) * sum(s.advantage * len(s.response_ids) for s in samples)
    assert metrics["loss"] == pytest.approx(expected / sum(len(s.response_ids) for s in samples), abs=1e-5)
