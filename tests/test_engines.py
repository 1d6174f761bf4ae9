"""The transformers engine: what it samples, with what probability, and that nothing but the request decides."""

import pytest
import torch
from helpers import make_sample, objective, reference_logprobs, small_policy
from torch import tensor
from transformers import GenerationConfig

from engines import ScriptedEngine, Team, TransformersEngine, choose
from grouping import assign_advantages, group_samples
from rollout import Request
from update import update

STOPS = {2, 4}  # of the small policy: the end token of the model and that of the tokenizer


def engine_of(policy=None, max_tokens=8, **options):
    return TransformersEngine(policy or small_policy(), max_tokens, **options)


REQUESTS = [Request("a", list(range(3, 3 + length)), seed=1000 * length) for length in (1, 9, 4, 17, 4)]


def assert_same(found, expected):
    """The same tokens and reasons; log-probs up to the rounding of another batch shape."""
    assert [[(c.ids, c.finish_reason) for c in row] for row in found] == [
        [(c.ids, c.finish_reason) for c in row] for row in expected
    ]
    for a, b in zip((c for row in found for c in row), (c for row in expected for c in row), strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_each_request_gets_n_completions_in_order():
    replies = engine_of()(REQUESTS, 3)
    assert [len(row) for row in replies] == [3] * 5
    assert len({tuple(c.ids) for row in replies for c in row}) > 5  # candidates differ


@pytest.mark.parametrize("cache_tokens", [1, 200, 65536])
def test_samples_do_not_depend_on_who_else_is_in_the_batch(cache_tokens):
    engine = engine_of(cache_tokens=cache_tokens)
    together = engine(REQUESTS, 3)
    assert_same(together, engine_of()(REQUESTS, 3))
    assert_same(engine(REQUESTS[::-1], 3), together[::-1])
    for request, row in zip(REQUESTS, together, strict=True):
        assert_same(engine([request], 3), [row])


def test_candidate_k_uses_seed_plus_k():
    engine = engine_of()
    (four,) = engine([Request("a", [5, 6, 7], seed=40)], 4)
    assert_same([[engine([Request("a", [5, 6, 7], seed=40 + k)], 1)[0][0] for k in range(4)]], [four])


def test_the_global_random_state_is_neither_read_nor_changed():
    engine = engine_of()
    torch.manual_seed(1)
    first, state = engine(REQUESTS, 2), torch.get_rng_state()
    torch.manual_seed(2)
    assert_same(engine(REQUESTS, 2), first)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.5])
def test_log_probs_are_those_of_the_trainer_at_this_temperature(temperature):
    policy = small_policy()
    for request, row in zip(REQUESTS, engine_of(policy)(REQUESTS, 4, temperature), strict=True):
        for completion in row:
            sample = make_sample(prompt=request.prompt_ids, response=completion.ids)
            with torch.no_grad():
                expected = reference_logprobs(policy.model, sample, temperature)
            assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_greedy_takes_the_likeliest_token_at_every_step():
    policy = small_policy()
    for request, (completion,) in zip(REQUESTS, engine_of(policy)(REQUESTS, 1, 0.0), strict=True):
        ids = list(request.prompt_ids)
        for token in completion.ids:
            with torch.no_grad():
                assert int(policy.model(tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)
        sample = make_sample(prompt=request.prompt_ids, response=completion.ids)
        assert completion.logprobs == pytest.approx(reference_logprobs(policy.model, sample).tolist(), abs=1e-4)


def test_a_completion_ends_with_a_stop_token_or_at_the_limit():
    replies = engine_of(max_tokens=5)([Request("a", [3, 4, 5], seed=64 * i) for i in range(40)], 4)
    completions = [completion for row in replies for completion in row]
    reasons = [completion.finish_reason for completion in completions]
    assert {"stop", "length"} == set(reasons)
    for completion in completions:
        assert len(completion.ids) == len(completion.logprobs)
        assert not STOPS & set(completion.ids[:-1])
        if completion.finish_reason == "stop":
            assert completion.ids[-1] in STOPS
        else:
            assert len(completion.ids) == 5
            assert completion.ids[-1] not in STOPS
    assert {completion.ids[-1] for completion in completions} >= STOPS


def test_a_stop_token_as_the_last_allowed_token_is_a_stop():
    policy = small_policy()
    replies = TransformersEngine(policy, 1)([Request("a", [3], seed=i * 64) for i in range(60)], 4)
    for completion in (completion for row in replies for completion in row):
        assert completion.finish_reason == ("stop" if completion.ids[0] in STOPS else "length")


@pytest.mark.parametrize(("room", "expected"), [(-2, 0), (0, 0), (1, 1), (3, 3), (20, 8)])
def test_the_context_limits_a_response(room, expected):
    """No stop token ever comes from this model: every response is cut by a limit."""
    policy = small_policy(tie=False)
    policy.model.generation_config = GenerationConfig(eos_token_id=999)  # type: ignore[assignment]
    policy.tokenizer.eos_token_id = 999
    requests = [Request("a", [3] * 12, seed=0), Request("a", [4, 5], seed=64)]
    long, short = TransformersEngine(policy, 8, context=12 + room)(requests, 2)
    assert [len(c.ids) for c in long] == [expected] * (2 if expected else 0)
    assert all(c.finish_reason == "length" for c in long)
    assert [len(c.ids) for c in short] == [min(8, 10 + room)] * 2


def test_the_context_is_that_of_the_model_unless_told():
    (row,) = engine_of()([Request("a", [3] * 128, seed=0)], 2)  # max_position_embeddings of the small model
    assert row == []
    (row,) = engine_of()([Request("a", [3] * 127, seed=0)], 2)
    assert [len(completion.ids) for completion in row] == [1, 1]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_come_as_often_as_they_should(temperature):
    """Stratified noise: the count of each token is within one of its probability times the number of draws."""
    logits, draws = tensor([[2.0, 0.0, -1.0, -60.0]]), 10_000
    noise = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    tokens, logps = choose(logits.expand(draws, -1), noise, temperature)
    probabilities = (logits[0] / temperature).softmax(-1)
    counts = torch.bincount(tokens, minlength=4)
    assert (counts - probabilities * draws).abs().max() <= 1.0
    assert counts[3] == 0
    torch.testing.assert_close(logps, probabilities.log()[tokens], atol=1e-6, rtol=1e-6)


def test_sampled_frequencies_of_the_engine():
    """Chi-square of 4,000 first tokens over the tokens that are expected at least ten times."""
    policy = small_policy()
    replies = TransformersEngine(policy, 1)([Request("a", [3, 4], seed=8 * i) for i in range(500)], 8)
    counts = torch.bincount(tensor([c.ids[0] for row in replies for c in row]), minlength=31).double()
    with torch.no_grad():
        expected = policy.model(tensor([[3, 4]])).logits[0, -1].double().softmax(-1) * 4000
    likely = expected >= 10
    chi_square = float(((counts - expected) ** 2 / expected)[likely].sum())
    freedom = int(likely.sum())
    assert freedom >= 5
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("noise", [0.0, 1 - 1e-16])
def test_the_ends_of_the_noise_never_choose_an_impossible_token(noise):
    logits = tensor([[float("-inf"), 1.0, 2.0, float("-inf")]])
    token, logp = choose(logits, tensor([noise], dtype=torch.float64), 1.0)
    assert token.item() in (1, 2)
    assert torch.isfinite(logp).all()


def test_the_engine_samples_from_the_weights_that_were_just_trained():
    """After a large update: the greedy token of the engine is that of the trainer, and it has changed."""
    policy = small_policy(lr=0.3)
    engine = engine_of(policy, 1)
    request = [Request("a", [5, 6], seed=0)]
    before = engine(request, 1, 0.0)[0][0].ids
    samples = [make_sample(float(token == 9), [5, 6], [token]) for token in (9, *before)]
    assign_advantages(group_samples(samples))
    update(policy, samples, objective())
    ((completion,),) = engine(request, 1, 0.0)
    with torch.no_grad():
        assert completion.ids == [int(policy.model(tensor([[5, 6]])).logits[0, -1].argmax())]
    assert completion.ids != before
    trained = reference_logprobs(policy.model, make_sample(prompt=[5, 6], response=completion.ids))
    assert completion.logprobs == pytest.approx(trained.tolist(), abs=1e-4)


def test_a_team_sends_each_request_to_the_policy_of_its_agent():
    policies = {name: small_policy(name, seed=seed) for name, seed in (("A", 0), ("B", 1))}
    engines = {name: TransformersEngine(policy, 4) for name, policy in policies.items()}
    team = Team(policies, {"ann": "B", "bob": "A", "cy": "B"}, engines)
    requests = [Request(agent, [5, 6, i + 3], seed=64 * i) for i, agent in enumerate(("ann", "bob", "cy", "bob"))]
    replies = team.sampler(1.0)(requests, 2)
    for request, row in zip(requests, replies, strict=True):
        assert_same(engines[team.policy_of[request.agent]]([request], 2, 1.0), [row])
    assert replies[0] != engines["A"]([requests[0]], 2)[0]


def test_the_scripted_engine_writes_texts_and_remembers_requests():
    engine = ScriptedEngine(lambda request, k: f"{request.agent}{k}")
    requests = [Request("x", [1], 0), Request("y", [2], 8)]
    replies = engine(requests, 2)
    assert [[engine.decode("", c.ids) for c in row] for row in replies] == [["x0", "x1"], ["y0", "y1"]]
    assert engine.requests == requests
    assert engine.encode("x", [{"content": "ab"}]) == [97, 98]
