"""Loading a model: what packing computes is loaded, anything else is refused in one line that names the model."""

import copy
import json
import random
import re
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers import small_model, small_policy
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from model import tiny
from model.loading import check_logprobs, encode, load_model, stop_ids
from model.policy import Policy, make_optimizer, make_policy

MESSAGES = [{"role": "system", "content": "the rules"}, {"role": "user", "content": "tool_user\n (1,2) x"}]
TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m.role }} {{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def make_tokenizer(template=TEMPLATE, **tokens):
    tokenizer = tiny.build_tokenizer()
    tokenizer.chat_template = template
    tokenizer.add_special_tokens(tokens)
    return tokenizer


def save(folder, kind="qwen3", tokenizer=None, **options):
    """A small random model of any architecture of transformers, with its tokenizer."""
    tokenizer = tokenizer or make_tokenizer()
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0,
        "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **options}))
    model.save_pretrained(folder)
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


# --------------------------------------------------------------------------------------------------------- architecture


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
        ("gpt_neox", {}, "GPTNeoXForCausalLM is not built like Llama"),
        ("opt", {}, "OPTForCausalLM is not built like Llama"),
        ("xglm", {"activation_function": "relu"}, "0 of 2 layers"),  # learned positions, attention of its own
        ("phi", {}, "lm_head without bias"),
        ("mistral", {"sliding_window": 8}, "sliding_window=8"),
        ("mistral", {"sliding_window": 100_000}, "sliding_window=100000"),  # longer than any check could be
        ("phi3", {"sliding_window": 100}, "sliding_window=100"),
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


def test_a_window_in_one_layer_of_several_is_found(tmp_path):
    folder = save(tmp_path, "qwen3", head_dim=6, num_hidden_layers=3)
    config = json.loads((folder / "config.json").read_text())
    config |= {"use_sliding_window": True, "sliding_window": 99_999, "layer_types": ["full_attention"] * 3}
    for layer in range(3):
        config["layer_types"][layer] = "sliding_attention"
        (folder / "config.json").write_text(json.dumps(config))
        assert "sliding_attention" in refusal(folder)
        config["layer_types"][layer] = "full_attention"


def test_a_model_with_another_attention_is_refused(tmp_path):
    config = Qwen2Config(
        vocab_size=421, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, use_sliding_window=True, sliding_window=8, max_window_layers=1,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = 4
    Policy("p", model, tiny.build_tokenizer(), make_optimizer(model, 1e-3)).save(tmp_path)
    with pytest.raises(ValueError, match=r"--model .* full attention"):
        make_policy("p", *load_model(str(tmp_path)), 1e-3)


@pytest.mark.parametrize("change", ["scale", "bias"])
def test_a_model_whose_head_is_not_plain_is_refused_by_name(change):
    model = small_model()
    check_logprobs("plain", model)
    forward = model.forward

    def changed(*args, **kwargs):
        out = forward(*args, **kwargs)
        out.logits = out.logits * 3 if change == "scale" else out.logits + torch.arange(out.logits.shape[-1]) % 3
        return out

    model.forward = changed
    with pytest.raises(ValueError, match="--model odd: its log-probs differ"):
        check_logprobs("odd", model)


@pytest.mark.parametrize("cap", [30.0, 1e4])
def test_a_soft_cap_is_found_though_the_logits_are_small(cap):
    model = small_model()
    forward = model.forward

    def capped(*args, **kwargs):
        out = forward(*args, **kwargs)
        out.logits = torch.tanh(out.logits / cap) * cap
        return out

    model.forward = capped
    for weight in model.parameters():
        weight.data.mul_(0.05)
    with pytest.raises(ValueError, match=r"--model odd: .*soft cap"):
        check_logprobs("odd", model)


def test_log_probs_that_are_no_numbers_are_refused():
    model = small_model()
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"--model odd: .*nan"):
        check_logprobs("odd", model)


# ------------------------------------------------------------------------------------------------ tokens and templates


@pytest.mark.parametrize("rows", [-1, 0, 1, 64])
def test_the_embedding_covers_the_tokenizer(tmp_path, rows):
    tokenizer = make_tokenizer()
    folder = save(tmp_path, "llama", tokenizer, vocab_size=len(tokenizer) + rows)
    if rows < 0:
        reason = refusal(folder)
        assert f"{len(tokenizer)} tokens" in reason
        assert f"{len(tokenizer) - 1} rows" in reason
    else:
        model, loaded = load_model(str(folder))
        assert loaded.decode([len(tokenizer) + rows - 1], skip_special_tokens=True) == "" or rows == 0
        assert model.config.vocab_size == len(tokenizer) + rows


def test_the_ids_of_the_tiny_tokenizer_have_no_gap():
    vocabulary = tiny.build_tokenizer().get_vocab()
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert vocabulary[" (7,6)"] == len(vocabulary) - 1  # as ever; only the last cell has moved, its id had no weight


def test_a_model_without_chat_template_is_refused(tmp_path):
    policy = small_policy()
    policy.tokenizer.chat_template = None
    policy.save(tmp_path)
    with pytest.raises(ValueError, match=r"--model .* chat template"):
        make_policy("p", *load_model(str(tmp_path)), 1e-3)


FOLDED = "user the rules\n\ntool_user\n (1,2) x|"
BODY = "{{ m.role }} {{ m.content }}|"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (f"{{% for m in messages %}}{BODY}{{% endfor %}}", "system the rules|user tool_user\n (1,2) x|"),
        (
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}"
            f"{{% endif %}}{BODY}{{% endfor %}}",
            FOLDED,
        ),
        (f"{{% for m in messages if m.role != 'system' %}}{BODY}{{% endfor %}}", FOLDED),
        (f"{{% set m = messages[-1] %}}{BODY}", FOLDED),
        (f"{{% set m = messages[0] %}}{BODY}", FOLDED),
        (f"{{% if messages|length > 1 %}}{{{{ 1/0 }}}}{{% endif %}}{{% set m = messages[0] %}}{BODY}",
         FOLDED),
    ],
    ids=["shown", "raises", "dropped", "last only", "first only", "one message"],
)  # fmt: skip
def test_the_system_message_is_seen_whatever_the_template_does(tmp_path, template, shown):
    _, tokenizer = load_model(str(save(tmp_path, tokenizer=make_tokenizer(template), head_dim=6)))
    before = copy.deepcopy(MESSAGES)
    assert tokenizer.decode(encode(tokenizer, MESSAGES)) == shown
    assert before == MESSAGES
    assert tokenizer.decode(encode(tokenizer, MESSAGES[1:])) == shown.replace("system the rules|", "").replace(
        "the rules\n\n", ""
    )


def test_the_tiny_model_leaves_the_system_message_out_also_when_it_is_loaded(tmp_path):
    tokenizer = tiny.build_tokenizer()
    model = tiny.build_model(tokenizer, 0)
    Policy("tiny", model, tokenizer, make_optimizer(model, 1e-3)).save(tmp_path)
    loaded_model, loaded = load_model(str(tmp_path))
    for one in (tokenizer, loaded):
        assert one.decode(encode(one, MESSAGES)) == "<|user|>tool_user\n (1,2) x<|assistant|>"
    assert encode(loaded, MESSAGES) == encode(tokenizer, MESSAGES)
    assert stop_ids(loaded_model, loaded) == stop_ids(model, tokenizer) == {4}


@pytest.mark.parametrize(
    ("end", "found"),
    [("<|im_end|>\n", "<|im_end|>"), ("  <|im_end|><|end|>", "<|im_end|>"), ("<|end|>", "<|end|>"), ("\n", "<|end|>")],
)
@pytest.mark.parametrize("last", [True, False], ids=["always", "between turns"])
def test_what_the_template_writes_after_an_answer_ends_a_response(tmp_path, end, found, last):
    text = end if last else f"{{% if not loop.last %}}{end}{{% endif %}}"
    template = f"{{% for m in messages %}}{{{{ m.role }}}} {{{{ m.content }}}}{text}{{% endfor %}}"
    tokenizer = make_tokenizer(template, extra_special_tokens=["<|im|>", "<|im_end|>", "<|im_"])
    model, loaded = load_model(str(save(tmp_path, "llama", tokenizer)))
    assert stop_ids(model, loaded) == {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(found)}
    policy = make_policy("p", model, loaded, 1e-3)
    assert policy.stop_ids == stop_ids(model, loaded)


# -------------------------------------------------------------------------------------------------------------- folders


@pytest.mark.parametrize(
    "name",
    ["./nothing", "/nothing/there", "~/x", "a/b/c", "../no-such-model", "nothing/", "tests/nothing", ""],
)
def test_a_path_that_does_not_exist_is_refused_at_once(name, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    monkeypatch.setattr("model.loading.AutoConfig", None)  # nobody is asked
    assert "no such folder" in refusal(name)


def test_a_mistyped_run_is_no_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where there is no folder runs/
    monkeypatch.setattr("model.loading.AutoConfig", None)
    assert "no such folder" in refusal("runs/typo")


def test_a_hub_id_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no model that transformers can load" in refusal("nobody/has-this-model")
    (tmp_path / "file").write_text("x")
    assert refusal(tmp_path / "file") == "not a folder"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    tokenizer = make_tokenizer()
    return save(tmp_path_factory.mktemp("model"), "qwen3", tokenizer, head_dim=6, vocab_size=len(tokenizer) + 5)


def damages(folder):
    """(name of the file, what is done to it, its new content or None) for every file in many ways."""
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    for name, content in files.items():
        yield name, "deleted", None
        for junk in (b"", bytes(64), b"[]", b"null", b"{}", b'"x"', b"3", b"\xff\xfe", b"[" * 100_000, b"{" * 3):
            yield name, f"is {junk[:8]!r}", junk
        for share in (0.01, 0.3, 0.6, 0.9, 0.99):
            yield name, f"cut at {share}", content[: int(len(content) * share)]
        yield name, "cut by a byte", content[:-1]
        for other, instead in files.items():
            if other != name:
                yield name, f"is {other}", instead
        if name.endswith(".json"):
            yield from values(name, json.loads(content))
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    for weight, value in weights.items():
        others = {key: tensor for key, tensor in weights.items() if key != weight}
        changed = {
            "missing": others,
            "renamed": {**others, f"{weight}x": value},
            "extra": {**weights, f"{weight}x": value.clone()},
            "shorter": {**others, weight: value[:-1].clone()},
            "flat": {**others, weight: value.reshape(-1, 1).clone()},
            "whole numbers": {**others, weight: value.int()},
        }
        for number in ("nan", "inf", "-inf"):
            bad = value.clone()
            bad.view(-1)[-1] = float(number)
            changed[number] = {**others, weight: bad}
        for what, tensors in changed.items():
            yield "model.safetensors", f"{weight} {what}", safetensors.torch.save(tensors, metadata={"format": "pt"})


def values(name, document):
    """Every key (not every token) with values of the wrong type or none."""

    def walk(part, path):
        for key in list(part) if isinstance(part, dict) else range(min(len(part), 2)):
            yield [*path, key]
            if isinstance(part[key], (dict, list)) and key != "vocab":
                yield from walk(part[key], [*path, key])

    for path in list(walk(document, [])):
        wrong: list = ["deleted", None, "x", [], {}, -1, 1.5, True, 10**30, float("nan"), [1, "a", None]]
        part = document
        for key in path[:-1]:
            part = part[key]
        before = copy.copy(part)
        for value in wrong:
            part[path[-1]] = value
            if value == "deleted":
                del part[path[-1]]
            yield name, f"{path} = {value!r}", json.dumps(document).encode()
            part.clear()
            part.extend(before) if isinstance(part, list) else part.update(before)


# What another value of the right type changes, nobody can notice: these settings differ from model to model.
SETTINGS = re.compile(
    r"rms_norm_eps|rope_theta|eos_token|pad_token|unk_token|added_tokens|special_tokens|pre_tokenizer|decoder|"
    r"post_processor|'content'|cut at 0.6"
)


def check_damages(whole, tmp_path, chosen):
    """Each is refused in one line or changes nothing; returns how many of either."""

    def outcome(folder):
        model, tokenizer = load_model(str(folder))
        with torch.no_grad():
            logits = model(torch.arange(3, 40)[None]).logits
        return logits, stop_ids(model, tokenizer), encode(tokenizer, MESSAGES)

    logits, ends, ids = outcome(whole)
    reasons: list[tuple[str, str, str, str]] = []
    same = settings = 0
    for i, (name, what, content) in enumerate(damages(whole)):
        if not chosen(i):
            continue
        folder = tmp_path / "damaged"
        shutil.copytree(whole, folder)
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
        try:
            found = outcome(folder)
        except ValueError as error:
            reasons.append((str(error), f"--model {folder}: ", name, what))
        else:
            if torch.equal(found[0], logits) and found[1:] == (ends, ids):
                same += 1
            else:
                assert SETTINGS.search(what), (name, what)
                settings += 1
        shutil.rmtree(folder)
    assert [reason for reason in reasons if not reason[0].startswith(reason[1]) or "\n" in reason[0]] == []
    return len(reasons), same, settings


def test_a_damaged_folder_is_refused_or_changes_nothing(whole, tmp_path):
    rng = random.Random(0)
    refused, same, _ = check_damages(whole, tmp_path, lambda _: rng.random() < 0.03)
    assert refused > 20
    assert same > 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_damage_is_refused_or_changes_nothing(whole, tmp_path):
    refused, same, settings = check_damages(whole, tmp_path, lambda _: True)
    print(f"{refused} refused, {same} without effect, {settings} settings")
    assert refused > 1000


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", b"[1]", "config.json: a JSON object expected, found list"),
        ("config.json", b"{}", "config.json"),
        ("generation_config.json", b"{", "generation_config.json: not readable as JSON"),
        ("generation_config.json", b'{"eos_token_id": 100000}', "generation_config.json: eos_token_id 100000"),
        ("generation_config.json", b'{"eos_token_id": [4, "x"]}', "generation_config.json: eos_token_id 'x'"),
        ("generation_config.json", b'{"eos_token_id": 4, "max_new_tokens": -1}', "generation_config.json: `max_new"),
        ("generation_config.json", b'{"eos_token_id": 4, "pad_token_id": "x"}', "generation_config.json: TypeError"),
        ("tokenizer_config.json", None, "tokenizer_config.json is missing"),
        ("tokenizer_config.json", b"{}", "tokenizer_config.json: tokenizer_class is missing"),
        ("tokenizer.json", None, "tokenizer"),
        ("tokenizer.json", b"{}", "tokenizer"),
        ("model.safetensors", None, "model.safetensors"),
        ("model.safetensors", b"", "model.safetensors: "),
        ("chat_template.jinja", None, "chat template"),
        ("chat_template.jinja", b"{% for %}", "chat template cannot be used (TemplateSyntaxError"),
        ("chat_template.jinja", b"{{ 1/0 }}", "chat template cannot be used (ZeroDivisionError"),
        ("chat_template.jinja", b"{{ raise_exception('no') }}", "chat template cannot be used (TemplateError: no)"),
        ("chat_template.jinja", b"{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "chat template cannot be used"),
        ("chat_template.jinja", b"hello", "chat template leaves out the user message"),
    ],
)
def test_the_reason_names_the_file(whole, tmp_path, name, content, reason):
    folder = shutil.copytree(whole, tmp_path / "damaged")
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    assert reason in refusal(folder)


def test_a_shard_that_is_missing_or_cut_is_refused(whole, tmp_path):
    model, tokenizer = load_model(str(whole))
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    tokenizer.save_pretrained(tmp_path)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    load_model(str(tmp_path))
    content = shards[0].read_bytes()
    shards[0].write_bytes(content[:-1])
    assert shards[0].name in refusal(tmp_path)
    shards[0].unlink()
    assert shards[0].name in refusal(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    shards[0].write_bytes(content)
    index.write_text("{}")
    refusal(tmp_path)
