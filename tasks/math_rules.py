r"""Equality of mathematical answers by structure, with formulas at the leaves. Only workers run this (`math_env.py`).

`tests/samples/math_pairs.txt` is the long list of what follows:
- Exact values are exactly equal. A decimal of 6 digits or more may stand for a gold without a finite one (1/3, pi), or
  be within the gold's tolerance. 35\% is 35 or 0.35. Units may be left out, but not exchanged.
- Lists and sets have no order, tuples have. (2,5] equals 2 < x \le 5. Ratios scale, clock times do not.
- `x = 5` equals `5`, not `y = 5` or `2x = 10`. Relations of several variables are equal up to a constant factor. What
  is to be worked out (\lfloor 3.7\rfloor) is no answer unless the gold has it.
"""

import json
import re
import resource
import signal
import sys

from tasks.math_formula import SCRIPT, SYMBOL, parse, same_quantity, same_value, somewhere

MEMORY = 4 << 30  # bytes of a worker's address space

_WORK = (r"\\(?:lfloor|lceil|floor|ceil)\b", r"\\(?:gcd|lcm)\b", r"\|(?: (?![a-df-hj-zA-Z] )[^ |]+)+ \|")  # |3 - 8|
_OPEN, _CLOSE = ("(", "[", "{", r"\{", r"\langle", r"\matrix"), (")", "]", "}", r"\}", r"\rangle", r"\endmatrix")
_PAIRS = ("()", "(]", "[)", "[]", "{}", r"\{\}", r"\langle\rangle", r"\matrix\endmatrix")
_RELATIONS = ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\in", r"\equiv")
_MIRROR = {">": "<", r"\ge": r"\le"}
_SYMBOL = rf"""(?:"\w+(?: _ {SCRIPT})?|{SYMBOL})(?: ')*"""
_NAME = re.compile(  # x, a_n, f'(x), f^{-1}(x), \angle ABC, |AB|, \frac{dy}{dx}, "surface "area
    rf"{_SYMBOL}(?: \^ \{{ (?:- 1|\( \w+ \)) \}})?(?: \( [^-()+*/^=<>]* \))?|(?:m )?\\angle(?: {_SYMBOL})+"
    rf'|\| "[A-Z]+ \||\\frac \{{ {_SYMBOL} \}} \{{ {_SYMBOL} \}}|"\w+(?: "\w+)+'
)
_WAYS = (  # of saying the same, one after the other: all of a text, and what is compared instead
    (rf"({_SYMBOL}) \\approx (.+)", r"\1 = \2"),
    (r"(.+?) \\approx .+", r"\1"),  # \sqrt2 \approx 1.41: the exact side counts
    (rf"(\\\{{ {_SYMBOL}(?: \\in \\reals)? [|:] [^,]+) , ([^,]+)", r"\1 \\land \2"),
    (rf"\\\{{ ({_SYMBOL})(?: \\in \\reals)? [|:] (?=(?:.* )?\1 )(?:\1 \\in \\reals \\land )?(.+) \\\}}", r"\2"),
    (rf"\\\{{ ({_SYMBOL} \\in \\reals) \\\}}", r"\1"),
    (rf"({_SYMBOL}) \\ne (.+)", r"\1 \\in \\reals \\setminus \\{ \2 \\}"),
    (rf"({_SYMBOL} \\in |)\\reals \\setminus \\\{{ ([^,]+) \\\}}", r"\1( - \\infty , \2 ) \\cup ( \2 , \\infty )"),
    (rf"({_SYMBOL} \\in |)\\reals", r"\1( - \\infty , \\infty )"),
)
_LETTER, _OPERATOR = (re.compile(rf"(?<!\S){kind}(?!\S)") for kind in ("[a-zA-Z]", "[-^+=<>(]"))


def serve(limit: float) -> None:
    """A worker: lines of JSON, [gold, answer, tolerance] in, true or false out. `limit` s of CPU on one end it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            verdict = equal(*question)
        except Exception:  # whatever the algebra raises
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), flush=True)


def equal(gold: str, answer: str, tolerance: float = 0.0) -> bool:
    """Equality of clean texts, by the rules for whole answers."""
    if any(re.search(work, answer) and not re.search(work, gold) for work in _WORK):
        return False
    for pattern, replacement in _WAYS:
        gold, answer = (re.sub(f"^{pattern}$", replacement, text) for text in (gold, answer))
    if same(gold, answer, tolerance, top=True):
        return True
    swapped = _LETTER.sub(lambda letter: letter[0].swapcase(), answer)
    if " " not in gold:
        return gold == swapped  # choice (e) is (E)
    # A formula of one letter has it in either case, 3R^2 and 3r^2; but 5 g are not 5 G, and e and i are constants.
    letters = set(_LETTER.findall(gold))
    one = len(letters - set("eiEI")) == len(letters) == 1 and letters == set(_LETTER.findall(swapped))
    return one and bool(_OPERATOR.search(gold)) and parse(gold) is not None and same(gold, swapped, tolerance)


def same(gold: str, answer: str, tolerance: float = 0.0, top: bool = False) -> bool:
    r"""Equality by structure. At the `top`, a set may be written as a list: \{1,2\} as 1,2."""
    (g_name, g), (a_name, a) = _solved(gold), _solved(answer)
    if not g or not a or (g_name and a_name and g_name != a_name):
        return _same_relation(gold, answer)
    if _plain(g) == _plain(a):
        return True
    if all(re.fullmatch(r"\d{1,2} : [0-5]\d(?: : [0-5]\d)?", side) for side in (g, a)):  # no ratios
        return g.lstrip("0") == a.lstrip("0")
    (g_kind, golds), (a_kind, answers) = _group(g), _group(a)
    if len(golds) == len(answers) == 1 and g_kind == a_kind == "":
        return _same_relation(gold, answer) or same_quantity(g, a, tolerance)
    words = [{'"or', '"and'} & set(side.split(" ")) for side in (g, a)]
    if len(golds) != len(answers) or (all(words) and words[0] != words[1]):  # p and q is not p or q
        return False
    if g_kind == a_kind in ("cup", "{}", "") or (top and {g_kind, a_kind} == {"", "{}"}):
        for element in golds:  # is one list a reordering of the other?
            partner = next((other for other in answers if same(element, other, tolerance)), None)
            if partner is None:
                return False
            answers.remove(partner)
        return True
    ordered = g_kind == a_kind or {g_kind, a_kind} == {"", "()"}  # (1,2) may be written 1,2
    return ordered and all(same(*pair, tolerance) for pair in zip(golds, answers, strict=True))


def _plain(text: str) -> str:
    """The text; if it has only words, without capitals at their start."""
    if re.fullmatch(r'"\S+(?: "\S+)*', text):
        text = re.sub('"(?:[A-Z][a-z]{2,}|No)(?= |$)', lambda word: word[0].lower(), text)
    return re.sub(r'"(?=\w)', "", text)


def _cut(text: str, *marks: str) -> tuple[list[str], list[str]]:
    """The parts between the marks that are outside all brackets, and these marks."""
    tokens, depth = [], 0
    for token in text.split(" "):
        depth += (token in _OPEN) - (token in _CLOSE)
        tokens.append(f"\n{token}\n" if depth == 0 and token in marks else token)
    pieces = " ".join(tokens).split("\n")
    return [part.strip() for part in pieces[::2]], pieces[1::2]


def _inside(text: str) -> tuple[str, str]:
    """Brackets around all of the text, and what they hold: "()", "1 , 2"; else "", ""."""
    parts, marks = _cut(text, *_CLOSE)
    opening, _, inside = parts[0].partition(" ")
    return (opening + marks[0], inside) if parts[1:] == [""] and opening + marks[0] in _PAIRS else ("", "")


def _elements(text: str) -> list[str]:
    r"""The elements of a list, \pm written out."""
    return [
        part.replace(r"\pm ", plus + " ").replace(r"\mp ", minus + " ")
        for part in _cut(text, ",", ";", '"or', '"and')[0]
        for plus, minus in (("+-", "-+") if part.count(r"\pm ") == 1 else [(r"\pm", r"\mp")])
    ]


def _group(text: str) -> tuple[str, list[str]]:
    r"""(kind, elements): "()" or "(]" for (1,2), "{}" for sets, "cup" for unions, ":" for ratios, "" for lists."""
    kind, inside = _inside(text)
    if kind == r"\matrix\endmatrix":
        cells, marks = _cut(inside, "&", r"\\")
        return " ".join(marks), cells
    if kind == r"\{\}":  # {x} and {2.5} may be fractional parts
        alone = "," not in inside and re.search(rf"{_LETTER.pattern}(?<![ei])|\.|\\emptyset", inside)
        return "{x}" if alone else "{}", _elements(inside)
    items = _cut(inside, ",", ";")[0]
    if len(items) > 1 and r"\pm " not in text:  # (x + 1) is no tuple; [1,2,3] is no interval
        vector = kind == r"\langle\rangle" and not _LETTER.search(inside)  # <u,v> is a product
        return "()" if vector or (kind == "[]" and len(items) != 2) else kind, items
    union, ratio = _cut(text, r"\cup")[0], _cut(text, ":")[0]
    if len(union) > 1:
        return "cup", union
    if len(ratio) > 1:  # 4:6 as 4/6
        return ":", [f"( {ratio[0]} ) / ( {part} )" for part in ratio[1:]]
    return "", _elements(text)


def _is_name(text: str) -> bool:
    """A name, or several of them in a ratio or a tuple."""
    return all(map(_NAME.fullmatch, _cut(_inside(text)[1], ",")[0] if text[:1] == "(" else _cut(text, ":")[0]))


def _relation(text: str) -> tuple[list[str], list[str]]:
    """Sides and marks of a relation; > and its like are turned round."""
    parts, marks = _cut(text, *_RELATIONS)
    if marks and marks[0] in _MIRROR:
        return parts[::-1], [_MIRROR.get(mark, "?") for mark in marks[::-1]]
    return parts, marks


def _solved(text: str) -> tuple[str, str]:
    r"""(name, value): ("x", 5) of x = 5, ("x", (2,5]) of 2 < x \le 5. Name "" for the rest."""
    parts, marks = _cut(text, ",", ";", '"or', '"and', r"\land", r"\lor")
    if marks:  # x<2 or x>5 as a union, x>2 and x<5 as one interval
        names, values = zip(*map(_range, parts), strict=True)
        union = r" \cup ".join(sorted(values, key=lambda value: value.startswith(r"( - \infty")))
        between = re.fullmatch(r"(.+ ,) \\infty \) \\cup \( - \\infty ,( .+)", union)
        one = names[0] != "" and len(set(names)) == 1
        if one and marks in (['"and'], [r"\land"]) and between:
            return names[0], between[1] + between[2]
        return (names[0], union) if one and set(marks) <= {'"or', r"\lor"} else ("", text)
    parts, marks = _relation(text)
    if marks == [r"\in"] and _is_name(parts[0]) and _group(parts[1])[0]:
        return parts[0], parts[1]
    if not marks or set(marks) - {"=", r"\equiv"}:
        return _range(text)
    if not _is_name(parts[0]) and _is_name(parts[-1]):  # 5 = x
        parts = parts[::-1]
    name = parts[0] if _is_name(parts[0]) else ""
    steps = [part for part in parts[:-1] if not (name and _is_name(part))]  # x = 2+3 = 5, and 2+3 = 5
    return (name, parts[-1]) if all(same(parts[-1], step) for step in steps) else ("", text)


def _range(text: str) -> tuple[str, str]:
    r"""("x", (2,5]) of 2 < x \le 5; else ("", text)."""
    parts, marks = _relation(text)
    if len(parts) == 2:
        above = _is_name(parts[1])
        parts, marks = ([*parts, r"\infty"], [*marks, "<"]) if above else ([r"- \infty", *parts], ["<", *marks])
    if len(parts) != 3 or set(marks) - {"<", r"\le"} or not all(parts) or not _is_name(parts[1]):
        return "", text
    left, right = "(" if marks[0] == "<" else "[", ")" if marks[1] == "<" else "]"
    return parts[1], f"{left} {parts[0]} , {parts[2]} {right}"


def _same_relation(gold: str, answer: str) -> bool:
    """Equal sides, or equal up to a constant factor?"""
    (golds, g_marks), (answers, a_marks) = _relation(gold), _relation(answer)
    if not g_marks or g_marks != a_marks:
        return False
    if all(map(same, golds, answers)):
        return True
    sides = [parse(part) for part in (*golds, *answers)]
    if len(sides) != 4 or None in sides or g_marks[0] in (r"\in", r"\equiv"):
        return False
    g, a = sides[0] - sides[1], sides[2] - sides[3]
    if g.free_symbols != a.free_symbols or (_is_name(golds[0]) and not sides[1].free_symbols):
        return False  # of other variables; or the gold is solved, and the answer is not
    factor = somewhere(a) / somewhere(g)
    positive = factor.is_positive or g_marks[0] in ("=", r"\ne")
    return bool(factor.is_number and factor.is_finite and positive) and same_value(g * factor, a)
