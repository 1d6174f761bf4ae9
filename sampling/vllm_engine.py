"""Sampling with vLLM, in this process: continuous batching on a GPU."""

from __future__ import annotations

import copy
import os
import tempfile
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from model.loading import checked
from model.policy import Policy
from sampling.engine import Engine, Weights, random_state_kept
from sampling.requests import Answers, Completion, Request, Stream

# Numbers of sequences that have a CUDA graph; others are padded to the next. vLLM's 51 take seconds longer to capture.
BATCHES = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512]


class VllmEngine(Engine):
    """Each prompt is computed once for n candidates.

    `memory` is the share of the GPU's memory for weights and cache, which with `sleep` it can give back (one such
    engine a process). The ranks of a job construct theirs at the same time. ImportError without vLLM, ValueError when
    it cannot start.
    """

    in_rounds = False

    def __init__(
        self, policy: Policy, max_tokens: int, context: int | None = None, memory: float = 0.3, sleep: bool = False,
        **options: Any,
    ):  # fmt: skip
        super().__init__(policy, max_tokens, context)
        self.shapes, self.names, self.can_sleep, self.asleep = policy.shapes, count(), sleep, False
        (vllm, settings), several = import_vllm(policy.device), dist.is_initialized() and dist.get_world_size() > 1
        torch.cuda.empty_cache()  # vLLM takes its memory from what is free, which torch's cache is not
        settings |= {
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
        }
        config = copy.deepcopy(policy.model.config)
        config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
        with tempfile.TemporaryDirectory() as folder, random_state_kept(policy.device):  # LLM() seeds all generators
            config.save_pretrained(folder)
            try:
                self.llm = vllm.LLM(model=folder, **settings | options)
            except ValueError as error:
                raise ValueError(f"vLLM does not start with --engine-memory {memory}: {error}") from error

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Replace the weights, wake up if asleep, forget what was cached.

        ValueError unless all are given and all of vLLM's written, RuntimeError while requests are in flight.
        """
        if self.llm.llm_engine.has_unfinished_requests():
            raise RuntimeError("load: requests in flight would meet two different weights")
        if self.asleep:
            torch.cuda.empty_cache()  # torch keeps what the update no longer needs
            self.llm.wake_up(tags=["weights"])

        def write(model: Any) -> set[str]:
            written = model.load_weights(checked(weights, self.shapes))
            return {name for name, _ in model.named_parameters()} - written

        (unwritten,) = self.llm.apply_model(write)
        if unwritten:
            raise ValueError(f"load: vLLM left {len(unwritten)} weights as they were: {sorted(unwritten)[:3]}")
        if self.asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.asleep = False
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("load: vLLM did not clear its prefix cache")

    def sleep(self) -> bool:
        if self.can_sleep and not self.asleep:
            torch.cuda.synchronize()  # vLLM schedules ahead: a last step that nobody needs may still be running
            self.llm.sleep(level=2)
            self.asleep = True
        return self.asleep

    def stream(self, n: int, temperature: float = 1.0, top_p: float = 1.0) -> VllmStream:
        """Takes requests while others run. RuntimeError while asleep, or another one is unfinished."""
        if self.asleep or self.llm.llm_engine.has_unfinished_requests():
            raise RuntimeError("stream: load weights first" if self.asleep else "stream: another one is unfinished")
        return VllmStream(self, n, temperature, top_p)


class VllmStream(Stream):
    def __init__(self, engine: VllmEngine, n: int, temperature: float, top_p: float):
        self.engine, self.n, self.temperature, self.top_p = engine, n, temperature, top_p
        self.waiting: dict[str, Request] = {}
        self.hopeless: Answers = []  # without room for a single token

    def __len__(self) -> int:
        return len(self.waiting) + len(self.hopeless)

    def submit(self, requests: list[Request]) -> None:
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        for request in requests:
            room = self.engine.context - len(request.prompt_ids)
            if room <= 0:
                self.hopeless.append((request, []))
                continue
            sampling = SamplingParams(
                n=self.n,
                seed=request.seed,  # vLLM gives candidate k seed + k
                temperature=self.temperature,
                top_p=self.top_p,
                max_tokens=min(self.engine.max_tokens, room),
                stop_token_ids=sorted(self.engine.policy.stop_ids),
                ignore_eos=True,  # only these: vLLM would add the end token of the model's configuration
                logprobs=0,  # of the sampled token only
                flat_logprobs=True,
                detokenize=False,
                skip_clone=True,  # nobody else has these parameters
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            name = str(next(self.engine.names))
            self.waiting[name] = request
            self.engine.llm.llm_engine.add_request(name, tokens_input(request.prompt_ids), sampling)

    def collect(self) -> Answers:
        """Compute one more token for all that run."""
        done, self.hopeless = self.hopeless, []
        if self.waiting:
            with torch.random.fork_rng(devices=[]):  # vLLM's CPU sampler draws from torch's global generator as well
                outputs = self.engine.llm.llm_engine.step()
            for output in outputs:
                answers = output.outputs
                if odd := {a.finish_reason for a in answers} - {"stop", "length"}:
                    raise RuntimeError(f"vLLM ended a response because of {odd}")
                found = [Completion(list(a.token_ids), list(a.logprobs.logprobs), a.finish_reason) for a in answers]
                done.append((self.waiting.pop(output.request_id), found))
        return done


def alone_on_the_gpu() -> bool:
    """Whether no other process has memory here: vLLM counts what all use, and fails if that grows while it sleeps."""
    free, total = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
    return total - free - torch.cuda.memory_reserved() < 2 * 2**30  # the context of this process takes less


def import_vllm(device: torch.device) -> tuple[Any, dict[str, Any]]:
    """The module with its environment variables set, arguments of `LLM` for this device. ImportError without vLLM."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # `load` needs the model in this process
    defaults = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    defaults["VLLM_USE_FLASHINFER_SAMPLER"] = "0"  # only for top-p and top-k, and not always installed
    if device.type == "cuda":  # CUDA graphs for decoding without the minute that the compiler takes
        defaults["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # draws all rows with one kernel; the older one loops over seeds
        graphs = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": BATCHES}
        options: dict[str, Any] = {"compilation_config": {"mode": 0, **graphs}}
    else:  # a prompt in pieces would have to rewind its random generator, which torch's CPU generators cannot do
        options = {"enforce_eager": True, "enable_chunked_prefill": False}
        defaults |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    os.environ.update(defaults | os.environ)
    try:
        import vllm
    except ImportError as error:
        message = f"--engine vllm: {error}; pip install -r requirements-gpu.txt, or use --engine transformers"
        raise ImportError(message) from error
    if device.type != "cuda":
        import vllm._custom_ops as ops

        ops._supports_onednn = False  # else layers keep a repacked copy of their weights, which `load` does not reach
    return vllm, options
