r"""Formulas of mathematical answers: read by an allow-list, compared exactly. Only workers run this (`math_rules.py`).

`parse` reads the tokens of `math_text.clean` into a sympy expression. Whatever is not in its grammar raises `Unknown`:
primes, accents, sums, integrals, matrices, names of several letters, any other command; and so does what the grammar
would misread: transposes, derivatives, functions of one's own. Such texts equal only themselves.

Letters are real numbers (z and w complex), e and i the constants; the base of a bare \log is unknown.
"""

from __future__ import annotations

import math
import random
import re
from functools import lru_cache
from typing import Any

import sympy
from sympy import Integer, Rational, Symbol

from tasks.math_text import FUNCTIONS

MAX_BITS = 100_000  # of an exact power: larger numbers are compared as text
MIN_DIGITS = 6  # significant digits a decimal needs to stand for a value that has no finite decimal
MODERATE = 10**60  # numbers compared digit by digit have no part beyond this or below one over it
Tolerance = tuple[float, ...]  # absolute: none, one for all values of a gold, or one for each element of its list

_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau phi "
    "varphi upsilon chi psi omega Gamma Delta Theta Lambda Xi Phi Psi Omega ell"
)
LETTER = "(?:[a-zA-Z]|" + "|".join(rf"\\{name}(?![a-zA-Z])" for name in _GREEK.split()) + ")"
_SYMPY = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "ln": "log", "ceil": "ceiling"}
_CALLS = {"\\" + name: getattr(sympy, _SYMPY.get(name, name)) for name in FUNCTIONS.split() if name != "sqrt"}
_PAIRS = {"(": ")", "{": "}", "[": "]", "|": "|", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_STARTS = _CALLS.keys() | {r"\frac", r"\sqrt", r"\binom", r"\pi", "(", "{", r"\lfloor", r"\lceil"}
_LOG_BASE = Symbol("base of \\log", positive=True)
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


class _Unknown(ValueError):
    """The parser does not know exactly what this means."""


@lru_cache(maxsize=512)
def parse(text: str) -> Any:
    """The sympy expression of a clean text; None if the parser does not know exactly what it means."""
    try:
        parser = _Parser(text.split(" "))
        value = None if _MISREAD.search(text) else parser.sum()
    except _Unknown:
        return None
    infinite = value is None or parser.next or value.has(sympy.zoo, sympy.oo, -sympy.oo, sympy.nan)
    return None if infinite else value


class _Parser:
    """Recursive descent: each method reads one level of precedence from `tokens[at]` on."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, "", ""]
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
        terms: list[Any] = []
        while not terms or self.next in ("+", "-"):
            sign = 1
            for _ in range(2):  # 2 + -3
                sign = -sign if self.skip("-") else sign
                self.skip("+")
            terms.append(sign * self.product())
        return sympy.Add(*terms)

    def product(self) -> Any:
        result = self.factor()
        while True:
            if self.skip("/"):
                result = _quotient(result, self.factor())
                if self.starts():
                    raise _Unknown("1/2x")
            elif self.skip(r"\cdot", "*", r"\times"):
                result *= -self.factor() if self.skip("-") else self.factor()
            elif self.starts():
                result *= self.factor()
            else:
                return result

    def starts(self) -> bool:
        """Does a factor start here? A number does so only in n 2^n and 4! 3!."""
        bar = self.next == "|" and not self.bars
        number = self.next.isdigit() and self.tokens[self.at + 1] in ("^", "!")
        return bar or number or self.next in _STARTS or bool(re.fullmatch(LETTER, self.next))

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
        if self.next in ("!", "^", "_", "'"):
            raise _Unknown("n!!, x^2^3, a prime")
        return base

    def pair(self, product: bool = False) -> Any:
        """What stands in brackets, or between bars."""
        closing, bars = _PAIRS.get(self.next, "a bracket"), self.bars
        self.bars = self.next == "|"
        self.at += 1
        value = self.product() if product else self.sum()
        self.bars = bars
        if not self.skip(closing):
            raise _Unknown(f"{self.next!r} instead of {closing!r}")
        return value

    def primary(self) -> Any:
        token = self.next
        if token in ("(", "{"):  # braces are invisible: 2{x+1} shows 2x+1
            return self.pair(product=token == "{")
        if token in _PAIRS and token != "[":
            return {r"\lfloor": sympy.floor, r"\lceil": sympy.ceiling}.get(token, sympy.Abs)(self.pair())
        self.at += bool(token)
        if re.match(r"\.?\d", token):
            return Rational(token)
        if token == r"\frac":
            return _quotient(self.pair(), self.pair())
        if token == r"\binom":
            return sympy.binomial(self.pair(), self.pair())
        if token == r"\sqrt":
            degree = self.pair() if self.next == "[" else Integer(2)
            return _power(self.pair(), _quotient(Integer(1), degree))
        if token in _CALLS:
            return self.call(token)
        if token == r"\pi":
            return sympy.pi
        if not re.fullmatch(LETTER, token):
            raise _Unknown(token)
        if self.skip("_"):  # the text of a subscript belongs to the name
            start, depth = self.at, 0
            while self.at == start or (depth and self.next):
                depth += (self.next == "{") - (self.next == "}")
                self.at += 1
            token += "_" + " ".join(self.tokens[start : self.at])
        return {"e": sympy.E, "i": sympy.I}.get(token) or Symbol(token, real=token[0] not in "zw")

    def call(self, token: str) -> Any:
        r"""The value of a function: \sin(x), \sin 2\pi x, \sin^2 x, \log_2 8."""
        base, power = _LOG_BASE if token == r"\log" else sympy.E, 1
        if token == r"\log" and self.skip("_"):
            base = self.pair() if self.next == "{" else self.primary()
        if self.skip("^"):
            power = self.primary()
        simple = self.next not in ("(", "{", "|", r"\frac", r"\sqrt")
        value = self.factor() if simple else self.primary()
        while simple and (re.fullmatch(LETTER, self.next) or self.next == r"\pi"):
            value *= self.factor()
        if self.next in ("^", "!", "_") or (self.starts() and self.next not in _CALLS):
            raise _Unknown("no end of an argument")
        value = _CALLS[token](value)
        return (value if base is sympy.E else value / sympy.log(base)) ** power


def _quotient(top: Any, bottom: Any) -> Any:
    if bottom.is_zero:
        raise _Unknown("a division by zero")
    return top / bottom


def _power(base: Any, exponent: Any) -> Any:
    size = max(base.p.bit_length(), base.q.bit_length()) if base.is_Rational else 20
    if (exponent.is_number and not abs(exponent) * size <= MAX_BITS) or (base.is_zero and not exponent.is_positive):
        raise _Unknown("a huge power, or a division by zero")
    if base.is_number and base.is_negative and exponent.is_Rational and exponent.q % 2 and exponent.q > 1:
        return (-1) ** exponent.p * (-base) ** exponent  # odd roots of negative numbers are real
    return base**exponent


# ------------------------------------------------------------------------------------------------------------ comparing


def same_value(gold: Any, answer: Any) -> bool:
    """Exact equality of two expressions. What cannot be proved is not equal."""
    gap = gold - answer
    if gap.is_Rational:
        return gap == 0
    if not gap.free_symbols:
        # Irrational numbers that agree in 400 digits are equal, if none of their parts is so small as to hide there.
        parts = {part for number in (gold, answer) for part in sympy.preorder_traversal(number) if part.is_number}
        if all(part.is_zero or Rational(1, MODERATE) < abs(part.evalf(5)) < MODERATE for part in parts):
            return bool(abs(gap.evalf(15, maxn=500)) < Rational(1, 10**400))
        return False
    rng = random.Random(0)
    for size in (1, 4, 100):  # one point where they differ refutes, much faster than a proof
        point = {name: Rational(rng.randint(-97 * size, 97 * size), 97) for name in sorted(gap.free_symbols, key=str)}
        value = gap.xreplace(point).evalf(20)
        if value.is_number and value.is_finite and abs(value) > 1e-9:
            return False
    return sympy.expand(gap) == 0 or sympy.simplify(gap) == 0


_DECIMAL = re.compile(r"(?:- )?(\d*)\.(\d+)(?:e([+-]?\d+)| \\(?:times|cdot) 10 \^ (?:\{ )?((?:- )?\d+)(?: \})?)?")
_DIVISOR = re.compile(r"\\(gcd|lcm) \( (\d+(?: , \d+)+) \)")
_BASED = re.compile(r"(\d+) _ (\d{1,2})")


def same_number(gold: str, answer: str, tolerance: Tolerance) -> bool:
    """Formulas: equal, or numbers within what a decimal or the tolerance allows."""
    if _BASED.fullmatch(gold):  # "write 5 in base 2" is not answered by 5
        return False
    based, divisor = _BASED.fullmatch(answer), _DIVISOR.fullmatch(gold)
    if based and 2 <= int(based[2]) <= 36 and all(int(digit) < int(based[2]) for digit in based[1]):
        answer = str(int(based[1], int(based[2])))
    if divisor:
        gold = str(getattr(math, divisor[1])(*map(int, divisor[2].split(" , "))))
    g, a = parse(gold), parse(answer)
    if g is None or a is None:
        return False
    if g.is_number and a.is_number:
        allowed = Rational(str(tolerance[0])) if len(tolerance) == 1 else Rational(0)
        decimal = _DECIMAL.fullmatch(answer)
        finite = g.is_Rational and 10 ** g.q.bit_length() % g.q == 0  # then a decimal must hit it exactly
        if decimal and not finite and len((decimal[1] + decimal[2]).lstrip("0")) >= MIN_DIGITS:
            exponent = int((decimal[3] or decimal[4] or "0").replace(" ", ""))
            allowed = max(allowed, Rational(10) ** (exponent - len(decimal[2])) / 2)
        gap = abs(g - a)
        if allowed and (gap if gap.is_Rational else gap.evalf(60)) <= allowed:
            return True
    return same_value(g, a)
