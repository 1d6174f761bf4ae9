"""The half of the sandbox that runs inside it: `sandbox.py` hands this text to a fresh Python process as its program.

It serves requests from stdin until that closes: fork, watch, end whatever the program started, reply on stdout. It
imports little, because starting Python is most of what a sandbox costs, and it never executes a line of the program
itself: `supervise` returns in forked children only, with the program to become.
"""

import builtins
import marshal
import os
import resource
import select
import struct
import sys
import time

STATUSES = ("ok", "error", "timeout", "memory", "output", "infra")
SIGKILL, SIGXCPU = 9, 24  # numbers: the module `signal` would double the start-up time of a sandbox
REPLY = struct.Struct("<BBII")  # status, sandbox still clean, bytes of stdout, bytes of stderr


def supervise():
    sys.path.remove("")  # programs write to the working directory; nobody imports from it
    for name in sys.argv[1:]:
        __import__(name)
    os.umask(0o022)
    tools = ()
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # the kernel's first victim when memory runs out
    except OSError:  # bubblewrap has done so, and there is no /proc
        pass
    while True:
        size = int.from_bytes(receive(8), "little")
        code, data, stdin, timeout, output, limits, user, lock = marshal.loads(receive(size))
        # A file, as in `python program.py < input`: its size can be asked, it can be mapped, and read twice.
        with open(os.open(stdin, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.write(data)
            file.truncate()  # not before writing: ext4 flushes such files to disk
        out, err = os.pipe(), os.pipe()
        if lock and not tools:
            tools = prepare()
        before = traces(stdin)
        child = os.fork()
        if child == 0:
            enter(stdin, out, err, limits, user, lock, tools)
            return code
        os.close(out[1])
        os.close(err[1])
        status, stdout, stderr = watch(child, out[0], err[0], timeout, output)
        try:
            clean = traces(stdin) == before
        except OSError:  # the program took the folder or its permissions away
            clean = False
        reply = REPLY.pack(STATUSES.index(status), clean, len(stdout), len(stderr)) + stdout + stderr
        while reply:
            reply = reply[os.write(1, reply) :]


def receive(size):
    parts = []
    while size:
        parts.append(os.read(0, size))
        if not parts[-1]:
            os._exit(0)  # the input was closed: the call is over, or the caller died
        size -= len(parts[-1])
    return b"".join(parts)


def traces(stdin):
    """A value that changes with anything a program can leave for the next one: files, and attributes of old files."""
    return os.listdir("."), *((os.stat(path).st_mode, os.stat(path).st_ctime_ns) for path in (".", stdin))


def enter(stdin, out, err, limits, user, lock, tools):
    """Turn this fresh fork into the program's process: its user, its limits, its three streams and nothing else."""
    try:
        feed = os.open(stdin, os.O_RDONLY)
        if user and lock:  # Python may live where only root can look: hold its folders open
            folders = [os.open(path, os.O_PATH) for path in sys.path if os.path.isdir(path)]
            sys.path[:] = [f"/proc/self/fd/{folder}" for folder in folders]
            for name, module in sys.modules.items():  # packages that are loaded look for their parts on their own
                if hasattr(module, "__path__"):
                    module.__path__ = [f"{path}/{name.replace('.', '/')}" for path in sys.path]
        if user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        if lock:
            lock_in(lock, *tools)
        for name, value in limits.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            # One CPU second more until the hard limit: SIGXCPU says what happened, SIGKILL would not.
            resource.setrlimit(kind, (value, value + 1 if name == "CPU" and hard != value else value))
    except BaseException:
        os.write(1, b"\0")  # not the program's fault
        raise
    os.write(1, b"\1")
    for target, end in enumerate((feed, out[1], err[1])):
        os.dup2(end, target)
    for end in (feed, *out, *err):
        os.close(end)


def prepare():
    """What `lock_in` needs, once for all children: the C library, and Landlock's rules or -1 on a kernel without it."""
    if sys.platform != "linux":
        return None, -1
    import ctypes

    libc = ctypes.CDLL(None)

    def call(*arguments):
        return libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])

    version, rules = call(444, None, 0, 1), -1  # landlock_create_ruleset
    if version > 0:  # to write only in this folder, and (this comes with any rule) to get at no process outside
        rights = 0x1FF2 | (version >= 2) << 13 | (version >= 3) << 14  # write, remove, make; move; truncate
        rules = call(444, struct.pack("=Q", rights), 8, 0)
        for path, allowed in ((".", rights), ("/dev/null", rights & 0x4002)):
            place = os.open(path, os.O_PATH)
            call(445, rules, 1, struct.pack("=Qi", allowed, place), 0)  # landlock_add_rule
            os.close(place)
    return libc, rules


def lock_in(lock, libc, rules):
    """What Linux offers to a process without rights that gives up more of them."""
    if libc is None:
        return
    libc.prctl(1, SIGKILL)  # PR_SET_PDEATHSIG: does not outlive the supervisor
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS: the two below ask for it
    if rules >= 0:
        libc.syscall(446, rules, 0)  # landlock_restrict_self
        os.close(rules)
    code = bytearray(os.getpid().to_bytes(4, "little").join(lock))
    if code:
        import ctypes

        array = (ctypes.c_char * len(code)).from_buffer(code)
        libc.prctl(22, 2, struct.pack("HP", len(code) // 8, ctypes.addressof(array)), 0, 0)  # PR_SET_SECCOMP


def watch(child, out, err, timeout, output):
    """Read the program until it ends or has to be ended. Returns (status, stdout, stderr)."""
    deadline, reason, ended = time.monotonic() + timeout, "", 0
    captured = {out: bytearray(), err: bytearray()}
    poll = select.poll()
    poll.register(0, 0)  # no event asked for: only the hang-up is reported
    for fd in captured:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    streams = set(captured)
    while not ended and not reason:
        for fd, _ in poll.poll(20 if streams else 1):
            if fd == 0:
                os.kill(child, SIGKILL)
                os._exit(1)
            if not drain(fd, captured[fd], output):
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
    if os.getpid() == 1:
        try:
            os.kill(-1, SIGKILL)  # from process 1 of a namespace: everything else in it
            while True:
                os.wait()
        except (ProcessLookupError, ChildProcessError):
            pass
    for fd in streams:
        drain(fd, captured[fd], output)
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


def drain(fd, buffer, limit):
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


if __name__ == "__main__":
    program = supervise()
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    # The interpreter's own was made for a pipe: it would not seek.
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.__stdin__ = sys.stdin  # type: ignore[misc]
    sys.argv, sys.modules["__main__"] = ["program.py"], type(sys)("__main__")
    # What the program raises is shown without the two frames of ours that it went through.
    show = sys.excepthook
    sys.excepthook = lambda kind, error, trace: show(kind, error.with_traceback(trace.tb_next.tb_next), None)  # type: ignore[union-attr]
    exec(compile(program, "program.py", "exec"), sys.modules["__main__"].__dict__)
