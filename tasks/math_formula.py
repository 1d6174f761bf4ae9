r"""Formulas of mathematical answers: read by an allow-list, compared exactly. Only workers run this (`math_rules.py`).

`parse` reads the tokens of `math_text.clean` into a sympy expression. What is not in its grammar (primes, accents,
sums, integrals, names of several letters, any other command) and what it would misread (transposes, derivatives,
functions of one's own) is None: such texts equal only themselves. Letters are real numbers (z and w complex), e and i
the constants; the base of a bare \log is unknown.
"""

import math
import re
from functools import lru_cache
from typing import Any

import sympy
from sympy import Integer, Rational, Symbol
from sympy.core.alphabets import greeks

from tasks.math_text import FUNCTIONS

MAX_BITS = 100_000  # of an exact power: larger numbers are compared as text
MIN_DIGITS = 6  # significant digits a decimal needs to stand for a value that has no finite decimal
Tolerance = tuple[float, ...]  # absolute: none, one for all values of a gold, or one for each element of its list

_GREEK = [*greeks, *map(str.title, greeks), "varepsilon", "vartheta", "varphi", "ell"]
LETTER = (
    "(?:[a-zA-Z]|" + "|".join(rf"\\{name}(?![a-zA-Z])" for name in _GREEK if name not in ("pi", "Pi", "Sigma")) + ")"
)
_SYMPY = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "ln": "log", "ceil": "ceiling"}
_CALLS = {"\\" + name: getattr(sympy, _SYMPY.get(name, name)) for name in FUNCTIONS.split() if name != "sqrt"}
_CONSTANTS = {"e": sympy.E, "i": sympy.I, r"\pi": sympy.pi}
_PAIRS = {"(": ")", "{": "}", "[": "]", "|": "|", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_AROUND = {"|": sympy.Abs, r"\lfloor": sympy.floor, r"\lceil": sympy.ceiling}
SYMBOL = rf"{LETTER}(?: _ (?:\{{ [^{{}}]* \}}|[^ {{}}]+))?"  # the text of a subscript belongs to the name
_STARTS = _CALLS.keys() | {r"\frac", r"\sqrt", r"\binom", r"\pi", "(", "{", r"\lfloor", r"\lceil"}
_MISREAD = re.compile(  # what the grammar has, but what may mean something else; each line with an example
    rf"(?<![\\\w])d {LETTER}"  # d y / d x
    r"|\^ \{ \( \w+ \) \}"  # f^{(2)}
    r"|(?<![\\\w])[fghFGH] \(|\^ \{ - \d+ \} \("  # f(x + 1), f^{-1}(x)
    rf"|(?:(?<![\\\w]){LETTER}|(?<!\\log )_ (?:\{{ [^{{}}]* \}}|[^ {{}}]+)) \( [^-()+]*\)"  # P(x); n(n-1) is a product
    r"|(?:(?<![\\\w])(?<!_ )\w+|[)}]) \( [\d.]+ \)"  # 2(3), (1 2)(3)
    r"|(?<![\d.])(?<!_ )[\d.]+ [\d.]"  # 2 3
    r"|\\(?:sin|cos|tan|cot|sec|csc|sinh|cosh|tanh) \^ \{ -"  # \sin^{-1}: arcsin or 1/sin
    r"|\^ (?:T|\{ T \})(?: |$)|[A-Zfgh] \^ (?:[tH](?: |$)|\{ -)"  # transposes and inverses
    r"|[A-Z] (?:[\^_] (?:\{ [^{}]* \}|[^ {}]+) )*(?:\\cdot |\* )?[A-Z](?: |$)"  # AB and BA are matrices
    r"|[a-zA-Z] \\times [a-zA-Z\\]"  # a product of vectors
    r"|\\[dD]elta [a-zA-Z\\(]"  # an operator
)


@lru_cache(maxsize=512)
def parse(text: str) -> Any:
    """The sympy expression of a clean text; None if the parser does not know exactly what it means."""
    if _MISREAD.search(text):
        return None
    parser = _Parser(text)
    try:
        value = parser.sum()
    except ValueError:
        return None
    return None if parser.next or value.has(sympy.zoo, sympy.oo, -sympy.oo, sympy.nan) else value


class _Parser:
    """Recursive descent: each method reads one level of precedence from `tokens[at]` on. ValueError: not known."""

    def __init__(self, text: str) -> None:
        self.tokens = [*re.findall(rf"{SYMBOL}|\S+", text), "", ""]
        self.at = 0
        self.bars = False  # are we inside |...|, so that the next bar closes it?

    @property
    def next(self) -> str:
        return self.tokens[self.at]

    def skip(self, *marks: str) -> bool:
        """Steps over the next token if it is one of the marks."""
        found = self.next in marks
        self.at += found
        return found

    def sum(self) -> Any:
        value, start = Integer(0), self.at
        while self.at == start or self.next in ("+", "-"):
            self.skip("+")  # 2 + -3
            value += -self.product() if self.skip("-") else self.product()
        return value

    def product(self) -> Any:
        value = self.factor()
        while True:
            if self.skip("/"):
                value *= _power(self.factor(), Integer(-1))
                if self.starts():
                    raise ValueError("1/2x")
            elif self.skip(r"\cdot", "*", r"\times"):
                value *= -self.factor() if self.skip("-") else self.factor()
            elif self.starts():
                value *= self.factor()
            else:
                return value

    def is_letter(self) -> bool:
        return bool(re.fullmatch(SYMBOL, self.next))

    def starts(self) -> bool:
        """Does a factor start here? A number does so only in n 2^n and 4! 3!."""
        bar = self.next == "|" and not self.bars
        number = self.next.isdigit() and self.tokens[self.at + 1] in ("^", "!")
        return bar or number or self.next in _STARTS or self.is_letter()

    def factor(self) -> Any:
        token, base = self.next, self.primary()
        if token.isdigit() and self.next == r"\frac":  # 1\frac{4}{5} is a mixed number, 2\frac{x}{3} a product
            start = self.at + 1
            part = self.factor()
            mixed = all(mark.isdigit() or mark in "{}" for mark in self.tokens[start : self.at])
            return base + part if mixed else base * part
        if self.skip("!"):
            base = sympy.factorial(base)
        if self.skip("^"):
            sign = -1 if self.skip("-") else 1
            base = _power(base, sign * (self.pair() if self.next in ("{", "(") else self.primary()))
        return base  # in n!! and x^2^3 something is left, which starts no factor

    def pair(self, product: bool = False) -> Any:
        """What stands in brackets, or between bars."""
        closing, bars = _PAIRS.get(self.next, "a bracket"), self.bars
        self.bars = self.next == "|"
        self.at += 1
        value = self.product() if product else self.sum()
        self.bars = bars
        if not self.skip(closing):
            raise ValueError(f"{self.next!r} instead of {closing!r}")
        return value

    def primary(self) -> Any:
        token = self.next
        if token in ("(", "{"):  # braces are invisible: 2{x+1} shows 2x+1
            return self.pair(product=token == "{")
        if token in _AROUND:
            return _AROUND[token](self.pair())
        self.at += bool(token)
        if re.match(r"\.?\d", token):
            return Rational(token)
        if token == r"\frac":
            return self.pair() * _power(self.pair(), Integer(-1))
        if token == r"\binom":
            return sympy.binomial(self.pair(), self.pair())
        if token == r"\sqrt":
            degree = self.pair() if self.next == "[" else Integer(2)
            return _power(self.pair(), _power(degree, Integer(-1)))
        if token in _CALLS:
            return self.call(token)
        if not re.fullmatch(SYMBOL, token) and token not in _CONSTANTS:
            raise ValueError(f"unknown: {token}")
        return _CONSTANTS.get(token) or Symbol(token, real=token[0] not in "zw")

    def call(self, token: str) -> Any:
        r"""The value of a function: \sin(x), \sin 2\pi x, \sin^2 x, \log_2 8."""
        base, power = sympy.E, 1
        if token == r"\log":
            base = Symbol(r"base of \log", positive=True)
            if self.skip("_"):
                base = self.pair() if self.next == "{" else self.primary()
        if self.skip("^"):
            power = self.primary()
        simple = self.next not in ("(", "{", "|", r"\frac", r"\sqrt")
        value = self.factor() if simple else self.primary()
        while simple and (self.is_letter() or self.next == r"\pi"):
            value *= self.factor()
        if self.next in ("^", "!") or (self.starts() and self.next not in _CALLS):
            raise ValueError("no end of an argument")
        return (_CALLS[token](value) / sympy.log(base)) ** power


def _power(base: Any, exponent: Any) -> Any:
    size = max(base.p.bit_length(), base.q.bit_length()) if base.is_Rational else 20
    if (exponent.is_number and not abs(exponent) * size <= MAX_BITS) or (base.is_zero and not exponent.is_positive):
        raise ValueError("a huge power, or a division by zero")
    if base.is_number and base.is_negative and exponent.is_Rational and exponent.q % 2 and exponent.q > 1:
        return (-1) ** exponent.p * (-base) ** exponent  # odd roots of negative numbers are real
    return base**exponent


def somewhere(expression: Any) -> Any:
    """The value of an expression where its letters are 17/7, 23/7, and so on."""
    letters = enumerate(sorted(expression.free_symbols, key=str))
    return expression.xreplace({letter: Rational(17 + 6 * at, 7) for at, letter in letters})


def same_value(gold: Any, answer: Any) -> bool:
    """Equality of two expressions, proved exactly by sympy. What cannot be proved is not equal."""
    gap = gold - answer
    there = somewhere(gap).evalf(20)  # one point where they differ refutes, much faster than a proof
    return not (there.is_number and abs(there) > 1e-9) and gap.equals(0) is True


_DIVISOR = re.compile(r"\\(gcd|lcm) \( (\d+(?: , \d+)+) \)")


def same_number(gold: str, answer: str, tolerance: Tolerance) -> bool:
    """Formulas: equal, or numbers within what a decimal or the tolerance allows."""
    if divisor := _DIVISOR.fullmatch(gold):
        gold = str(getattr(math, divisor[1])(*map(int, divisor[2].split(" , "))))
    g, a = parse(gold), parse(answer)
    if g is None or a is None:
        return False
    allowed = Rational(str(tolerance[0])) if len(tolerance) == 1 else Rational(0)
    decimal = re.fullmatch(r"(?:- )?(\d*)\.(\d+)", answer)
    finite = g.is_Rational and 10 ** g.q.bit_length() % g.q == 0  # then a decimal must hit it exactly
    if decimal and not finite and len((decimal[1] + decimal[2]).lstrip("0")) >= MIN_DIGITS:
        allowed = max(allowed, Rational(1, 2 * 10 ** len(decimal[2])))
    gap = abs(g - a)
    return bool(allowed and g.is_number and a.is_number and gap <= allowed) or same_value(g, a)
