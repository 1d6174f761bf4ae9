"""What a program may not do: system calls, memory, terminals, other processes, traces for the next run. What it may."""

import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile import BREACHES, COLUMN, REFUSED, Leftovers
from test_sandbox import mode  # noqa: F401 (a fixture)

from tasks import sandbox
from tasks.sandbox import Result, run_many, run_program
from tasks.seccomp import ALLOW, ARCHITECTURES, CALLS, NAMESPACES, OWN_PID, RULES, SIGNALS, SOCKETS, seccomp_filter

ROOT = Path(__file__).parents[1]
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ALLOWED = {
    name: tuple(0 if number == "-" else int(number) for number in numbers)
    for name, *numbers in (
        call.split() for line in CALLS.splitlines() if "#" not in line for call in line.split(",") if call.strip()
    )
}


def verdict(program: bytes, machine: str, number: Any, *arguments: int, architecture: int = 0) -> bool:
    """Whether the filter allows a call: the instructions that it uses, carried out."""
    data = struct.pack("=IIQ", number, architecture or ARCHITECTURES[machine][1], 0)
    data += b"".join(struct.pack("=Q", value) for value in (*arguments, *[0] * (6 - len(arguments))))
    code, place, loaded = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        operation, yes, no, k = code[place]
        place += 1
        if operation == 0x06:
            return k == ALLOW
        if operation == 0x20:
            loaded = struct.unpack_from("=I", data, k)[0]
        else:
            holds = {0x15: loaded == k, 0x25: loaded > k, 0x35: loaded >= k, 0x45: bool(loaded & k)}[operation]
            place += yes if holds else no


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_allows_what_the_table_names_and_nothing_else(machine, alone):
    column, program = ARCHITECTURES[machine][0], seccomp_filter(alone, machine)
    allowed = {numbers[column] for name, numbers in ALLOWED.items() if machine == "x86_64" or numbers[column]}
    if machine == "aarch64":
        allowed.discard(0)
    ruled = {rule[1 + column] for rule in (*RULES, SOCKETS, *SIGNALS)}
    for number in range(1024):
        if number not in ruled:
            assert verdict(program, machine, number) == (number in allowed), number
    other = ARCHITECTURES["aarch64" if machine == "x86_64" else "x86_64"][1]
    for number in allowed:
        assert not verdict(program, machine, number, architecture=other)
        assert not verdict(program, machine, number, architecture=0x40000003)  # i386
        assert not verdict(program, machine, number | 1 << 30)  # x32
    for name, (*numbers, _) in REFUSED.items():
        if not name.startswith(("clone a", "prlimit", "vsock", "netlink", "kernel", "packets")) and numbers[column]:
            assert not verdict(program, machine, numbers[column]), name


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_arguments_decide_on_some_calls(machine, alone):
    column, program = ARCHITECTURES[machine][0], seccomp_filter(alone, machine)
    number = {rule[0]: rule[1 + column] for rule in (*RULES, SOCKETS, *SIGNALS)}

    def allows(*call):
        return verdict(program, machine, number[call[0]], *call[1:])

    assert allows("clone", 0x3D0F00)  # a thread
    assert allows("clone", 17)  # a fork
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert NAMESPACES & bit
        assert not allows("clone", 17 | bit)
    assert allows("prlimit64", 0)
    assert not allows("prlimit64", 1)
    assert not any(allows(name, argument) for name in ("setxattr", "lsetxattr", "fsetxattr") for argument in range(9))
    assert allows("prctl", 15)
    assert not allows("prctl", 1)
    assert [family for family in range(64) if allows("socket", family)] == ([1] if alone else [1, 2, 10])
    for signal in ("kill", "tgkill", "tkill"):
        assert allows(signal, OWN_PID)
        assert allows(signal, 1) is not alone
        assert allows(signal, 2**64 - 1) is not alone


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_numbers_are_those_of_the_kernel(machine):
    if not HEADERS[machine].exists():
        pytest.skip(f"the kernel's headers are not installed: {HEADERS[machine]}")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text())
    known = {{"fstatat": "newfstatat"}.get(name, name): int(number) for name, number in found}
    rules = {rule[0]: rule[1:3] for rule in (*RULES, SOCKETS, *SIGNALS)}
    column = ARCHITECTURES[machine][0]
    for name, numbers in (ALLOWED | rules).items():
        if numbers[column] or (machine, name) == ("x86_64", "read"):
            assert known.get(name, 452 if name == "fchmodat2" else None) == numbers[column], name


def test_the_filter_fits_into_a_pipe_and_other_machines_have_none():
    assert len(seccomp_filter(True)) < 4096
    assert seccomp_filter(False, "riscv64") == b""


@pytest.mark.skipif(COLUMN is None, reason="no filter for this machine")
def test_numpy_and_threads_work_under_the_filter(tmp_path):
    pytest.importorskip("numpy")
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tasks.sandbox_supervisor import lock_in, prepare
from tasks.seccomp import seccomp_filter
lock_in([seccomp_filter(False)], *prepare())
import asyncio, concurrent.futures, ctypes, shutil, subprocess, tempfile, numpy
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    sums = list(pool.map(lambda n: int((numpy.eye(200) * n @ numpy.ones((200, 200))).sum()), range(4)))
assert sums == [0, 40000, 80000, 120000], sums
assert numpy.linalg.solve([[2.0, 0], [0, 4]], [2, 8]).tolist() == [1, 2]
with tempfile.TemporaryDirectory(dir=".") as folder:
    numpy.save(folder + "/a.npy", numpy.arange(9))
    shutil.copy2(folder + "/a.npy", folder + "/b.npy")
    assert numpy.load(folder + "/b.npy", mmap_mode="r").sum() == 36
assert asyncio.run(asyncio.sleep(0, 5)) == 5
assert subprocess.run(["/bin/echo", "5"], capture_output=True).stdout == b"5\\n"
assert ctypes.CDLL(None).shmget(0, 4096, 0o1666) == -1
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.skipif(COLUMN is None, reason="no filter for this machine")
def test_nothing_that_is_forbidden_works(mode):  # noqa: F811
    """All attempts in one program, so that it takes no time; one by one they are in the search."""
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


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("import os\nprint(os.read(0, os.fstat(0).st_size))", "b'7\\n8'\n"),
        ("print(open('/dev/stdin').read())", "7\n8\n"),
        ("print(open('/dev/fd/0').read())", "7\n8\n"),
        ("print(open(0, closefd=False).readlines(), open('/dev/stdin').readlines()[1:])", "['7\\n', '8'] ['8']\n"),
        ("import mmap\nprint(mmap.mmap(0, 0, access=mmap.ACCESS_READ)[:])", "b'7\\n8'\n"),
        ("import mmap\nprint(mmap.mmap(0, 0, prot=mmap.PROT_READ).readline())", "b'7\\n'\n"),
        ("import sys\nprint(sys.stdin.read())\nsys.stdin.seek(0)\nprint(input())", "7\n8\n7\n"),
        (
            "import sys\nprint(sys.stdin.seekable(), sys.__stdin__ is sys.stdin, sys.stdin.encoding)",
            "True True utf-8\n",
        ),
        ("import sys\nsys.stdin.buffer.seek(2)\nprint(sys.stdin.buffer.read())", "b'8'\n"),
        ("import os, stat\nprint(os.lseek(0, 0, 2), stat.S_ISREG(os.fstat(0).st_mode))", "3 True\n"),
        ("import os\nprint(os.pread(0, 1, 2), os.read(0, 1))", "b'8' b'7'\n"),
        ("import sys\nprint(*map(int, sys.stdin.buffer.read().split()))", "7 8\n"),
        ("import fileinput\nprint(list(fileinput.input()))", "['7\\n', '8']\n"),
        ("print(input(), input())\ntry: input()\nexcept EOFError: print('end')", "7 8\nend\n"),
    ],
)
def test_stdin_is_a_file(mode, code, stdout):  # noqa: F811
    assert run_program(code, "7\n8") == Result("ok", stdout, "")


@pytest.mark.parametrize("data", ["", "x", "\n", "a" * 70_000, "é\u2028\x85" * 50_000, "7" * 3_000_000])
def test_stdin_of_any_size_arrives_whole(mode, data):  # noqa: F811
    code = "import os, sys, zlib\nprint(os.fstat(0).st_size)\nprint(zlib.crc32(sys.stdin.buffer.read()))"
    import zlib

    sizes = [data, data[: len(data) // 2], data]  # a long input leaves nothing behind a short one
    assert [result.stdout for result in run_many(code, sizes)] == [
        f"{len(part.encode())}\n{zlib.crc32(part.encode())}\n" for part in sizes
    ]


def test_integers_have_as_many_digits_as_they_like(mode):  # noqa: F811
    code = "n = int(input())\nprint(n + 1)\nassert len(str(10**5000)) == 5001 and '9' * 6000 == str(10**6000 - 1)"
    assert run_program(code, "9" * 5000) == Result("ok", "1" + "0" * 5000 + "\n", "")
    assert run_program(f"print({'1' * 5000})").stdout == "1" * 5000 + "\n"


@pytest.mark.parametrize(
    "trace",
    [
        "open('note', 'w')",
        "os.mkdir('folder')",
        "os.chmod('.', 0o711)",
        "os.utime('.', (1, 1))",
        "os.setxattr('.', 'user.note', b'x')",
        "open('note', 'w'); os.remove('note')",
        "os.chmod('/dev/stdin', 0o600)",
        "os.truncate('/dev/stdin', 0)",
        "os.umask(0o70); os.nice(0)",
        "libc.shmget(77, 4096, 0o1666); libc.semget(77, 1, 0o1666); libc.msgget(77, 0o1666)",
        "libc.syscall((248, 217)[arm], b'user', b'note', b'x', 1, -3)",  # the session's keyring
        "libc.syscall((248, 217)[arm], b'user', b'note', b'x', 1, -4)",  # the user's keyring
        "open('/dev/shm/hostile-note', 'w')",
    ],
)
def test_an_input_starts_with_nothing_left_from_the_one_before(mode, trace):  # noqa: F811
    code = f"""
import ctypes, os
libc, arm = ctypes.CDLL(None), os.uname().machine == 'aarch64'
here = os.stat('.')
print(os.listdir('.'), oct(here.st_mode), here.st_mtime < 100, oct(os.stat('/dev/stdin').st_mode), input())
print(os.path.exists('/dev/shm/hostile-note'), oct(os.umask(0o22)))
try: print(os.listxattr('.'))
except OSError: print([])
print(libc.shmget(77, 4096, 0o666), libc.semget(77, 1, 0o666), libc.msgget(77, 0o666))
print([libc.syscall((250, 219)[arm], 10, keyring, b'user', b'note', 0) for keyring in (-3, -4)])
try: {trace}
except OSError: pass
"""
    first, *others = [result.stdout for result in run_many(code, ["same"] * 3)]
    assert "[] 0o4" in first
    assert "False 0o22" in first
    assert others == [first, first]


def test_a_program_has_no_terminal(mode, tmp_path):  # noqa: F811
    """The trainer's terminal: neither opened nor made its own."""
    report, script = tmp_path / "report", tmp_path / "script.py"
    program = """
import os
for path in ('/dev/tty', *[f'/dev/pts/{n}' for n in range(9)]):
    try: os.open(path, os.O_WRONLY); print('opened', path)
    except OSError: pass
os.setsid() if os.getpid() != os.getsid(0) else None
try: os.open('/dev/tty', os.O_RDONLY); print('opened a terminal')
except OSError: print('none')
"""
    script.write_text(f"""
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    sys.path.insert(0, {str(ROOT)!r})
    from tasks import sandbox
    sandbox.set_mode({mode!r})
    os.close(os.open('/dev/tty', os.O_RDWR))  # here it is
    open({str(report)!r}, 'w').write(repr(sandbox.run_program({program!r})))
    os._exit(0)
os.waitpid(pid, 0)
""")
    subprocess.run([sys.executable, "-W", "ignore", str(script)], check=True)
    assert report.read_text() == repr(Result("ok", "none\n", ""))


def test_root_that_cannot_become_another_user_is_refused_and_leaves_nothing():
    command = ["unshare", "--map-root-user", sys.executable, "-c"]
    try:
        possible = subprocess.run([*command, "pass"], capture_output=True).returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("user namespaces are not allowed here")
    code = f"""
import os, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from hostile import Leftovers
from tasks import sandbox
with Leftovers():
    for mode in ("auto", "rlimit"):
        sandbox.set_mode(mode)
        for _ in range(3):
            try:
                sandbox.run_program("print(1)")
            except RuntimeError as error:
                print(error)
    try:
        sandbox.set_mode("require")
    except RuntimeError as error:
        print(error)
"""
    done = subprocess.run([*command, code], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 7, done.stderr
    assert all("no program can run" in line and "ordinary user" in line for line in lines)


def test_a_start_that_fails_leaves_nothing(mode, monkeypatch):  # noqa: F811
    sandbox.use_bubblewrap()

    def fails(*_, **__):
        raise OSError("no process left")

    with Leftovers():
        for target, name in ((sandbox.subprocess, "Popen"), (sandbox.os, "set_blocking"), (sandbox.WorkFolder, "give")):
            with monkeypatch.context() as patch:
                patch.setattr(target, name, fails)
                result = run_program("print(1)")
            if name != "give":
                assert result == Result("infra", "", "the sandbox did not start: no process left")
