"""What a program in bubblewrap may not do: system calls, memory, other processes, files, terminals."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hostile import BREACHES, HOSTILE, Leftovers, needs_bubblewrap

from tasks.code_values import same_output
from tasks.sandbox import Result, run_program
from tasks.seccomp import ALLOWED, DENIED, NEW, seccomp_filter

HEADERS = (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm-generic/unistd.h"))
pytestmark = needs_bubblewrap


@pytest.mark.parametrize("column", [0, 1])
def test_numbers_are_those_of_the_kernel(column):
    if not HEADERS[column].exists():
        pytest.skip(f"the kernel's headers are not installed: {HEADERS[column]}")
    known = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[column].read_text()))
    for name, *numbers in (call.split() for call in DENIED.split(",")):
        assert known.get(name, "-") == numbers[column], name
    late = {name for name, number in known.items() if int(number) in ALLOWED and int(number) >= NEW}
    assert late <= {"close_range", "openat2", "faccessat2", "epoll_pwait2", "futex_waitv", "fchmodat2"}
    assert len(seccomp_filter(("x86_64", "aarch64")[column])) > 400
    assert seccomp_filter("riscv64") == b""


def test_nothing_that_is_forbidden_works():
    """All attempts in one program, so that it takes no time."""
    code = f"""
import contextlib, io, os
for name, code in {BREACHES!r}.items():
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, {{"__name__": "__main__"}})
    except Exception as error:
        print(name, repr(error))
    if printed.getvalue() != "7\\n":
        print(name, printed.getvalue())
for name in os.listdir("."):
    os.remove(name)
"""
    with Leftovers():
        assert run_program(code, timeout=20) == Result("ok", "", "")


def test_hostile_programs_beside_honest_ones_score_nothing_and_leave_nothing():
    """Each program of the list once, in parallel with honest ones that must not suffer.

    "raised limits" prints 8 unless the sandbox refuses, and must be refused.
    """
    with Leftovers(), ThreadPoolExecutor(4) as pool:
        hostile = [pool.submit(run_program, code, "7", 0.5) for code in HOSTILE.values()]
        honest = [pool.submit(run_program, "print(int(input()) + 1)", "7", 10.0) for _ in range(20)]
        assert {future.result().stdout for future in honest} == {"8\n"}
        for name, future in zip(HOSTILE, hostile, strict=True):
            result = future.result()
            assert result.status != "infra", (name, result)
            assert result.status != "ok" or not same_output("8", result.stdout), name


GRAB = "import os, socket, threading, ctypes, resource\nx = []\n"


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        ("os.fork()", "error", "PermissionError"),
        ("import subprocess; subprocess.run([os.sys.executable])", "error", "PermissionError"),
        ("os.execv(os.sys.executable, ['python'])", "error", "PermissionError"),
        ("socket.socket()", "error", "PermissionError"),
        ("while True: x += socket.socketpair()", "error", "PermissionError"),
        ("while True: x.append(bytearray(10**7))", "memory", "MemoryError"),
        ("while True: os.write(os.open(str(len(x)), 65), bytes(10**6)); x += [0]", "error", "No space left"),
        ("while True: os.mkdir(str(len(x))); x += [0]", "memory", ""),
        ("import fcntl; fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)", "error", "PermissionError"),
        ("resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "error", "not allowed"),
    ],
)
def test_the_memory_of_a_program_is_that_of_one_process_and_a_small_folder(code, status, stderr):
    result = run_program(GRAB + code, timeout=10)
    assert result.status == status
    assert stderr in result.stderr


def test_only_pythons_own_files_can_be_seen(tmp_path, monkeypatch):
    (tmp_path / "answers.txt").write_text("8")
    monkeypatch.setenv("SECRET_TOKEN", "8")
    hidden = f"{tmp_path} {os.getcwd()} {pytest.__file__} /proc/1/environ /proc/self /etc/passwd /etc/shadow /bin/sh"
    hidden += " /usr/src /usr/share /usr/sbin /usr/include /usr/local/share /home /var"
    code = f"""
import os, socket
for path in {hidden.split()}:
    assert not os.path.exists(path), path
assert set(os.environ) <= {{'PATH', 'HOME', 'PYTHONHASHSEED', 'PYTHONUTF8', 'LC_CTYPE', 'PWD'}}, os.environ
assert os.listdir('/tmp') == [] and os.getpid() < 10
library = os.path.dirname(os.__file__)
places = ['/x', '/dev/x', '/dev/shm/x', '/lib/x', os.__file__, library + '/x', library + '/site-packages/x']
for path in places + ['/dev/tty', *[f'/dev/pts/{{n}}' for n in range(9)]]:
    try:
        open(path, 'a')
    except OSError:
        continue
    raise AssertionError(path)
print('hidden')
"""
    assert run_program(code) == Result("ok", "hidden\n", "")
