r"""Mathematical answers as text: `extract_answer` finds one in a response, and `clean` gives it one spelling.

    clean(r"\left( \dfrac12, 3\text{ cm} \right)")  ->  r'( \frac { 1 } { 2 } , 3 "cm )'

Its tokens stand between single blanks: numbers as written; letters, of which those side by side are a product (`2ab`);
`"cm` and `"ABC`, words or names that are none; and all other commands and marks. Nothing with a meaning is dropped.
Every step takes linear time.
"""

import re
import unicodedata
from functools import lru_cache, partial
from typing import Any

from tasks.fences import visible

MAX_READ = 100_000  # characters, the last of a response

_MARKS = re.compile(  # braces take the blanks behind them: a box of blanks is empty
    r"(?P<box>\\{1,2}(?:boxed|fbox)\s*)?(?P<brace>\{)\s*"
    r"|\\(?:boxed|fbox)(?![a-zA-Z])\s*(?P<bare>[^\s{$][^\s$]*)"
    r"|\}\s*(?P<comment>%)?"
    r"|(?:^|(?<=[$.,;:!?]))[ \t]*(?P<remark>%)"  # not the percent sign of "5% of" or "5 % of"
    r"|\\.",
    re.DOTALL | re.MULTILINE,
)


def extract_answer(text: str) -> str | None:
    r"""The answer a response commits to: the last non-empty \boxed{} or \fbox{} (also `\boxed 6`); None without one.

    Thoughts are ignored (`fences.visible`), and so is a box in a TeX comment. Without a box, a last line `#### 42`
    counts too (GSM8K). Numbers in prose never do.
    """
    text = visible(text).strip()[-MAX_READ:]
    place, outside = (0, 0), (-1, -1)  # of the answer, and of a box around only it; texts would be copied
    opened: list[tuple[int, int]] = []  # of every open brace: starts of its box (or -1), and of its content
    at = 0
    while mark := _MARKS.search(text, at):
        at = mark.end()
        if mark["bare"]:
            place = mark.start("bare"), mark.start("bare") + len(mark["bare"].rstrip(".,;:)"))
        elif mark["brace"]:
            opened.append((mark.start() if mark["box"] else -1, at))
        elif mark[0][0] == "}" and opened:
            box, start = opened.pop()
            if box >= 0 and start < mark.start():
                place = place if outside == (start, mark.start()) else (start, mark.start())
                outside = box, mark.end()
        if (mark["comment"] or mark["remark"]) and not opened:
            at = text.find("\n", at) % (len(text) + 1)
    answer = text[slice(*place)].strip()
    if not answer and (last_line := text.rpartition("\n")[2]).startswith("####"):
        answer = last_line.lstrip("#").strip()
    return answer or None


_LATEX = (  # a character and its LaTeX
    r"−- ×\times ·\cdot ⋅\cdot ÷/ ∕/ ∞\infty ≤\le ≥\ge ⩽\le ⩾\ge ≦\le ≧\ge ≠\ne °^\circ º^\circ ±\pm ∓\mp "
    r"∪\cup ∩\cap ∈\in ∅\emptyset ∣| ∶: ′' ∧\land ∨\lor ℝ\mathbb{R} ⌊\lfloor ⌋\rfloor ⌈\lceil ⌉\rceil ≈\approx √\sqrt "
    r"∛\sqrt[3] ∜\sqrt[4] α\alpha β\beta γ\gamma δ\delta ε\epsilon ζ\zeta η\eta θ\theta ι\iota κ\kappa λ\lambda μ\mu "
    r"ν\nu ξ\xi π\pi ρ\rho σ\sigma τ\tau υ\upsilon φ\phi χ\chi ψ\psi ω\omega Γ\Gamma Δ\Delta Θ\Theta Λ\Lambda Ξ\Xi "
    r"Π\Pi Σ\Sigma Φ\Phi Ψ\Psi Ω\Omega"
)
_CHARACTERS = str.maketrans({entry[0]: entry[1:] + " " for entry in _LATEX.split()})
_plain = partial(unicodedata.normalize, "NFKC")
_SHIFTED: list[Any] = [  # what NFKC would bring down to the line
    (r"([√∛∜]) ?([0-9]+)", r"\1{\2}"),
    ("[²³¹ʰ-ʸˠ-ˤ⁰-ⁿ]+", lambda raised: f"^{{{_plain(raised[0])}}}"),
    ("[₀-ₜ]+", lambda lowered: f"_{{{_plain(lowered[0])}}}"),
    ("[¼½¾⅐-⅞]", lambda part: r"\frac{{{}}}{{{}}}".format(*_plain(part[0]).split("⁄"))),
]
_SYNONYMS = (  # commands, and their token; layout has none
    r"left right middle big Big bigg Bigg bigl bigr Bigl Bigr displaystyle limits quad qquad: dfrac tfrac cfrac:\frac "
    r"dbinom tbinom:\binom lbrace:\{ rbrace:\} vert lvert rvert mid:| div:/ lt:< gt:> "
    r"leq leqslant:\le geq geqslant:\ge neq:\ne vee:\lor wedge:\land ldots cdots:\dots varnothing:\emptyset"
)
_TOKENS = {"$": '"dollar', r"\$": '"dollar', "€": '"euro', "£": '"pound-sterling', "¥": '"yen', r"\%": '"%', "%": '"%'}
_TOKENS |= {"<=": r"\le", ">=": r"\ge", "+/-": r"\pm", "**": "^", "...": r"\dots"}
_TOKENS |= {"\\" + name: token for names, token in re.findall(r"([\w ]+):(\S*)", _SYNONYMS) for name in names.split()}
FUNCTIONS = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt gcd lcm floor ceil"
_BARE = {"pi": r"\pi", "infinity": r"\infty", "infty": r"\infty", "oo": r"\infty", "sign": '"sgn'}
_BARE |= {name: "\\" + name for name in FUNCTIONS.split() if name != "sec"}  # seconds

# Blanks are single by now: ` ?` is enough, and no row of blanks is scanned twice.
_SPELLINGS: list[Any] = [
    (r"\\! ?", ""),
    (r"\{,\}", ","),
    (r"(?<!\\)\\[,;: ()\[\]]|~", " "),  # not in the \\ between rows of a matrix
    (r"\\mathbb ?\{ ?([A-Z]) ?\}", r"\\mathbb \1"),
    (r"\\mathbb ?R(?![a-zA-Z])", r"\\reals "),
    (r"\\\{ ?\\\}", r"\\emptyset "),
    (r"(?:\\operatorname ?\{ ?abs ?\}|(?<![a-zA-Z\\])abs) ?\(([^()|]*)\)", r"|\1|"),
    (  # 0.1\overline{6} as a fraction
        r"([0-9]{1,30})\.([0-9]{0,30})\\(?:overline|bar|dot) ?\{([0-9]{1,30})\}",
        lambda m: rf"\frac{{{int(m[1] + m[2] + m[3]) - int(m[1] + m[2])}}}{{{'9' * len(m[3]) + '0' * len(m[2])}}}",
    ),
    (r"(^|[(\[{,=]) ?–", r"\1-"),  # a dash between two numbers is a range, not a difference
    (r"(^|[(\[,=]) ?\+", r"\1"),
    (r"(\\(?:[dtc]?frac|sqrt(?: ?\[[0-9]+\])?)) ?([0-9a-zA-Z]|\\pi(?![a-zA-Z]))", r"\1{\2}"),  # \frac12
    (r"(\\[dtc]?frac ?\{(?:[^{}]|\{[^{}]*\})*\}) ?([0-9a-zA-Z]|\\pi(?![a-zA-Z]))", r"\1{\2}"),
    (r"^([^{}]+)\\over(?![a-zA-Z])([^{}]+)$", r"\\frac{\1}{\2}"),
    (r"(?<![0-9.])([0-9]+) ([0-9]+)/([0-9]+)(?![0-9.a-zA-Z])", r"\1\\frac{\2}{\3}"),
    (r"\\begin ?\{(?:[bp]|small)?matrix\}|[\[(] ?\\begin ?\{array\} ?\{[lcr]*\}", r"\\matrix "),
    (r"\\end ?\{(?:[bp]|small)?matrix\}|\\end ?\{array\} ?(?:\\right)? ?[\])]", r"\\endmatrix "),
    (r"(\\(?:sin|cos|tan|cot|sec|csc) ?[({]?) ?([0-9]+) ?\^ ?\{? ?\\circ ?\}?", r"\1\\frac{\2\\pi}{180}"),
    (r"\^ ?\{? ?\\circ ?\}? ?(\\(?:text|mathrm) ?\{ ?)?([CF])\b(?(1) ?\})", r"\\text{deg\2}"),
    (r"\^ ?\{? ?\\circ(?![a-zA-Z]) ?\}?|\\degree(?![a-zA-Z])", r"\\text{deg}"),
    (r"\( ?(?:\\text ?\{ ?)?\\?[bp]?mod ?\}? ?\{? ?(\w+) ?\}? ?\)|\\pmod ?\{? ?(\w+) ?\}?", r"\\pmod \1\2 "),
    (r"(?<=[0-9 {])([apAP])\. ?[mM]\b\.?", lambda half: half[1].lower() + "m"),
]
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9]|,[0-9])|\b[1-9][0-9]{0,2}(?: [0-9]{3})+\b")
_FONT = re.compile(r"\\(?:math(?:bf|sf|tt|it)|boldsymbol|bm) ?\{ ?([0-9]+|[A-Za-z]) ?\}")
_TOKEN = re.compile(
    r"\\(?:text[a-z]*|mbox|hbox|mathrm|operatorname\*?) ?\{(?P<text>[^{}]*)\}"
    r"|(?:[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3}(?![0-9.]))?|\.[0-9]+)"
    r"|(?P<run>[^\W\d_]+)|\\[a-zA-Z]+|\\.|<=|>=|\+/-|\*\*|\.\.\.|\S"
)
_SMALL_WORDS = "is are or and odd even if for all no not yes than the of an at to by any per ten one two six am pm"


@lru_cache(4096)
def clean(text: str) -> str:
    """One spelling for what people spell in many ways: see the top."""
    for pattern, replacement in _SHIFTED:
        text = re.sub(pattern, replacement, text)
    text = " ".join(_plain(text.translate(_CHARACTERS)).translate(_CHARACTERS).split())
    for pattern, replacement in _SPELLINGS:
        text = re.sub(pattern, replacement, text)
    if not re.search(r"[(\[]|\\\{", text):  # (100,200) is a pair, {100,200} a set
        text = _THOUSANDS.sub(lambda match: re.sub("[ ,]", "", match[0]), text)
    if len(re.findall(r"(?<!\\)\$", text)) % 2 == 0:  # $5$ is mathematics, $5 are dollars
        text = re.sub(r"(?<!\\)\$", " ", text)
    if len(_FONT.findall(text)) == 1:  # two may be vectors
        text = _FONT.sub(r"\1", text)
    tokens: list[str] = []
    _read(" ".join(text.split()).strip(" ,;").removesuffix(".").rstrip(), tokens)
    joined = re.sub(r'^\( "?([A-Za-z]) \)$', r"\1", " ".join(tokens))  # choice (C)
    joined = re.sub(r"(?<=[\^_] )\{ ([^ {}]+) \}", r"\1", joined)  # x^{2} is x^2
    joined = re.sub(r'("\w+ / )(?=[a-zA-Z](?!\S| [a-z]))', r'\1"', joined)  # km/h
    joined = re.sub(r'(?<=\d )"[AP]M(?!\S)', lambda half: half[0].lower(), joined)  # 11:00 AM
    return re.sub(r', ("or|"and)(?= )', r"\1", joined)


def _read(text: str, tokens: list[str], quoted: bool = False) -> None:
    r"""Append the tokens of a text; `quoted`: the inside of a \text{}, where letters are words."""
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
        elif quoted or not (run.isascii() and (len(run) == 1 or _is_product(text, *match.span()))):
            tokens.append('"' + run)
        else:
            tokens += run


def _is_product(text: str, start: int, end: int) -> bool:
    """Are letters side by side a product, as in 2ab? Not alone, beside words, or as a unit."""
    run, left, right = text[start:end], text[max(start - 8, 0) : start], text[end : end + 2]
    if not run.islower() or len(run) > 4 or run in _SMALL_WORDS.split() or re.search("d.", run):  # dx
        return False
    if _unit_name('"' + run) and (left[-1:] == " " or run in ("mm", "cm", "km", "kg")):  # 17cm, 5 in; but 3mg is m g
        return False
    call = right[:1] == "(" and len(run) > 2  # xy(x+y), but not sgn(x+y)
    after = re.match(r" ?[-+*/]|[\^_!|(]|\\[^}]", right)
    return bool(after and not call) or bool(re.search(r"[-+*/^_|{] ?$|[0-9]$|\\[a-zA-Z]+ $", left))


_UNIT_NAMES = (
    "mm millimeter millimetre, cm centimeter centimetre, m meter metre, km kilometer kilometre, in inch inches, ft "
    "foot feet, yd yard, mi mile, mg milligram, g gram gm, kg kilogram, t ton, oz ounce, lb pound, l L liter, ml mL "
    "milliliter, gal gallon, s sec second, min minute, h hr hour, day, week, month, yr year, deg degree, rad radian, % "
    "percent, dollar buck, cent, euro, rupee, yen, pound-sterling, unit, K kelvin, celsius degC, fahrenheit degF, N "
    "newton, J joule, W watt, V volt, Hz hertz, byte, bit, mph, kph kmh, square sq, cubic cu, squared, cubed, per"
)
_UNITS = {alias: names.split()[0] for names in _UNIT_NAMES.split(", ") for alias in names.split()}
_SIGNS = {"per": "/", "mph": "mi / h", "kph": "km / h", "square": "^ 2", "squared": "^ 2"}
_SIGNS |= {"cubic": "^ 3", "cubed": "^ 3"}


def _unit_name(token: str) -> str | None:
    """The one spelling of a unit, else None. Symbols keep their case: mg is not Mg."""
    word = token[1:]
    forms = (word, word.lower(), word.lower().removesuffix("s")) if len(word) > 3 else (word,)
    return next((_UNITS[form] for form in forms if token[0] == '"' and form in _UNITS), None)


def without_unit(text: str) -> tuple[str, str]:
    """("15", "cm ^ 2") of 15 "cm ^ 2; (text, "") without a known unit or currency."""
    text = re.sub(r'^(- |)("dollar|"euro|"pound-sterling|"yen) ((?:\d|\\frac).*)', r"\1\3 \2", text)
    tokens = text.split(" ")
    names = [_unit_name(token) or (token if token in "/^23" else "") for token in tokens]
    start = next((at for at in range(1, len(names)) if _unit_name(tokens[at]) and all(names[at:])), 0)
    if not start or names[start] in ("per", "squared", "cubed"):
        return text, ""
    unit = re.sub(r"(square|cubic) (\w+)", r"\2 \1", " ".join(names[start:]))
    return " ".join(tokens[:start]), " ".join(_SIGNS.get(name, name) for name in unit.split(" "))
