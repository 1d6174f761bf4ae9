"""Lines that any terminal can show, whatever a model or a data set wrote into them. No torch."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import format_exception

from tqdm import tqdm

from envs import InfraError


def printable(text: str) -> str:
    """Control characters as Python writes them, apart from new lines and tabs."""
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def say(text: str) -> None:
    """A line on standard output at once, above any bar."""
    encoding = sys.stdout.encoding or "utf-8"  # letters that it lacks are written as escapes
    tqdm.write(printable(text).encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


@contextmanager
def errors_in_one_line(command: str) -> Iterator[None]:
    """Errors of options, files, packages or memory end a command with one line and exit code 1."""
    try:
        yield
    except Exception as error:
        if not (isinstance(error, (ValueError, OSError, ImportError, InfraError)) or out_of_memory(error)):
            raise
        lower = "lower --envs-per-step, --micro-batch-tokens or --engine-memory, or use --gradient-checkpointing"
        line = f"out of memory: {lower} or --adapter lora" if out_of_memory(error) else " ".join(str(error).split())
        sys.exit(printable(f"{command}: error: {line[:1000]}"))


def out_of_memory(error: BaseException) -> bool:
    names = "OutOfMemoryError", "MemoryError"  # torch's on a GPU; Python's
    return type(error).__name__ in names or "can't allocate memory" in str(error)  # torch's on a CPU


# Ctrl-C ends every command without a traceback, also while it imports torch
sys.excepthook = lambda kind, error, trace: sys.stderr.write(
    "" if kind is KeyboardInterrupt else printable("".join(format_exception(error)))
)


def half_up(value: float, digits: int = 2) -> str:
    """Rounded as people do: 0.145 is "0.15", where Python says 0.14."""
    return f"{float(value) + 1e-9:.{digits}f}"
