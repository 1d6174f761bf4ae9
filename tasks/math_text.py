r"""One spelling for a mathematical answer: `clean` undoes what LaTeX, keyboards and people spell in many ways.

    clean(r"\left( \dfrac12, 3\text{ cm} \right)")  ->  r'( \frac { 1 } { 2 } , 3 "cm )'

The result is a row of tokens between single blanks, which `math_rules.py` reads:

| token | what it is |
|---|---|
| `12` `0.5` `1e-7` | a number, as written |
| `x` `\alpha` | a letter; letters side by side are a product, and so are the lower-case letters of `2ab` |
| `"cm` `"odd` `"ABC` | a word or name of several letters, which is never read as a product |
| `\frac` `+` `'` | all other commands and marks, known or not: nothing that carries meaning is dropped |

Every step takes time proportional to the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any

# ----------------------------------------------------------------------------------------------------------- characters

_LATEX = (  # a character and its LaTeX
    r"−- ×\times ·\cdot ⋅\cdot ÷/ ∕/ ∞\infty ≤\le ≥\ge ⩽\le ⩾\ge ≦\le ≧\ge ≠\ne °^\circ º^\circ ±\pm ∓\mp "
    r"∪\cup ∩\cap ∈\in ∅\emptyset ∣| ∶: ′' ∧\land ∨\lor ℝ\mathbb{R} ⌊\lfloor ⌋\rfloor ⌈\lceil ⌉\rceil ≈\approx √\sqrt "
    r"∛\sqrt[3] ∜\sqrt[4]"
)
_CHARACTERS = str.maketrans({entry[0]: entry[1:] + " " for entry in _LATEX.split()})


def _plain_characters(text: str) -> str:
    """Raised and lowered characters as shifts, fractions and Greek letters as commands; Unicode's NFKC for the rest."""

    def plain(form: str) -> str:
        return unicodedata.normalize("NFKC", form)

    def greek(letter: re.Match[str]) -> str:
        name = unicodedata.name(letter[0]).split()[-1]
        return "\\" + (name.lower() if letter[0].islower() else name.capitalize()) + " "

    text = re.sub(r"([√∛∜]) ?([0-9]+)", r"\1{\2}", text).translate(_CHARACTERS)
    text = re.sub("[²³¹ʰ-ʸˠ-ˤ⁰-ⁿ]+", lambda shifted: f"^{{{plain(shifted[0])}}}", text)
    text = re.sub("[₀-ₜ]+", lambda shifted: f"_{{{plain(shifted[0])}}}", text)
    text = re.sub("[¼½¾⅐-⅞]", lambda part: r"\frac{{{}}}{{{}}}".format(*plain(part[0]).split("⁄")), text)
    return re.sub("[α-ωΑ-Ω]", greek, plain(text)).translate(_CHARACTERS)


# ------------------------------------------------------------------------------------------------------------ spellings

_SYNONYMS = (  # commands, and the token that they mean; layout is no token
    r"left right middle big Big bigg Bigg bigl bigr Bigl Bigr displaystyle limits quad qquad: dfrac tfrac cfrac:\frac "
    r"dbinom tbinom:\binom lbrace:\{ rbrace:\} vert lvert rvert mid:| div:/ lt:< gt:> "
    r"leq leqslant:\le geq geqslant:\ge neq:\ne vee:\lor wedge:\land ldots cdots:\dots varnothing:\emptyset"
)
_TOKENS = {"$": '"dollar', r"\$": '"dollar', "€": '"euro', "£": '"pound-sterling', "¥": '"yen', r"\%": "%"}
_TOKENS |= {"<=": r"\le", ">=": r"\ge", "+/-": r"\pm", "**": "^", "...": r"\dots"}
_TOKENS |= {"\\" + name: token for names, token in re.findall(r"([\w ]+):(\S*)", _SYNONYMS) for name in names.split()}
FUNCTIONS = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt gcd lcm floor ceil"
_BARE = {"pi": r"\pi", "infinity": r"\infty", "infty": r"\infty", "oo": r"\infty", "percent": "%", "sign": '"sgn'}
_BARE |= {name: "\\" + name for name in FUNCTIONS.split() if name != "sec"}  # seconds


def _repeating(match: re.Match[str]) -> str:
    """0.1\\overline{6} as a fraction."""
    fixed, whole = match[1] + match[2], match[1] + match[2] + match[3]
    return rf"\frac{{{int(whole) - int(fixed)}}}{{{'9' * len(match[3]) + '0' * len(match[2])}}}"


# Blanks are single by now, so ` ?` is enough, and no pattern scans a row of blanks twice.
_SPELLINGS: list[tuple[re.Pattern[str], Any]] = [  # the replacement is a text or a function
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\! ?", ""),
        (r"\{,\}", ","),
        (r"(?<!\\)\\[,;: ()\[\]]|~", " "),  # not in the \\ between rows of a matrix
        (r"\\math(?:bf|sf|tt|it) ?\{([0-9]+)\}|\\mathit ?\{([A-Za-z])\}", r"\1\2"),
        (r"\\mathbb ?\{ ?([A-Z]) ?\}", r"\\mathbb \1"),
        (r"\\mathbb ?R(?![a-zA-Z])", r"\\reals "),
        (r"\\\{ ?\\\}", r"\\emptyset "),
        (r"(?<= )!=", r"\\ne "),
        (r"(?:\\operatorname ?\{ ?abs ?\}|(?<![a-zA-Z\\])abs) ?\(([^()|]*)\)", r"|\1|"),
        (r"([0-9]{1,30})\.([0-9]{0,30})\\(?:overline|bar|dot) ?\{([0-9]{1,30})\}", _repeating),
        (r"(^|[(\[{,=]) ?–", r"\1-"),  # a dash between two numbers is a range, not a difference
        (r"(\\(?:[dtc]?frac|sqrt(?: ?\[[0-9]+\])?)) ?([0-9a-zA-Z]|\\pi(?![a-zA-Z]))", r"\1{\2}"),  # \frac12
        (r"(\\[dtc]?frac ?\{(?:[^{}]|\{[^{}]*\})*\}) ?([0-9a-zA-Z]|\\pi(?![a-zA-Z]))", r"\1{\2}"),
        (r"^([^{}]+)\\over(?![a-zA-Z])([^{}]+)$", r"\\frac{\1}{\2}"),
        (r"(?<![0-9.])([0-9]+) ([0-9]+)/([0-9]+)(?![0-9.a-zA-Z])", r"\1\\frac{\2}{\3}"),
        (r"\\begin ?\{(?:[bp]|small)?matrix\}|[\[(] ?\\begin ?\{array\} ?\{[lcr]*\}", r"\\matrix "),
        (r"\\end ?\{(?:[bp]|small)?matrix\}|\\end ?\{array\} ?(?:\\right)? ?[\])]", r"\\endmatrix "),
        (r"(\\(?:sin|cos|tan|cot|sec|csc) ?[({]?) ?([0-9]+) ?\^ ?\{? ?\\circ ?\}?", r"\1\\frac{\2\\pi}{180}"),
        (r"\^ ?\{? ?\\circ ?\}? ?(?:C\b|\\(?:text|mathrm) ?\{ ?C ?\})", r"\\text{celsius}"),
        (r"\^ ?\{? ?\\circ ?\}? ?(?:F\b|\\(?:text|mathrm) ?\{ ?F ?\})", r"\\text{fahrenheit}"),
        (r"\^ ?\{? ?\\circ(?![a-zA-Z]) ?\}?|\\degree(?![a-zA-Z])", r"\\text{deg}"),
        (r"\( ?(?:\\text ?\{ ?)?\\?[bp]?mod ?\}? ?\{? ?(\w+) ?\}? ?\)|\\pmod ?\{? ?(\w+) ?\}?", r"\\pmod \1\2 "),
        (r"(?<=[0-9 {])([apAP])\. ?[mM]\b\.?", lambda half: half[1].lower() + "m"),
    ]
]
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9]|,[0-9])|\b[1-9][0-9]{0,2}(?: [0-9]{3})+\b")
_BOLD = re.compile(r"\\(?:mathbf|mathsf|mathtt|boldsymbol|bm) ?\{ ?([A-Za-z]) ?\}")
_TOKEN = re.compile(
    r"\\(?:text[a-z]*|mbox|hbox|mathrm|operatorname\*?) ?\{(?P<text>[^{}]*)\}"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3}(?![0-9.]))?|\.[0-9]+)"
    r"|(?P<run>[^\W\d_]+)|\\[a-zA-Z]+|\\.|<=|>=|\+/-|\*\*|\.\.\.|\S"
)
_SMALL_WORDS = "is are or and odd even if for all no not yes than the of an at to by any per ten one two six am pm"


@lru_cache(maxsize=4096)
def clean(text: str) -> str:
    """One spelling for what LaTeX and people spell in many ways: tokens between blanks (see the top of this file)."""
    if not text.isascii():
        text = _plain_characters(text)
    text = " ".join(text.split())
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    if not re.search(r"[(\[]|\\\{", text):  # (100,200) is a pair, {100,200} a set
        text = _THOUSANDS.sub(lambda match: re.sub("[ ,]", "", match[0]), text)
    if len(re.findall(r"(?<!\\)\$", text)) % 2 == 0:  # $5$ is mathematics, $5 are dollars
        text = re.sub(r"(?<!\\)\$", " ", text)
    if len(_BOLD.findall(text)) == 1:  # one letter in another font; two may be vectors
        text = _BOLD.sub(r"\1", text)
    tokens: list[str] = []
    _read(" ".join(text.split()).strip(" ,;").removesuffix(".").rstrip(), tokens)
    if len(tokens) == 3 and re.fullmatch(r'\( "?[A-Za-z] \)', " ".join(tokens)):
        return tokens[1][-1]  # choice (C)
    return re.sub(r', ("or|"and)(?= )', r"\1", " ".join(tokens))


def _read(text: str, tokens: list[str], quoted: bool = False) -> None:
    r"""Appends the tokens of a text; `quoted` is the inside of \text{}, where letters are words."""
    for match in _TOKEN.finditer(text):
        run = match["run"]
        if match["text"] is not None:
            inside = match["text"].strip(" .,;:!?")
            # One letter is that letter in another font: 3\mathrm{e}^2. But 5\text{m} are metres.
            behind = bool(tokens) and (tokens[-1][0].isdigit() or tokens[-1] in (")", "}"))
            _read(inside, tokens, quoted=len(inside) > 1 or (behind and inside not in ("e", "i")))
        elif run is None:
            tokens += [token] if (token := _TOKENS.get(match[0], match[0])) else []
        elif run in _BARE:
            tokens.append(_BARE[run])
        elif quoted or not (run.isascii() and (len(run) == 1 or _is_product(text, *match.span(), tokens))):
            half = run in ("AM", "PM") and bool(tokens) and tokens[-1].isdigit()  # 11:00 AM
            tokens.append('"' + (run.lower() if half else run))
        else:
            tokens += run
        if len(tokens) > 2 and tokens[-2] == "/" and _unit_name(tokens[-3]) and _unit_name('"' + tokens[-1]):
            tokens[-1] = '"' + tokens[-1]  # km/h
        if len(tokens) > 3 and tokens[-4] in ("^", "_") and tokens[-3] == "{" and tokens[-1] == "}":
            tokens[-3:] = [tokens[-2]]  # x^{2} is x^2


def _is_product(text: str, start: int, end: int, tokens: list[str]) -> bool:
    """Are letters side by side a product, as in 2ab? Not as an answer of their own, beside words, or as a unit."""
    run, left, right = text[start:end], tokens[-1] if tokens else "", text[end : end + 2]
    if not run.islower() or len(run) > 4 or run in _SMALL_WORDS.split() or re.search("d.", run):  # dx
        return False
    gap = text[start - 1 : start] == " "
    if _unit_name('"' + run) and (gap or run in ("mm", "cm", "km", "kg")):  # 17cm, 5 in; but 5in and 3mg are products
        return False
    # xy(x+y), but not sgn(x+y)
    attached = (right[:1] in tuple("+-*/^_!|\\") and right != r"\}") or (right[:1] == "(" and len(run) == 2)
    words = (gap and (left[:1].isalnum() or left[:1] in ('"', ")", "}"))) or (right[:1] == " " and right[1:].isalpha())
    if words and not (attached and len(run) == 2):
        return False
    operand = left in tuple("+-*^_|{/") or left[:1].isdigit() or (left[:1] == "\\" and len(left) > 2)
    return attached or operand or right in (" +", " -", " *", " /")


# --------------------------------------------------------------------------------------------------------------- units

_UNIT_NAMES = (
    "mm millimeter millimetre, cm centimeter centimetre, m meter metre, km kilometer kilometre, in inch inches, "
    "ft foot feet, yd yard, mi mile, mg milligram, g gram gm, kg kilogram, t ton, oz ounce, lb pound, l L liter, "
    "ml mL milliliter, gal gallon, s sec second, min minute, h hr hour, day, week, month, yr year, deg degree, "
    "rad radian, dollar buck, cent, euro, rupee, yen, pound-sterling, unit, K kelvin, celsius, fahrenheit, "
    "N newton, J joule, W watt, V volt, Hz hertz, byte, bit, mph, kph kmh, square sq, cubic cu, squared, cubed, per"
)
_UNITS = {alias: names.split()[0] for names in _UNIT_NAMES.split(", ") for alias in names.split()}
_UNIT_SPELLINGS = {"per": "/", "squared": "^ 2", "cubed": "^ 3", "mph": "mi / h", "kph": "km / h"}


def _unit_name(token: str) -> str | None:
    """The one spelling of a unit's name, None for other tokens. Symbols keep their case: mg is not Mg."""
    word = token[1:]
    forms = (word, word.lower(), word.lower().removesuffix("s")) if len(word) > 3 else (word,)
    return next((_UNITS[form] for form in forms if token[0] == '"' and form in _UNITS), None)


def without_unit(tokens: list[str]) -> tuple[list[str], str]:
    """(["15"], "cm ^ 2") of 15 "cm ^ 2; tokens that end in no known unit, and begin with no currency, as they are."""
    sign = int(tokens[0] == "-")
    if re.match(r'"[\w-]+ (?:\d|\\frac)', " ".join(tokens[sign : sign + 2])) and tokens[sign] in _TOKENS.values():
        return tokens[:sign] + tokens[sign + 1 :], tokens[sign][1:]
    if tokens[-1] == "%" and len(tokens) > 1:
        return tokens[:-1], "%"
    start = len(tokens)
    while start > 1 and (_unit_name(tokens[start - 1]) or tokens[start - 1] in "/^23"):
        start -= 1
    while start < len(tokens) and not _unit_name(tokens[start]):
        start += 1
    names = [_unit_name(token) or token for token in tokens[start:]]
    if not names or names[0] in ("per", "squared", "cubed"):
        return tokens, ""
    unit = re.sub(r"(square|cubic) (\w+)", lambda m: f"{m[2]} ^ {2 if m[1] == 'square' else 3}", " ".join(names))
    return tokens[:start], " ".join(_UNIT_SPELLINGS.get(name, name) for name in unit.split(" "))
