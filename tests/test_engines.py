"""The contract of engines: what they sample, with what probability and whose weights; nothing but the request decides.

The same tests run against the transformers engine (always), vLLM's CPU build (`-m vllm`) and both on a GPU (`-m gpu`).
"""

import functools
import os
import random
import sys

import numpy as np
import pytest
import torch
from helpers import make_sample, random_model, reference_logprobs, small_policy
from torch import tensor

from model import tiny
from model.attention import packed
from model.logprobs import token_logprobs
from model.packing import pack_samples
from model.policy import Policy, make_optimizer
from sampling.engine import Engine
from sampling.requests import Completion, Request
from sampling.team import Team
from sampling.transformers_engine import TransformersEngine, choose
from sampling.vllm_engine import VllmEngine, import_vllm

STOPS = {2, 4}  # the end token of the model and that of the tokenizer
VOCABULARY, CONTEXT = 64, 256
BLOCK = 32  # tokens of a block of vLLM's prefix cache
KINDS = [
    "transformers",
    pytest.param("vllm", marks=pytest.mark.vllm),
    pytest.param("transformers-cuda", marks=pytest.mark.gpu),
    pytest.param("vllm-cuda", marks=pytest.mark.gpu),
]
REQUESTS = [Request("a", list(range(3, 3 + length)), seed=2**61 + 1000 * length) for length in (1, 9, 4, 17, 4)]


def build_model(seed=0, architecture="qwen3", tie=True):
    """Large weights, so that every token matters; the head size is one that vLLM's CPU kernels know."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "max_position_embeddings": CONTEXT, "tie_word_embeddings": tie}
    head = {"head_dim": 64} if architecture == "qwen3" else {}
    return random_model(architecture, seed, initializer_range=0.3, **sizes, **head).requires_grad_(False)


def random_states():
    cuda = torch.cuda.get_rng_state().tolist() if torch.cuda.is_available() else None
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), cuda


class Subject:
    """An engine under test and the models on the CPU whose weights it can get."""

    def __init__(self, kind, architecture="qwen3", tie=True, **options):
        name, _, device = kind.partition("-")
        if device and not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU")
        self.exact = not device  # float32 on a CPU: the company in a batch changes nothing that sampling could notice
        self.tolerance = 1e-4 if self.exact else 0.6  # of a log-prob; bfloat16 keeps 8 bits, logits are about 5
        self.models = [build_model(seed, architecture, tie) for seed in (0, 1)]
        model = build_model(0, architecture, tie).to(device or "cpu")
        self.policy = Policy("p", model, tiny.build_tokenizer(), make_optimizer(model, 1e-3))
        before = random_states()
        if name == "vllm":
            pytest.importorskip("vllm")
            self.engine = VllmEngine(self.policy, 8, memory=0.1, block_size=BLOCK, **options)
        else:
            self.engine = TransformersEngine(self.policy, 8, **options)
        self.left_alone = random_states() == before
        self.load(0)

    def load(self, which):
        self.engine.load(self.models[which].named_parameters())

    def run(self, requests, n=1, temperature=1.0):
        """As after a load, so that vLLM computes the same batches each time."""
        if not self.exact:
            self.load(0)
        return self.engine(requests, n, temperature)

    def weights_of_engine(self):
        if isinstance(self.engine, TransformersEngine):
            return self.engine.model
        (model,) = self.engine.llm.apply_model(lambda model: model)
        return model

    def assert_same(self, found, expected):
        """The same tokens and reasons; log-probs up to rounding, which may change a token here and there on a GPU."""
        pairs = [(a, b) for x, y in zip(found, expected, strict=True) for a, b in zip(x, y, strict=True)]
        same = [(a, b) for a, b in pairs if a.ids == b.ids and a.finish_reason == b.finish_reason]
        assert len(same) >= len(pairs) * (1.0 if self.exact else 0.8)
        for a, b in same:
            assert a.logprobs == pytest.approx(b.logprobs, abs=self.tolerance)

    def assert_log_probs(self, requests, replies, which=0, temperature=1.0):
        for request, row in zip(requests, replies, strict=True):
            for completion in row:
                sample = make_sample(prompt=request.prompt_ids, response=completion.ids)
                expected = reference_logprobs(self.models[which], sample, temperature)
                assert completion.logprobs == pytest.approx(expected.tolist(), abs=self.tolerance)


@functools.cache
def started(kind, architecture="qwen3", tie=True):
    """Tests share engines: vLLM takes seconds to start, and one that is dropped takes down the others' groups."""
    return Subject(kind, architecture, tie)


@pytest.fixture(params=KINDS)
def subject(request):
    shared = started(request.param)
    shared.load(0)
    return shared


def test_each_request_gets_n_completions_in_order(subject):
    replies = subject.engine(REQUESTS, 3)
    assert [len(row) for row in replies] == [3] * 5
    assert len({tuple(c.ids) for row in replies for c in row}) > 5  # candidates differ
    assert subject.engine([], 3) == []


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.5])
def test_log_probs_are_those_of_the_model_at_this_temperature(subject, temperature):
    subject.assert_log_probs(REQUESTS, subject.engine(REQUESTS, 4, temperature), temperature=temperature)


def test_log_probs_are_those_of_the_trainer(subject):
    samples = [
        make_sample(prompt=request.prompt_ids, response=c.ids, logprobs=c.logprobs)
        for request, row in zip(REQUESTS, subject.engine(REQUESTS, 4), strict=True)
        for c in row
    ]
    pack = pack_samples([[sample] for sample in samples])
    with packed(subject.models[0]), torch.no_grad():
        expected, _ = token_logprobs(subject.models[0], pack)
    assert (expected - pack.engine).abs().max() < subject.tolerance
    assert (expected - pack.engine).abs().mean() < subject.tolerance / 5


def test_greedy_takes_the_likeliest_token_at_every_step(subject):
    replies = subject.engine(REQUESTS, 1, 0.0)
    for request, (completion,) in zip(REQUESTS, replies, strict=True):
        ids = list(request.prompt_ids)
        for token in completion.ids:
            logits = subject.models[0](tensor([ids])).logits[0, -1]
            assert logits[token] >= logits.max() - (0 if subject.exact else subject.tolerance)
            ids.append(token)
    subject.assert_log_probs(REQUESTS, replies)  # at temperature 1


def test_sampled_frequencies(subject, monkeypatch):
    """Chi-square of 4,000 first tokens over the tokens that are expected at least ten times."""
    monkeypatch.setattr(subject.engine, "max_tokens", 1)
    replies = subject.engine([Request("a", [3, 4], seed=8 * i) for i in range(500)], 8)
    counts = torch.bincount(tensor([c.ids[0] for row in replies for c in row]), minlength=VOCABULARY).double()
    expected = subject.models[0](tensor([[3, 4]])).logits[0, -1].double().softmax(-1) * 4000
    likely = expected >= 10
    chi_square = float(((counts - expected) ** 2 / expected)[likely].sum())
    freedom = int(likely.sum())
    assert freedom >= 5
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


def test_candidate_k_uses_seed_plus_k_whoever_else_is_in_the_batch(subject):
    fours = subject.run(REQUESTS, 4)
    singles = [
        [subject.run([Request("a", r.prompt_ids, r.seed + k)], 1)[0][0] for k in range(4)]  # one by one
        for r in REQUESTS
    ]
    subject.assert_same(singles, fours)


@pytest.mark.parametrize("cache_tokens", [1, 200, 65536])
def test_samples_do_not_depend_on_how_the_transformers_engine_cuts_its_batches(cache_tokens):
    cut = Subject("transformers", cache_tokens=cache_tokens)
    cut.assert_same(cut.run(REQUESTS, 3), Subject("transformers").run(REQUESTS, 3))


def test_the_global_random_state_is_neither_read_nor_changed(subject):
    assert subject.left_alone, "building the engine changed it"
    torch.manual_seed(1)
    before, first = random_states(), subject.run(REQUESTS, 2)
    assert random_states() == before
    torch.manual_seed(2)
    subject.assert_same(subject.run(REQUESTS, 2), first)


def test_a_completion_ends_with_a_stop_token_or_at_the_limit(subject):
    replies = subject.engine([Request("a", [3, 4, 5], seed=64 * i) for i in range(80)], 4)
    completions = [completion for row in replies for completion in row]
    assert {"stop", "length"} == {completion.finish_reason for completion in completions}
    for completion in completions:
        assert len(completion.ids) == len(completion.logprobs)
        assert not STOPS & set(completion.ids[:-1])
        if completion.finish_reason == "stop":
            assert completion.ids[-1] in STOPS
        else:
            assert len(completion.ids) == 8
            assert completion.ids[-1] not in STOPS
    assert {completion.ids[-1] for completion in completions} >= STOPS


@pytest.mark.parametrize(("room", "expected"), [(-2, 0), (0, 0), (1, 1), (3, 3), (20, 8)])
def test_the_context_limits_a_response(subject, monkeypatch, room, expected):
    monkeypatch.setattr(Policy, "stop_ids", set())  # every response is cut by a limit
    monkeypatch.setattr(subject.engine, "context", 12 + room)
    long, short = subject.engine([Request("a", [3] * 12, seed=0), Request("a", [4, 5], seed=64)], 2)
    assert [len(c.ids) for c in long] == [expected] * (2 if expected else 0)
    assert all(c.finish_reason == "length" for c in long)
    assert [len(c.ids) for c in short] == [min(8, 10 + room)] * 2


LONG = [Request("a", [3 + i % 50 for i in range(4 * BLOCK + 5)], seed=16 * k) for k in range(4)]  # prompts of 4 blocks


def test_after_load_nothing_is_left_of_the_old_weights(subject):
    """The prompt's keys and values were cached with the old weights."""
    old = subject.engine(LONG, 4)
    subject.assert_log_probs(LONG, old, which=0)
    subject.load(1)
    new = subject.engine(LONG, 4)
    subject.assert_log_probs(LONG, new, which=1)
    assert [[c.ids for c in row] for row in new] != [[c.ids for c in row] for row in old]


def test_load_writes_every_weight(subject):
    with torch.no_grad():
        for weight in subject.weights_of_engine().parameters():
            weight.fill_(float("nan"))
    subject.load(1)
    subject.assert_log_probs(REQUESTS, subject.engine(REQUESTS, 2), which=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.layers.1.self_attn.k_proj.weight"), "not given.*k_proj"),
        (lambda w: w.clear(), "not given"),
        (lambda w: w.update({"model.layers.2.mlp.up_proj.weight": torch.zeros(96, 64)}), "layers.2.*expected None"),
        (lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"]}), "lm_head.*None"),  # tied: once
        (lambda w: w.update({"model.norm.weight": torch.zeros(63)}), r"model.norm.weight has the shape \[63\]"),
    ],
)
def test_load_refuses_weights_that_are_not_exactly_those_of_the_model(subject, change, message):
    weights = dict(subject.models[0].named_parameters())
    change(weights)
    with pytest.raises(ValueError, match=message):
        subject.engine.load(weights.items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("architecture", "tie"), [("qwen3", False), ("qwen2", True), ("llama", True)])
def test_other_architectures(kind, architecture, tie):
    test_load_writes_every_weight(started(kind, architecture, tie))


@pytest.fixture(params=[KINDS[1], KINDS[3]])
def vllm(request):
    shared = started(request.param)
    shared.load(0)
    return shared


def collect(stream):
    done = []
    while len(stream):
        done += stream.collect()
    return done


def test_a_stream_gives_what_a_call_gives(vllm):
    """Requests join while others run; the same objects come back, each once, with all its candidates."""
    expected = vllm.run(REQUESTS, 3)
    hopeless = Request("a", [3] * CONTEXT, seed=0)
    if not vllm.exact:
        vllm.load(0)
    stream = vllm.engine.stream(3)
    assert stream.collect() == []
    stream.submit(REQUESTS[:2])
    done = stream.collect() + stream.collect()
    assert len(stream) == 2 - len(done)
    stream.submit([hopeless, *REQUESTS[2:]])
    done += collect(stream)
    found = {id(request): row for request, row in done}
    assert len(done) == len(found) == 6
    assert found[id(hopeless)] == []
    vllm.assert_same([found[id(request)] for request in REQUESTS], expected)


def test_one_stream_at_a_time_and_no_new_weights_under_it(vllm):
    stream = vllm.engine.stream(1)
    stream.submit(REQUESTS)
    with pytest.raises(RuntimeError, match="in flight"):
        vllm.load(1)
    with pytest.raises(RuntimeError, match="another one is unfinished"):
        vllm.engine.stream(1)
    done = collect(stream)
    assert len(done) == len(REQUESTS)
    vllm.assert_log_probs([request for request, _ in done], [row for _, row in done])


def test_a_stale_cache_is_an_error(vllm, monkeypatch):
    monkeypatch.setattr(vllm.engine.llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(RuntimeError, match="did not clear its prefix cache"):
        vllm.load(1)


def test_a_weight_that_vllm_skips_is_an_error(vllm, monkeypatch):
    model = vllm.weights_of_engine()
    load = model.load_weights
    monkeypatch.setattr(model, "load_weights", lambda w: load([(n, v) for n, v in w if n != "model.norm.weight"]))
    with pytest.raises(ValueError, match=r"left 1 weights as they were: \['model.norm.weight'\]"):
        vllm.load(1)


@pytest.mark.gpu
def test_sleep_gives_memory_back_until_the_next_load():
    sleeper = Subject("vllm-cuda", sleep=True)
    expected = sleeper.run(REQUESTS, 2)
    awake = torch.cuda.mem_get_info()[0]
    assert sleeper.engine.sleep()
    assert torch.cuda.mem_get_info()[0] - awake > 2**30
    with pytest.raises(RuntimeError, match="load weights first"):
        sleeper.engine(REQUESTS, 2)
    sleeper.assert_same(sleeper.run(REQUESTS, 2), expected)
    sleeper.assert_log_probs(REQUESTS, sleeper.run(REQUESTS, 2))


def test_without_vllm_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr("os.environ", dict(os.environ))
    with pytest.raises(ImportError, match=r"--engine vllm: .*requirements-gpu.txt"):
        import_vllm(torch.device("cpu"))


@pytest.mark.parametrize("noise", [0.0, 1 - 1e-16])
def test_the_ends_of_the_noise_never_choose_an_impossible_token(noise):
    logits = tensor([[float("-inf"), 1.0, 2.0, float("-inf")]])
    token, logp = choose(logits, tensor([0]), tensor([noise], dtype=torch.float64), 1.0)
    assert token.item() in (1, 2)
    assert torch.isfinite(logp).all()


class Named(Engine):
    """Answers with the policy whose weights it has, and remembers whose it got."""

    def __init__(self):
        self.loaded = []

    def load(self, weights):
        self.loaded.append(weights)

    def __call__(self, requests, n, temperature=1.0, top_p=1.0):
        return [[Completion([ord(self.loaded[-1])], [0.0], "stop")] * n for _ in requests]


@pytest.mark.parametrize("rounds", [1, 3])
def test_policies_take_turns_on_one_engine_and_its_weights_rarely_change(monkeypatch, rounds):
    monkeypatch.setattr(Policy, "weights", lambda policy, dtype: policy.name)
    engine, policies = Named(), {name: small_policy(name) for name in "xy"}
    engine.dtype = torch.float32
    team = Team(policies, {"ann": "x", "bob": "y"}, dict.fromkeys("xy", engine))
    stream = team.sampler(1.0).stream(2)
    for _ in range(rounds):
        stream.submit([Request(agent, [1], 0) for agent in ("bob", "ann", "bob")])
        found = {(request.agent, chr(c.ids[0])) for request, row in stream.collect() for c in row}
        assert found == {("ann", "x"), ("bob", "y")}
        assert not len(stream)
    assert engine.loaded == ["x", "y", "x", "y"][: rounds + 1]  # x y, y x, x y
