"""Formulas as functions of real numbers: pairs made by program that differ somewhere, and pairs that are the same."""

import random
from fractions import Fraction
from math import ceil, floor

from tasks.math_answers import math_equal

# ------------------------------------------------------------------------------------------- pairs that differ somewhere

GRID = [Fraction(k, 8) for k in range(-96, 97)]  # whole numbers, halves and others, of both signs


def sign(x):
    return (x > 0) - (x < 0)


def line(rng):
    """(LaTeX, function) of a x + b."""
    a, b = rng.choice([1, 1, 2, -1, -2, 3, Fraction(1, 2)]), rng.randint(-4, 4)
    slope = {1: "x", -1: "-x", Fraction(1, 2): r"\frac{x}{2}"}.get(a, f"{a}x")
    return f"{slope}{b:+d}" if b else slope, lambda x: a * x + b


def broken(rng):
    """(LaTeX, function) of an absolute value, remainder, minimum, maximum, sign or rounding of a line."""
    inner, f = line(rng)
    k, m = rng.randint(2, 5), rng.randint(-3, 3)
    outer, times, plus = rng.choice(
        [
            (rf"|{inner}|", lambda x: abs(f(x))),
            (rf"\left|{inner}\right|", lambda x: abs(f(x))),
            (rf"({inner}) \bmod {k}", lambda x: f(x) % k),
            (rf"\max({inner}, {m})", lambda x: max(f(x), m)),
            (rf"\min\{{{inner}, {m}\}}", lambda x: min(f(x), m)),
            (rf"\operatorname{{sgn}}({inner})", lambda x: sign(f(x))),
            (rf"\lfloor {inner} \rfloor", lambda x: floor(f(x))),
            (rf"\left\lceil {inner} \right\rceil", lambda x: ceil(f(x))),
            (rf"\lfloor {inner} \rceil", lambda x: floor(f(x) + Fraction(1, 2))),
            (rf"\operatorname{{round}}({inner})", lambda x: floor(f(x) + Fraction(1, 2))),
            (rf"\operatorname{{trunc}}({inner})", lambda x: int(f(x))),
            (inner, f),
        ]
    ), rng.choice([1, 1, 2, -1]), rng.randint(-2, 2)
    text, g = outer
    shown = {1: text, -1: f"-({text})"}.get(times, f"{times}({text})") + (f"{plus:+d}" if plus else "")
    return shown, lambda x: times * g(x) + plus


def differing(rng):
    """Two formulas that agree at one point in five or more of the grid, so that points chosen badly miss the difference."""
    while True:
        (a, f), (b, g) = broken(rng), broken(rng)
        agree = sum(f(x) == g(x) for x in GRID)
        if len(GRID) // 5 <= agree < len(GRID):
            return a, b


RNG = random.Random(5)
DIFFERENT = list(dict.fromkeys(differing(RNG) for _ in range(260)))[:200]


def test_formulas_that_differ_somewhere_on_the_reals_are_different():
    assert len(DIFFERENT) == 200
    wrong = [(a, b) for pair in DIFFERENT for a, b in (pair, pair[::-1]) if math_equal(gold=a, answer=b)]
    assert wrong == []


# ------------------------------------------------------------------------------------------ pairs that are the same

IDENTITIES = r"""
(A+B)^2 = (A)^2+2(A)(B)+(B)^2
(A)(B+C) = (B)(A)+(C)(A)
(A)^2-(B)^2 = (A-(B))(A+B)
\frac{A+B}{C} = \frac{B}{C}+\frac{A}{C}
\sin^2(A)+\cos^2(A)+B = B+1
\sin(2(A)) = 2\cos(A)\sin(A)
\cos(2(A)) = 1-2\sin^2(A)
\tan(A)\cos(A) = \sin(A)
e^{A}e^{B} = e^{A+B}
\sqrt{(A)^2} = |A|
|A||B| = |(B)(A)|
|A| = |-(A)|
|A| = \max(A,-(A))
\max(A,B) = \frac{A+B+|A-(B)|}{2}
\min(A,B) = A+B-\max(B,A)
\min\{A,B\} = -\max\{-(A),-(B)\}
\operatorname{sgn}(A)|A| = A
\lfloor A\rfloor = -\lceil -(A)\rceil
\lfloor A+3\rfloor = \lfloor A\rfloor+3
\lceil A\rceil+2 = \lceil A+2\rceil
\lfloor A \rceil = \lfloor A+\frac12\rfloor
(A) \bmod 3 = A-3\lfloor \frac{A}{3}\rfloor
\lfloor 2(A)\rfloor = \lfloor A\rfloor+\lfloor A+\frac12\rfloor
\sqrt[3]{(A)^3} = A
\sqrt[3]{-(A)} = -\sqrt[3]{A}
\ln(e^{A}) = A
2^{A}4^{B} = 2^{A+2(B)}
\frac{1}{A}-\frac{1}{B} = \frac{B-(A)}{(A)(B)}
(A)+(B) = \frac{(A)^2-(B)^2}{A-(B)}
\log_2(2^{A}) = A
"""


def rewritten(rng):
    """An identity with polynomials in x and y for its letters."""
    left, _, right = rng.choice(IDENTITIES.strip().splitlines()).partition(" = ")
    pieces = [f"{rng.randint(2, 5)}{v}{rng.randint(1, 4):+d}" for v in "xy"] + [f"x^2{rng.randint(1, 5):+d}", "xy", "4y"]
    for letter, piece in zip("ABC", rng.sample(pieces, 3), strict=True):
        left, right = left.replace(letter, piece), right.replace(letter, piece)
    return left, right


SAME = list(dict.fromkeys(rewritten(random.Random(seed)) for seed in range(260)))[:200]


def test_rewritten_formulas_are_the_same():
    assert len(SAME) == 200
    wrong = [(a, b) for pair in SAME for a, b in (pair, pair[::-1]) if not math_equal(gold=a, answer=b)]
    assert wrong == []
