"""Chat templates, prompts and answers: what is said arrives as it was said, and nothing in it is a control token."""

import contextlib
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from model import tiny
from model.chat import check_template, decode, encode, stop_ids
from tasks.math_env import extract_answer

MESSAGES = [{"role": "system", "content": "the rules"}, {"role": "user", "content": "tool_user\n (1,2) x"}]
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def bytes_tokenizer(template=CHAT + ASKS, **options):
    """Every byte is a token, as in the tokenizers of Qwen and Llama 3 before merging."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(sorted(letters))}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return with_control_tokens(inner, template, **options)


def blanks_tokenizer(template=CHAT + ASKS, **options):
    """A text begins with a blank that is not there, as in the tokenizers of Llama 2."""
    vocabulary = {letter: i for i, letter in enumerate(["<unk>", "▁", *sorted(set(string.printable) - {" "})])}
    inner = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Metaspace(prepend_scheme="first")
    return with_control_tokens(inner, template, **options)


def with_control_tokens(inner, template, special=(), **options):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", chat_template=template,
        additional_special_tokens=["<|im_start|>", *special], **options,
    )  # fmt: skip
    tokenizer.add_tokens(["<think>", "</think>", "<|im_", "\n\n"])  # not special ones; the last controls nothing
    return tokenizer


FOLDED = "user the rules\n\ntool_user\n (1,2) x|<|assistant|>"
BODY = "{{ m.role }} {{ m.content }}|"
ASK = "{% if add_generation_prompt %}<|assistant|>{% endif %}"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (f"{{% for m in messages %}}{BODY}{{% endfor %}}", "system the rules|user tool_user\n (1,2) x|<|assistant|>"),
        (
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}"
            f"{{% endif %}}{BODY}{{% endfor %}}",
            FOLDED,
        ),
        (f"{{% for m in messages if m.role != 'system' %}}{BODY}{{% endfor %}}", FOLDED),
        (f"{{% set m = messages[-1] %}}{BODY}", FOLDED),
        (f"{{% if messages|length > 1 %}}{{{{ 1/0 }}}}{{% endif %}}{{% set m = messages[0] %}}{BODY}", FOLDED),
    ],
    ids=["shown", "raises", "dropped", "last only", "one message"],
)
def test_the_system_message_is_seen_whatever_the_template_does(template, shown):
    tokenizer = tiny.build_tokenizer()
    tokenizer.chat_template = template + ASK
    check_template(tokenizer)
    assert tokenizer.decode(encode(tokenizer, MESSAGES)) == shown
    alone = shown.replace("system the rules|", "").replace("the rules\n\n", "")
    assert tokenizer.decode(encode(tokenizer, MESSAGES[1:])) == alone


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "no chat template"),
        ("{% for %}", r"cannot be used \(TemplateSyntaxError"),
        ("hello" + ASKS, "leaves out the user message or changes it"),
        (CHAT.replace("m.content", "m.content | e") + ASKS, "changes it"),
        (CHAT.replace("m.content", "m.content.split() | join(' ')") + ASKS, "changes it"),
        (CHAT.replace("m.content", "m.content | replace('\n\n', '\n')") + ASKS, "changes it"),
        (CHAT, "no generation prompt"),
        (CHAT.replace("m.content", "m.content | replace('\\\\', '')") + ASKS, "changes it"),
        (CHAT.replace("m.content", "m.content | replace('é', 'e')") + ASKS, "changes it"),
        (CHAT + ASKS.replace("nt\n", "nt\n<think>\n1/2"), "opens <think>"),
        (CHAT + ASKS.replace("nt\n", "nt\n[THINK]"), "opens <think>"),
        (CHAT + ASKS.replace("nt\n", "nt\n<thought>\n"), "opens <think>"),
        (CHAT + "{% if add_generation_prompt %}<|im_start|>assistant\n<think></think>\n<think>{% endif %}", "opens"),
        (CHAT + ASKS, None),
        (CHAT.replace("m.content", "m.content | trim") + ASKS, None),
        (CHAT + ASKS.replace("nt\n", "nt\n<think>\n\n</think>\n\n"), None),  # Qwen3 with thinking off
        (CHAT + ASKS.replace("nt\n", "nt\n{% if enable_thinking %}<think>{% endif %}"), None),
        (
            "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
            "{{ m.content }}<|im_end|>{% endif %}{% endfor %}",  # an answer comes right after the question
            None,
        ),
    ],
)
def test_a_template_that_changes_what_is_said_is_refused(template, reason):
    with pytest.raises(ValueError, match=reason) if reason else contextlib.nullcontext():
        check_template(bytes_tokenizer(template))


def test_no_prompt_depends_on_the_date():
    tokenizer = bytes_tokenizer("{% set today = strftime_now('%d %b %Y') %}Today is {{ today }}.\n" + CHAT + ASKS)
    check_template(tokenizer)
    assert tokenizer.decode(encode(tokenizer, MESSAGES)).startswith("Today is 26 Jul 2024.\n<|im_start|>")


@pytest.mark.parametrize(
    ("end", "found"),
    [("<|im_end|>\n", "<|im_end|>"), ("  <|im_end|><|end|>", "<|im_end|>"), ("<|end|>", "<|end|>"), ("\n", "<|end|>")],
)
@pytest.mark.parametrize("last", [True, False], ids=["always", "between turns"])
def test_what_the_template_writes_after_an_answer_ends_a_response(end, found, last):
    text = end if last else f"{{% if not loop.last %}}{end}{{% endif %}}"
    model, tokenizer = tiny.build(0)
    tokenizer.chat_template = f"{{% for m in messages %}}{{{{ m.role }}}} {{{{ m.content }}}}{text}{{% endfor %}}" + ASK
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im|>", "<|im_end|>", "<|im_"]})
    assert stop_ids(model, tokenizer) == {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(found)}


PIECES = ["<|im_end|>", "<|im_start|>system\n", "<|im_<|im_end|>end|>", "<think>", "</think>", "<|im_", "<|im_end|",
          "\ufdd0", "<|im\ufdd0_end|>", "<", "x y", " ", "\n", "\n\n", "{{ x }}"]  # fmt: skip
TOKENIZERS = {"bytes": bytes_tokenizer(), "blanks": blanks_tokenizer()}


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(system=st.lists(st.sampled_from(PIECES)), user=st.lists(st.sampled_from(PIECES)))
def test_no_text_becomes_a_control_token(kind, system, user):
    """Whatever agents and data say: the text arrives whole, and the control tokens are those of the template."""
    tokenizer = TOKENIZERS[kind]
    control = {i for i, token in tokenizer.added_tokens_decoder.items() if str(token).strip()}
    texts = [{"role": "system", "content": "".join(system)}, {"role": "user", "content": "".join(user)}]
    ids = encode(tokenizer, texts)
    start, end = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))
    assert [i for i in ids if i in control] == [start, end, start, end, start]
    rendered = tokenizer.apply_chat_template(texts, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(ids) == rendered.replace("\ufdd0", "")


def test_the_graded_text_is_the_sampled_text():
    code = "print('a' , 'b') # one . two  do n't"
    tokenizer = bytes_tokenizer(clean_up_tokenization_spaces=True)
    ids, end = tokenizer(code).input_ids, tokenizer.eos_token_id
    assert decode(tokenizer, [*ids, end]) == decode(tokenizer, ids) == code
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")  # only the token that ends the turn is left out
    assert decode(tokenizer, [start, *ids, end, start, end]) == f"<|im_start|>{code}<|im_end|><|im_start|>"
    assert decode(tokenizer, []) == decode(tokenizer, [end]) == ""


@pytest.mark.parametrize("special", [(), ("<think>", "</think>")])
def test_marks_of_thought_do_not_vanish(special):
    tokenizer = bytes_tokenizer(special=special)
    said = r"<think>It may be \boxed{5}.</think> I give up."
    text = decode(tokenizer, [*tokenizer(said).input_ids, tokenizer.eos_token_id])
    assert text == said
    assert extract_answer(text) is None
