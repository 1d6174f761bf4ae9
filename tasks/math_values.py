r"""Values of formulas: read by math-verify's LaTeX parser, compared exactly or at points where no other one agrees.

Formulas are functions of real numbers: odd roots of negative numbers are real, and two formulas that differ anywhere
on the reals (also where one is real and the other is not) are different. Single points without a value do not matter:
(x^2-1)/(x-1) is x+1. Only what counts things is compared at whole numbers: arguments of factorials and binomials,
exponents of negative numbers, and n, k and their like inside a rounding.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Any

from tasks.math_numbers import Tolerance, number, terminates

_WHOLE = frozenset("jklmnMN")  # names of whole numbers, by custom
_CALL = re.compile(r"\\(max|min|gcd|lcm|sgn|round|floor|ceil|abs|rem|trunc|mod)(?=\(|\{|\\\{)(?:\\?[({])")

# -------------------------------------------------------------------------------------------------------------- reading


def split(text: str, marks: str) -> tuple[list[str], list[str]]:
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


def _call(name: str, arguments: list[Any]) -> Any:
    from sympy import Abs, Function, Integer, Max, Min, Mod, Rational, ceiling, floor, igcd, ilcm, sign

    def truncate(x: Any) -> Any:
        return sign(x) * floor(Abs(x))

    if name in ("gcd", "lcm"):
        known = all(argument.is_Integer for argument in arguments)
        return Integer((igcd if name == "gcd" else ilcm)(*arguments)) if known else Function(name)(*arguments)
    table = {
        "max": Max, "min": Min, "sgn": sign, "floor": floor, "ceil": ceiling, "abs": Abs, "mod": Mod, "trunc": truncate,
        "round": lambda x: floor(x + Rational(1, 2)), "rem": lambda x, y: x - y * truncate(x / y),
    }  # fmt: skip
    return table[name](*arguments)


def _calls(text: str) -> tuple[str, dict[Any, Any]]:
    r"""The parser knows no \sgn and no \max inside a \min: each call becomes a symbol, innermost first."""
    from sympy import Symbol

    values: dict[Any, Any] = {}
    while calls := list(_CALL.finditer(text)):
        call, depth, end = calls[-1], 1, 0
        for bracket in re.finditer(r"[()\[\]{}]", text[call.end() :]):
            depth += 1 if bracket[0] in "([{" else -1
            if depth == 0:
                end = call.end() + bracket.end()
                break
        else:
            raise ValueError(f"no end of the arguments of {call[0]}")
        inside = text[call.end() : end - 1].removesuffix("\\")
        arguments = [parse(part).xreplace(values) for part in split(inside, "[,;]")[0]]
        name = f"xi_{{{1000 + len(values)}}}"  # the parser's own spelling of \xi_{1000}
        values[Symbol(name)] = _call(call[1], arguments)
        text = text[: call.start()] + rf"\{name} " + text[end:]
    return text, values


@lru_cache(maxsize=512)
def parse(text: str) -> Any:
    """A sympy object, mostly unevaluated. Raises whatever the parser raises on malformed text."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from sympy import Abs, Float, I, Rational, Symbol, sign

    literal = number(text)
    if literal:
        return Rational(literal[0])
    if re.search(r"(?<![_\d])\d+ \d", text):  # the parser takes a product
        raise ValueError(f"two numbers side by side: {text}")
    text, calls = _calls(text)
    # Unit removal of the library is off: it takes the m of 6m for a metre.
    config = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    parsed = latex2sympy(normalize_latex(text, config), is_real=None, convert_degrees=False, normalization_config=None)
    exact = {decimal: Rational(str(decimal)) for decimal in parsed.atoms(Float)}
    parsed = parsed.xreplace({Symbol("i"): I, **exact}).xreplace(calls)

    def odd_root(e: Any) -> bool:
        exponent: Any = getattr(e, "exp", None)
        odd = e.is_Pow and exponent.is_Rational and exponent.q > 1 and exponent.q % 2 == 1
        return bool(odd and not e.base.is_positive and not e.has(I))

    return parsed.replace(odd_root, lambda e: sign(e.base) ** e.exp.p * Abs(e.base) ** e.exp)


# ------------------------------------------------------------------------------------------------------------ comparing


def same_expression(gold: str, answer: str, tolerance: Tolerance = ()) -> bool:
    from sympy import FiniteSet, MatrixBase, Rational, Set
    from sympy.matrices.expressions.matexpr import MatrixExpr

    g, literal = parse(gold), number(answer)
    if literal and literal[1] is not None and not g.free_symbols and not isinstance(g, Set | MatrixBase):
        value = g.doit()
        if not (value.is_Rational and terminates(Fraction(int(value.p), int(value.q)))):
            rounding = max(Rational(literal[1]), *(Rational(str(t)) for t in tolerance[:1]), 0)
            return bool(abs(value.evalf(60) - Rational(literal[0])) <= rounding)
    a = parse(answer)
    g, a = (next(iter(e.args)) if isinstance(e, FiniteSet) and len(e.args) == 1 else e for e in (g, a))
    if isinstance(g, Set) or isinstance(a, Set):
        return isinstance(g, Set) and isinstance(a, Set) and bool(_exact_ends(g) == _exact_ends(a))
    if isinstance(g, MatrixBase | MatrixExpr) or isinstance(a, MatrixBase | MatrixExpr):
        g, a = g.doit(), a.doit()
        return getattr(g, "shape", 0) == getattr(a, "shape", 1) and all(map(same_value, g.flat(), a.flat()))
    if len(tolerance) == 1 and not g.free_symbols and not a.free_symbols:
        gap = abs((g - a).evalf(30))
        return bool(gap.is_number and gap.is_finite and gap <= Rational(str(tolerance[0])))
    return same_value(g, a)


def _exact_ends(collection: Any) -> Any:
    """A set of reals whose ends and points are rational (60 digits), so that equal ones are the same object."""
    from sympy import FiniteSet, Interval, Rational

    def exact(end: Any) -> Any:
        value = end.doit()
        known = value.is_number and value.is_finite and value.is_real and not value.is_Rational
        return Rational(str(value.evalf(60).round(50))) if known else value

    if isinstance(collection, Interval):
        return Interval(exact(collection.start), exact(collection.end), collection.left_open, collection.right_open)
    if isinstance(collection, FiniteSet):
        return FiniteSet(*map(exact, collection.args))
    return collection.func(*map(_exact_ends, collection.args)) if collection.args else collection


def _broken() -> tuple[Any, ...]:
    from sympy import Abs, Max, Min, Mod, ceiling, floor, sign

    return Abs, sign, floor, ceiling, Max, Min, Mod


def _breaks(expression: Any, point: dict[Any, Any]) -> Iterator[dict[Any, Any]]:
    """Points on, beside and between the places where one of the expression's absolute values, roundings etc. breaks."""
    from sympy import Abs, Max, Min, Mod, Poly, Rational, im, sign

    for node in sorted(expression.atoms(*_broken()), key=str)[:12]:
        if isinstance(node, Abs | sign):
            zeros = [node.args[0]]
        elif isinstance(node, Max | Min):
            zeros = [first - second for first, second in combinations(node.args[:5], 2)]
        else:
            whole = node.args[0] / node.args[1] if isinstance(node, Mod) else node.args[0]
            zeros = [whole - k for k in (0, 1, -2)]
        for name in sorted(node.free_symbols, key=str):
            for zero in zeros:
                zero = zero.xreplace({other: value for other, value in point.items() if other != name})
                if not zero.is_polynomial(name) or zero.has(*_broken()):
                    continue
                polynomial = Poly(zero, name).sqf_part()  # numeric roots do not converge where roots are repeated
                if polynomial.degree() == 1:
                    roots = [-polynomial.nth(0) / polynomial.nth(1)]
                else:
                    roots = polynomial.nroots(maxsteps=200) if 0 < polynomial.degree() < 8 else []
                for root in (root for root in roots if not im(root)):
                    center = root if root.is_Rational else Rational(str(root.evalf(20)))
                    for step in (0, Rational(1, 1000), Rational(-1, 1000)):
                        yield {**point, name: center + step}


def points(*expressions: Any) -> Iterator[dict[Any, Any]]:
    """Values for the variables (what is whole: see the top of this file). Formulas with breaks get many more points."""
    from sympy import Integer, Pow, Rational, binomial, ceiling, factorial, floor

    names = sorted(set().union(*(e.free_symbols for e in expressions)), key=str)
    counted, signed = set(), set()
    for e in expressions:
        counted |= set().union(*(node.free_symbols for node in e.atoms(factorial, binomial)))
        signed |= set().union(*(node.exp.free_symbols for node in e.atoms(Pow) if node.base.is_negative))
        signed |= {s for node in e.atoms(floor, ceiling) for s in node.free_symbols if s.name in _WHOLE}
    rng = random.Random(0)

    def draw(name: Any, scale: int, positive: bool, grid: int) -> Any:
        if name in counted:
            return Integer(rng.randint(0, 40))
        if name in signed:
            return Integer(rng.randint(1 if positive else -40, 40))
        return Rational(rng.randint(0 if positive else -scale * grid, scale * grid) * 2 + grid % 2, 2 * grid)

    for k in range(16):
        yield {name: draw(name, (4, 1, 8, 100)[k // 2 % 4], k % 2 == 0, 97) for name in names}
    if any(e.has(*_broken()) for e in expressions):
        for k in range(24):
            yield {name: draw(name, (3, 30, 1000, 3)[k % 4], False, 97 if k % 2 else 2) for name in names}
        for e in expressions:
            for _ in names[:2]:
                for point in _breaks(e, {name: draw(name, 8, False, 97) for name in names}):
                    if not any(point[name] % 1 for name in (counted | signed) & point.keys()):
                        yield point


def value_at(expression: Any, point: dict[Any, Any]) -> Any:
    """The number there, None where the expression has no value. Exact where a rounding might turn on the last digit."""
    exact = expression.has(*_broken())
    value = expression.xreplace(point).evalf(30) if exact else expression.evalf(30, subs=point)
    return value if value.is_number and value.is_finite else None


def same_value(g: Any, a: Any) -> bool:
    """Equality of two sympy expressions by value, in high precision. Infinite and undefined values equal nothing.

    (`simplify` is slower by orders of magnitude, and can neither refute nor always prove.)
    """
    from sympy import I, Rational, oo, simplify, zoo

    if g.has(oo, -oo, zoo) or a.has(oo, -oo, zoo):
        return False
    if g == a:
        return bool(g.is_finite is not False)
    if not g.free_symbols and not a.free_symbols:
        gap, scale = (g - a).evalf(15, maxn=500), abs(g.evalf(15))
        return bool(gap == 0 or (gap.is_number and gap.is_finite and abs(gap) <= scale * Rational(1, 10**400)))
    agreed = 0
    for point in points(g, a):
        values = value_at(g, point), value_at(a, point)
        if values[0] is None or values[1] is None:
            continue
        real = [abs(v.as_real_imag()[1]) <= abs(v) * 1e-20 for v in values]
        if not any(real) and not g.has(I):
            continue  # outside the domain of both
        if real[0] != real[1] or abs(values[0] - values[1]) > abs(values[0]) * 1e-20 + 1e-25:
            return False
        agreed += 1
    return agreed >= 3 or bool(simplify(g - a) == 0)
