r"""Equality of mathematical answers, as pure functions on texts: `clean` them, `decide` at once or compare with `same`.

What counts as equal (`tests/test_math_answers.py` has the long list):
- Exact values are exactly equal. A decimal may stand for a gold without a finite decimal (1/3, pi) when it is that gold
  rounded to the decimal's own digits, at least 6 significant ones. 35\% equals 35 and 0.35.
- Commas merge only as thousands marks (groups of three digits, outside brackets); else they separate a list.
- Lists and sets have no order, tuples have. (2,5] equals 2 < x \le 5. `x = 5` equals `5`, not `y = 5`. Equations are
  equal up to a constant factor.
- A gold with a base (52_8) wants that numeral and no other. Units, degree signs and money marks are dropped. Words
  compare without case.

Numbers and words need no algebra (`decide`, thousands a second). The rest is read by math-verify's LaTeX parser and
compared by value. That part can run for hours on a short hostile text: call `same` where it can be killed, as
`math_answers.py` does.
"""

from __future__ import annotations

import random
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

MAX_LENGTH = 2_000  # characters of an answer that are read as mathematics; longer ones equal only themselves
MIN_DIGITS = 6  # significant digits a decimal needs to stand for a value that has no finite decimal

# --------------------------------------------------------------------------------------------------------- one spelling

_LATEX = (  # a character and its LaTeX
    r"−- –- ×\times ·\cdot ⋅\cdot ÷/ π\pi ∞\infty ≤\le ≥\ge ≠\ne °^\circ ±\pm ∓\mp ∪\cup ∩\cap ∈\in ∅\emptyset "
    r"²^2 ³^3 ½\frac12 ¼\frac14 ¾\frac34"
)
_CHARACTERS = str.maketrans({entry[0]: entry[1:] + " " for entry in _LATEX.split()})
_SHORT_UNITS = "cm|mm|km|kg|mg|ml|ft|in|mi|per|lbs?|oz|hrs?|mins?|secs?|mph|kph|deg|day"
_NO_UNITS = "sqrt|infty|times|squared|cubed|factorial|dozen|hundred|thousand|(?:m|b|tr)illion|over|plus|minus"
_WORD_UNIT = rf"(?!(?:{_NO_UNITS})\b)(?:[A-Za-z]{{4,}}|{_SHORT_UNITS})"
_SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|q?quad|phantom\{\})(?![a-zA-Z])|\\!\s*", ""),
        (r"\{,\}", ","),
        (r"(?<=\d)(?:\\[,;: ]|\s)(?=\d{3}(?!\d))", ","),  # 10\,080 and 10 080
        (r"(?<!\\)\\[,;: ]|~", " "),  # not in the \\ between rows of a matrix
        (r"(?<!\\)\\[()\[\]]|\\?[$£€]", ""),
        (r"√\s*\(?(\d+|[a-z])\)?", r"\\sqrt{\1}"),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\(?:mbox|text\w+|math(?:rm|it|bf|sf|tt)|operatorname\*?)\s*\{", r"\\text{"),
        (r"\\(?:lbrace|\{)\s*\\(?:rbrace|\})|\\varnothing", r"\\emptyset "),
        (r"\\lbrace", r"\\{"),
        (r"\\rbrace", r"\\}"),
        (r"\\langle", "("),
        (r"\\rangle", ")"),
        (r"\\leq?(?:slant)?(?![a-zA-Z])|<=", r"\\le "),
        (r"\\geq?(?:slant)?(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\neq?(?![a-zA-Z])|!=", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\+\s*/\s*-", r"\\pm "),
        (r"\+\s*\\infty", r"\\infty"),
        (r"(?<![a-zA-Z\\])(?:infinity|infty|oo)(?![a-zA-Z])", r"\\infty"),
        (r"(?<![a-zA-Z\\])(pi|sqrt)(?![a-zA-Z])", r"\\\1 "),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\*\*", "^"),
        (r"\\[lc]dots", r"\\dots"),
        (r"(\w+!|\([^()]*\)!)\s*(?=\^)", r"(\1)"),  # the parser cannot read n!^2
        (r"[\[(]?\\begin\{(?:[bp]|small)?(?:matrix|array)\}(?:\{[^{}]*\})?", r"\\begin{pmatrix}"),
        (r"\\end\{(?:[bp]|small)?(?:matrix|array)\}[\])]?", r"\\end{pmatrix}"),
        (r"\s*\\?%|\s*\\text\{\s*(?:percent|percentage|pct)\s*\}|\s*\bpercent\b", "%"),
        # 30 degrees inside a trigonometric function is pi/6; everywhere else the sign is a unit
        (r"(\\(?:sin|cos|tan|cot|sec|csc)\s*[({]?)\s*(\d+)\s*\^\s*\{?\s*\\circ\s*\}?", r"\1\\frac{\2\\pi}{180}"),
        (r"\s*\^\s*\{?\s*\\(?:circ|degree)\s*\}?(?:\s*[CF]\b)?|\\degree", ""),
        (r",?\s*(?:\\text\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*", ", "),
        (r"\\frac\s*([0-9a-zA-Z]|\\pi)", r"\\frac{\1}"),  # \frac12, \frac1{2}
        (r"(\\frac\s*\{[^{}]*\})\s*([0-9a-zA-Z]|\\pi)", r"\1{\2}"),  # \frac{1}2
        (r"\\sqrt\s*([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"(?<=[^\s])\s*\\text\{[^{}]*\}(?:\s*\^\s*\{?\d\}?)?\s*$", ""),  # a unit: 15\text{ cm}^2
        (r"\\text\{([^{}]*)\}", r"\1"),
        (rf"(?<=[\d}}])(?<!\\)\s*{_WORD_UNIT}\.?(?:(?:\s+|/){_WORD_UNIT}\.?|/[hs]){{0,2}}(?:\^\{{?[23]\}}?)?\s*$", ""),
    ]
]
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d]|,\d)")


@lru_cache(maxsize=4096)
def clean(text: str) -> str:
    """One spelling for what LaTeX and people spell in many ways. Harmless text is left alone."""
    text = re.sub(r"\s+", " ", text.translate(_CHARACTERS))
    if re.fullmatch(r"\s*-?\d+\s*", text):  # most answers: nothing to do
        return text.strip()
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    if not re.search(r"[(\[]|\\\{", text):  # (100,200) is a pair, {100,200} a set
        text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    text = re.sub(r"\s+", " ", text).strip(" ,;").removesuffix(".").rstrip()
    about = [part.strip() for part in re.split(r"\\approx|≈", text) if part.strip()]
    if len(about) > 1:  # \sqrt2 \approx 1.41: the exact side counts; x \approx 1.41: the number
        text = about[1] if _NAME.fullmatch(about[0]) else about[0]
    text = re.sub(r"(?<!\w) | (?!\w)", "", text)  # a space matters between words and digits only
    return re.sub(r"^\(([A-Za-z])\)$", r"\1", text)  # choice (C)


# --------------------------------------------------------------------------------------------- numbers, bases and words

_DECIMAL = r"\d+\.?\d*|\.\d+"
_LITERAL = re.compile(
    rf"([+-]?)({_DECIMAL})(?:(?:\\times|\\cdot|\*)10\^(?:\{{([+-]?\d{{1,3}})\}}|(\d))|[eE]([+-]?\d{{1,3}}))?"
)
_RATIO = re.compile(
    rf"([+-]?)(\d+(?= ?\\)|\d+(?= ))? ?"  # the whole part of a mixed number
    rf"(?:\\frac ?\{{ ?(-?{_DECIMAL}) ?\}} ?\{{ ?(-?{_DECIMAL}) ?\}}|({_DECIMAL})/({_DECIMAL}))"
)
_REPEATING = re.compile(r"([+-]?)(\d*)\.(\d*)\\(?:overline|bar|dot)\{(\d+)\}")
_BASED = re.compile(r"\(?([0-9A-F]+)\)?_(?:\{ ?(\d{1,2}) ?\}|(\d{1,2}))")
_WORDS = re.compile(r"(?=.*[A-Za-z]{4})[A-Za-z][A-Za-z' .-]*")
_NAME = re.compile(
    r"(?!.*(?:\\(?:sqrt|pi|infty|binom|log|ln)\b|\\frac\{\d))"  # these are values
    r"[A-Za-z|\\][A-Za-z\\{}_'| \d]*(?:\^\{?-1\}?)?(?:\([A-Za-z\\{}_, ]*\))?"  # x, a_{n}, |AB|, f(x), f^{-1}(x)
)


def _number(text: str) -> tuple[Fraction, Fraction | None] | None:
    """A literal as (value, tolerance): half a unit of the last digit for a long enough decimal, else None."""
    if len(text) > 500:  # int() refuses very long ones
        return None
    literal = _LITERAL.fullmatch(re.sub(r"(?<!\d) | (?!\d)", "", text))
    if literal:
        sign, digits, *exponents = literal.groups()
        shift = Fraction(10) ** int(next((e for e in exponents if e), 0))
        places = len(digits.partition(".")[2])
        long_enough = places and len(digits.replace(".", "").lstrip("0")) >= MIN_DIGITS
        value = Fraction(digits.rstrip(".")) * shift
        return (-value if sign == "-" else value), (shift / 10**places / 2 if long_enough else None)
    ratio = _RATIO.fullmatch(text)
    if ratio:
        sign, whole, *parts = ratio.groups()
        top, bottom = (Fraction(part.rstrip(".")) for part in parts if part)
        if bottom == 0:
            return None
        value = int(whole or 0) + top / bottom
        return (-value if sign == "-" else value), None
    repeating = _REPEATING.fullmatch(text)
    if repeating:
        sign, whole, fixed, period = repeating.groups()
        value = Fraction(int(whole + fixed or 0)) + Fraction(int(period), 10 ** len(period) - 1)
        value /= 10 ** len(fixed)
        return (-value if sign == "-" else value), None
    return None


def _terminates(value: Fraction) -> bool:
    """Does the value have a finite decimal? Then a decimal must hit it exactly."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def decide(gold: str, answer: str) -> bool | None:
    """Equality of cleaned texts as far as it needs no algebra; None when it does."""
    if not gold or not answer:
        return False
    if gold.casefold() == answer.casefold():
        return True
    g_base, a_base = _BASED.fullmatch(gold), _BASED.fullmatch(answer)
    if g_base:  # "write 5 in base 2" is not answered by 5
        return bool(a_base) and _based(g_base) == _based(a_base)  # type: ignore[arg-type]
    if a_base:
        digits, base = _based(a_base)
        if 2 <= base <= 36 and len(digits) < 200 and all(int(digit, 36) < base for digit in digits):
            answer = str(int(digits, base))
    exact, given = _number(gold.removesuffix("%")), _number(answer.removesuffix("%"))
    if exact and given:
        scales = {Fraction(1)}  # one of the two in percent: 35% is 35 and 0.35
        if gold.endswith("%") != answer.endswith("%"):
            scales.add(Fraction(1, 100) if gold.endswith("%") else Fraction(100))
        return any(_equal_numbers(exact[0] * scale, *given) for scale in scales)
    if _WORDS.fullmatch(gold) or _WORDS.fullmatch(answer):
        return False
    return None


def _based(match: re.Match[str]) -> tuple[str, int]:
    return match[1].lstrip("0") or "0", int(match[2] or match[3])


def _equal_numbers(gold: Fraction, answer: Fraction, tolerance: Fraction | None) -> bool:
    return gold == answer or (tolerance is not None and not _terminates(gold) and abs(gold - answer) <= tolerance)


# ------------------------------------------------------------------------------------------------ structure and algebra


def _split(text: str, marks: str) -> tuple[list[str], list[str]]:
    """Cut at the marks (a regular expression) outside all brackets: parts and the marks between them."""
    parts, found, depth, start = [], [], 0, 0
    for token in re.finditer(rf"(?P<mark>{marks})|\\[{{}}]|\\[a-zA-Z]+|[()\[\]{{}}]", text):
        if token["mark"] is None:
            depth += (token[0] in "([{" or token[0] == r"\{") - (token[0] in ")]}" or token[0] == r"\}")
        elif depth == 0:
            parts.append(text[start : token.start()].strip())
            found.append(token["mark"].strip())
            start = token.end()
    return [*parts, text[start:].strip()], found


def _elements(text: str) -> list[str]:
    r"""A list at the top level: cut at commas, semicolons and unions, every \pm written out."""
    parts = [part for part in _split(text, r"[,;]|\\cup\b")[0] if part]
    both = [
        [part.replace(r"\pm", p).replace(r"\mp", m) for p, m in ("+-", "-+")] if r"\pm" in part else [part]
        for part in parts
    ]
    return [re.sub(r"(^|=)\s*\+\s*", r"\1", part) for pair in both for part in pair]


def _group(text: str) -> tuple[str, list[str]]:
    r"""(brackets, elements): ("()", ["1", "2"]) for (1,2), ("{}", ...) for a set, ("", ...) without brackets."""
    match = re.fullmatch(r"(\\\{|[(\[])(.*)(\\\}|[)\]])", text)
    if match and not _split(match[2], r"[)\]]|\\\}")[1]:
        kind = (match[1] + match[3]).replace("\\", "")
        items = [part for part in _split(match[2], ",")[0] if part]
        if kind == "{}":
            return kind, _elements(match[2])
        if len(items) > 1 and r"\pm" not in text:  # (x + 1) is no tuple; [1,2,3] is no interval
            return "()" if kind == "[]" and len(items) != 2 else kind, items
    return "", _elements(text)


def same(gold: str, answer: str) -> bool:
    """Equality of cleaned texts, by structure first and algebra at the leaves."""
    quick = decide(gold, answer)
    if quick is not None:
        return quick
    if gold.endswith("%") != answer.endswith("%"):
        g, a = gold.rstrip("%"), answer.rstrip("%")
        return same(g, a) or (same(rf"({g})/100", a) if gold.endswith("%") else same(g, rf"({a})/100"))
    gold, answer = gold.removesuffix("%"), answer.removesuffix("%")
    (g_kind, golds), (a_kind, answers) = _group(gold), _group(answer)
    if len(golds) == len(answers) == 1 and "{}" not in (g_kind, a_kind):
        return _same_relation(golds[0], answers[0])
    if g_kind == a_kind == "{}":  # repetition does not matter in a set
        covered = all(any(same(g, a) for a in answers) for g in golds)
        equal = covered and all(any(same(g, a) for g in golds) for a in answers)
    elif {g_kind, a_kind} <= {"", "{}"}:
        equal = _same_unordered(golds, answers)
    elif len(golds) != len(answers):  # an interval and an inequality
        equal = 1 in (len(golds), len(answers)) and _same_relation(gold, answer)
    else:  # (1,2) may be written 1,2
        equal = (g_kind == a_kind or {g_kind, a_kind} == {"", "()"}) and all(map(same, golds, answers))
    if not equal and re.search(r"\\(?:cup|cap|setminus|mathbb)", gold + answer):
        return _same_expression(gold, answer)  # sets that overlap or differ in their cut
    return equal


def _same_unordered(golds: list[str], answers: list[str]) -> bool:
    """Is one list a reordering of the other?"""
    rest = list(answers)
    for gold in golds if len(golds) == len(answers) else ():
        partner = next((i for i, answer in enumerate(rest) if same(gold, answer)), None)
        if partner is None:
            return False
        del rest[partner]
    return not rest


_RELATIONS = r"\\(?:le|ge|ne|in)\b|[<>=]"
_MIRROR = {">": "<", r"\ge": r"\le"}


def _interval(parts: list[str], marks: list[str]) -> tuple[str, str] | None:
    r"""(variable, interval) of x > 3 or 2 < x \le 5; None for other relations."""
    if marks and marks[0] in _MIRROR:
        parts, marks = parts[::-1], [_MIRROR.get(mark, "?") for mark in marks[::-1]]
    if not marks or set(marks) - {"<", r"\le"} or len(parts) > 3:
        return None
    if len(parts) == 2 and _NAME.fullmatch(parts[1]):  # 3 < x
        parts, marks = [*parts, r"\infty"], [*marks, "<"]
    elif len(parts) == 2:
        parts, marks = [r"-\infty", *parts], ["<", *marks]
    low, name, high = parts
    if not _NAME.fullmatch(name):
        return None
    return name, f"{'(' if marks[0] == '<' else '['}{low},{high}{')' if marks[1] == '<' else ']'}"


def _same_relation(gold: str, answer: str) -> bool:
    """Equations, inequalities, memberships against each other or against the bare value; else expressions."""
    (golds, g_marks), (answers, a_marks) = _split(gold, _RELATIONS), _split(answer, _RELATIONS)
    if not g_marks and not a_marks:
        return _same_expression(gold, answer)
    if g_marks == [r"\in"] and _NAME.fullmatch(golds[0]):
        return same(golds[1], answer)
    if a_marks == [r"\in"] and _NAME.fullmatch(answers[0]):
        return same(gold, answers[1])
    g_set, a_set = _interval(golds, g_marks), _interval(answers, a_marks)
    if g_set and a_set:
        return g_set[0].casefold() == a_set[0].casefold() and same(g_set[1], a_set[1])
    if not g_marks or not a_marks:  # x = 5, x \in S or 2 < x < 5 against 5, S or (2,5)
        parts, marks, interval = (golds, g_marks, g_set) if g_marks else (answers, a_marks, a_set)
        if interval:
            value = interval[1]
        elif set(marks) == {"="} and (_NAME.fullmatch(parts[0]) or all(same(parts[-1], p) for p in parts)):
            value = parts[-1]
        else:
            return False
        return same(value, answer) if g_marks else same(gold, value)
    for values, marks in ((golds, g_marks), (answers, a_marks)):
        if set(marks) == {"="}:
            del values[1:-1], marks[1:]  # a = b = c says what a is
    if g_marks == a_marks and len(golds) == len(answers) and all(map(same, golds, answers)):
        return True
    if len(golds) != 2 or len(answers) != 2 or r"\in" in g_marks + a_marks:
        return False
    if a_marks != g_marks and _MIRROR.get(a_marks[0], a_marks[0]) == _MIRROR.get(g_marks[0], g_marks[0]):
        answers, a_marks = answers[::-1], g_marks
    return a_marks == g_marks and _proportional(golds, answers, any_sign=g_marks[0] in ("=", r"\ne"))


def _proportional(gold: list[str], answer: list[str], any_sign: bool) -> bool:
    """Do left - right of both relations differ by a constant factor only?"""
    from sympy import cancel

    (g_left, g_right), (a_left, a_right) = ([_parse(part) for part in side] for side in (gold, answer))
    g, a = g_left - g_right, a_left - a_right
    if not g.free_symbols or g.free_symbols != a.free_symbols:
        return False
    points = [
        p for p in _points(g) if (value := g.evalf(30, subs=p)).is_number and value.is_finite and abs(value) > 1e-9
    ]
    if not points:
        return False
    factor = cancel(a.subs(points[0]) / g.subs(points[0])).evalf(60)
    return bool(factor.is_finite and factor != 0 and (any_sign or factor > 0)) and _same_value(g * factor, a)


@lru_cache(maxsize=512)
def _parse(text: str) -> Any:
    """A sympy object, unevaluated. Raises whatever the parser raises on malformed text."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from sympy import Float, I, Rational, Symbol

    # Unit removal of the library is off: it takes the m of 6m for a metre.
    config = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    parsed = latex2sympy(normalize_latex(text, config), is_real=None, convert_degrees=False, normalization_config=None)
    exact = {number: Rational(str(number)) for number in parsed.atoms(Float)}
    return parsed.xreplace({Symbol("i"): I, **exact})


def _same_expression(gold: str, answer: str) -> bool:
    from math_verify import verify
    from sympy import MatrixBase, Rational, Set
    from sympy.matrices.expressions.matexpr import MatrixExpr

    g, literal = _parse(gold), _number(answer)
    if literal and literal[1] is not None and not g.free_symbols and not isinstance(g, Set | MatrixBase):
        value = g.doit()
        if not (value.is_Rational and _terminates(Fraction(int(value.p), int(value.q)))):
            return bool(abs(value.evalf(60) - Rational(literal[0])) <= Rational(literal[1]))
    a = _parse(answer)
    if isinstance(g, Set) or isinstance(a, Set):
        return bool(verify([g], [a], timeout_seconds=None))
    if isinstance(g, MatrixBase | MatrixExpr) or isinstance(a, MatrixBase | MatrixExpr):
        g, a = g.doit(), a.doit()
        return getattr(g, "shape", 0) == getattr(a, "shape", 1) and all(map(_same_value, g.flat(), a.flat()))
    return _same_value(g, a)


def _points(*expressions: Any) -> list[dict[Any, Any]]:
    """Values for the variables: whole numbers where a formula is about counting, fractions of both signs elsewhere."""
    from sympy import Integer, Pow, Rational, binomial, ceiling, factorial, floor

    counting = any(
        e.has(floor, ceiling, factorial, binomial) or any(p.base.is_negative for p in e.atoms(Pow)) for e in expressions
    )
    names = sorted(set().union(*(e.free_symbols for e in expressions)), key=str)
    rng = random.Random(0)
    draw = (lambda: Integer(rng.randint(1, 40))) if counting else (lambda: Rational(rng.randint(-400, 800) * 2 + 1, 97))
    return [{name: draw() for name in names} for _ in range(16)]


def _same_value(g: Any, a: Any) -> bool:
    """Equality of two sympy expressions by value, in high precision: at enough points no other formula agrees.

    (`simplify` is slower by orders of magnitude, and can neither refute nor always prove.)
    """
    from sympy import I, Rational, simplify

    if g == a:
        return True
    if not g.free_symbols and not a.free_symbols:
        if g.is_infinite or a.is_infinite:
            return bool(g.doit() == a.doit())
        gap, scale = (g - a).evalf(15, maxn=500), abs(g.evalf(15))
        return bool(gap == 0 or (gap.is_number and gap.is_finite and abs(gap) <= scale * Rational(1, 10**400)))
    agreed = 0
    for point in _points(g, a):
        g_value, a_value = (e.evalf(30, subs=point) for e in (g, a))
        if not g_value.is_number or not g_value.is_finite or not (g_value.is_real or g.has(I)):
            continue  # outside the domain of the gold
        if not a_value.is_number or not a_value.is_finite or abs(g_value - a_value) > abs(g_value) * 1e-20 + 1e-25:
            return False
        agreed += 1
    return agreed >= 3 or bool(simplify(g - a) == 0)
