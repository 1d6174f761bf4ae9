"""Run programs that a model wrote; every program in training is untrusted. Standard library only, Linux first.

    run_program("print(int(input()) + 1)", stdin="7").stdout == "8\\n"

A call starts one *supervisor* (`sandbox_supervisor.py`), a small Python process of ours, which forks the program.
With bubblewrap the supervisor is process 1 of a fresh process namespace: no network, a read-only system without home
directories, /proc or environment, a private /tmp, and when it exits the kernel ends whatever else is in there, sessions
and double forks included. A seccomp filter (`seccomp.py`) leaves only the system calls that computing needs.

Without bubblewrap a program cannot start processes or threads at all, gets the same filter, and where the kernel has
Landlock writes only to a folder of its own (`sandbox_folder.py`). This prevents accidents but is no security boundary:
a program can still read files, an ordinary user's program can change the modes of that user's files, and a kernel may
lack both. A warning says so once; `set_mode("require")` refuses it.

`run_many` runs one program on several inputs in one sandbox, at the price of one fork each. No run sees another: the
supervisor never executes a line of the program, and after a run that left a trace in its folder, even a time stamp, a
new sandbox is started.
"""

from __future__ import annotations

import contextlib
import marshal
import math
import os
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from tasks.fences import extract_code, fenced_blocks  # noqa: F401 (part of this module's interface)
from tasks.sandbox_folder import WorkFolder
from tasks.sandbox_supervisor import REPLY, STATUSES
from tasks.seccomp import OWN_PID, seccomp_filter

TIMEOUT = 10.0  # seconds of wall time for a program, unless the caller says otherwise
MEMORY = 1 << 30  # bytes of address space, each process
PROCESSES = 32  # processes and threads at a time; RLIMIT_NPROC counts per namespace from Linux 5.14 on, per user before
START = "import marshal, sys; exec(marshal.loads(bytes.fromhex(sys.argv.pop(1))))"  # the supervisor
OUTPUT = 1 << 20  # bytes of stdout, and of stderr; a program that writes more is stopped
FILES = 1 << 25  # bytes of /tmp
START_SECONDS = 30.0  # a sandbox that takes longer to start is an infrastructure failure
USERS = 1 << 30  # a sandbox of root runs its programs under a user id of its own, from here on


@dataclass(frozen=True)
class Result:
    """What a program did.

    status: "ok" (ended with exit code 0), "error" (exception, non-zero exit code, signal), "timeout", "memory",
    "output" (more than `OUTPUT` bytes) or "infra" (the sandbox failed: says nothing about the program; `stderr` tells).
    """

    status: str
    stdout: str
    stderr: str


def run_program(code: str, stdin: str = "", timeout: float = TIMEOUT) -> Result:
    """Run a Python program as `__main__` with `stdin`; `timeout` is seconds of wall time. Safe to call from threads.

    Never raises for what a program does. After the call no process, zombie, file or descriptor of it is left.
    """
    return next(run_many(code, [stdin], timeout))


def run_many(
    code: str, stdins: Iterable[str], timeout: float = TIMEOUT, preload: Sequence[str] = ()
) -> Generator[Result, None, None]:
    """Yield one Result for each input, in order; each runs in its own process and sees nothing of the other runs.

    `preload`: modules of the standard library that the supervisor imports, so that the runs need not. Close the
    generator when you stop early.
    """
    session: _Session | None = None
    try:
        for stdin in stdins:
            if session is None:
                try:
                    session = _Session(use_bubblewrap(), preload)
                except OSError as error:  # no process or descriptor left on this machine
                    yield Result("infra", "", f"the sandbox did not start: {error}")
                    continue
            result = session.run(code, stdin, timeout)
            if not session.clean:
                session.close()
                session = None
            yield result
    finally:
        if session is not None:
            session.close()


# ------------------------------------------------------------------------------------------------- choosing a sandbox

_mode = "auto"
_lock = threading.Lock()


def set_mode(mode: str) -> None:
    """ "auto": bubblewrap when it works here, else resource limits and a warning. "require": RuntimeError without
    bubblewrap. "rlimit": resource limits only (for tests, or where the whole machine is a sandbox already)."""
    global _mode
    if mode not in ("auto", "require", "rlimit"):
        raise ValueError(f"sandbox mode {mode!r}: choose 'auto', 'require' or 'rlimit'")
    if mode == "require":
        _check_root()
        if _bubblewrap_problem():
            raise RuntimeError(f"sandbox mode 'require': bubblewrap cannot be used here: {_bubblewrap_problem()}")
    _mode = mode


def use_bubblewrap() -> bool:
    """Whether programs run inside bubblewrap. Warns once, when the mode is "auto" and they do not.

    RuntimeError for a root that cannot become another user: programs would have its rights.
    """
    _check_root()
    if _mode == "rlimit":
        return False
    problem = _bubblewrap_problem()
    if problem and _mode == "auto":
        with _lock:
            _warn_once(problem)
    return not problem


@lru_cache
def _check_root() -> None:
    if os.getuid() == 0:
        try:
            subprocess.run(["/bin/sh", "-c", ":"], user=USERS, group=USERS, extra_groups=(), check=True)
        except OSError as error:
            raise RuntimeError(
                f"no program can run: root's programs run under user ids from {USERS} on, and root cannot take such an "
                f"id here ({error.strerror}). Is this a user namespace that maps few ids? Start as an ordinary user"
            ) from None


@lru_cache
def _warn_once(problem: str) -> None:
    warnings.warn(
        f"programs run WITHOUT A SECURITY BOUNDARY, only under resource limits, because {problem}. They can read "
        "files, on an old kernel also write them, use the network and end other processes of an ordinary user (this "
        "one too), and cannot use threads. Install bubblewrap; --sandbox require makes its absence an error",
        RuntimeWarning,
        stacklevel=4,
    )


@lru_cache
def _bubblewrap_problem() -> str:
    """Why bubblewrap cannot be used; "" when it works. Tried once: being installed does not mean being allowed."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (the command bwrap) is not installed"
    session = _Session(bubblewrap=True)
    try:
        result = session.run("import threading, json; threading.Thread(target=print, args=('up',)).start()", "", 10.0)
    finally:
        session.close()
    return (
        "" if result.stdout == "up\n" else f"bubblewrap does not work on this system ({result.stderr.strip()[-500:]})"
    )


@lru_cache
def _bubblewrap_command() -> tuple[str, ...]:
    command = "bwrap --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup-try --die-with-parent"
    args = [*command.split(), "--new-session", "--as-pid-1"]
    if os.getuid() == 0:  # root needs no user namespace; programs then run under a user id of their own (see _enter)
        args += ["--cap-drop", "ALL"]
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL"):
            args += ["--cap-add", capability]
    else:
        args += ["--unshare-user"]
    for path in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/nix/store"):
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        else:
            args += ["--ro-bind-try", path, path]
    for prefix in {sys.base_prefix, sys.base_exec_prefix} - {"/usr", "/usr/local"}:
        for parent in list(Path(prefix).parents)[-2::-1]:  # bubblewrap would make them for its own user only
            args += ["--perms", "0755", "--dir", str(parent)]
        args += ["--ro-bind", prefix, prefix]
    args += ["--perms", "0755", "--dir", "/dev", "--perms", "0755", "--dir", "/dev/fd"]
    args += ["--symlink", "/dev/stdin", "/dev/fd/0"]
    for device in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"):
        args += ["--dev-bind-try", device, device]
    return (*args, "--perms", "1777", "--size", str(FILES), "--tmpfs", "/tmp", "--chdir", "/tmp")


def _readable(data: bytes) -> BinaryIO:
    """An open file with this content; `data` must fit into a pipe."""
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    return os.fdopen(reader, "rb")


@lru_cache
def _supervisor() -> str:
    """The supervisor's code, compiled once: compiling would take a tenth of a sandbox's start-up time."""
    path = Path(__file__).with_name("sandbox_supervisor.py")
    code = marshal.dumps(compile(path.read_text("utf-8"), "<sandbox>", "exec", optimize=2))
    return code.hex()


class _Session:
    """One sandbox with its supervisor, and the requests sent to it. `clean` says whether it may serve another.

    OSError when there is no process, descriptor or disk space left for it; nothing stays then.
    """

    def __init__(self, bubblewrap: bool, preload: Sequence[str] = ()):
        self.clean, self.started, self.bubblewrap = True, False, bubblewrap
        with contextlib.ExitStack() as stack:
            folder = None if bubblewrap else WorkFolder()
            if folder:
                stack.callback(folder.remove)
            self.folder, self.stdin = (folder.path, folder.stdin) if folder else ("/tmp", "/dev/stdin")
            self.process = self._start(preload)
            stack.callback(self._stop)
            os.set_blocking(self.process.stdin.fileno(), False)
            # A user id of its own: no rights, and a process count that no other sandbox shares.
            self.user = USERS + self.process.pid if os.getuid() == 0 else 0
            if folder and self.user:
                folder.give(self.user)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End the sandbox, and everything with it."""
        self._stack.close()

    def _start(self, preload: Sequence[str]) -> Any:
        python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))  # outside a virtual environment
        command: list[str] = []
        files: list[BinaryIO] = []
        with contextlib.ExitStack() as opened:
            if self.bubblewrap:
                files = [opened.enter_context(_readable(data)) for data in (b"", seccomp_filter(False))]
                # The shell only volunteers its children as the kernel's first victims when memory runs out.
                command = ["/bin/sh", "-c", 'echo 1000 2>/dev/null >/proc/self/oom_score_adj; exec "$@"', "sh"]
                empty, filter = (str(file.fileno()) for file in files)
                command += [*_bubblewrap_command(), "--perms", "0644", "--bind-data", empty, self.stdin]
                command += ["--remount-ro", "/", *(["--seccomp", filter] if seccomp_filter(False) else [])]
            command += [python, *("-X", "int_max_str_digits=0", "-S", "-s", "-B", "-c"), START, _supervisor(), *preload]
            return subprocess.Popen(
                command,
                env={"PATH": "/usr/bin:/bin", "HOME": self.folder, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
                cwd=self.folder,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[file.fileno() for file in files],
                start_new_session=True,  # its own Ctrl-C, and no terminal
            )

    def run(self, code: str, stdin: str, timeout: float) -> Result:
        """One program on one input."""
        try:
            cpu = math.ceil(timeout) + 1
            processes = PROCESSES if self.bubblewrap else 0
            limits = {"CPU": cpu, "AS": MEMORY, "NPROC": processes, "FSIZE": FILES, "NOFILE": 256, "CORE": 0}
            limits["STACK"] = MEMORY // 8  # deep recursion is legitimate
            lock = [] if self.bubblewrap else seccomp_filter(True).split(struct.pack("=I", OWN_PID))
            data = stdin.encode("utf-8", "replace")
            payload = marshal.dumps((code, data, self.stdin, timeout, OUTPUT, limits, self.user, lock))
            self.started = False
            deadline = time.monotonic() + START_SECONDS
            self._write(len(payload).to_bytes(8, "little") + payload, deadline)
            if self._read(1, deadline) != b"\1":
                raise EOFError
            self.started = True
            deadline = time.monotonic() + timeout + START_SECONDS
            status, clean, *sizes = REPLY.unpack(self._read(REPLY.size, deadline))
            if status >= len(STATUSES) or max(sizes) > OUTPUT + 1000:
                raise EOFError
            self.clean = bool(clean)
            stdout, stderr = (self._read(size, deadline).decode("utf-8", "replace") for size in sizes)
            return Result(STATUSES[status], stdout, stderr)
        except (EOFError, TimeoutError, BrokenPipeError) as failure:
            self.clean = False
            if self.started:  # the program got at its supervisor: its own doing
                return Result(
                    "timeout" if isinstance(failure, TimeoutError) else "error", "", "the sandbox was stopped"
                )
            self.process.kill()
            return Result(
                "infra", "", f"the sandbox did not start: {self.process.stderr.read().decode(errors='replace')}"
            )

    def _write(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self.process.stdin, select.POLLOUT, deadline)
            view = view[os.write(self.process.stdin.fileno(), view[: select.PIPE_BUF]) :]

    def _read(self, size: int, deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            self._wait(self.process.stdout, select.POLLIN, deadline)
            chunk = os.read(self.process.stdout.fileno(), size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def _wait(self, stream, event: int, deadline: float) -> None:
        poll = select.poll()  # not select(): a trainer may hold more than 1024 descriptors
        poll.register(stream, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError

    def _stop(self) -> None:
        """The supervisor exits when its input closes, and takes everything with it."""
        self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
