"""Load a model and its tokenizer from a hub id or a folder, and turn messages into token ids.

A model that `update.py` would silently train wrongly is refused here, in one line: `--model X: reason`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
)
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import logging

from envs import Message
from grouping import GroupKey, Sample
from model.attention import packed
from model.logprobs import token_logprobs
from model.packing import pack_samples

MAX_REASON = 400  # characters of a reason


@contextmanager
def refusing(source: str, part: str = "") -> Iterator[None]:
    """Turn whatever goes wrong inside into a ValueError of one line that names the model and the part."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its warnings about weights and files are our errors
    try:
        yield
    except Exception as error:  # what the libraries raise on a broken file is anything: KeyError, RuntimeError, ...
        kind = "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
        reason = " ".join(f"{part}{kind}{error}".split())
        raise ValueError(f"--model {source}: {reason[:MAX_REASON]}") from None
    finally:
        logging.set_verbosity(verbosity)


def load_model(source: str) -> tuple[PreTrainedModel, Tokenizer]:
    """A model (float32, on the CPU) and its tokenizer from a hub id or a folder.

    ValueError in one line when a file is missing or damaged, or when `update.py` cannot train the model: it needs plain
    full attention in every layer, a plain output head, and a tokenizer with a chat template.
    """
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    with refusing(source):
        check_files(source)
    with refusing(source, "no model that transformers can load, config.json: "):
        AutoConfig.from_pretrained(source, trust_remote_code=False)
    with refusing(source, "generation_config.json: "):
        if (Path(source) / "generation_config.json").is_file():
            GenerationConfig.from_pretrained(source)
    with refusing(source, "no model that transformers can load, tokenizer: "):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    with refusing(source, "no model that transformers can load: "):
        options = {"attn_implementation": "eager", "trust_remote_code": False, "output_loading_info": True}
        options["ignore_mismatched_sizes"] = True  # `check_weights` names them
        loaded = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
        model, found = cast(tuple[PreTrainedModel, dict], loaded)
    with refusing(source):
        check_template(tokenizer)
        check_weights(model, found)
        check_tokens(model, tokenizer)
        check_attention(model)
    check_logprobs(source, model)
    with refusing(source):
        model.set_attn_implementation("sdpa")  # loaded as "eager", which all have: so a refusal says what is odd
    return model, tokenizer


# -------------------------------------------------------------------------------------------------------------- checks


def check_files(source: str) -> None:
    """A folder must hold whole files; a name that looks like a path must exist, so that no hub is asked for it."""
    folder = Path(source)
    if not source or not folder.is_dir():
        local = "/" in source and (folder.parent.is_dir() or folder.parts[0] == "runs")  # where runs go by default
        if folder.exists() or local or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source):
            raise ValueError("not a folder" if folder.is_file() else "there is no such folder")
        return
    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{name} is missing")
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path.name}: not readable as JSON ({error})") from None
        if not isinstance(content, dict):
            raise ValueError(f"{path.name}: a JSON object expected, found {type(content).__name__}")
        if path.name == "tokenizer_config.json" and not content.get("tokenizer_class"):  # or another would be guessed
            raise ValueError(f"{path.name}: tokenizer_class is missing")
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118  (no dict)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path.name}: {error}") from None
        if odd := [f"{name} is {kind}" for name, kind in kinds.items() if kind not in ("F64", "F32", "F16", "BF16")]:
            raise ValueError(f"{path.name}: weight {odd[0]}; only floats of 16 bits or more can be trained")


def check_template(tokenizer: Tokenizer) -> None:
    """A user message must be in what the chat template writes. (A system message that is not is folded into it.)"""
    if not tokenizer.chat_template:
        raise ValueError("its tokenizer has no chat template; choose an instruction-tuned model")
    try:
        text = _render(tokenizer, [{"role": "user", "content": USER}])
    except Exception as error:  # a template is a program and can raise anything
        raise ValueError(f"its chat template cannot be used ({type(error).__name__}: {error})") from None
    if USER not in text:
        raise ValueError("its chat template leaves out the user message")
    tokenizer.decode(encode(tokenizer, [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]))


def check_weights(model: PreTrainedModel, found: dict) -> None:
    """Every weight comes from the files, has its shape, is a plain float and is finite."""
    for kind in ("missing", "unexpected", "mismatched"):
        if names := sorted(map(str, found[f"{kind}_keys"])):
            raise ValueError(f"its weight files do not fit config.json, {len(names)} {kind}: {', '.join(names[:3])}")
    if errors := found["error_msgs"]:
        raise ValueError(f"its weights could not be read: {errors[0]}")
    for name, weight in model.named_parameters():
        if weight.dtype != torch.float32:
            raise ValueError(f"weight {name} is {weight.dtype}; a quantised model cannot be trained")
        if not weight.isfinite().all():
            raise ValueError(f"weight {name} has values that are not finite")


def check_tokens(model: PreTrainedModel, tokenizer: Tokenizer) -> None:
    """Every token has a row in the embedding, and something ends a response."""
    rows = _rows(model)  # more rows than tokens are padding
    tokens = max(tokenizer.get_vocab().values()) + 1
    if tokens > rows:
        raise ValueError(f"its tokenizer has {tokens} tokens, its embedding only {rows} rows")
    if wrong := [end for end in _configured_ends(model) if type(end) is not int or not 0 <= end < rows]:
        raise ValueError(f"generation_config.json: eos_token_id {wrong[0]!r} is no token id below {rows}")
    if not stop_ids(model, tokenizer):
        raise ValueError("nothing ends a response: no end token in tokenizer, generation_config.json or chat template")


def _rows(model: PreTrainedModel) -> int:
    return len(cast(nn.Embedding, model.get_input_embeddings()).weight)


HARMLESS = {"scaling", "dropout", "position_ids", "cache_position", "use_cache"}  # options of attention


@torch.no_grad()
def check_attention(model: PreTrainedModel) -> None:
    """Every layer must ask for plain causal attention: packing.py knows no window, sink, soft cap or position bias.

    A short text would not show a window, so this looks at what the layers ask for, not at what comes out.
    """
    kind = type(model).__name__
    layers, head = getattr(getattr(model, "model", None), "layers", None), getattr(model, "lm_head", None)
    if not isinstance(layers, nn.ModuleList) or not isinstance(head, nn.Linear) or head.bias is not None:
        raise ValueError(f"{kind} is not built like Llama or Qwen: model.layers, and lm_head without bias")
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(f"{kind} has layers of kind {sorted(kinds)}; only plain full attention is supported")
    rope = {str(getattr(module, "rope_type", "")) for module in model.modules()}
    if changing := sorted(name for name in rope if "dynamic" in name or name == "longrope"):
        raise ValueError(f"positions of kind {changing[0]}: they depend on the longest text of a pack")
    asked: list[dict] = []

    def listen(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None, **options):
        asked.append(options)
        return sdpa_attention_forward(module, q, k, v, attention_mask, scaling=options.get("scaling"))

    AttentionInterface.register("listen", listen)
    before = model.config._attn_implementation
    model.set_attn_implementation("listen")
    model(torch.zeros(1, 4, dtype=torch.long, device=model.device), use_cache=False)
    model.set_attn_implementation(before)
    if len(asked) != len(layers):
        raise ValueError(f"{kind}: {len(asked)} of {len(layers)} layers have an attention that can be packed")
    for name, value in [item for options in asked for item in options.items()]:
        plain = value is None or (name == "is_causal" and value) or name in HARMLESS or name.startswith("output_")
        if not plain:
            shown = "" if isinstance(value, Tensor) else f"={value}"
            raise ValueError(f"{kind} has attention with {name}{shown}; only plain full attention is supported")


@torch.no_grad()
def check_logprobs(source: str, model: PreTrainedModel) -> None:
    """Compare packed log-probs with the model's own. Otherwise a head with a scale, or an unusual attention, would
    silently be trained wrongly. ValueError when they differ.
    """
    device, vocabulary = model.device, _rows(model)

    def some(length: int, start: int) -> list[int]:  # ids that do not repeat soon
        return [(start + 7 * i) % vocabulary for i in range(length)]

    group_a, group_b = (
        [
            Sample(GroupKey(env, 0, "check"), some(prompt, env), some(n, n), [0.0] * n, 0.0)  # two prompts, two lengths
            for n in (9, 30)
        ]
        for env, prompt in ((1, 40), (2, 12))
    )
    with refusing(source, "packing.py cannot compute it: "), packed(model):
        found = token_logprobs(model, pack_samples([group_a, group_b], device))[0]
    with refusing(source):
        expected, largest = [], 0.0
        for sample in [*group_a, *group_b]:
            ids, n = torch.tensor(sample.prompt_ids + sample.response_ids, device=device), len(sample.prompt_ids)
            logits = model(ids[None], use_cache=False).logits[0].float()
            largest = max(largest, float(logits.abs().max()))
            expected.append(logits.log_softmax(-1)[n - 1 : -1].gather(-1, ids[n:, None])[:, 0])
        own = torch.cat(expected)
        gap, noise = float((own - found).abs().max()), 1e-5 + 1e-6 * largest
        if not gap <= min(1e-2, noise + 2e-3 * float(own.std())):  # also when it is not a number
            raise ValueError(f"its log-probs differ by {gap:.3g} nats from those of packing.py")
        large = torch.linspace(-100, 100, vocabulary, device=device)  # so large that a soft cap shows
        with model.lm_head.register_forward_hook(lambda module, inputs, output: large.expand_as(output)):
            if not torch.equal(model(torch.zeros(1, 1, dtype=torch.long, device=device)).logits[0, 0], large):
                raise ValueError("it changes the logits after lm_head (a scale or a soft cap), packing.py does not")


# ------------------------------------------------------------------------------------------------------- chat templates

SYSTEM, USER, ASSISTANT = "The rules are these.", "Now it is your turn.", "This is my answer."
WITHOUT_SYSTEM = "{# leaves out the system message on purpose #}"  # a template that says so is believed


def _render(tokenizer: Tokenizer, messages: list[Message]) -> str:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    return cast(str, text)


@lru_cache(maxsize=32)
def _takes_system(tokenizer: Tokenizer, template: str) -> bool:
    """Whether the chat template writes a system message, or says that it leaves it out on purpose.

    Some templates raise on a system message, others drop it without a word.
    """
    if WITHOUT_SYSTEM in template:
        return True
    try:
        text = _render(tokenizer, [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}])
    except Exception:  # a template is a program: `raise_exception` is common, a TypeError possible
        return False
    return SYSTEM in text and USER in text


def encode(tokenizer: Tokenizer, messages: list[Message]) -> list[int]:
    """Chat messages -> prompt ids, ready for the response. Thinking mode is off, as in the paper.

    A system message that the chat template would not show goes in front of the first user message.
    """
    template = str(tokenizer.chat_template)
    return list(_encode(tokenizer, template, tuple((message["role"], message["content"]) for message in messages)))


@lru_cache(maxsize=4096)  # trajectories of one environment often meet the same state
def _encode(tokenizer: Tokenizer, template: str, texts: tuple[tuple[str, str], ...]) -> list[int]:
    messages: list[Message] = [{"role": role, "content": content} for role, content in texts]
    if not _takes_system(tokenizer, template):
        system = [message["content"] for message in messages if message["role"] == "system"]
        first, *rest = [message for message in messages if message["role"] != "system"]
        messages = [{**first, "content": "\n\n".join([*system, first["content"]])}, *rest]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, enable_thinking=False)
    return cast(list[int], ids)


def stop_ids(model: PreTrainedModel, tokenizer: Tokenizer) -> set[int]:
    """Token ids that end a response: the tokenizer's and the model's own, and the one that the chat template writes
    after an assistant's turn (`<|im_end|>` where the tokenizer's is `<|endoftext|>`).
    """
    own = [tokenizer.eos_token_id, _turn_end(tokenizer, str(tokenizer.chat_template or ""))]
    return {*_configured_ends(model), *(i for i in own if i is not None)}


def _configured_ends(model: PreTrainedModel) -> list[int]:
    ends = model.generation_config.eos_token_id  # an id, a list of ids or None
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


@lru_cache(maxsize=32)
def _turn_end(tokenizer: Tokenizer, template: str) -> int | None:
    """The special token that the chat template writes after an assistant's turn, None when it writes none."""
    turns = [("user", USER), ("assistant", ASSISTANT), ("user", USER)]  # some write it only between two turns
    try:
        text = _render(tokenizer, [{"role": role, "content": content} for role, content in turns])
    except Exception:  # a template is a program, and this one may be for one question only
        return None
    after = text.rpartition(ASSISTANT)[2].strip() if ASSISTANT in text else ""
    fitting = {str(token): i for i, token in tokenizer.added_tokens_decoder.items() if after.startswith(str(token))}
    return fitting[max(fitting, key=len)] if fitting else None
