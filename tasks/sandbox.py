"""Run programs that a model wrote, none of which is trusted. Standard library only, Linux.

    run_program("print(int(input()) + 1)", stdin="7").stdout == "8\\n"

A call starts a *supervisor* (`sandbox_supervisor.py`), a small Python process in a bubblewrap sandbox, which forks the
program. They see Python's own files and libraries, read-only, and a private /tmp; no network, no /proc, no environment.
A seccomp filter (`seccomp.py`) allows threads, but no processes and no sockets. So the memory limit holds for all of
the program, and nothing is left when it ends.

Where bubblewrap cannot run, programs do not run (ValueError), unless `set_mode("rlimit")` says so: then as ordinary
processes with resource limits, a process group and a temporary folder. That is NO SECURITY BOUNDARY: they can read and
change what their user can, use the network, leave processes behind and end this one.
"""

import contextlib
import io
import marshal
import math
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tasks.seccomp import seccomp_filter

TIMEOUT = 10.0  # seconds of wall time
MEMORY = 1 << 30  # bytes of address space
THREADS = 32  # at a time, of a namespace from Linux 5.14 on, of a user before; those of root are not counted
OUTPUT = 1 << 20  # bytes of stdout, and of stderr
FILES = 1 << 25  # bytes of /tmp, and of each file
LIMITS = {"AS": MEMORY, "STACK": MEMORY // 8, "FSIZE": FILES, "NOFILE": 256, "CORE": 0}  # deep recursion is legitimate
FOLDER: Any = {"prefix": "sandbox-", "ignore_cleanup_errors": True}  # of a program without bubblewrap
START_SECONDS = 30.0  # to start a sandbox, else "infra"

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))  # outside a virtual environment
FLAGS = ("-X", "int_max_str_digits=0", "-S", "-s", "-B", "-c")
LOADER = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}  # modules of a cluster
START = "import marshal, sys; exec(marshal.loads(bytes.fromhex(sys.argv.pop(1))))"
SUPERVISOR = Path(__file__).with_name("sandbox_supervisor.py")
# Compiled once: it takes a tenth of a sandbox's start-up time.
COMPILED = marshal.dumps(compile(SUPERVISOR.read_text("utf-8"), "<sandbox>", "exec", optimize=2)).hex()
# The kernel's first victim when memory runs out; inside it is too late to say so.
VICTIM = ("/bin/sh", "-c", 'echo 1000 2>/dev/null >/proc/self/oom_score_adj; exec "$@"', "sh")


class Result(NamedTuple):
    """What a program did, and what it had printed by then.

    status: "ok" (exit code 0), "error" (exception, other exit code, signal), "timeout", "memory", "output" (more than
    `OUTPUT` bytes) or "infra" (the sandbox failed, `stderr` says why).
    """

    status: str
    stdout: str
    stderr: str


def run_program(code: str, stdin: str = "", timeout: float = TIMEOUT) -> Result:
    """Run a Python program as `__main__`; `timeout` is seconds of wall time. Safe to call from threads.

    ValueError where no program can run (see `use_bubblewrap`). No process, zombie, file or descriptor of it is left.
    """
    return run_many(code, [stdin], timeout)[0]


def run_many(
    code: str, stdins: Sequence[str], timeout: float = TIMEOUT, end: float = math.inf, bubblewrap: bool | None = None
) -> list[Result]:
    """Results for the first inputs, at least one; no run has time after `end`, of time.monotonic().

    No run sees another: one that took all of its time, or left a trace in its folder, even a time stamp, is the last.
    """
    bubblewrap = use_bubblewrap() if bubblewrap is None else bubblewrap
    limits = LIMITS | {"CPU": math.ceil(timeout) + 1} | ({"NPROC": THREADS} if bubblewrap else {})
    rules = timeout, end, OUTPUT, limits, seccomp_filter() if bubblewrap else None
    try:
        with contextlib.nullcontext("/") if bubblewrap else tempfile.TemporaryDirectory(**FOLDER) as folder:
            done = subprocess.run(
                [*VICTIM, *(_bubblewrap() if bubblewrap else ()), PYTHON, *FLAGS, START, COMPILED],
                env=LOADER | {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
                cwd=folder,
                input=b"".join(marshal.dumps((code, stdin.encode("utf-8", "replace"), *rules)) for stdin in stdins),
                capture_output=True,
                timeout=min(timeout * len(stdins), max(0.0, end - time.monotonic())) + START_SECONDS,
                start_new_session=True,  # its own Ctrl-C, and no terminal
            )
        replies, errors = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        replies, errors = error.output or b"", error.stderr or b""
    except OSError as error:  # no process, descriptor or disk space left
        replies, errors = b"", str(error).encode()
    if not replies:
        return [Result("infra", "", f"the sandbox did not start: {errors.decode(errors='replace')}")]
    results, stream = [], io.BytesIO(replies[1:])
    with contextlib.suppress(EOFError):
        while True:
            status, *texts = marshal.load(stream)  # from our supervisor: programs cannot write here
            results.append(Result(status, *(text.decode("utf-8", "replace") for text in texts)))
    return results or [Result("error", "", "the sandbox was stopped")]  # the program got at its supervisor


_mode = "auto"


def set_mode(mode: str) -> None:
    """How programs run from now on: "auto" or "rlimit", see above."""
    global _mode
    if mode not in ("auto", "rlimit"):
        raise ValueError(f"sandbox mode {mode!r}: choose 'auto' or 'rlimit'")
    _mode = mode


def use_bubblewrap() -> bool:
    """True: in bubblewrap; False, with a warning: under resource limits. ValueError where programs cannot run."""
    if _mode == "rlimit":
        warnings.warn(
            "programs run WITHOUT A SECURITY BOUNDARY, only under resource limits (--sandbox rlimit): they can read "
            "and change your files, use the network and end this process",
            RuntimeWarning,
            stacklevel=1,  # always this line: one warning for all callers
        )
        return False
    if problem := _bubblewrap_problem():
        raise ValueError(
            f"programs cannot run here: {problem}. Install bubblewrap (apt-get install bubblewrap), or choose "
            "--sandbox rlimit, which is no security boundary"
        )
    return True


@lru_cache
def _bubblewrap_problem() -> str:
    """Why bubblewrap cannot be used, "" when it can. Tried once: installed does not mean allowed."""
    (result,) = run_many("import threading; threading.Thread(target=print).start()", [""], bubblewrap=True)
    if result == ("ok", "\n", ""):
        return ""
    return f"bubblewrap does not work on this system ({result.stderr.strip()[-500:]})"


@lru_cache
def _bubblewrap() -> tuple[str, ...]:
    """The command that puts the supervisor inside."""
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    extensions = map(str, Path(library, "lib-dynload").glob("*.so"))
    trace = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_PRELOAD": ":".join(extensions)}  # the loader lists, and runs nothing
    listing = subprocess.run([PYTHON], env=LOADER | trace, capture_output=True, text=True).stdout
    found = [PYTHON, library, "/etc/ld.so.cache"]
    for path in re.findall(r"(/.+) \(0x", listing):
        folder = os.path.dirname(path)
        # not a folder with the standard library, as /usr/lib may be: it holds more
        found.append(path if library.startswith(os.path.realpath(folder) + "/") else folder)
    command = "bwrap --unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup-try "
    command += f"--cap-drop ALL --die-with-parent --new-session --as-pid-1 --size {FILES} --tmpfs /tmp --chdir /tmp"
    args = command.split()
    for path in dict.fromkeys(found):
        args += ["--ro-bind-try", path, path]
        for packages in Path(path).glob("*-packages"):  # which may hold the answers
            args += ["--tmpfs", str(packages), "--remount-ro", str(packages)]
    for device in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"):
        args += ["--dev-bind-try", device, device]
    return (*args, "--remount-ro", "/")
