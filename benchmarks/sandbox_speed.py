"""Programs in isolation: milliseconds of an answer, and of a program in a sandbox that has started.

    python benchmarks/sandbox_speed.py                          # this tree
    python benchmarks/sandbox_speed.py --base=/path/to/base/src # and another one, in interleaved pairs

An answer starts both sandboxes, runs one test of a function and ends them. Each version is a process of its own.
Compile both trees before (`python -m compileall src`), as an installation does. On a shared machine, real-time priority
keeps other jobs out of the figures: `chrt --fifo 1 python ...`, as root.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SQUARES = "total = 0\nfor i in range(2_000_000):\n    total += i * i\nprint(total)"
FORKS = "import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\nprint(1)"


def jobs() -> dict[str, Callable[[], object]]:
    """What is measured, by name."""
    from guerdon.tasks.code.code_tests import Sandbox, read_tests, run_tests

    output = read_tests('{"inputs": [""], "outputs": ["1"]}')
    sum_of_squares = read_tests('{"inputs": [""], "outputs": ["2666664666667000000"]}')
    function = read_tests('{"entry_point": "f", "test": "def check(candidate):\\n    assert candidate(1) == 2"}')
    add = "def f(x): return x + 1"
    sandbox = Sandbox()

    def right(tests: object, program: str, where: Sandbox = sandbox) -> None:
        if run_tests(tests, program, where, cpu_seconds=20) != 1:
            raise SystemExit(f"this program should pass: {program}")

    def answer() -> None:
        with Sandbox() as fresh:
            right(function, add, fresh)

    return {
        "an answer": answer,
        "prints": lambda: right(output, "print(1)"),
        "a function": lambda: right(function, add),
        "computes": lambda: right(sum_of_squares, SQUARES),
        "forks": lambda: right(output, FORKS),
    }


def serve() -> None:
    """Do the jobs whose names come from standard input, and print the milliseconds of each."""
    known = jobs()
    for line in sys.stdin:
        start = time.perf_counter()
        known[line.strip()]()
        print(1e3 * (time.perf_counter() - start), flush=True)


def main() -> None:
    """Run the pairs and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="src folder of another version")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    here = str(Path(__file__).resolve().parent.parent / "src")
    sides = {"this": here} | ({"base": arguments.base} if arguments.base else {})
    running = {
        side: subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env={**os.environ, "PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for side, source in sides.items()
    }

    def milliseconds(side: str, job: str) -> float:
        process = running[side]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{job}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    print("| program | ms | ms of the base | ratio |\n|---|---:|---:|---:|")
    for job in ("an answer", "prints", "a function", "computes", "forks"):
        found: dict[str, list[float]] = {side: [] for side in sides}
        for i in range(arguments.repetitions + 1):
            for side in sorted(sides, reverse=bool(i % 2)):
                found[side].append(milliseconds(side, job))
        found = {side: times[1:] for side, times in found.items()}  # the first one fills caches
        base = found.get("base", found["this"])
        ratio = statistics.median(a / b for a, b in zip(found["this"], base, strict=True))
        print(f"| {job} | {statistics.median(found['this']):.1f} | {statistics.median(base):.1f} | {ratio:.3f} |")
    for process in running.values():
        process.communicate()


if __name__ == "__main__":
    main()
