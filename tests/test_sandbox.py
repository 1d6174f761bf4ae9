"""The sandbox: honest programs run, hostile ones end with the right status, and nothing of them is left."""

import gc
import os
import re
import resource
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile import HOSTILE, Leftovers, search

from tasks import sandbox
from tasks.sandbox import Result, extract_code, fenced_blocks, run_many, run_program

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    HAVE_BUBBLEWRAP = sandbox.use_bubblewrap()
needs_bubblewrap = pytest.mark.skipif(not HAVE_BUBBLEWRAP, reason="bubblewrap is not installed or not allowed here")


@pytest.fixture(params=[pytest.param("auto", marks=needs_bubblewrap), "rlimit"])
def mode(request):
    sandbox.set_mode(request.param)
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
        ("import sys\nsys.setrecursionlimit(10**6)\nf = lambda n: n and 1 + f(n - 1)\nprint(f(9000))", "", "9000\n"),
        ("open('note', 'w').write('a'); print(open('note').read())", "", "a\n"),
        ("print(1); exit()", "", "1\n"),
        ("import atexit; atexit.register(print, 'bye')", "", "bye\n"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'\nprint(A(2).x)", "", "2\n"),
        ("", "ignored", ""),
    ],
)
def test_honest_programs(mode, code, stdin, stdout):
    assert run_program(code, stdin) == Result("ok", stdout, "")


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        ("1/0", "error", "ZeroDivisionError"),
        ("print('x'); raise SystemExit(3)", "error", ""),
        ("def", "error", "SyntaxError"),
        ("a = '\ud800'", "error", "surrogates"),
        ("a = 1\0", "error", "null bytes"),
        ("import ctypes; ctypes.string_at(0)", "error", "killed by signal 11"),
        ("x = [0] * 10**10", "memory", "MemoryError"),
        ("b = bytearray(2_000_000_000)", "memory", "MemoryError"),
        ("while True: pass", "timeout", ""),
        ("import time; time.sleep(60)", "timeout", ""),
        ("while True: print('x' * 1000)", "output", ""),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output", ""),
    ],
)
def test_statuses(mode, code, status, stderr):
    result = run_program(code, timeout=1)
    assert result.status == status
    assert stderr in result.stderr


def test_a_traceback_shows_the_program_and_nothing_of_the_sandbox(mode):
    shown = run_program("def f():\n    exec('1 / 0')\nf()", timeout=5).stderr
    assert re.findall(r'File "(.*)", line (\d+), in (\S+)', shown) == [
        ("program.py", "3", "<module>"), ("program.py", "2", "f"), ("<string>", "1", "<module>")
    ]  # fmt: skip
    assert shown.endswith("ZeroDivisionError: division by zero\n")
    assert len(shown) < 500
    assert run_program("x = (").stderr.startswith('  File "program.py", line 1\n')


@needs_bubblewrap
def test_threads_and_processes_work_inside_bubblewrap():
    code = "import threading, subprocess\nt = threading.Thread(target=print, args=(1,)); t.start(); t.join()\n"
    assert run_program(code + "print(subprocess.run(['/bin/echo', '2'], capture_output=True).stdout)").status == "ok"


@needs_bubblewrap
def test_bubblewrap_hides_home_environment_processes_and_network(tmp_path, monkeypatch):
    (tmp_path / "answers.txt").write_text("8")
    monkeypatch.setenv("SECRET_TOKEN", "8")
    code = f"""
import os, socket
for path in ({str(tmp_path)!r}, '/proc/1/environ', '/proc/self', '/etc/passwd', '/etc/shadow', {os.getcwd()!r}):
    assert not os.path.exists(path), path
assert set(os.environ) <= {{'PATH', 'HOME', 'PYTHONHASHSEED', 'PYTHONUTF8', 'LC_CTYPE', 'PWD'}}, os.environ
assert os.listdir('/tmp') == [] and os.getpid() < 10
for path in ('/x', '/usr/x', '/dev/x', '/dev/shm/x', '/lib/x'):
    try:
        open(path, 'w')
    except OSError:
        continue
    raise AssertionError(path)
try:
    socket.create_connection(('1.1.1.1', 53), 1)
except OSError:
    print('hidden')
"""
    assert run_program(code) == Result("ok", "hidden\n", "")


def test_runs_of_one_sandbox_do_not_see_each_other(mode):
    code = "import os, json\nprint(input(), sorted(os.listdir('.')), hasattr(json, 'mark'))\njson.mark = 1\n"
    files = code + "open('left', 'w').write('x')"
    for program in (code, files):
        assert [r.stdout for r in run_many(program, "abc")] == [f"{name} [] False\n" for name in "abc"]


@needs_bubblewrap
def test_a_daemon_of_one_run_does_not_live_into_the_next():
    code = """
import os, socket, sys, time
probe = socket.socket()
alive = probe.connect_ex(('127.0.0.1', 7777)) == 0
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        server = socket.socket(); server.bind(('127.0.0.1', 7777)); server.listen()
        os.close(1); os.close(2); time.sleep(60)
    os._exit(0)
time.sleep(0.1)
print(alive)
"""
    assert [r.stdout for r in run_many(code, "abc")] == ["False\n"] * 3


def test_stopping_early_leaves_nothing(mode):
    with Leftovers():
        runs = run_many("print(input())", "abc")
        assert next(runs).stdout == "a\n"
        runs.close()


def test_hostile_programs_beside_honest_ones_leave_nothing(mode):
    """Each program of the list once, in parallel with honest ones that must not suffer."""
    with Leftovers(), ThreadPoolExecutor(4) as pool:
        hostile = [pool.submit(run_program, code, "7", 0.5) for code in HOSTILE.values()]
        honest = [pool.submit(run_program, "print(int(input()) + 1)", "7", 10.0) for _ in range(20)]
        assert {future.result().stdout for future in honest} == {"8\n"}
        for name, future in zip(HOSTILE, hostile, strict=True):
            assert future.result().status != "infra", (name, future.result())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_hostile_programs_neither_score_nor_disturb_nor_leave_anything(mode, tmp_path):
    (tmp_path / "secret").write_text("key")
    (tmp_path / "secret").chmod(0o400)
    codes = search(str(tmp_path))
    assert len(codes) > 500
    with Leftovers(), ThreadPoolExecutor(4) as pool:
        hostile = [pool.submit(run_program, code, "7", 0.5) for code in codes.values()]
        while not all(future.done() for future in hostile):
            assert run_program("print(int(input()) + 1)", "7", 30.0) == Result("ok", "8\n", "")
        for name, future in zip(codes, hostile, strict=True):
            result = future.result()
            assert result.status != "infra", (name, result)
            assert result.status != "ok" or result.stdout.split() != ["8"], name
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o400
    assert (tmp_path / "secret").read_text() == "key"


def test_endless_output_does_not_grow_the_parent(mode):
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    result = run_program("while True: print('x' * 1000)", timeout=30)
    assert result.status == "output"
    assert len(result.stdout) == sandbox.OUTPUT
    assert time.monotonic() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def test_works_from_any_thread(mode):
    results = []
    thread = threading.Thread(target=lambda: results.append(run_program("print(3)")))
    thread.start()
    thread.join()
    assert results == [Result("ok", "3\n", "")]


def test_without_bubblewrap_auto_warns_once_and_require_refuses(monkeypatch):
    monkeypatch.setattr(sandbox, "_bubblewrap_problem", lambda: "the test hides it")
    sandbox._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="WITHOUT A SECURITY BOUNDARY.*the test hides it"):
        assert run_program("print(1)").stdout == "1\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_program("print(1)").stdout == "1\n"
    with pytest.raises(RuntimeError, match=r"require.*the test hides it"):
        sandbox.set_mode("require")
    with pytest.raises(ValueError, match="choose 'auto'"):
        sandbox.set_mode("none")


def test_a_sandbox_that_does_not_start_is_infra_and_says_why(monkeypatch, mode):
    monkeypatch.setattr(sandbox, "START", "raise RuntimeError('broken on purpose')")
    with Leftovers():
        result = run_program("print(1)")
    assert result.status == "infra"
    assert "broken on purpose" in result.stderr


FENCED = "Text\n```python\nprint(1)\n```\nmore\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (FENCED, "print(1)\n"),
        (FENCED + "```py\nprint(2)\n```", "print(2)\n"),
        (FENCED + "```python\nprint(\n```", "print(1)\n"),  # the last one does not parse
        (FENCED + "```python\nprint(2)\n", None),  # unclosed: cut off
        (FENCED + "```text\n8\n```", "print(1)\n"),
        (FENCED + "```\n8\n```", "print(1)\n"),
        ("<think>\n```python\nprint(3)\n</think>\n" + FENCED, "print(1)\n"),
        ("<think>\n```python\nprint(3)\n```\n</think>\nno code", None),
        ("1. item\n   ```python\n   if 1:\n       print(1)\n   ```\n", "if 1:\n    print(1)\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("```Python3\r\nprint(1)\r\n```\r\n", "print(1)\r\n"),
        ("```python\n```", None),
        ("print(1)", None),
        ("", None),
        ("```python\n" + "(" * 5000 + "\n```", None),
        ("```python\nx = " + "-" * 90_000 + "1\n```", None),
        ("```python\n" + "x" * 200_000 + "\n```", None),
        ("```python\na = '\0'\n```", None),
    ],
)
def test_extract_code(text, code):
    assert extract_code(text) == code


def test_extract_code_prints_no_warning_about_a_models_code():
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("ignore", module="<answer>")
        assert extract_code("```python\nprint('\\d')\n```") == "print('\\d')\n"
    assert not caught


def test_fenced_blocks_reads_other_tags():
    assert fenced_blocks("```json\n[1]\n```\n```python\nx\n```", ("json",)) == ["[1]\n"]
