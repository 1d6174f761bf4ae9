"""What several tests of the core share: a transparent environment, samples and models small enough to check by hand."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import evaluate
from envs import Env, InfraError, Reward
from grouping import GroupKey, Sample, assign_advantages, group_samples
from model import tiny
from model.policy import Policy, make_optimizer
from records.run_folder import latest_checkpoint
from sampling.requests import Completion, Request
from update import UpdateConfig

ROOT = Path(__file__).parent.parent


@contextmanager
def seconds_at_most(seconds: float) -> Iterator[None]:
    """Several times what linear work needs on an idle core, so that only work that blows up takes longer.

    Seconds of this thread's processor: other processes do not count.
    """
    start = time.thread_time()
    yield
    assert time.thread_time() - start < seconds


class Toy(Env):
    """Agents say a digit, and digit / 10 is the local reward; every prompt shows all that was committed so far.

    The log is a list that `step` changes in place, so candidates that share state are noticed. Special texts: "infra"
    cannot be scored, one that ends in "!" solves the task (team reward 1), one that ends in "." ends it unsolved.
    """

    def __init__(self, agents: Sequence[str] = ("ann", "bob"), simultaneous: bool = False, name: str = "toy"):
        self.agents, self.simultaneous, self.name = tuple(agents), simultaneous, name
        self.done = self.solved = False
        self.log: list[str] = []

    def reset(self, seed: int) -> Toy:
        self.log, self.done, self.solved = [], False, False
        return self

    def observe(self, agent: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{self.name} {agent} sees {' '.join(self.log) or 'nothing'}"}]

    def step(self, agent: str, text: str) -> Reward:
        if text == "infra":
            raise InfraError("the scorer died")
        self.log.append(f"{agent}:{text}")
        self.done = text.endswith(("!", "."))
        self.solved = text.endswith("!")
        return Reward(float(self.solved), int(text[0]) / 10, {"format": 1.0, "actions": len(self.log) / 100})


def make_sample(
    reward: float = 0.0,
    prompt: Sequence[int] = (1, 2),
    response: Sequence[int] = (3, 4),
    *,
    key: tuple = (0, 0, "a"),
    logprobs: Sequence[float] | None = None,
    **fields,
) -> Sample:
    return Sample(
        GroupKey(*key),
        list(prompt),
        list(response),
        list(logprobs if logprobs is not None else [-1.0] * len(response)),
        reward,
        **fields,
    )


def random_batch(groups: int = 5, k: int = 4, seed: int = 0, **fields) -> list[Sample]:
    """Groups of k samples with advantages; the engine's log-probs are a guess, as if it computed them otherwise."""
    rng = np.random.default_rng(seed)
    batch = []
    for env in range(groups):
        prompt = rng.integers(3, 31, int(rng.integers(2, 12))).tolist()
        for _ in range(k):
            response = [*rng.integers(3, 31, int(rng.integers(0, 6))).tolist(), 2]
            logprobs = rng.normal(-3.4, 0.3, len(response)).tolist()
            batch.append(
                make_sample(float(rng.integers(0, 5)), prompt, response, key=(env, 0, "a"), logprobs=logprobs, **fields)
            )
    assign_advantages(group_samples(batch))
    return batch


class ScriptedEngine:
    """Answers for tests: `script(request, k)` is the text of candidate k; ids are its characters' code points."""

    def __init__(self, script: Callable[[Request, int], str]):
        self.script = script
        self.requests: list[Request] = []

    def __call__(self, requests: list[Request], n: int) -> list[list[Completion]]:
        self.requests += requests
        texts = [[self.script(request, k) for k in range(n)] for request in requests]
        return [[Completion([*map(ord, text), 0], [-1.0] * (len(text) + 1), "stop") for text in row] for row in texts]

    @staticmethod
    def encode(agent: str, messages: list[dict[str, str]]) -> list[int]:
        return [ord(c) for message in messages for c in message["content"]]

    @staticmethod
    def decode(agent: str, ids: list[int]) -> str:
        return "".join(map(chr, ids)).rstrip("\0")


def random_model(kind: str = "qwen3", seed: int = 0, **options: Any) -> Any:
    """A small random model of any architecture of transformers."""
    sizes = {
        "vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": None, "eos_token_id": 2,
        "pad_token_id": 2,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **options}))


def small_model(
    architecture: str = "qwen3", tie: bool = True, heads: int = 4, kv_heads: int = 2, seed: int = 0, layers: int = 2,
    vocabulary: int = 31,
):  # fmt: skip
    """A model of a few thousand weights; large weights, so that every token matters."""
    return random_model(
        architecture, seed, vocab_size=vocabulary, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, tie_word_embeddings=tie, initializer_range=0.3,
        **{"head_dim": 6} if architecture == "qwen3" else {},  # differs from width / heads, as in Qwen3-0.6B
    )  # fmt: skip


def small_policy(name: str = "p", lr: float = 1e-3, seed: int = 0, **layout) -> Policy:
    """A policy of a small model; token 2 ends a response."""
    model = small_model(seed=seed, **layout)
    return Policy(name, model, tiny.build_tokenizer(), make_optimizer(model, lr))


def reference_logprobs(model, sample: Sample, temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of one response by one plain forward of its own sequence (R,)."""
    prompt, response = sample.prompt_ids, sample.response_ids
    logits = model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0].float()
    logps = (logits / temperature).log_softmax(-1)
    return logps[torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1), torch.tensor(response)]


def objective(**values) -> UpdateConfig:
    """One plain optimizer step unless told otherwise, gradients not clipped."""
    return UpdateConfig(**{"minibatches": 1, "grad_clip": 1e9, "max_response_tokens": 16, **values})


def watch_gradients(policy: Policy) -> list[dict[str, torch.Tensor]]:
    """A list that gets the gradients of every optimizer step from now on."""
    seen: list[dict[str, torch.Tensor]] = []

    def remember(*_) -> None:
        seen.append({name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None})

    policy.optimizer.register_step_pre_hook(remember)
    return seen


def gradients_agree(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-5):
    """Every gradient agrees to `tolerance` of the largest entry of its own tensor."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = float(gradient.abs().max()) + 1e-12
        error = float((found[name] - gradient).abs().max()) / scale
        assert error < tolerance, f"{name}: relative error {error:.1e}"


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """The same tensors, to the bit."""
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.model.state_dict().items()}


def whole(policy: Policy) -> dict[str, torch.Tensor]:
    """The weights that an engine gets: those of all ranks, adapters merged."""
    return {name: weight.clone() for name, weight in policy.weights()}


def result(folder: Path) -> dict[str, bytes]:
    """What a run has learned and written, byte by byte."""
    logs = [folder / f"{name}.jsonl" for name in ("metrics", "evaluations", "trees")]
    written = [*logs, *latest_checkpoint(folder).rglob("*.safetensors")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in written}


def make_results(**rows):
    """Results of experiments with one method a keyword: label=[run, ...]; a run is {step: success}."""
    made = []
    for label, runs in rows.items():
        numbers = [
            {"seed": seed, "curve": [[step, value, 200] for step, value in run.items()], "signal": 0.25}
            | {"spent": {"candidates": [1000 * step for step in run]}}
            for seed, run in enumerate(runs)
        ]
        made.append({"section": "Methods", "label": label, "runs": numbers})
    session = {"command": "python experiments.py --jobs 9", "date": "2026-01-02", "minutes": 7.25, "finished": 4,
               "jobs": 9, "machine": "Linux, a processor, 64 cores"}  # fmt: skip
    return {"steps": 50, "rows": made, "claims": {}, "sessions": [session]}


FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```\s*$", re.M)  # (language, code)


def tables(text):
    """The tables of a text outside of fences: each a list of rows, each a list of cells, the header first."""
    found: list[list[list[str]]] = []
    previous = ""
    for line in FENCE.sub("", text).splitlines():
        if line.startswith("|"):
            if not previous.startswith("|"):
                found.append([])
            if not re.fullmatch(r"[|:\- ]+", line):
                found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))])
        previous = line
    return found


def lines(capsys, *argv):
    """What `evaluate.py argv` prints."""
    capsys.readouterr()
    evaluate.main([str(value) for value in argv])
    return capsys.readouterr().out.strip().splitlines()


def refuses(main, *argv):
    """The message of a command that must not do its work: one line."""
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in argv])
    message = str(exit_.value.code)
    assert ": error: " in message
    assert "\n" not in message
    return message
