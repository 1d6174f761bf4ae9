"""Where the class of a task is found: ours by name, a user's own in a module or a file. No torch."""

from __future__ import annotations

import importlib
import sys
import traceback
import zlib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

HERE, PYTHON = Path(__file__).parent, Path(traceback.__file__).parent
TASKS = {  # task: "module:class", imported when it is asked for
    "plan_path": "tasks.plan_path:PlanPath",
    "sokoban": "tasks.sokoban:Sokoban",
    "sudoku": "tasks.sudoku:Sudoku",
    "math": "tasks.math_env:MathEnv",
    "code": "tasks.code_env:CodeEnv",
}


def task_class(task: str) -> type:
    """The class of a task (see `make_env`). ValueError when there is none, or when its file cannot be run."""
    where, colon, name = TASKS.get(task, task).rpartition(":")
    if not colon:
        raise ValueError(f"unknown task {task!r}: choose one of {', '.join(TASKS)}, or file.py:Class of your own")
    try:
        module = _module_of_file(Path(where)) if where.endswith(".py") else _module(where)
    except Exception as error:  # a file of one's own may raise anything
        raise ValueError(f"task {task!r}: {in_one_line(error)}") from error
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise ValueError(f"task {task!r}: {where} has no class {name}; it defines {', '.join(classes) or 'nothing'}")
    return found


def located(task: str) -> str:
    """The task under a name that holds in every folder: the whole path of a file."""
    where, _, name = task.rpartition(":")
    return f"{Path(where).resolve()}:{name}" if where.endswith(".py") else task


def in_one_line(error: BaseException) -> str:
    """An exception: its type, its text, and the line of the user's own code that raised it."""
    frames = [(Path(frame.filename), frame) for frame in traceback.extract_tb(error.__traceback__)]
    own = [frame for path, frame in frames if not {HERE, PYTHON} & {*path.parents} and path.suffix == ".py"]
    own = [frame for frame in own if "site-packages" not in frame.filename]
    place = f" ({own[-1].name}, line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""
    return " ".join(f"{type(error).__name__}: {error}{place}".split())


def _module(name: str) -> ModuleType:
    """A module that Python finds, or one in the working directory."""
    _search(Path.cwd())
    return importlib.import_module(name)


def _module_of_file(path: Path) -> ModuleType:
    """The module in a file, loaded once under a unique name, so that it hides no other module and can be pickled."""
    name = f"task_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not a Python file")
        _search(path.parent)  # for the modules beside it
        sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _search(folder: Path) -> None:
    """Python looks for modules in this folder too, after all others."""
    if str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))
