"""HumanEval's own tasks as a check of the judge of programs: right solutions pass, and what only looks right does not.

Each task of the file (data/HumanEval.jsonl.gz of the repository openai/human-eval; not part of guerdon) is read as a
row of data. Its tests judge the canonical solution, the same without the imports and helpers that its prompt gives, and
programs that return nothing, end early in three ways, or return an object that is equal to everything.

    python benchmarks/humaneval.py HumanEval.jsonl.gz --workers=2
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from guerdon.tasks.code.code_tests import Sandbox, read_tests, run_tests
from guerdon.tasks.prompt_files import read_prompts

EQUAL = """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __sub__(self, other): return self
    __add__ = __radd__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __getitem__ = __sub__
    def __abs__(self): return self
    def __float__(self): return 0.0
    def __hash__(self): return 1
def {name}(*args, **kwargs): return Any()
"""
FAKES = {
    "returns None": "def {name}(*args, **kwargs): return None",
    "passes": "def {name}(*args, **kwargs): pass",
    "sys.exit(0) at once": "import sys\nsys.exit(0)",
    "sys.exit(0) in the call": "import sys\ndef {name}(*args, **kwargs): sys.exit(0)",
    "os._exit(0) in the call": "import os\ndef {name}(*args, **kwargs): os._exit(0)",
    "an object equal to all": EQUAL,
}


def judge(row: dict[str, Any], truth: str, seconds: float) -> dict[str, float | None]:
    """The share of a task's tests, which its true answer holds, that each program passes."""
    tests = read_tests(truth)
    name, solution = row["entry_point"], row["canonical_solution"]
    programs = {
        "canonical solution": row["prompt"] + solution,
        "its function alone": row["prompt"][row["prompt"].rindex(f"def {name}(") :] + solution,
        **{fake: text.replace("{name}", name) for fake, text in FAKES.items()},
    }
    with Sandbox() as sandbox:
        return {key: run_tests(tests, text, sandbox, cpu_seconds=seconds) for key, text in programs.items()}


def main() -> None:
    """Print how many tasks each kind of program passes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of computing time per test")
    options = parser.parse_args()
    with gzip.open(options.file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    truths = [prompt.ground_truth for prompt in read_prompts(options.file)]
    started = time.perf_counter()
    with ThreadPoolExecutor(options.workers) as threads:
        found = list(threads.map(lambda row, truth: judge(row, truth, options.seconds), rows, truths))
    seconds = time.perf_counter() - started
    print(f"{len(rows)} tasks, {sum(map(len, found))} programs, {seconds:.0f} s with {options.workers} workers\n")
    print("| program | all tests passed | failed | no verdict |\n|---|---|---|---|")
    for program in found[0]:
        counts = Counter("none" if f[program] is None else f[program] == 1 for f in found)
        print(f"| {program} | {counts[True]} | {counts[False]} | {counts['none']} |")


if __name__ == "__main__":
    main()
