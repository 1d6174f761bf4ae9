"""Formulas as functions of real numbers: pairs made by program that differ somewhere, and pairs that are the same."""

import random
from math import ceil, floor

import pytest

from tasks.math_answers import score_answers

# ------------------------------------------------------------------------------------------ pairs that differ somewhere

GRID = [k / 4 for k in range(-32, 33)]  # whole numbers, halves and quarters of both signs, exact in binary


def sign(x):
    return (x > 0) - (x < 0)


def line(rng):
    """(LaTeX, function) of a x + b."""
    a, b = rng.choice([1, 1, 2, -1, -2, 3, 0.5]), rng.randint(-4, 4)
    slope = {1: "x", -1: "-x", 0.5: r"\frac{x}{2}"}.get(a, f"{a}x")
    return f"{slope}{b:+d}" if b else slope, lambda x: a * x + b


def broken(rng):
    """(LaTeX, function) of an absolute value, remainder, minimum, maximum, sign or rounding of a line."""
    inner, f = line(rng)
    k, m = rng.randint(2, 5), rng.randint(-3, 3)
    outer, times, plus = (
        rng.choice(
            [
                (rf"|{inner}|", lambda x: abs(f(x))),
                (rf"\left|{inner}\right|", lambda x: abs(f(x))),
                (rf"({inner}) \bmod {k}", lambda x: f(x) % k),
                (rf"\max({inner}, {m})", lambda x: max(f(x), m)),
                (rf"\min\{{{inner}, {m}\}}", lambda x: min(f(x), m)),
                (rf"\operatorname{{sgn}}({inner})", lambda x: sign(f(x))),
                (rf"\lfloor {inner} \rfloor", lambda x: floor(f(x))),
                (rf"\left\lceil {inner} \right\rceil", lambda x: ceil(f(x))),
                (rf"\lfloor {inner} \rceil", lambda x: floor(f(x) + 0.5)),
                (rf"\operatorname{{round}}({inner})", lambda x: floor(f(x) + 0.5)),
                (rf"\operatorname{{trunc}}({inner})", lambda x: int(f(x))),
                (inner, f),
            ]
        ),
        rng.choice([1, 1, 2, -1]),
        rng.randint(-2, 2),
    )
    text, g = outer
    shown = {1: text, -1: f"-({text})"}.get(times, f"{times}({text})") + (f"{plus:+d}" if plus else "")
    return shown, lambda x: times * g(x) + plus


def differing(rng):
    """Two formulas that agree at a fifth of the grid or more, so that points chosen badly miss the difference."""
    while True:
        (a, f), (b, g) = broken(rng), broken(rng)
        agree = sum(f(x) == g(x) for x in GRID)
        if len(GRID) // 5 <= agree < len(GRID):
            return a, b


RNG = random.Random(5)
DIFFERENT = list(dict.fromkeys(differing(RNG) for _ in range(260)))[:200]


def check(pairs, equal):
    """Both ways round."""
    both = [(a, b) for pair in pairs for a, b in (pair, pair[::-1])]
    scores = score_answers([rf"\boxed{{{b}}}" for _, b in both], [a for a, _ in both])
    assert [pair for pair, score in zip(both, scores, strict=True) if score != equal] == []


# A part of the pairs in every run, all of them in the slow one.
PART = [pytest.param(slice(30), id="some"), pytest.param(slice(30, None), id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("part", PART)
def test_formulas_that_differ_somewhere_on_the_reals_are_different(part):
    assert len(DIFFERENT) == 200
    check(DIFFERENT[part], equal=0.0)


# ---------------------------------------------------------------------------------------------- pairs that are the same

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
    pieces = [f"{rng.randint(2, 5)}{v}{rng.randint(1, 4):+d}" for v in "xy"] + [
        f"x^2{rng.randint(1, 5):+d}",
        "xy",
        "4y",
    ]
    for letter, piece in zip("ABC", rng.sample(pieces, 3), strict=True):
        left, right = left.replace(letter, piece), right.replace(letter, piece)
    return left, right


SAME = list(dict.fromkeys(rewritten(random.Random(seed)) for seed in range(260)))[:200]


@pytest.mark.parametrize("part", PART)
def test_rewritten_formulas_are_the_same(part):
    assert len(SAME) == 200
    check(SAME[part], equal=1.0)
