"""The half of the sandbox that runs inside it, in a process that `sandbox.py` starts.

It serves the requests in its input: fork, watch, end what is still there, reply. It imports little, because starting
Python is most of what a sandbox costs. `supervise` returns in forked children only, with the program to become.
"""

import _ctypes
import builtins
import marshal
import os
import resource
import select
import sys
import time

SIGKILL, SIGALRM, SIGXCPU = 9, 14, 24  # the module `signal` would double the start-up time of a sandbox
HERE = os.open(".", os.O_RDONLY)  # programs can close the way to its name
INODES = 20_000  # files, folders and links in /tmp: a kilobyte of the kernel for each, which no limit counts


def supervise():
    sys.path.remove("")  # nobody imports from where programs write
    os.umask(0o022)
    started = os.fstat(HERE).st_ctime_ns  # changes with all that a program leaves there
    os.write(1, b"+")  # the sandbox has started
    while True:
        try:
            code, data, timeout, end, output, *rules = marshal.load(sys.stdin.buffer)
        except EOFError:  # no more of them, or the caller died
            os._exit(0)
        # Files, as in `python program.py <in >out`: the input can be mapped and read twice.
        streams = [os.memfd_create(name) for name in ("in", "out", "err")]
        os.pwrite(streams[0], data, 0)
        if (child := os.fork()) == 0:
            enter(streams, *rules)
            return code
        reply = watch(child, streams, min(time.monotonic() + timeout, end), output)
        os.closerange(streams[0], 100)
        os.write(1, marshal.dumps(reply))
        if reply[0] == "timeout" or os.fstat(HERE).st_ctime_ns != started:
            os._exit(0)


def enter(streams, limits, lock):
    """Turn this fork into the program's process: limits, streams and, if there is one, seccomp filter."""
    os.setsid()
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1] % 2**63  # -1 is none
        # The hard limit of CPU is a second later: SIGXCPU says what happened, SIGKILL would not.
        resource.setrlimit(kind, (min(value, hard), min(value + (name == "CPU"), hard)))
    for target, file in enumerate(streams):
        os.dup2(file, target)
    os.closerange(3, 100)
    if lock is None:
        return
    # Importing `ctypes` would take a tenth of a sandbox's start-up time.
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    place = id(lock) + bytes.__basicsize__ - 1  # of the bytes themselves
    rules = b"".join(n.to_bytes(8, "little") for n in (len(lock) // 8, place))  # struct sock_fprog
    for call in ((38, 1, 0, 0, 0), (22, 2, rules)):  # PR_SET_NO_NEW_PRIVS; PR_SET_SECCOMP, which asks for it
        if _ctypes.call_function(prctl, call) != 0:
            raise OSError("the seccomp filter was refused")


def watch(child, streams, deadline, output):
    """Wait for the end of the program, or end it: status, stdout, stderr."""
    (_, out, err), reason, ended = streams, "", 0
    caller = select.poll()
    caller.register(1, 0)  # reports only that nobody reads any more
    while not ended and not reason:
        if caller.poll(1):
            os.kill(child, SIGKILL)
            os._exit(1)
        ended, status = os.waitpid(child, os.WNOHANG)
        if max(os.fstat(out).st_size, os.fstat(err).st_size) > output:
            reason = "output"
        elif not ended and time.monotonic() > deadline:
            reason = "timeout"
        elif not ended and os.getpid() == 1 and (space := os.statvfs(HERE)).f_files - space.f_ffree > INODES:
            reason = "memory"
    if not ended:
        os.kill(child, SIGKILL)
        status = os.waitpid(child, 0)[1]
    try:  # noqa: SIM105 (contextlib takes time to import)
        os.killpg(child, SIGKILL)  # without a filter a program may have started others
    except ProcessLookupError:
        pass
    stdout, stderr = (os.pread(file, output, 0) for file in (out, err))
    code = os.waitstatus_to_exitcode(status)
    if code and not reason:
        stderr += f"\nkilled by signal {-code}\n".encode() if code < 0 else b""
        reason = "timeout" if code in (-SIGXCPU, -SIGALRM) else "error"
        if code == -SIGKILL or stderr.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError"):
            reason = "memory"  # nobody but the kernel kills like this
    return reason or "ok", stdout, stderr


if __name__ == "__main__":
    program = supervise()
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    # The interpreter's own was made for a pipe: it would not seek.
    stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdin = sys.__stdin__ = stdin  # type: ignore[misc]
    sys.argv, sys.modules["__main__"] = ["program.py"], type(sys)("__main__")
    # errors are shown without our two frames
    show = sys.excepthook
    sys.excepthook = lambda kind, error, trace: show(kind, error.with_traceback(trace.tb_next.tb_next), None)  # type: ignore[union-attr]
    sys.setrecursionlimit(50_000)  # as in LiveCodeBench
    exec(compile(program, "program.py", "exec"), sys.modules["__main__"].__dict__)
