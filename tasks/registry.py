"""Where the class of a task is found: ours by name, a user's own in a module or a file. No torch."""

from __future__ import annotations

import importlib
import sys
import zlib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

TASKS = {  # task: "module:class", imported when it is asked for
    "plan_path": "tasks.plan_path:PlanPath",
    "sokoban": "tasks.sokoban:Sokoban",
    "sudoku": "tasks.sudoku:Sudoku",
    "math": "tasks.math_env:MathEnv",
    "code": "tasks.code_env:CodeEnv",
}


def task_class(task: str) -> type:
    """The class of a task (see `make_env`). ValueError when there is none."""
    where, colon, name = TASKS.get(task, task).rpartition(":")
    if not colon:
        raise ValueError(f"unknown task {task!r}: choose one of {', '.join(TASKS)}, or file.py:Class of your own")
    try:
        module = _module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (OSError, ImportError, SyntaxError) as error:
        raise ValueError(f"task {task!r}: {error}") from error
    if not isinstance(getattr(module, name, None), type):
        raise ValueError(f"task {task!r}: {where} has no class {name}")
    return getattr(module, name)


def _module_of_file(path: Path) -> ModuleType:
    """The module in a file, loaded once under a unique name, so that it hides no other module and can be pickled."""
    name = f"task_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not a Python file")
        sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
