r"""One spelling for a mathematical answer: `clean` undoes what LaTeX, keyboards and people spell in many ways.

Nothing that carries meaning is dropped. Units stay here as `\text{cm}^2` (`without_units` takes known ones off where
values are compared), words become `\text{is odd}`, functions become commands (`\max`, `\sgn`), a percent sign is `%`.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any

# ----------------------------------------------------------------------------------------------------------- characters

_LATEX = (  # a character and its LaTeX
    r"−- –- ×\times ·\cdot ⋅\cdot ÷/ ∕/ π\pi ∞\infty ≤\le ≥\ge ⩽\le ⩾\ge ≦\le ≧\ge ≠\ne °^\circ º^\circ ±\pm ∓\mp "
    r"∪\cup ∩\cap ∈\in ∅\emptyset ∣| ∶: ′' ∧\land ∨\lor ℝ\mathbb{R} ℤ\mathbb{Z} ℕ\mathbb{N} ℚ\mathbb{Q} ℂ\mathbb{C} "
    r"⌊\lfloor ⌋\rfloor ⌈\lceil ⌉\rceil ≈\approx √\sqrt ∛\sqrt[3] ∜\sqrt[4]"
)
_CHARACTERS = str.maketrans({entry[0]: entry[1:] + " " for entry in _LATEX.split()})


def _plain_characters(text: str) -> str:
    """Full-width forms, fractions in one character, raised and lowered digits: Unicode NFKC, with LaTeX for shifts."""
    text = re.sub(r"([√∛∜])\s*(\d+)", r"\1{\2}", text).translate(_CHARACTERS)
    parts: list[str] = []
    raised = ""  # the command of the run we are in
    for character in text:
        form = unicodedata.normalize("NFKC", character)
        kind = unicodedata.decomposition(character).partition(">")[0]
        shift = {"<super": "^", "<sub": "_"}.get(kind, "") if len(form) == 1 else ""
        if raised and shift != raised:
            parts.append("}")
        if shift and shift != raised:
            parts.append(shift + "{")
        raised = shift
        top, slash, bottom = form.partition("⁄")
        parts.append(rf"\frac{{{top}}}{{{bottom}}}" if kind == "<fraction" and slash else form)
    return ("".join(parts) + "}" * bool(raised)).translate(_CHARACTERS)


# ------------------------------------------------------------------------------------------------------------ spellings

_FUNCTIONS = {  # how they are written, and the command that `math_values.py` reads
    **{name: name for name in ("max", "min", "gcd", "lcm", "sgn", "round", "floor", "ceil", "abs", "rem", "trunc")},
    "sign": "sgn", "signum": "sgn", "ceiling": "ceil", "mod": "mod", "nint": "round",
    **{name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "log", "ln")},
    "exp": "exp", "sqrt": "sqrt",
}  # fmt: skip
_FUNCTION = "|".join(sorted(_FUNCTIONS, key=len, reverse=True))
_COMPARED = r"(?:more|less|fewer|greater|larger|higher|lower|smaller|above|below|equal)"
_SPELLINGS: list[tuple[re.Pattern[str], Any]] = [  # the replacement is a text or a function
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\(?:left|right|middle|[bB]igg?[lr]?|displaystyle|limits|q?quad|phantom\{\})(?![a-zA-Z])|\\!\s*", ""),
        (r"\{,\}", ","),
        (r"(?<=\d)(?:\\[,;: ]|\s)(?=\d{3}(?!\d))", ","),  # 10\,080 and 10 080
        (r"(?<!\\)\\[,;: ]|~", " "),  # not in the \\ between rows of a matrix
        (r"(?<!\\)\\[()\[\]]|\\?[$£€]", ""),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\(?:mathbf|mathit|mathsf|mathtt|boldsymbol|bm)\s*\{([A-Za-z]|\d+)\}", r"\1"),  # a letter in another font
        (r"\\(?:mbox|hbox|text\w+|math(?:rm|it|bf|sf|tt)|operatorname\*?)\s*\{", r"\\text{"),
        (r"\\text\{\s*([+-]?[\d.:]+)\s+", r"\1\\text{"),  # \text{5 km}
        (r"\\mathbb\s*([A-Z])", r"\\mathbb{\1}"),
        (r"\\(?:lbrace|\{)\s*\\(?:rbrace|\})|\\varnothing", r"\\emptyset "),
        (r"\\lbrace", r"\\{"),
        (r"\\rbrace", r"\\}"),
        (r"\\langle", "("),
        (r"\\rangle", ")"),
        (r"\\[lr]?vert(?![a-zA-Z])|\\mid(?![a-zA-Z])", "|"),
        (r"\\colon(?![a-zA-Z])", ":"),
        (r"\\leq?(?:slant)?(?![a-zA-Z])|<=", r"\\le "),
        (r"\\geq?(?:slant)?(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\neq?(?![a-zA-Z])|!=", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\+\s*/\s*-", r"\\pm "),
        (r"\+\s*\\infty", r"\\infty"),
        (r"(?<![a-zA-Z\\])(?:infinity|infty|oo)(?![a-zA-Z])", r"\\infty"),
        (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        (r"\\text\{\s*\(\s*mod\s+(\w+)\s*\)\s*\}", r"\\text{modulo}\1"),
        (r"\(?\s*(?:\\p?mod|\\bmod|\\text\{\s*mod\s*\}|\bmod)\s*\{?\s*(\d+|[a-z])\s*\}?\s*\)", r"\\text{modulo}\1"),
        (r"\\pmod\s*\{?\s*(\d+|[a-z])\s*\}?", r"\\text{modulo}\1"),  # a residue class; x \bmod 3 is a function
        (r"\\bmod(?![a-zA-Z])", r"\\mod "),
        (r"\\equiv(?=.*\\text\{modulo\})", "="),
        (r"\\lfloor((?:(?!\\[lr](?:floor|ceil)).)*)\\rceil", r"\\round(\1)"),
        (rf"\\text\{{\s*({_FUNCTION})\s*\}}", lambda name: rf"\{_FUNCTIONS[name[1]]} "),
        (rf"(?<![a-zA-Z\\{{])({_FUNCTION})(?=\s*[({{\\])", lambda name: rf"\{_FUNCTIONS[name[1]]} "),
        (r"(\\sqrt(?:\[\d+\])?)\s*\(([^()]*)\)", r"\1{\2}"),
        (r"\*\*", "^"),
        (r"\\[lc]dots|\.\.\.", r"\\dots "),
        (r"(\w+!|\([^()]*\)!)\s*(?=\^)", r"(\1)"),  # the parser cannot read n!^2
        (r"[\[(]?\\begin\{(?:[bp]|small)?(?:matrix|array)\}(?:\{[^{}]*\})?", r"\\begin{pmatrix}"),
        (r"\\end\{(?:[bp]|small)?(?:matrix|array)\}[\])]?", r"\\end{pmatrix}"),
        (r"\s*\\?%|\s*\\text\{\s*(?:percent|percentage|pct)\s*\}|\s*\bpercent\b", "%"),
        # 30 degrees inside a trigonometric function is pi/6; everywhere else the sign is a unit
        (r"(\\(?:sin|cos|tan|cot|sec|csc)\s*[({]?)\s*(\d+)\s*\^\s*\{?\s*\\circ\s*\}?", r"\1\\frac{\2\\pi}{180}"),
        (r"\s*\^\s*\{?\s*\\(?:circ|degree)\s*\}?(?:\s*(?:[CF]\b|\\text\{\s*[CF]\s*\}))?|\\degree", ""),
        (rf",?\s*(?:\\text\{{\s*,?\s*or\s*\}}|\bor\b(?!\s+{_COMPARED})|\\lor\b|\\vee\b)\s*", r"\\cup "),
        (r",?\s*(?:\\text\{\s*,?\s*and\s*\}|\band\b|\\wedge\b)\s*", r"\\land "),
        (r"\\frac\s*([0-9a-zA-Z]|\\pi)", r"\\frac{\1}"),  # \frac12, \frac1{2}
        (r"(\\frac\s*\{[^{}]*\})\s*([0-9a-zA-Z]|\\pi)", r"\1{\2}"),  # \frac{1}2
        (r"(\\sqrt(?:\[\d+\])?)\s*([0-9a-zA-Z])", r"\1{\2}"),
    ]
]
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d]|,\d)")
_CLOCK_HALF = re.compile(  # 11:00 a.m., 5\text{ PM}
    r"(?<=\d)\s*(?:\\text\{\s*([ap])\.?\s?m\.?\s*\}|([ap])\.\s?m\b\.?)|(?<=:\d\d)\s*([ap])\.?m\b\.?", re.IGNORECASE
)


@lru_cache(maxsize=4096)
def clean(text: str) -> str:
    """One spelling for what LaTeX and people spell in many ways. Harmless text is left alone."""
    if not text.isascii():
        text = _plain_characters(text)
    text = re.sub(r"\s+", " ", text)
    if re.fullmatch(r"\s*-?\d+\s*", text):  # most answers: nothing to do
        return text.strip()
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    if not re.search(r"[(\[]|\\\{", text):  # (100,200) is a pair, {100,200} a set
        text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    text = _CLOCK_HALF.sub(lambda m: rf"\text{{{(m[1] or m[2] or m[3]).lower()}m}}", text)
    text = _mark_words(text.strip(" ,;").removesuffix(".").rstrip())
    about = [part.strip() for part in re.split(r"\\approx|≈", text) if part.strip()]
    if len(about) > 1:  # \sqrt2 \approx 1.41: the exact side counts; x \approx 1.41: the number
        text = about[1] if NAME.fullmatch(about[0]) else about[0]
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"(?<!\w) | (?!\w)", "", text)  # a space matters between words and digits only
    return re.sub(r"^(?:\(([A-Za-z])\)|\{([^{}]*)\})$", r"\1\2", text)  # choice (C), and {18}


# ------------------------------------------------------------------------------------------------------ words and units

_OPERATORS = (  # no value on their own, and no part of a name
    "sqrt|binom|log|ln|sin|cos|tan|cot|sec|csc|cup|cap|setminus|in|le|ge|ne|pm|mp|times|cdot|mid|land|div|to|sgn|round"
    "|floor|ceil|abs|rem|trunc|exp|mod|lfloor|rfloor|lceil|rceil|sum|prod|int|equiv|approx|neg|forall|exists"
)
_DECORATIONS = "frac|max|min|gcd|lcm|lim|dots|overline|hat|bar|vec|langle|rangle|circ"  # no value on their own
MARKS_ONLY = re.compile(rf"(?:\\(?:{_OPERATORS}|{_DECORATIONS})(?![a-zA-Z])|[^\w\\]|\\[^a-zA-Z]|_)*")
NAME = re.compile(
    rf"(?!.*\\(?:(?:{_OPERATORS}|pi|infty|emptyset|begin)(?![a-zA-Z])|(?:max|min|gcd|lcm)[({{\\]|frac\{{\d))(?!\|*$)"
    r"[A-Za-z|\\][A-Za-z\\{}_'| \d]*(?:\^\{?-1\}?)?(?:\([A-Za-z\\{}_, ]*\))?"  # x, a_{n}, |AB|, f(x), f^{-1}(x)
)
_SMALL_WORDS = "is are or and odd if for all no not yes than the of an at to by any per ten one two six"
_UNIT_NAMES = (
    "mm millimeter millimetre, cm centimeter centimetre, m meter metre, km kilometer kilometre, in inch inches, "
    "ft foot feet, yd yard, mi mile, mg milligram, g gram gm, kg kilogram kilo, t ton tonne, oz ounce, lb pound, "
    "ml mL milliliter millilitre, l L liter litre, gal gallon, quart, pint, s sec second, min minute, h hr hour, "
    "day, week, month, yr year, degree deg, rad radian, dollar buck, cent, euro, rupee, yen, unit, K kelvin, "
    "celsius, fahrenheit, N newton, J joule, W watt, V volt, ampere amp, ohm, Hz hertz, Pa pascal, mol mole, "
    "byte, bit, knot, acre, hectare"
)
_UNITS = {alias: names.split()[0] for names in _UNIT_NAMES.split(", ") for alias in names.split()}
_RATES = {"mph": "mi / h", "kph": "km / h", "kmh": "km / h"}
_TOKEN = re.compile(
    r"\\text\{(?P<text>[^{}]*)\}|\\[a-zA-Z]+(?:\{[a-z]+\})?|(?<![A-Za-z])(?P<bare>[A-Za-z]{2,})(?![A-Za-z])"
)
_UNIT_TAIL = re.compile(r"(?<=[\w})|!])\\text\{[^{}]*\}(?:\\text\{[^{}]*\}|\^\{?-?\d\}?|/[a-z]+|/|\\cdot)*$")


def _unit_name(word: str) -> str | None:
    for form in (word, word.lower() if len(word) > 1 else "", word.lower().removesuffix("s") if len(word) > 3 else ""):
        if form in _RATES or form in _UNITS:
            return _RATES.get(form) or _UNITS[form]
    return None


def _unit(text: str) -> str | None:
    """One spelling of a known unit ("square inches" is in2, "miles per hour" is mi / h); None for any other text."""
    names: list[str] = []
    power = ""
    for token in re.findall(r"[^\W\d_]+|-?\d|/", re.sub(r"\\[a-z]+", " ", text)):
        name = _unit_name(token)
        if token in ("square", "sq", "cubic", "cu"):
            power = "2" if token.startswith("s") else "3"
        elif token in ("per", "/"):
            names.append("/")
        elif names and (token in ("squared", "cubed") or (name is None and token.lstrip("-").isdigit())):
            names[-1] += {"squared": "2", "cubed": "3"}.get(token, token)
        elif name is None:
            return None
        else:
            names.append(name + power)
            power = ""
    return " ".join(names) if names and names[0] != "/" and not power else None


def without_units(text: str) -> tuple[str, str]:
    r"""(15, "cm2") of 15\text{cm}^2; text that ends in no known unit comes back whole, with ""."""
    tail = _UNIT_TAIL.search(text) if r"\text" in text else None
    unit = _unit(tail[0]) if tail else None
    if tail is None or unit is None:
        return text, ""
    return text[: tail.start()], "" if "unit" in unit else unit


def _mark_words(text: str) -> str:
    r"""Words and units as \text{...}, letters (of any font) bare. `abc` is a product, `word` or `is odd` are words."""

    def mark(token: re.Match[str]) -> str:
        before, after = text[: token.start()].rstrip()[-1:], text[token.end() : token.end() + 1]
        if token["text"] is not None:
            words = " ".join(token["text"].split()).strip(" .,;:!?")
            unit = bool(before) and (before.isdigit() or before in "})/|") and _unit(words)
            return rf"\text{{{words}}}" if unit or re.search(r"[A-Za-z][a-z]", words) else f" {words} "
        word = token["bare"]
        if word is None:
            return token[0]
        close = text[token.start() - 1] != " "  # 5in is a product, 5 in are inches
        if before and (before.isdigit() or before in "})") and after in ("", *" ,;)}.^/\\") and _unit_name(word):
            return word if close and word == "in" else rf"\text{{{word}}}"
        alone = text[token.start() - 1 : token.start()] in ("", *" ,(};.:") and after in ("", *" ,).?!;:\\")
        return rf"\text{{{word}}}" if alone and (len(word) > 3 or word.lower() in _SMALL_WORDS.split()) else word

    if not re.search(r"[A-Za-z]{2}|\\text", text):
        return text
    text = _TOKEN.sub(mark, text)
    for _ in range(20):  # words side by side are one text
        joined = re.sub(r"(\\text\{[^{}]*)\}\s*\\text\{", r"\1 ", text)
        if joined == text:
            break
        text = joined
    return text
