"""Where the class of a task is found: ours by name, a user's own in a module or a file."""

import importlib
import sys
import traceback
import zlib
from importlib.machinery import SourceFileLoader
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
    """The class of a task (see `make_env`). ValueError if there is none, or its file cannot be run."""
    where, colon, name = TASKS.get(task, task).rpartition(":")
    if not colon:
        raise ValueError(f"unknown task {task!r}: choose one of {', '.join(TASKS)}, or file.py:Class of your own")
    if task not in TASKS:  # where a file, or a module, has its neighbours
        sys.path += {str(Path(where).resolve().parent)} - set(sys.path)
    try:
        module = _module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (Exception, SystemExit) as error:  # a file of one's own may raise anything
        raise ValueError(f"task {task!r}: {in_one_line(error)}") from error
    found = getattr(module, name, None)
    if not isinstance(found, type):
        raise ValueError(f"task {task!r}: {where} has no class {name}")
    return found


def located(task: str) -> str:
    """The task under a name that holds in every folder."""
    where, _, name = task.rpartition(":")
    return f"{Path(where).resolve()}:{name}" if where.endswith(".py") else task


def in_one_line(error: BaseException) -> str:
    """Type and text of an exception, and the line that raised it."""
    at = next(reversed(traceback.extract_tb(error.__traceback__)), None)
    place = f" ({at.name}, line {at.lineno} of {Path(at.filename).name})" if at else ""
    return " ".join(f"{type(error).__name__}: {error}{place}".split())


def _module_of_file(path: Path) -> ModuleType:
    """The module in a file, loaded once, under a unique name: it hides none and can be pickled."""
    name = f"task_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    if name not in sys.modules:
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = str(path)
        SourceFileLoader(name, str(path)).exec_module(module)
    return sys.modules[name]
