"""How fast programs run in the sandbox: `python benchmarks/sandbox.py [seconds]`, in bubblewrap and under rlimits.

Prints programs a second through a pool of as many threads as cores, the price of a further test of one program, how
long a function is graded (at most 0.1 s for 50 usual tests, 3.5 s for any), and the share of the sampling of a step of
24 problems that grading takes (at most 20% on 16 cores).
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from tasks import sandbox
from tasks.code_env import grade_program

GENERATION = 14.0  # seconds in which Qwen2.5-Coder-0.5B generates the programs of such a step on an H200


def rate(function, seconds: float, threads: int) -> float:
    """Calls a second."""
    stop = time.monotonic() + seconds
    calls = 0

    def work() -> None:
        nonlocal calls
        while time.monotonic() < stop:
            function()
            calls += 1

    start = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        for worker in [pool.submit(work) for _ in range(threads)]:
            worker.result()
    return calls / (time.monotonic() - start)


def timed(function) -> float:
    start = time.monotonic()
    function()
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, nargs="?", default=5.0, help="of each measurement")
    seconds, cores = parser.parse_args().seconds, len(os.sched_getaffinity(0))
    add = "def f(a, b):\n    return a + b\n"
    calls = [{"fn_name": "f", "args": [n, 1], "expected": n + 1} for n in range(50)]
    pairs = [{"input": str(n), "output": str(n + 1)} for n in range(50)]
    for mode in ("auto", "rlimit"):
        sandbox.set_mode(mode)
        name = "bubblewrap" if sandbox.use_bubblewrap() else "rlimits"
        small = rate(lambda: sandbox.run_program("print(int(input()) + 1)", "7").stdout == "8\n", seconds, cores)
        functions = 50 * rate(lambda: grade_program(add, calls), seconds, cores)
        programs = 50 * rate(lambda: grade_program("print(int(input()) + 1)", pairs), seconds, cores)
        step = 24 * 8 * 3 * 50 / functions
        print(
            f"{name}, {cores} threads: {small:.0f} small programs/s; of one program with 50 tests "
            f"{programs:.0f} stdin tests/s, {functions:.0f} function tests/s; a turn of coder and tester on 24 "
            f"problems with K = 8 (three programs a pair) takes {step:.1f} s, {step / (step + GENERATION):.0%} of a "
            f"sampling that generates for {GENERATION:.0f} s"
        )
        for what, code in ("right", add), ("that hangs", "def f(a, b):\n    while True: pass\n"):
            took = median(timed(lambda code=code: grade_program(code, calls)) for _ in range(9 if code == add else 1))
            print(f"    a function {what}: {took:.3f} s for 50 tests, alone")


if __name__ == "__main__":
    main()
