r"""Formulas of mathematical answers: read by an allow-list, compared exactly. Only workers run this.

What the grammar lacks (primes, sums, integrals, names of several letters) or would misread (transposes, derivatives,
functions of one's own) is None: it equals only itself, case kept. Letters are real numbers (z and w complex), e and i
the constants; the base of a bare \log is unknown.
"""

import math
import re
from functools import lru_cache
from typing import Any

import sympy
from sympy import Integer, Rational, Symbol
from sympy.core.alphabets import greeks

from tasks.math_text import FUNCTIONS, without_unit

MAX_BITS = 100_000  # of an exact power: larger numbers are compared as text
MIN_DIGITS = 6  # significant ones, of a decimal that stands for a value without a finite one

_GREEK = {*greeks, *map(str.title, greeks), "varepsilon", "vartheta", "varphi", "ell"} - {"pi", "Pi", "Sigma"}
LETTER = rf"(?:[a-zA-Z]|\\(?:{'|'.join(_GREEK)})(?![a-zA-Z]))"
SCRIPT = r"(?:\{ [^{}]* \}|[^ {}]+)"  # what is raised or lowered
SYMBOL = rf"{LETTER}(?: _ {SCRIPT})?"  # the text of a subscript belongs to the name
_SYMPY = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "ln": "log", "ceil": "ceiling"}
_CALLS = {"\\" + name: getattr(sympy, _SYMPY.get(name, name)) for name in FUNCTIONS.split() if name != "sqrt"}
_CONSTANTS = {"e": sympy.E, "i": sympy.I, r"\pi": sympy.pi}
_AROUND = {"|": sympy.Abs, r"\lfloor": sympy.floor, r"\lceil": sympy.ceiling}
_CLOSING = {"(": ")", "{": "}", "[": "]", "|": "|", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_STARTS = rf"{SYMBOL}|\d+ [\^!]|[({{]|\\(?:frac|sqrt|binom|pi|lfloor|lceil)|{'|'.join(map(re.escape, _CALLS))}"
_MISREAD = re.compile(  # what the grammar has, but may mean something else
    rf"(?<![\\\w])d {LETTER}"  # d y / d x
    r"|\^ \{ \( \w+ \) \}"  # f^{(2)}
    r"|(?<![\\\w])[fghFGH] \(|\^ \{ - \d+ \} \("  # f(x + 1), f^{-1}(x)
    rf"|(?:(?<![\\\w]){LETTER}|(?<!\\log )_ {SCRIPT}) \( [^-()+]*\)"  # P(x); n(n-1) is a product
    r"|(?:(?<![\\\w])(?<!_ )\w+|[)}]) \( [\d.]+ \)"  # 2(3), (1 2)(3)
    r"|(?<![\d.])(?<!_ )[\d.]+ [\d.]"  # 2 3
    r"|\\(?:sin|cos|tan|cot|sec|csc)h? \^ \{ -"  # \sin^{-1}: arcsin or 1/sin
    r"|\^ (?:T|\{ T \}) |[A-Zfgh] \^ (?:[tH] |\{ -)"  # transposes and inverses
    rf"|[A-Z] (?:[\^_] {SCRIPT} )*(?:\\cdot |\* )?[A-Z] "  # AB and BA are matrices
    r"|[a-zA-Z] \\times [a-zA-Z\\]"  # a product of vectors
    r"|\\[dD]elta [a-zA-Z\\(]"  # an operator
)
_MIXED = re.compile(r"(?<![_^] )(?<!\S)(\d+) (\\frac \{ \d+ \} \{ \d+ \})(?! [\^!])")  # 2\frac{x}{3} is a product


@lru_cache(512)
def parse(text: str) -> Any:
    """The sympy expression of a clean text; None if its meaning is not known exactly."""
    if _MISREAD.search(text + " "):
        return None
    parser = _Parser(_MIXED.sub(r"( \1 + \2 )", text))
    try:
        value = parser.sum()
    except ValueError:
        return None
    return None if parser.left or value.has(sympy.zoo, sympy.oo, -sympy.oo, sympy.nan) else value


class _Parser:
    """Recursive descent: each method reads one level of precedence. ValueError: not known."""

    def __init__(self, text: str) -> None:
        self.left = text + " "
        self.bars = False  # does the next bar close |...|?

    def take(self, tokens: str = r"\S+", keep: bool = False) -> str:
        """The next token if it is one of these, else ""; `keep`: only look."""
        found = re.match(rf"(?:{tokens}) ", self.left)
        self.left = self.left[found.end() :] if found and not keep else self.left
        return found[0][:-1] if found else ""

    def starts(self) -> str:
        """Does a factor start here? A number only in n 2^n and 4! 3!."""
        return self.take(_STARTS if self.bars else rf"\||{_STARTS}", keep=True)

    def sum(self) -> Any:
        value = Integer(0)
        while True:
            self.take(r"\+")  # 2 + -3
            value += -self.product() if self.take("-") else self.product()
            if not self.take("[+-]", keep=True):
                return value

    def product(self) -> Any:
        value = self.factor()
        while (divides := self.take("/")) or self.take(r"\\cdot|\*|\\times") or self.starts():
            sign = -1 if self.take("-") else 1
            value *= sign * (_power(self.factor(), Integer(-1)) if divides else self.factor())
            if divides and self.starts():
                raise ValueError("1/2x")
        return value

    def factor(self) -> Any:
        base = self.primary()
        if self.take("!"):
            base = sympy.factorial(base)
        if self.take(r"\^"):
            sign = -1 if self.take("-") else 1
            base = _power(base, sign * self.primary(whole=True))
        return base  # in n!! and x^2^3 something is left, which starts no factor

    def inside(self, whole: bool = True) -> Any:
        """The value between brackets or bars: any sum (`whole`), or a product."""
        opening, bars = self.take(), self.bars
        self.bars = opening == "|"
        value = self.sum() if whole else self.product()
        self.bars = bars
        if self.take() != _CLOSING.get(opening):
            raise ValueError("no end")
        return _AROUND[opening](value) if opening in _AROUND else value

    def primary(self, whole: bool = False) -> Any:
        if bracket := self.take(r"[({|]|\\lfloor|\\lceil", keep=True):  # braces are invisible: 2{x+1} shows 2x+1
            return self.inside(whole or bracket != "{")
        token = self.take(rf"{SYMBOL}|\S+")
        if re.match(r"\.?\d", token):
            return Rational(token)
        if token == r"\frac":
            return self.inside() * _power(self.inside(), Integer(-1))
        if token == r"\binom":
            return sympy.binomial(self.inside(), self.inside())
        if token == r"\sqrt":
            degree = self.inside() if self.take(r"\[", keep=True) else Integer(2)
            return _power(self.inside(), _power(degree, Integer(-1)))
        if token in _CALLS:
            return self.call(token)
        if not re.fullmatch(SYMBOL, token) and token not in _CONSTANTS:
            raise ValueError("unknown")
        return _CONSTANTS.get(token) or Symbol(token, real=token[0] not in "zw")

    def call(self, token: str) -> Any:
        r"""The value of a function: \sin(x), \sin 2\pi x, \sin^2 x, \log_2 8."""
        base = sympy.E
        if token == r"\log":
            base = self.primary(whole=True) if self.take("_") else Symbol(r"base of \log", positive=True)
        power = self.primary() if self.take(r"\^") else 1
        simple = not self.take(r"[({|]|\\frac|\\sqrt", keep=True)
        value = self.factor() if simple else self.primary()
        while simple and self.take(rf"{SYMBOL}|\\pi", keep=True):
            value *= self.factor()
        if self.take(r"[\^!]", keep=True) or (self.starts() not in ("", *_CALLS)):
            raise ValueError("no end")
        return (_CALLS[token](value) / sympy.log(base)) ** power


def _power(base: Any, exponent: Any) -> Any:
    size = max(base.p.bit_length(), base.q.bit_length()) if base.is_Rational else 20
    if (exponent.is_number and not abs(exponent) * size <= MAX_BITS) or (base.is_zero and not exponent.is_positive):
        raise ValueError("a huge power, or a division by zero")
    if base.is_number and base.is_negative and exponent.is_Rational and exponent.q % 2 and exponent.q > 1:
        return (-1) ** exponent.p * (-base) ** exponent  # odd roots of negative numbers are real
    return base**exponent


def somewhere(expression: Any) -> Any:
    """The value of an expression where its letters are 17/7, 23/7, ..."""
    letters = enumerate(sorted(expression.free_symbols, key=str))
    return expression.xreplace({letter: Rational(17 + 6 * at, 7) for at, letter in letters})


def same_value(gold: Any, answer: Any) -> bool:
    """Has sympy an exact proof that they are equal?"""
    gap = gold - answer
    there = somewhere(gap).evalf(20)  # a point where they differ refutes, much faster than a proof
    return not (there.is_number and abs(there) > 1e-9) and gap.equals(0) is True


def same_quantity(gold: str, answer: str, tolerance: float) -> bool:
    """Are formulas with units equal, or numbers within what a decimal or the tolerance allows?"""
    (gold, g_unit), (answer, a_unit) = without_unit(gold), without_unit(answer)
    if g_unit and a_unit and g_unit != a_unit:
        return False
    if {g_unit, a_unit} == {"%", ""}:  # 35% is 35 and 0.35
        scaled = f"( {gold} ) / 100" if g_unit else rf"100 \cdot ( {gold} )"
        return same_quantity(gold, answer, tolerance) or same_quantity(scaled, answer, tolerance)
    if divisor := re.fullmatch(r"\\(gcd|lcm) \( (\d+(?: , \d+)+) \)", gold):
        gold = str(getattr(math, divisor[1])(*map(int, divisor[2].split(" , "))))
    g, a = parse(gold), parse(answer)
    if g is None or a is None:
        return gold == answer
    allowed = Rational(str(tolerance))
    decimal = re.fullmatch(r"(?:- )?(\d*)\.(\d+)", answer)
    finite = g.is_Rational and 10 ** g.q.bit_length() % g.q == 0  # a decimal must hit it
    if decimal and not finite and len((decimal[1] + decimal[2]).lstrip("0")) >= MIN_DIGITS:
        allowed = max(allowed, Rational(1, 2 * 10 ** len(decimal[2])))
    return bool(allowed and g.is_number and a.is_number and abs(g - a) <= allowed) or same_value(g, a)
