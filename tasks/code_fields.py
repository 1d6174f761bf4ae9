"""Typed fields of a row: anything missing, truncated, unrunnable or of the wrong type is a ValueError naming the field.

(Or the fields, when only their combination makes no sense, such as "prompt, canonical_solution".)
"""

from __future__ import annotations

import ast
import re
import reprlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tasks.data import Row, read_json

warnings.filterwarnings("ignore", module=re.escape("<data>"))  # invalid escapes in programs of a data set


def typed(row: Row, name: str, kind: type, optional: bool = False) -> Any:
    """row[name], if it is a `kind`; an empty `kind` for a field that is optional and missing or null."""
    value = row.get(name)
    if value is None and optional:
        return kind()
    if type(value) is not kind:
        found = "nothing" if name not in row else "null" if value is None else type(value).__name__
        raise ValueError(f"field {name!r}: expected {kind.__name__}, found {found}")
    return value


def list_field(row: Row, name: str, kind: type, optional: bool = False) -> list:
    values = typed(row, name, list, optional)
    for place, value in enumerate(values, start=1):
        if type(value) is not kind:
            raise ValueError(f"field {name!r}, item {place}: expected {kind.__name__}, found {type(value).__name__}")
    return values


def json_field(row: Row, name: str, kind: type, optional: bool = False) -> Any:
    """The value of a field that holds JSON as text."""
    text = typed(row, name, str, optional)
    if optional and not text:
        return kind()
    with within(name):
        value = read_json(text)
    return typed({name: value}, name, kind)


@contextmanager
def within(name: str) -> Iterator[None]:
    """Errors inside say that they are about this field."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(f"field {name!r}: {error}") from None


def name_field(row: Row, name: str) -> str:
    value = typed(row, name, str)
    if not value.isidentifier():
        raise ValueError(f"field {name!r}: {reprlib.repr(value)} is no name of a function")
    return value


def python_field(code: str, name: str) -> ast.Module:
    """Code that is going to be run as it is: it must parse and import nothing that programs cannot import."""
    try:
        tree = ast.parse(code, "<data>")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"field {name!r}: not Python ({error})") from None
    nodes = list(ast.walk(tree))
    guarded = {id(inner) for node in nodes if isinstance(node, ast.Try) for inner in ast.walk(node)}
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in guarded:
            modules = [node.module or "."] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for module in modules:
                if module.partition(".")[0] not in sys.stdlib_module_names:
                    raise ValueError(f"field {name!r}: imports {module!r}, and programs have the standard library only")
    return tree


def reference_field(code: str, name: str, fn_name: str) -> tuple[str, ...]:
    """The reference solution as it is run: it must define the function that `entry_point` names."""
    nodes = list(ast.walk(python_field(code, name)))
    defined = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    defined |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if fn_name not in defined:
        raise ValueError(f"field 'entry_point, {name}': no function {reprlib.repr(fn_name)} is defined")
    return (code,)
