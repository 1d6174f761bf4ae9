"""Loading. A model that `update.py` would silently train wrongly is refused, in one line: `--model X: reason`."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import logging

from grouping import GroupKey, Sample
from model.attention import packed
from model.chat import Tokenizer, check_template, stop_ids
from model.chat import encode as encode  # where others look for it
from model.logprobs import token_logprobs
from model.packing import pack_samples


@contextmanager
def refusing(source: str, part: str = "") -> Iterator[None]:
    """Errors inside become a ValueError of one line that names the model and the part."""
    logging.set_verbosity_error()  # its warnings about weights and files are our errors
    try:
        yield
    except Exception as error:  # on a broken file the libraries raise anything: KeyError, RuntimeError, ...
        kind = "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
        raise ValueError(f"--model {source}: {' '.join(f'{part}{kind}{error}'.split())[:400]}") from None


def load_model(source: str) -> tuple[PreTrainedModel, Tokenizer]:
    """A model (float32, on the CPU) and its tokenizer from a hub id or a folder.

    ValueError when it cannot be loaded from safetensors, or trained: that needs plain full attention in every layer, a
    plain output head, and a tokenizer with a chat template.
    """
    folder = Path(source)
    near = "/" in source and (folder.parent.is_dir() or folder.parts[0] in ("runs", "~", ".."))  # no hub has these
    if not source or (near and not folder.is_dir()):
        raise ValueError(f"--model {source}: there is no such folder")
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    with refusing(source, "no model that transformers can load: "):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        loaded = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, attn_implementation="eager", output_loading_info=True,
            use_safetensors=True, trust_remote_code=False,  # neither pickles nor programs of other people
            ignore_mismatched_sizes=True,  # `check_weights` names them
        )  # fmt: skip
    with refusing(source):
        model, found = cast(tuple[PreTrainedModel, dict], loaded)
        check_template(tokenizer)
        check_weights(model, tokenizer, found)
        check_attention(model)
        check_logprobs(model)
        model.set_attn_implementation("sdpa")  # loaded as "eager", which all have: so a refusal says what is odd
    return model, tokenizer


def check_weights(model: PreTrainedModel, tokenizer: Tokenizer, found: dict) -> None:
    """All weights come from the files (missing ones would be random) and are finite; tokens have rows, some end."""
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    if names := sorted(str(name) for kind in kinds for name in found[kind]):
        raise ValueError(f"its weight files do not fit config.json: {len(names)} weights, the first is {names[0]}")
    for name, weight in model.named_parameters():
        if weight.dtype != torch.float32 or not torch.stack(weight.aminmax()).isfinite().all():
            raise ValueError(f"weight {name} ({weight.dtype}) is quantised or has values that are not finite")
    tokens = max(tokenizer.get_vocab().values()) + 1
    if tokens > (rows := len(cast(nn.Embedding, model.get_input_embeddings()).weight)):  # more rows are padding
        raise ValueError(f"its tokenizer has {tokens} tokens, its embedding only {rows} rows")
    if not stop_ids(model, tokenizer):
        raise ValueError("nothing ends a response: no end token in tokenizer, generation_config.json or chat template")


def checked(weights: Iterable[tuple[str, Tensor]], shapes: Mapping[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    """Pass on weights. ValueError on an unknown name, a wrong shape and, at the end, a missing name."""
    given = set()
    for name, weight in weights:
        if weight.shape != shapes.get(name):
            raise ValueError(f"{name} has the shape {[*weight.shape]}, expected {shapes.get(name)}")
        given.add(name)
        yield name, weight
    if missing := [name for name in shapes if name not in given]:
        raise ValueError(f"{len(missing)} weights were not given, the first is {missing[0]}")


HARMLESS = {"scaling", "dropout", "position_ids", "cache_position", "use_cache"}  # options of attention


@torch.no_grad()
def check_attention(model: PreTrainedModel) -> None:
    """Every layer must ask for plain causal attention: a window, say, would not show in the logits of a short text."""
    kind = type(model).__name__
    layers, head = getattr(getattr(model, "model", None), "layers", None), getattr(model, "lm_head", None)
    if not isinstance(layers, nn.ModuleList) or not isinstance(head, nn.Linear) or head.bias is not None:
        raise ValueError(f"{kind} is not built like Llama or Qwen: model.layers, and lm_head without bias")
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ValueError(f"{kind} has layers of kind {sorted(kinds)}, not plain full attention")
    rope = {str(getattr(module, "rope_type", "")) for module in model.modules()}
    if changing := sorted(name for name in rope if "dynamic" in name or name == "longrope"):
        raise ValueError(f"positions of kind {changing[0]}: they depend on the longest text of a pack")
    asked: list[dict] = []

    def listen(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None, **options):
        asked.append(options)
        return sdpa_attention_forward(module, q, k, v, attention_mask, scaling=options.get("scaling"))

    AttentionInterface.register("listen", listen)
    with packed(model, "listen"):
        model(torch.zeros(1, 4, dtype=torch.long), use_cache=False)
    if len(asked) != len(layers):
        raise ValueError(f"{kind}: {len(asked)} of {len(layers)} layers have an attention that can be packed")
    for name, value in [item for options in asked for item in options.items()]:
        if not (value is None or (name == "is_causal" and value) or name in HARMLESS or name.startswith("output_")):
            raise ValueError(f"{kind} has attention with {name}={value}, not plain full attention")


@torch.no_grad()
def check_logprobs(model: PreTrainedModel) -> None:
    """ValueError unless packed log-probs are the model's own: with a scaled head they are not."""
    vocabulary = len(model.lm_head.weight)
    some = [7 * i % vocabulary for i in range(25)]  # ids that do not repeat soon
    groups = [  # two prompts, two lengths; short, because a CPU computes them
        [Sample(GroupKey(0, 0, "check"), prompt, some[-n:], [0.0] * n, 0.0) for n in (3, 8)]
        for prompt in (some[:12], some[12:17])
    ]
    with packed(model):
        found = token_logprobs(model, pack_samples(groups))[0]
    samples = [*groups[0], *groups[1]]
    texts = [torch.tensor(sample.prompt_ids + sample.response_ids) for sample in samples]
    logits = model(pad_sequence(texts, batch_first=True), use_cache=False).logits.float()  # nothing looks to the right
    scores = zip(samples, texts, logits.log_softmax(-1).roll(1, 1), strict=True)  # each token's, at its own place
    own = torch.cat([row[range(len(ids)), ids][len(sample.prompt_ids) :] for sample, ids, row in scores])
    gap, noise = float((own - found).abs().max()), 1e-5 + 1e-6 * float(logits.abs().max())
    if not gap <= min(1e-2, noise + 2e-3 * float(own.std())):  # also when it is not a number
        raise ValueError(f"its log-probs differ by {gap:.3g} nats from those of packing.py")
    large = torch.linspace(-100, 100, vocabulary)  # so large that a soft cap shows
    with model.lm_head.register_forward_hook(lambda module, inputs, output: large.expand_as(output)):
        if not torch.equal(model(torch.zeros(1, 1, dtype=torch.long)).logits[0, 0], large):
            raise ValueError("it changes the logits after lm_head (a scale or a soft cap), packing.py does not")
