"""The sandbox: honest programs run, others end with the right status, and nothing of them is left."""

import re
import warnings
import zlib

import pytest
from hostile import Leftovers, needs_bubblewrap

from tasks import sandbox
from tasks.sandbox import Result, run_many, run_program


@pytest.fixture(params=[pytest.param("auto", marks=needs_bubblewrap), "rlimit"])
def mode(request):
    sandbox.set_mode(request.param)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield request.param
    sandbox.set_mode("auto")


@pytest.mark.parametrize(
    ("code", "stdin", "stdout"),
    [
        ("def main(): print(int(input())+1)\nif __name__ == '__main__':\n    main()", "7", "8\n"),
        ("import sys\nprint(sum(map(int, sys.stdin)))", "1\n2\n3", "6\n"),
        ("print(len(open(0).read()))", "x" * 300_000, "300000\n"),
        ("print('é', input())", "日本", "é 日本\n"),
        ("import json, decimal, heapq, typing, itertools, re, random, dataclasses, bisect; print('ok')", "", "ok\n"),
        ("import ssl, sqlite3, lzma, bz2, ctypes, hashlib, zlib, numbers, fractions; print('ok')", "", "ok\n"),
        ("import sys\nsys.setrecursionlimit(10**6)\nf = lambda n: n and 1 + f(n - 1)\nprint(f(9000))", "", "9000\n"),
        ("open('note', 'w').write('a'); print(open('note').read())", "", "a\n"),
        ("import threading as t\nx = t.Thread(target=print, args=(1,)); x.start(); x.join(); print(2)", "", "1\n2\n"),
        ("import os\nprint(os.read(0, os.fstat(0).st_size))", "7\n8", "b'7\\n8'\n"),  # the input is a file
        ("import mmap\nprint(mmap.mmap(0, 0, access=mmap.ACCESS_READ)[:])", "7\n8", "b'7\\n8'\n"),
        ("import sys\nprint(sys.stdin.read())\nsys.__stdin__.seek(0)\nprint(input())", "7\n8", "7\n8\n7\n"),
        ("import fileinput\nprint(list(fileinput.input()))", "7\n8", "['7\\n', '8']\n"),
        ("print(input(), input())\ntry: input()\nexcept EOFError: print('end')", "7\n8", "7 8\nend\n"),
        ("n = int(input())\nprint(n + 1)\nassert len(str(10**5000)) == 5001", "9" * 5000, "1" + "0" * 5000 + "\n"),
        ("", "ignored", ""),
    ],
)
def test_honest_programs(mode, code, stdin, stdout):
    assert run_program(code, stdin) == Result("ok", stdout, "")


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        ("1/0", "error", "ZeroDivisionError"),
        ("def", "error", "SyntaxError"),
        ("a = '\ud800'", "error", "surrogates"),
        ("import ctypes; ctypes.string_at(0)", "error", "killed by signal 11"),
        ("x = [0] * 10**10", "memory", "MemoryError"),
        ("while True: pass", "timeout", ""),
        ("import time; time.sleep(60)", "timeout", ""),
        ("while True: print('x' * 1000)", "output", ""),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output", ""),
    ],
)
def test_statuses_and_what_was_printed_by_then(mode, code, status, stderr):
    first = "" if status == "error" and stderr[:3] in ("Syn", "sur") else "first\n"
    result = run_program(f"print('first', flush=True)\n{code}", timeout=1)
    assert result.status == status
    assert stderr in result.stderr
    assert result.stdout[:6] == first
    assert len(result.stdout) <= sandbox.OUTPUT, "so much at most is held in memory"


def test_a_traceback_shows_the_program_and_nothing_of_the_sandbox(mode):
    shown = run_program("def f():\n    exec('1 / 0')\nf()", timeout=5).stderr
    assert re.findall(r'File "(.*)", line (\d+), in (\S+)', shown) == [
        ("program.py", "3", "<module>"), ("program.py", "2", "f"), ("<string>", "1", "<module>")
    ]  # fmt: skip
    assert shown.endswith("ZeroDivisionError: division by zero\n")
    assert len(shown) < 500
    assert run_program("x = (").stderr.startswith('  File "program.py", line 1\n')


@pytest.mark.parametrize("data", ["", "x", "a" * 70_000, "é\u2028\x85" * 50_000, "7" * 3_000_000])
def test_stdin_of_any_size_arrives_whole(mode, data):
    code = "import os, sys, zlib\nprint(os.fstat(0).st_size)\nprint(zlib.crc32(sys.stdin.buffer.read()))"
    sizes = [data, data[: len(data) // 2], data]  # a long input leaves nothing behind a short one
    assert [result.stdout for result in run_many(code, sizes)] == [
        f"{len(part.encode())}\n{zlib.crc32(part.encode())}\n" for part in sizes
    ]


TRACES = ["open('note', 'w')", "os.mkdir('folder')", "os.chmod('.', 0o711)", "os.utime('.', (1, 1))"]
TRACES += ["open('note', 'w'); os.remove('note')", "os.umask(0o70)", "json.mark = 1"]


@pytest.mark.parametrize("trace", TRACES)
def test_an_input_starts_with_nothing_left_from_the_one_before(mode, trace):
    code = f"""
import json, os
here = os.stat('.')
print(os.listdir('.'), oct(here.st_mode), here.st_mtime < 100, oct(os.umask(0o22)), hasattr(json, 'mark'), input())
try: {trace}
except OSError: pass
"""
    results = []
    while len(results) < 3:
        results += run_many(code, ["same"] * (3 - len(results)))
    first, *others = [result.stdout for result in results]
    assert first.startswith("[] 0o40")
    assert first.endswith("False 0o22 False same\n")
    assert others == [first, first]


def test_without_bubblewrap_programs_run_only_if_somebody_says_so(monkeypatch, mode):
    if mode == "rlimit":
        with pytest.warns(RuntimeWarning, match="WITHOUT A SECURITY BOUNDARY"):
            assert run_program("print(1)").stdout == "1\n"
        return
    monkeypatch.setattr(sandbox, "_bubblewrap_problem", lambda: "the test hides it")
    with pytest.raises(ValueError, match=r"the test hides it.*Install bubblewrap.*--sandbox rlimit, which is no"):
        run_program("print(1)")
    with pytest.raises(ValueError, match="choose 'auto' or 'rlimit'"):
        sandbox.set_mode("require")


def test_a_sandbox_that_does_not_start_is_infra_and_leaves_nothing(monkeypatch, mode):
    broken = ("START", "raise RuntimeError('on purpose')", "on purpose"), ("VICTIM", ["/nowhere"], "No such file")
    with Leftovers():
        for name, value, message in broken:
            with monkeypatch.context() as patch:
                patch.setattr(sandbox, name, value)
                result = run_program("print(1)")
            assert result.status == "infra"
            assert message in result.stderr
