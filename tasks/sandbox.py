"""Running programs that a model wrote: every program of training is untrusted. Standard library only, Linux first.

    run_program("print(int(input()) + 1)", stdin="7").stdout == "8\\n"

A call starts one *supervisor*, our own small Python process, and the supervisor forks the program. With bubblewrap the
supervisor is process 1 of a fresh process namespace: no network, a read-only system without home directories, /proc or
environment, a private /tmp, and when it exits the kernel ends whatever else is in there, sessions and double forks
included. Without bubblewrap only resource limits hold and a program cannot start processes or threads at all; this
keeps accidents out but is no security boundary (started by an ordinary user, a program can still kill that user's other
processes), and a warning says so once. `set_mode("require")` refuses it.

`run_many` runs one program on several inputs in one sandbox, at the price of one fork each. No run sees another: the
supervisor never executes a line of the program, and after a run that left files behind a new sandbox is started.
"""

from __future__ import annotations

import contextlib
import inspect
import marshal
import math
import os
import resource
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tasks.fences import extract_code, fenced_blocks  # noqa: F401 (part of this module's interface)

TIMEOUT = 10.0  # seconds of wall time for a program, unless the caller says otherwise
MEMORY = 1 << 30  # bytes of address space, each process
PROCESSES = 32  # processes and threads at a time; RLIMIT_NPROC counts per namespace from Linux 5.14 on, per user before
OUTPUT = 1 << 20  # bytes of stdout, and of stderr; a program that writes more is stopped
FILES = 1 << 25  # bytes of /tmp
START_SECONDS = 30.0  # a sandbox that takes longer to start is an infrastructure failure
STATUSES = ("ok", "error", "timeout", "memory", "output", "infra")
SIGKILL, SIGXCPU = 9, 24  # numbers: the module `signal` would double the start-up time of a sandbox
REPLY = struct.Struct("<BBII")  # status, sandbox still clean, bytes of stdout, bytes of stderr


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
    if mode == "require" and _bubblewrap_problem():
        raise RuntimeError(f"sandbox mode 'require': bubblewrap cannot be used here: {_bubblewrap_problem()}")
    _mode = mode


def use_bubblewrap() -> bool:
    """Whether programs run inside bubblewrap. Warns once, when the mode is "auto" and they do not."""
    if _mode == "rlimit":
        return False
    problem = _bubblewrap_problem()
    if problem and _mode == "auto":
        with _lock:
            _warn_once(problem)
    return not problem


@lru_cache
def _warn_once(problem: str) -> None:
    warnings.warn(
        f"programs run WITHOUT A SECURITY BOUNDARY, only under resource limits, because {problem}. They can read "
        "files, use the network, end other processes of an ordinary user (this one too), and cannot use threads. "
        "Install bubblewrap; --sandbox require makes its absence an error",
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
    args += ["--dev", "/dev", "--remount-ro", "/dev", "--perms", "1777", "--size", str(FILES), "--tmpfs", "/tmp"]
    return (*args, "--chdir", "/tmp", "--remount-ro", "/")


class _Session:
    """One sandbox with its supervisor, and the requests sent to it. `clean` says whether it may serve another."""

    def __init__(self, bubblewrap: bool, preload: Sequence[str] = ()):
        self.clean, self.started, self.bubblewrap = True, False, bubblewrap
        self.child = 0  # the running program's process id, as the supervisor sees it
        self.folder = "" if bubblewrap else tempfile.mkdtemp(prefix="sandbox-")
        folder = self.folder or "/tmp"
        python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))  # outside a virtual environment
        # The shell only volunteers its children as the kernel's first victims when the machine runs out of memory.
        shell = ["/bin/sh", "-c", 'echo 1000 2>/dev/null >/proc/self/oom_score_adj; exec "$@"', "sh"]
        command = [*shell, *(_bubblewrap_command() if bubblewrap else ()), python, *("-S", "-s", "-B", "-c")]
        command += [_supervisor(), *preload]
        environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
        environment["PYTHONINTMAXSTRDIGITS"] = "0"  # print(10**5000) is a legitimate program; time has its own limit
        streams: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process: Any = subprocess.Popen(command, env=environment, cwd=folder, bufsize=0, **streams)
        # A user id of its own for each sandbox of root: no rights, and a process count that no other sandbox shares.
        self.user = 0x40000000 + self.process.pid if os.getuid() == 0 else 0
        if self.user and self.folder:
            os.chown(folder, self.user, self.user)
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)

    def run(self, code: str, stdin: str, timeout: float) -> Result:
        """One program on one input."""
        try:
            cpu = math.ceil(timeout) + 1
            processes = PROCESSES if self.bubblewrap else 0
            limits = {"CPU": cpu, "AS": MEMORY, "NPROC": processes, "FSIZE": FILES, "NOFILE": 256, "CORE": 0}
            limits["STACK"] = MEMORY // 8  # deep recursion is legitimate
            request = (code, stdin.encode("utf-8", "replace"), timeout, OUTPUT, limits, self.user, self.bubblewrap)
            payload = marshal.dumps(request)
            self.started = False
            deadline = time.monotonic() + START_SECONDS
            self._write(len(payload).to_bytes(8, "little") + payload, deadline)
            self.child = int.from_bytes(self._read(4, deadline), "little")
            if not self.child:
                raise EOFError
            self.started = True
            deadline = time.monotonic() + timeout + START_SECONDS
            status, clean, *sizes = REPLY.unpack(self._read(REPLY.size, deadline))
            if status >= len(STATUSES) or max(sizes) > OUTPUT + 1000:
                raise EOFError
            self.clean, self.child = bool(clean), 0
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

    def close(self) -> None:
        """End the sandbox: the supervisor exits when its input closes, and takes everything with it."""
        self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.child and not self.bubblewrap:  # a program that killed its supervisor is still there
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, SIGKILL)
        self.process.stdout.close()
        self.process.stderr.close()
        if self.folder:
            try:
                os.rmdir(self.folder)
            except FileNotFoundError:
                pass
            except OSError:  # not empty, and perhaps deeper than Python's recursion limit: shutil.rmtree would fail
                subprocess.run(["/bin/sh", "-c", 'chmod -R u+rwx "$0"; rm -rf "$0"', self.folder], check=False)


# ---------------------------------------------------------------------- the supervisor: this half runs in the sandbox


@lru_cache
def _supervisor() -> str:
    """The supervisor's program. It imports little: starting Python is most of what a sandbox costs."""
    start = "import builtins, marshal, os, resource, select, struct, sys, time\n"
    start += (
        f"STATUSES, SIGKILL, SIGXCPU = {STATUSES!r}, {SIGKILL}, {SIGXCPU}\nREPLY = struct.Struct({REPLY.format!r})\n"
    )
    parts = (_supervise, _receive, _enter, _watch, _drain)
    become = """
code = _supervise()  # returns in forked children only, with the program to become
builtins.exit = builtins.quit = sys.exit
sys.argv, sys.modules["__main__"] = ["program.py"], type(sys)("__main__")
exec(compile(code, "program.py", "exec"), sys.modules["__main__"].__dict__)
"""
    return start + "".join(inspect.getsource(part) for part in parts) + become


def _supervise() -> str:
    """Serve requests until the input closes: fork, watch, end whatever the program started, reply."""
    sys.path.remove("")  # programs write to the working directory; nobody imports from it
    for name in sys.argv[1:]:
        __import__(name)
    while True:
        size = int.from_bytes(_receive(8), "little")
        code, data, timeout, output, limits, user, isolated = marshal.loads(_receive(size))
        feed, out, err = os.pipe(), os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            _enter(feed, out, err, limits, user, isolated)
            return code
        for end in (feed[0], out[1], err[1]):
            os.close(end)
        status, stdout, stderr = _watch(child, feed[1], out[0], err[0], data, timeout, output, isolated)
        try:
            clean = not os.listdir(".")
        except OSError:  # the program took the folder or its permissions away
            clean = False
        reply = REPLY.pack(STATUSES.index(status), clean, len(stdout), len(stderr)) + stdout + stderr
        while reply:
            reply = reply[os.write(1, reply) :]


def _receive(size):
    parts = []
    while size:
        parts.append(os.read(0, size))
        if not parts[-1]:
            os._exit(0)  # the input was closed: the call is over, or the caller died
        size -= len(parts[-1])
    return b"".join(parts)


def _enter(feed, out, err, limits, user, isolated):
    """Turn this fresh fork into the program's process: its user, its limits, its three streams and nothing else."""
    try:
        if user and not isolated:  # Python may live where only root can look: hold its folders open
            folders = [os.open(path, os.O_PATH) for path in sys.path if os.path.isdir(path)]
            sys.path[:] = [f"/proc/self/fd/{folder}" for folder in folders]
            for name, module in sys.modules.items():  # packages that are loaded look for their parts on their own
                if hasattr(module, "__path__"):
                    module.__path__ = [f"{path}/{name.replace('.', '/')}" for path in sys.path]
        if user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        for name, value in limits.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            # One CPU second more until the hard limit: SIGXCPU says what happened, SIGKILL would not.
            resource.setrlimit(kind, (value, value + 1 if name == "CPU" and hard != value else value))
    except BaseException:
        os.write(1, bytes(4))  # not the program's fault
        raise
    os.write(1, os.getpid().to_bytes(4, "little"))
    for target, end in enumerate((feed[0], out[1], err[1])):
        os.dup2(end, target)
    for end in feed + out + err:
        os.close(end)


def _watch(child, feed, out, err, data, timeout, output, isolated):
    """Feed and read the program until it ends or has to be ended. Returns (status, stdout, stderr)."""
    deadline, data, reason, ended = time.monotonic() + timeout, memoryview(data), "", 0
    captured = {out: bytearray(), err: bytearray()}
    poll = select.poll()
    poll.register(0, 0)  # no event asked for: only the hang-up is reported
    for fd in (feed, out, err):
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLOUT if fd == feed else select.POLLIN)
    streams = {feed, out, err}
    while not ended and not reason:
        for fd, _ in poll.poll(20 if streams & {out, err} else 1):
            if fd == 0:
                os.kill(child, SIGKILL)
                os._exit(1)
            try:
                if fd == feed:
                    data = data[os.write(feed, data[:65536]) :] if data else data
                    more = bool(data)
                else:
                    more = _drain(fd, captured[fd], output)
            except BrokenPipeError:  # the program closed its input
                more = False
            if not more:
                poll.unregister(fd)
                streams.discard(fd)
                os.close(fd)
        ended, wait_status = os.waitpid(child, os.WNOHANG)
        if not ended and max(map(len, captured.values())) > output:
            reason = "output"
        elif not ended and time.monotonic() > deadline:
            reason = "timeout"
    if not ended:
        os.kill(child, SIGKILL)
        wait_status = os.waitpid(child, 0)[1]
    if isolated and os.getpid() == 1:
        try:
            os.kill(-1, SIGKILL)  # from process 1 of a namespace: everything else in it
            while True:
                os.wait()
        except (ProcessLookupError, ChildProcessError):
            pass
    for fd in streams:
        if fd != feed:
            _drain(fd, captured[fd], output)
        os.close(fd)
    if max(map(len, captured.values())) > output:
        reason = reason or "output"
    code = os.waitstatus_to_exitcode(wait_status)
    if code < 0 and not reason:
        captured[err] += f"\nkilled by signal {-code}\n".encode()
    last = captured[err].rstrip().rpartition(b"\n")[2]
    if not reason and code:
        reason = "timeout" if code == -SIGXCPU else "error"
        if code == -SIGKILL or last.startswith(b"MemoryError"):  # nobody but the kernel kills like this
            reason = "memory"
    return reason or "ok", bytes(captured[out][:output]), bytes(captured[err][:output])


def _drain(fd, buffer, limit):
    """Read what is there, to just above the limit. False at the end of the stream."""
    while len(buffer) <= limit:
        try:
            chunk = os.read(fd, 65536)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        buffer += chunk
    return True
