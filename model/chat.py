"""Messages to token ids and back, what ends a response. What agents and data say is text, never a control token."""

import re
from functools import lru_cache, partial

from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from envs import Message

Turns = tuple[tuple[str, str], ...]  # (role, content) of each message
SYSTEM = "The rules:  <a> & <b>.\n\n    Go  on."
USER = "Is  a < b && 'c' > \"d\"?\n\n    if a:  # go\n\n\treturn {{ b }} \\frac $é$"  # what templates change
ANSWER = "This is my answer."
QUESTION: Turns = (("user", USER),)
ANSWERED: Turns = (*QUESTION, ("assistant", ANSWER), *QUESTION)  # some templates end a turn only before the next
WITHOUT_SYSTEM = "{# leaves out the system message on purpose #}"  # a template that says so is believed
DATE = "{%- macro strftime_now(format) -%}26 Jul 2024{%- endmacro -%}"  # always the same: Llama's own default
CUT = "\ufdd0"  # marks a place inside a control token: no text has this character


def check_template(tokenizer: Tokenizer) -> None:
    """ValueError unless the chat template writes a user message as it is and then lets the model answer."""
    if not tokenizer.chat_template:
        raise ValueError("its tokenizer has no chat template; choose an instruction-tuned model")
    try:
        prompt, question = _render(tokenizer, QUESTION), _render(tokenizer, QUESTION, ask=False)
    except Exception as error:  # a template is a program and can raise anything
        raise ValueError(f"its chat template cannot be used ({type(error).__name__}: {error})") from None
    if USER not in prompt:
        raise ValueError("its chat template leaves out the user message or changes it")
    if re.search(r"(?is)[<[◁](?:seed:)?(?:think|thought|reason)(?!.*[<[◁]/)", prompt):  # and nothing closes it
        raise ValueError("its chat template opens <think> in the prompt: thoughts could not be told from answers")
    answered = _try(tokenizer, ANSWERED)  # where questions end with [/INST], the answer comes right after the prompt
    goes_on = answered.startswith(prompt) and answered[len(prompt) :].lstrip().startswith(ANSWER)
    if prompt == question and not goes_on:
        raise ValueError("its chat template has no generation prompt: the model would not know its turn")


def _render(tokenizer: Tokenizer, turns: Turns, ask: bool = True) -> str:
    text = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in turns], tokenize=False, add_generation_prompt=ask,
        chat_template=DATE + tokenizer.get_chat_template(), enable_thinking=False,
    )  # fmt: skip
    return str(text)


def _try(tokenizer: Tokenizer, turns: Turns) -> str:
    """The same, "" where the template raises: on a system message, on a second question."""
    try:
        return _render(tokenizer, turns)
    except Exception:  # `raise_exception` is common, a TypeError possible
        return ""


def encode(tokenizer: Tokenizer, messages: list[Message]) -> list[int]:
    """Chat messages -> prompt ids. Thinking mode is off, as in the paper.

    A system message that the template leaves out goes before the first user message. Control tokens are spelled out.
    """
    turns = tuple((message["role"], message["content"]) for message in messages)
    return list(_encode(tokenizer, str(tokenizer.chat_template), turns))


@lru_cache(maxsize=4096)  # trajectories of one environment often meet the same state
def _encode(tokenizer: Tokenizer, template: str, turns: Turns) -> list[int]:
    said = [(role, _cut(tokenizer, content)) for role, content in turns]
    shown = _try(tokenizer, (("system", SYSTEM), *QUESTION))
    if WITHOUT_SYSTEM not in template and not (SYSTEM in shown and USER in shown):
        system = [content for role, content in said if role == "system"]
        (role, content), *rest = [turn for turn in said if turn[0] != "system"]
        said = [(role, "\n\n".join([*system, content])), *rest]
    start, *others = _render(tokenizer, tuple(said)).split(CUT)
    plain = partial(tokenizer.encode, add_special_tokens=False)
    ids, newline = plain(start), plain("\n")
    for text in others:  # after a newline, or SentencePiece would begin each of them with a blank
        after = plain("\n" + text)
        ids += after[len(newline) :] if after[: len(newline)] == newline else plain(text)
    return ids


def _cut(tokenizer: Tokenizer, text: str) -> str:
    """CUT after the first character of every control token, so that neither part of it is one."""
    text = text.replace(CUT, "")
    found = "|".join(re.escape(token) for token in _control_tokens(tokenizer) if token in text)
    return re.sub(f"(?=(?:{found}))(.)", rf"\1{CUT}", text, flags=re.DOTALL) if found else text


def _control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Text -> id of what was added to the plain vocabulary, without the runs of blanks that some add."""
    added = {str(token): i for i, token in tokenizer.added_tokens_decoder.items()}
    return {token: i for token, i in added.items() if len(token) > 1 and not token.isspace()}


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Response ids -> the text that is graded: all that was sampled, control tokens too, but for the one at the end."""
    ends = {*_ends(tokenizer, str(tokenizer.chat_template)), tokenizer.pad_token_id}
    said = ids[:-1] if ids and ids[-1] in ends else ids
    return str(tokenizer.decode(said, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def stop_ids(model: PreTrainedModel, tokenizer: Tokenizer) -> set[int]:
    """Token ids that end a response: the tokenizer's, the model's, and what the template writes after an answer."""
    own = model.generation_config.eos_token_id  # an id, a list of ids or None
    ends = {*_ends(tokenizer, str(tokenizer.chat_template)), *(own if isinstance(own, list) else [own])}
    return {i for i in ends if i is not None}


@lru_cache(maxsize=32)
def _ends(tokenizer: Tokenizer, template: str) -> set[int | None]:
    """The tokenizer's end token, and the control token that the template writes after an answer."""
    _, answer, after = _try(tokenizer, ANSWERED).rpartition(ANSWER)
    tokens = _control_tokens(tokenizer)
    fitting = [token for token in tokens if answer and after.strip().startswith(token)]
    return {tokenizer.eos_token_id, tokens[max(fitting, key=len)] if fitting else None}
