"""Models of random weights in the shapes of Qwen3, for benchmarks: what they cost, not what they can do."""

import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM


def _shape(width: int, mlp: int, layers: int, heads: int, kv_heads: int, head: int, tied: bool = True) -> dict:
    return {
        "hidden_size": width, "intermediate_size": mlp, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head, "vocab_size": 151936, "tie_word_embeddings": tied,
    }  # fmt: skip


SHAPES = {
    "small": _shape(128, 256, 2, 4, 2, 32) | {"vocab_size": None},  # that of the tokenizer
    "qwen3-0.6b": _shape(1024, 3072, 28, 16, 8, 128),
    "qwen3-1.7b": _shape(2048, 6144, 28, 16, 8, 128),
    "qwen3-4b": _shape(2560, 9728, 36, 32, 8, 128),
    "qwen3-8b": _shape(4096, 12288, 36, 32, 8, 128, tied=False),
}


def random_model(
    shape: dict, device: str, tokenizer: PreTrainedTokenizerBase | None = None, context: int = 40960
) -> Qwen3ForCausalLM:
    """Float32, the same weights in every process; drawn on `device`, where that takes seconds also for 8B."""
    ends = {"bos_token_id": None, "pad_token_id": None, "eos_token_id": tokenizer.eos_token_id} if tokenizer else {}
    size = {"vocab_size": shape["vocab_size"] or len(tokenizer or ())}
    config = Qwen3Config(**{**shape, **size, **ends}, max_position_embeddings=context)
    torch.manual_seed(0)
    with torch.device(device):
        return Qwen3ForCausalLM(config)
