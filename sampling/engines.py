"""Engines: from requests to completions. One signature, `engine(requests, n, temperature) -> n completions for each`.

`TransformersEngine` works everywhere, `VllmEngine` is fast on a GPU, `ScriptedEngine` answers from a table (tests).
Sampling is plain: temperature only, no top-p, top-k or penalties, and the log-probs are those of the distribution that
was sampled from. Candidate k of a request is drawn with the request's seed + k.

An engine owns a copy of the weights. `load` replaces it, so policies of one architecture and one set of stop tokens can
take turns on one engine, and whoever trains a policy decides when the engine learns of it.
"""

from __future__ import annotations

import copy
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from model.policy import Policy
from rollout import Completion, Request

Weights = Iterable[tuple[str, Tensor]]  # by the names that the transformers model gives them, tied ones once


def checked(weights: Weights, shapes: Mapping[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    """Pass the weights of a model on. ValueError at an unknown name, a wrong shape and, at the end, a missing name."""
    missing = dict(shapes)
    for name, weight in weights:
        if name not in shapes:
            raise ValueError(f"load: the engine has no weight {name}")
        if weight.shape != shapes[name]:
            raise ValueError(f"load: {name} has shape {tuple(weight.shape)}, the engine's {tuple(shapes[name])}")
        missing.pop(name, None)
        yield name, weight
    if missing:
        raise ValueError(
            f"load: {len(missing)} weights of the engine were not given, the first is {next(iter(missing))}"
        )


def engine_dtype(device: torch.device) -> torch.dtype:
    """A GPU samples in half the memory and time; on a CPU only float32 is fast, and log-probs agree to 1e-4."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """The global random generators of Python, numpy and torch end as they began."""
    python, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)


# ------------------------------------------------------------------------------------------------------- transformers


class TransformersEngine:
    """Batched sampling with a key/value cache, from a copy of the policy's model (bfloat16 on a GPU, else float32).

    Before the first use `load` must give it weights. `max_tokens` limits a response; a prompt and its response must
    fit `context` tokens together, otherwise the response is cut shorter, and a prompt without room for a single token
    gets no completion. Sequences run together while their keys and values fit `cache_tokens` tokens.
    """

    def __init__(self, policy: Policy, max_tokens: int, context: int | None = None, cache_tokens: int = 65536):
        self.policy, self.max_tokens, self.cache_tokens = policy, max_tokens, cache_tokens
        config = copy.deepcopy(policy.model.config)
        self.context = context or config.max_position_embeddings
        self.dtype = engine_dtype(policy.device)
        # built from its configuration, not copied: the policy's own weights may be spread over several GPUs
        with random_state_kept(policy.device), policy.device:
            self.model = AutoModelForCausalLM.from_config(config, dtype=self.dtype, attn_implementation="sdpa").eval()
        self.model.requires_grad_(False)

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Replace the weights. Raises ValueError unless every weight of the model is given, by its own name."""
        own = dict(self.model.named_parameters())
        for name, weight in checked(weights, {name: value.shape for name, value in own.items()}):
            own[name].copy_(weight)

    def sleep(self) -> bool:
        """It keeps its memory: nothing happens (see `VllmEngine.sleep`)."""
        return False

    @torch.no_grad()
    def __call__(self, requests: list[Request], n: int, temperature: float = 1.0) -> list[list[Completion]]:
        """n completions for each request; temperature 0 is greedy (its log-probs are those at temperature 1)."""
        completions: list[list[Completion]] = [[] for _ in requests]
        fits = [i for i, request in enumerate(requests) if len(request.prompt_ids) < self.context]
        fits.sort(key=lambda i: len(requests[i].prompt_ids))  # similar lengths together: less padding
        while fits:
            longest = len(requests[fits[-1]].prompt_ids) + self.max_tokens
            size = max(1, self.cache_tokens // (longest * n))
            chosen, fits = fits[-size:], fits[:-size]
            for i, answers in zip(chosen, self._sample([requests[i] for i in chosen], n, temperature), strict=True):
                completions[i] = answers
        return completions

    def _sample(self, requests: Sequence[Request], n: int, temperature: float) -> list[list[Completion]]:
        model, device = self.model, self.policy.device
        lengths = [len(request.prompt_ids) for request in requests]
        longest, rows = max(lengths), len(requests) * n
        room = [min(self.max_tokens, self.context - length) for length in lengths for _ in range(n)]
        uniform = np.stack(
            [np.random.default_rng(r.seed + k).random(self.max_tokens) for r in requests for k in range(n)]
        )
        noise = torch.from_numpy(uniform).to(device)  # (rows, max_tokens) one number a token: no other state to share

        ids = torch.tensor([[0] * (longest - len(r.prompt_ids)) + r.prompt_ids for r in requests], device=device)
        mask = torch.arange(longest, device=device) >= longest - torch.tensor(lengths, device=device)[:, None]
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=model.config)
        logits = self._forward(ids, mask, positions, cache)
        cache.batch_repeat_interleave(n)
        logits, mask = logits.repeat_interleave(n, 0), mask.repeat_interleave(n, 0)
        position = torch.tensor(lengths, device=device).repeat_interleave(n)

        stops = torch.tensor(sorted(self.policy.stop_ids), device=device)
        limit = torch.tensor(room, device=device)
        alive = torch.ones(rows, dtype=torch.bool, device=device)
        tokens, logps = [], []
        for t in range(max(room)):
            token, logp = choose(logits, noise[:, t], temperature)
            tokens.append(token)
            logps.append(logp)
            alive &= ~torch.isin(token, stops) & (t + 1 < limit)
            if not alive.any():
                break
            mask = torch.cat([mask, mask.new_ones(rows, 1)], 1)
            logits = self._forward(token[:, None], mask, (position + t)[:, None], cache)
        return self._collect(torch.stack(tokens, 1).tolist(), torch.stack(logps, 1).tolist(), room, n)

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        # by position: the fourth argument is `past_key_values` in older transformers and `cache` in newer ones
        out = self.model(ids, mask.long(), positions, cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].float()  # (rows, V)

    def _collect(
        self, tokens: list[list[int]], logps: list[list[float]], room: list[int], n: int
    ) -> list[list[Completion]]:
        stops, flat = self.policy.stop_ids, []
        for row, values, limit in zip(tokens, logps, room, strict=True):
            end = next((i + 1 for i, token in enumerate(row) if token in stops), None)
            reason = "stop" if end is not None and end <= limit else "length"
            end = end if reason == "stop" else limit
            flat.append(Completion(row[:end], values[:end], reason))
        return [flat[i : i + n] for i in range(0, len(flat), n)]


def choose(logits: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Sample by inverse CDF: logits (B, V), one uniform number a row (B,) -> token ids (B,), their log-probs (B,)."""
    logps = (logits / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0:
        token = logits.argmax(-1)
    else:
        cdf = logps.double().exp().cumsum(-1)
        token = (cdf <= (noise * cdf[:, -1])[:, None]).sum(-1).clamp(max=logits.shape[1] - 1)
    return token, logps.gather(-1, token[:, None])[:, 0]


# --------------------------------------------------------------------------------------------------------------- vLLM


class VllmEngine:
    """vLLM in this process: continuous batching, paged key/value cache, each prompt computed once for n candidates.

    Works for any policy whose architecture vLLM knows. Before the first use `load` must give it weights. `max_tokens`
    and `context` as in `TransformersEngine`. `memory` is the share of the GPU's memory for its weights and cache; with
    `sleep` it can give that back while others compute (one such engine a process). `options` are further arguments of
    `vllm.LLM`. In a process group of several ranks each has its own engine, and all must be constructed at the same
    time. Raises ImportError without vLLM and ValueError when it cannot start.
    """

    def __init__(
        self,
        policy: Policy,
        max_tokens: int,
        context: int | None = None,
        memory: float = 0.3,
        sleep: bool = False,
        **options: Any,
    ):
        self.policy, self.max_tokens, self.can_sleep, self.asleep = policy, max_tokens, sleep, False
        self.context = context or policy.model.config.max_position_embeddings
        self.dtype = engine_dtype(policy.device)
        self.shapes = {name: weight.shape for name, weight in policy.model.named_parameters()}
        self.submitted = 0
        vllm = import_vllm(policy.device)
        torch.cuda.empty_cache()  # vLLM takes its memory from what is free, not from what torch keeps for later
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        options = device_options(policy.device) | {
            "dtype": str(self.dtype).removeprefix("torch."),
            "max_model_len": self.context,
            "gpu_memory_utilization": memory,
            "enable_sleep_mode": sleep,
            "enable_prefix_caching": True,
            "distributed_executor_backend": "external_launcher" if several else "uni",
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # the model's own would bring top-p, top-k and penalties with it
            "logprobs_mode": "processed_logprobs",  # those of the sampled distribution: after temperature
        } | options  # fmt: skip
        config = copy.deepcopy(policy.model.config)
        config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
        with tempfile.TemporaryDirectory() as folder, random_state_kept(policy.device):  # LLM() seeds all generators
            config.save_pretrained(folder)
            try:
                self.llm = vllm.LLM(model=folder, **options)
            except ValueError as error:
                raise ValueError(
                    f"vLLM does not start with {self.context} tokens of context and --engine-memory {memory}: {error}"
                ) from error

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Replace the weights, wake up if asleep, forget cached prefixes: they belong to the old weights.

        Raises ValueError unless every weight of the model is given, by its own name, and every one of vLLM's was
        written; RuntimeError while requests are in flight.
        """
        if self.llm.llm_engine.has_unfinished_requests():
            raise RuntimeError("load: requests are in flight, they would be answered with two different weights")
        if self.asleep:
            torch.cuda.empty_cache()  # torch keeps what the update no longer needs
            self.llm.wake_up(tags=["weights"])

        def write(model: torch.nn.Module) -> set[str]:
            written = model.load_weights(checked(weights, self.shapes))  # type: ignore[operator]
            return {name for name, _ in model.named_parameters()} - written

        (unwritten,) = self.llm.apply_model(write)
        if unwritten:
            raise ValueError(f"load: vLLM left {len(unwritten)} weights as they were: {sorted(unwritten)[:3]}")
        if self.asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.asleep = False
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("load: vLLM did not clear its prefix cache and would go on with the old weights' keys")

    def sleep(self) -> bool:
        """Give the memory of weights and cache back until the next `load`; False unless built with `sleep=True`."""
        if self.can_sleep and not self.asleep:
            torch.cuda.synchronize()  # vLLM schedules ahead: a last step, of no use to anybody, may still be running
            self.llm.sleep(level=2)
            self.asleep = True
        return self.asleep

    def stream(self, n: int, temperature: float = 1.0) -> VllmStream:
        """Takes requests while others run. RuntimeError while another stream of this engine is unfinished."""
        if self.asleep or self.llm.llm_engine.has_unfinished_requests():
            raise RuntimeError("stream: " + ("load weights first" if self.asleep else "another one is unfinished"))
        return VllmStream(self, n, temperature)

    def __call__(self, requests: list[Request], n: int, temperature: float = 1.0) -> list[list[Completion]]:
        """n completions for each request; temperature 0 is greedy (its log-probs are those at temperature 1)."""
        stream = self.stream(n, temperature)
        stream.submit(requests)
        replies: dict[int, list[Completion]] = {}  # by identity: requests may be equal
        while len(stream):
            replies |= {id(request): completions for request, completions in stream.collect()}
        return [replies[id(request)] for request in requests]


class VllmStream:
    """Requests of one temperature and number of candidates on their way through vLLM: a `rollout.Stream`."""

    in_rounds, cohorts = False, 1

    def __init__(self, engine: VllmEngine, n: int, temperature: float):
        self.engine, self.n, self.temperature = engine, n, temperature
        self.waiting: dict[str, Request] = {}
        self.hopeless: list[Request] = []  # without room for a single token

    def __len__(self) -> int:
        return len(self.waiting) + len(self.hopeless)

    def busy(self, more: bool) -> bool:
        return more or len(self) > 0

    def submit(self, requests: list[Request]) -> None:
        from vllm.inputs import tokens_input

        for request in requests:
            if len(request.prompt_ids) >= self.engine.context:
                self.hopeless.append(request)
                continue
            self.engine.submitted += 1
            name = str(self.engine.submitted)
            self.waiting[name] = request
            self.engine.llm.llm_engine.add_request(name, tokens_input(request.prompt_ids), self._sampling(request))

    def collect(self) -> list[tuple[Request, list[Completion]]]:
        """Compute one more token for all that run; returns the requests that are complete now, often none."""
        done: list[tuple[Request, list[Completion]]] = [(request, []) for request in self.hopeless]
        self.hopeless = []
        if self.waiting:
            with torch.random.fork_rng(devices=[]):  # vLLM's CPU sampler draws from torch's global generator as well
                outputs = self.engine.llm.llm_engine.step()
            for output in outputs:
                done.append((self.waiting.pop(output.request_id), [completion(answer) for answer in output.outputs]))
        return done

    def _sampling(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            n=self.n,
            seed=request.seed,  # vLLM gives candidate k seed + k
            temperature=self.temperature,
            max_tokens=min(self.engine.max_tokens, self.engine.context - len(request.prompt_ids)),
            stop_token_ids=sorted(self.engine.policy.stop_ids),
            ignore_eos=True,  # these and no other: vLLM would add the end token of the model's configuration
            logprobs=0,  # of the sampled token only
            flat_logprobs=True,
            detokenize=False,
            skip_clone=True,  # nobody else has these parameters
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def completion(answer: Any) -> Completion:
    """vLLM's `CompletionOutput` -> ours. RuntimeError when vLLM gave the response up."""
    if answer.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a response because of {answer.finish_reason!r}")
    return Completion(list(answer.token_ids), list(answer.logprobs.logprobs), answer.finish_reason)


def device_options(device: torch.device) -> dict[str, Any]:
    """Arguments of `vllm.LLM` that differ between GPU and CPU."""
    if device.type == "cuda":  # CUDA graphs for decoding without the minute that the compiler takes
        return {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}
    # a prompt that is computed in pieces would rewind its random generator, which torch's CPU generators cannot do
    return {"enforce_eager": True, "enable_chunked_prefill": False}


def import_vllm(device: torch.device) -> Any:
    """The module vllm, with the environment variables it reads; those that are set already win.

    Raises ImportError with what to install.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # `load` needs the model in this process
    defaults = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # only for top-p and top-k, and not always installed
    }
    if device.type == "cuda":
        defaults["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # draws all rows with one kernel; the older one loops over seeds
    else:
        defaults |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        raise ImportError(
            f"--engine vllm: vLLM cannot be imported ({error}); install it with pip install -r requirements-gpu.txt, "
            "or use --engine transformers"
        ) from error
    if device.type != "cuda":
        import vllm._custom_ops as ops

        ops._supports_onednn = False  # else layers keep a repacked copy of their weights, which `load` does not reach
    return vllm


# -------------------------------------------------------------------------------------------------------------- tests


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
