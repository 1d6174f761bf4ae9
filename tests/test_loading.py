"""Loading a model: what packing computes is loaded, anything else is refused in one line that names the model."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers import random_model

from model import tiny
from model.chat import stop_ids
from model.loading import load_model


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def save(folder, kind="qwen3", **options):
    """A small random model of any architecture of transformers, with its tokenizer."""
    tokenizer = tiny.build_tokenizer()
    fitting = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    random_model(kind, **{**fitting, **options}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def refusal(source):
    """The reason, after a check that it is one line which names the model."""
    with pytest.raises(ValueError, match=r"^--model ") as error:
        load_model(str(source))
    start = f"--model {source}: "
    text = str(error.value)
    assert text.startswith(start)
    assert "\n" not in text
    return text.removeprefix(start)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("qwen3", {"head_dim": 6}),
        ("qwen2", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2}),  # a window of no layer
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
        ("olmo2", {}),
    ],
)
def test_what_packing_computes_is_loaded(tmp_path, kind, options):
    model, tokenizer = load_model(str(save(tmp_path, kind, **options)))
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert stop_ids(model, tokenizer) == {tokenizer.eos_token_id}


FULL = {"layer_types": ["full_attention"] * 2}


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("gpt2", {}, "GPT2LMHeadModel is not built like Llama"),
        ("xglm", {"activation_function": "relu"}, "0 of 2 layers"),  # learned positions, attention of its own
        ("phi", {}, "lm_head without bias"),
        ("mistral", {"sliding_window": 8}, "sliding_window=8"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, "sliding_attention"),
        ("gemma2", {}, "sliding_attention"),
        ("gemma2", FULL, "softcap=50"),
        ("gemma2", {**FULL, "attn_logit_softcapping": None}, "after lm_head"),
        ("gpt_oss", {**FULL, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 4}, "attention with s_aux"),
        ("cohere", {}, "log-probs differ"),  # a logit scale
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "kind dynamic"),
    ],
)
def test_what_packing_does_not_compute_is_refused(tmp_path, kind, options, reason):
    assert reason in refusal(save(tmp_path, kind, **options))


@pytest.mark.parametrize("rows", [-1, 0, 64])
def test_the_embedding_covers_the_tokenizer(tmp_path, rows):
    tokens = len(tiny.build_tokenizer())
    folder = save(tmp_path, "llama", vocab_size=tokens + rows)
    if rows < 0:
        assert f"{tokens} tokens, its embedding only {tokens - 1} rows" in refusal(folder)
    else:
        assert load_model(str(folder))[0].config.vocab_size == tokens + rows


@pytest.mark.parametrize("name", ["./nothing", "/nothing", "~/x", "nothing/", "tests/nothing", "runs/typo", ""])
def test_a_path_that_does_not_exist_is_refused_at_once(name, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    assert "no such folder" in refusal(name)
    assert "no model that transformers can load" in refusal("nobody/has-this-model")


# kind of damage -> (file or "w" for weights: its new content, words of the line; the others are those of transformers)
DAMAGES = {
    "no configuration": ({"config.json": None}, ""),
    "broken configuration": ({"config.json": b"{"}, "config.json"),
    "a cut file of weights": ({"model.safetensors": lambda content: content[:-1]}, ""),
    "only a pickle": ({"model.safetensors": None, "pytorch_model.bin": b"cos\nsystem\n."}, "safetensors"),
    "a weight is missing": ({"w": lambda w: w.pop("model.layers.1.mlp.up_proj.weight")}, "layers.1.mlp.up_proj"),
    "a weight too many": ({"w": lambda w: w.update(x=w["model.norm.weight"].clone())}, "1 weights, the first is x"),
    "no number": ({"w": lambda w: w["model.norm.weight"].fill_(float("nan"))}, "has values that are not finite"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(tmp_path, kind):
    folder, (changes, words) = save(tmp_path / "model", head_dim=6), DAMAGES[kind]
    for name, change in changes.items():
        path = folder / ("model.safetensors" if name == "w" else name)
        if name == "w":
            weights = safetensors.torch.load_file(path)
            change(weights)
            safetensors.torch.save_file(weights, path, metadata={"format": "pt"})
        elif change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()) if callable(change) else change)
    assert words in refusal(folder)
