r"""Equality of mathematical answers, as a pure function on cleaned texts: structure first, values at the leaves.

| file | what it knows |
|---|---|
| `math_text.py` | `clean`: one spelling of characters, LaTeX, words and units |
| `math_numbers.py` | `decide`: numbers, bases, clock times and words, without algebra |
| here | `same`: lists, tuples, sets, intervals, relations, ratios |
| `math_values.py` | formulas compared by value |

What counts as equal (`tests/test_math_answers.py` has the long list):
- Exact values are exactly equal. A decimal may stand for a gold without a finite decimal (1/3, pi) when it is that gold
  rounded to the decimal's own digits, at least 6 significant ones; or it is within the tolerance that came with the
  gold. 35\% equals 35 and 0.35. 1e-7 is a number. An infinite or undefined value equals only its own spelling.
- Commas merge only as thousands marks (groups of three digits, outside brackets); else they separate a list.
- Lists and sets have no order, tuples have. (2,5] equals 2 < x \le 5 and \{x \mid 2 < x \le 5\}. `x = 5` equals `5`,
  not `y = 5`. Equations are equal up to a constant factor. Ratios scale, clock times do not.
- A gold with a base (52_8) accepts only that numeral. Known units, degree signs and currency signs may be left out,
  but not exchanged for others. All other words must match, ignoring case.

`same` can run for hours on a short hostile text: call it where it can be killed, as `math_answers.py` does.
"""

from __future__ import annotations

import re
from itertools import combinations

from tasks.math_numbers import Tolerance, between_words, clock, decide, words
from tasks.math_text import NAME, without_units
from tasks.math_values import parse, points, same_expression, same_value, split, value_at

MAX_LENGTH = 2_000  # characters of an answer that are read as mathematics; longer ones equal only themselves


def same(gold: str, answer: str, tolerance: Tolerance = ()) -> bool:
    """Equality of cleaned texts, by structure first and algebra at the leaves."""
    quick = decide(gold, answer, tolerance)
    if quick is not None:
        return quick
    gold, answer = without_units(gold)[0], without_units(answer)[0]
    if gold.endswith("%") != answer.endswith("%"):
        g, a = gold.rstrip("%"), answer.rstrip("%")
        scaled = (rf"({g})/100", a) if gold.endswith("%") else (g, rf"({a})/100")
        return same(g, a, tolerance) or same(*scaled, tolerance)
    gold, answer = _solved(gold.removesuffix("%")), _solved(answer.removesuffix("%"))
    if "=" in gold and "=" in answer:
        gold, answer = _one_by_one(gold), _one_by_one(answer)
    (g_kind, golds), (a_kind, answers) = _group(gold), _group(answer)
    if not all((*golds, *answers)):  # a separator without values beside it
        return False
    if len(golds) == len(answers) == 1 and "{}" not in (g_kind, a_kind):
        return _same_relation(golds[0], answers[0], tolerance)
    tolerances: list[Tolerance] = [tolerance] * len(golds)
    if len(tolerance) == len(golds):
        tolerances = [(t,) for t in tolerance]
    if g_kind == a_kind == "{}":  # repetition does not matter in a set
        pairs = list(zip(golds, tolerances, strict=True))
        covered = all(any(same(g, a, t) for a in answers) for g, t in pairs)
        equal = covered and all(any(same(g, a, t) for g, t in pairs) for a in answers)
    elif {g_kind, a_kind} <= {"", "{}"}:
        equal = _same_unordered(golds, answers, tolerances)
    elif len(golds) != len(answers):  # an interval and an inequality
        equal = 1 in (len(golds), len(answers)) and _same_relation(gold, answer, tolerance)
    else:  # (1,2) may be written 1,2
        equal = (g_kind == a_kind or {g_kind, a_kind} == {"", "()"}) and all(map(same, golds, answers, tolerances))
    if not equal and re.search(r"\\(?:cup|cap|setminus|mathbb)", gold + answer):
        return same_expression(gold, answer)  # sets that overlap or differ in their cut
    return equal


# ----------------------------------------------------------------------------------------------- lists, tuples and sets


def _elements(text: str) -> list[str]:
    r"""A list at the top level: cut at commas, semicolons, unions and "and", every \pm written out."""
    both = [
        [part.replace(r"\pm", p).replace(r"\mp", m) for p, m in ("+-", "-+")] if r"\pm" in part else [part]
        for part in split(text, r"[,;]|\\(?:cup|land)(?![a-zA-Z])")[0]
    ]
    return [re.sub(r"(^|=)\s*\+\s*", r"\1", part) for pair in both for part in pair]


def _group(text: str) -> tuple[str, list[str]]:
    r"""(brackets, elements): ("()", ["1", "2"]) for (1,2), ("{}", ...) for a set, ("", ...) without brackets."""
    match = re.fullmatch(r"(\\\{|[(\[])(.*)(\\\}|[)\]])", text)
    if match and not split(match[2], r"[)\]]|\\\}")[1]:
        kind = (match[1] + match[3]).replace("\\", "")
        items = split(match[2], "[,;]")[0]
        if kind == "{}":
            return kind, _elements(match[2])
        if len(items) > 1 and r"\pm" not in text:  # (x + 1) is no tuple; [1,2,3] is no interval
            return "()" if kind == "[]" and len(items) != 2 else kind, items
    return "", _elements(text)


def _same_unordered(golds: list[str], answers: list[str], tolerances: list[Tolerance]) -> bool:
    """Is one list a reordering of the other?"""
    rest = list(answers)
    for gold, tolerance in zip(golds, tolerances, strict=True) if len(golds) == len(answers) else ():
        partner = next((i for i, answer in enumerate(rest) if same(gold, answer, tolerance)), None)
        if partner is None:
            return False
        del rest[partner]
    return not rest and len(golds) == len(answers)


def _is_name(text: str) -> bool:
    """x, f(x), |AB|, also several at once: (p,q) and AB:BC."""
    parts = split(text[1:-1], ",")[0] if re.fullmatch(r"\(.*\)", text) else split(text, ":")[0]
    return all(NAME.fullmatch(part) for part in parts)


def _one_by_one(text: str) -> str:
    """(p,q)=(5,-2) as p=5,q=-2; other text as it is."""
    parts, marks = split(text, "=")
    if len(marks) == 1 and parts[0].startswith("(") and _is_name(parts[0]):
        names, values = _group(parts[0])[1], _group(parts[1])[1]
        if len(names) == len(values) > 1:
            return ",".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
    return text


# ---------------------------------------------------------------------------------------------- relations and intervals

_RELATIONS = r"\\(?:le|ge|ne|in)(?![a-zA-Z])|[<>=]"
_MIRROR = {">": "<", r"\ge": r"\le"}
_BUILDER = re.compile(r"\\\{([A-Za-z](?:_\w)?)(?:\\in\\mathbb\{R\})?[|:](.+)\\\}")


def _interval(parts: list[str], marks: list[str]) -> tuple[str, str] | None:
    r"""(variable, interval) of x > 3 or 2 < x \le 5; None for other relations."""
    if marks and marks[0] in _MIRROR:
        parts, marks = parts[::-1], [_MIRROR.get(mark, "?") for mark in marks[::-1]]
    if not marks or set(marks) - {"<", r"\le"} or len(parts) > 3 or not all(parts):
        return None
    if len(parts) == 2 and NAME.fullmatch(parts[1]):  # 3 < x
        parts, marks = [*parts, r"\infty"], [*marks, "<"]
    elif len(parts) == 2:
        parts, marks = [r"-\infty", *parts], ["<", *marks]
    low, name, high = parts
    if not NAME.fullmatch(name):
        return None
    return name, f"{'(' if marks[0] == '<' else '['}{low},{high}{')' if marks[1] == '<' else ']'}"


def _solved(text: str) -> str:
    r"""x\in S as S, x>2 \land x<5 as 2<x<5, a set that is described as its intervals; other text as it is."""
    parts, marks = split(text, _RELATIONS)
    if marks == [r"\in"] and _is_name(parts[0]):
        return _solved(parts[1])
    builder = _BUILDER.fullmatch(text)
    if builder:
        name, condition = builder.groups()
        conditions = [c for c in split(condition, r",|\\land")[0] if c != rf"{name}\in\mathbb{{R}}"]
        solved = _solved(r"\land ".join(conditions))
        if not conditions:
            return r"\mathbb{R}"
        pieces = []
        for piece in split(solved, r"\\cup")[0]:
            parts, marks = split(piece, _RELATIONS)
            interval = _interval(parts, marks)
            if marks == [r"\ne"] and parts[0] == name:
                pieces += [rf"(-\infty,{parts[1]})", rf"({parts[1]},\infty)"]
            elif interval and interval[0] == name:
                pieces.append(interval[1])
            else:
                return rf"\{{{name}|{solved}\}}"
        return r"\cup".join(pieces)
    halves = [_interval(*split(part, _RELATIONS)) for part in split(text, r"\\land")[0]]
    if len(halves) == 2 and halves[0] and halves[1] and halves[0][0] == halves[1][0]:
        name, first, second = *halves[0], halves[1][1]
        for above, below in ((first, second), (second, first)):
            low, high = above.removesuffix(r",\infty)"), below.removeprefix(r"(-\infty,")
            if low != above and high != below:
                left, right = (r"\le " if low[0] == "[" else "<"), (r"\le " if high[-1] == "]" else "<")
                return low[1:] + left + name + right + high[:-1]
    return text


def _same_relation(gold: str, answer: str, tolerance: Tolerance) -> bool:
    """Equations, inequalities, memberships against each other or against the bare value; else ratios or formulas."""
    (golds, g_marks), (answers, a_marks) = split(gold, _RELATIONS), split(answer, _RELATIONS)
    if not g_marks and not a_marks:
        return _same_leaf(gold, answer, tolerance)
    g_set, a_set = _interval(golds, g_marks), _interval(answers, a_marks)
    if g_set and a_set:
        return g_set[0].casefold() == a_set[0].casefold() and same(g_set[1], a_set[1], tolerance)
    if not g_marks or not a_marks:  # x = 5, x \in S or 2 < x < 5 against 5, S or (2,5)
        parts, marks, interval = (golds, g_marks, g_set) if g_marks else (answers, a_marks, a_set)
        if interval:
            value = interval[1]
        elif set(marks) == {"="} and (_is_name(parts[0]) or all(same(parts[-1], p) for p in parts)):
            value = parts[-1]
        else:
            return False
        return same(value, answer, tolerance) if g_marks else same(gold, value, tolerance)
    for values, marks in ((golds, g_marks), (answers, a_marks)):
        if set(marks) == {"="}:
            del values[1:-1], marks[1:]  # a = b = c says what a is
    if g_marks == a_marks and len(golds) == len(answers):
        loose = [tolerance if _is_name(golds[0]) else ()] * len(golds)
        if all(map(same, golds, answers, loose)):
            return True
    if len(golds) != 2 or len(answers) != 2 or r"\in" in g_marks + a_marks:
        return False
    if a_marks != g_marks and _MIRROR.get(a_marks[0], a_marks[0]) == _MIRROR.get(g_marks[0], g_marks[0]):
        answers, a_marks = answers[::-1], g_marks
    return a_marks == g_marks and _proportional(golds, answers, any_sign=g_marks[0] in ("=", r"\ne"))


def _proportional(gold: list[str], answer: list[str], any_sign: bool) -> bool:
    """Do left - right of both relations differ by a constant factor only?"""
    (g_left, g_right), (a_left, a_right) = ([parse(part) for part in side] for side in (gold, answer))
    g, a = g_left - g_right, a_left - a_right
    if not g.free_symbols or g.free_symbols != a.free_symbols:
        return False
    values = ((point, value_at(g, point)) for point in points(g))
    point = next((point for point, value in values if value is not None and abs(value) > 1e-9), None)
    if point is None:
        return False
    factor = (a.subs(point) / g.subs(point)).cancel()
    size = factor.evalf(60)
    return bool(size.is_finite and size != 0 and (any_sign or size > 0)) and same_value(g * factor, a)


# --------------------------------------------------------------------------------------------------------------- leaves


def _same_leaf(gold: str, answer: str, tolerance: Tolerance) -> bool:
    """Without structure: words must be the same words, with equal values between them."""
    if words(gold) or words(answer):
        pairs = list(zip(between_words(gold), between_words(answer), strict=False))
        return words(gold) == words(answer) and all(g == a or same(g, a, tolerance) for g, a in pairs)
    golds, answers = split(gold, ":")[0], split(answer, ":")[0]
    if len(golds) == len(answers) == 1:
        return same_expression(gold, answer, tolerance)
    if clock(gold) and clock(answer):
        return clock(gold) == clock(answer)
    if len(golds) != len(answers):  # 3:4 is the fraction 3/4, but 11:00 is no fraction
        if len(golds) * len(answers) != 2 or clock(gold) or clock(answer):
            return False
        golds, answers = (side if len(side) == 2 else [side[0], "1"] for side in (golds, answers))
    g_parts, a_parts = ([parse(part) for part in side] for side in (golds, answers))
    if any(part.is_zero for part in (*g_parts[1:], *a_parts[1:])):
        return False
    places = combinations(range(len(g_parts)), 2)
    return all(same_value(g_parts[i] * a_parts[j], a_parts[i] * g_parts[j]) for i, j in places)
