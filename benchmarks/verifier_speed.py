"""Answers that the verifier checks in a second: word problems as numbers, and symbolic answers, with one worker.

    python benchmarks/verifier_speed.py                          # this tree
    python benchmarks/verifier_speed.py --base=/path/to/base/src # and another one, in interleaved pairs

Answers are made from a seed, half of them right: 2,000 responses with `#### n`, and 2,000 boxed fractions, roots,
intervals and polynomials. Each run is a process of its own. Seconds are of the clock, and of computing (user mode,
children included), which another job on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ANSWERS = 2000


def numeric(rng: random.Random) -> list[tuple[str, str]]:
    """True answers and responses of word problems."""
    rows = []
    for i in range(ANSWERS):
        gold = rng.randint(1, 20_000)
        stated = gold if i % 2 else gold + rng.randint(1, 9)
        text = " ".join(f"{rng.randint(2, 99)} + {rng.randint(2, 99)} is what she has." for _ in range(6))
        form = rng.choice((f"{stated}", f"{stated:,}", f"${stated}", f"{stated}.00", f"{stated} dollars"))
        rows.append((f"{gold}", f"{text}\n#### {form}"))
    return rows


def symbolic(rng: random.Random) -> list[tuple[str, str]]:
    """True answers and responses with fractions, roots, intervals and polynomials."""
    rows = []
    for i in range(ANSWERS):
        a, b, c, d = (rng.randint(2, 40) for _ in range(4))
        wrong = 0 if i % 2 else rng.randint(1, 5)
        gold, stated = (
            (rf"\frac{{{a}\pi}}{{{b}}}", rf"\frac{{{a * c + wrong}\pi}}{{{b * c}}}"),
            (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b + wrong}}}"),
            (rf"({a}, {a + b}]", rf"({a}, {a + b + wrong}]"),
            (rf"x^2 + {a + b}x + {a * b}", rf"(x + {a})(x + {b}) + {wrong}" if wrong else rf"(x + {a})(x + {b})"),
            (rf"\frac{{{c} + \sqrt{{{d}}}}}{{{a}}}", rf"\frac{{{c + wrong}}}{{{a}}} + \frac{{\sqrt{{{d}}}}}{{{a}}}"),
        )[i // 2 % 5]
        rows.append((gold, rf"So the result is \boxed{{{stated}}}."))
    return rows


def measure(what: str) -> dict[str, float]:
    """Seconds for all answers of one kind, and how many were equal."""
    from guerdon.tasks.prompts import Prompt
    from guerdon.tasks.verifier import Verifier

    rows = {"numeric": numeric, "symbolic": symbolic}[what](random.Random(7))
    source = "openai/gsm8k" if what == "numeric" else "test"
    prompts = [
        Prompt(id=f"{i}", messages=({"role": "user", "content": "What is it?"},), ground_truth=gold, data_source=source)
        for i, (gold, _) in enumerate(rows)
    ]
    with Verifier("auto", workers=1, timeout=60) as verifier:
        if what == "symbolic":
            verifier.check(r"\boxed{\sqrt{2}}", prompts[0])  # starts the process
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
        children = _children()
        found = verifier.check_batch([response for _, response in rows], prompts)
        own = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
        wall, spent = time.perf_counter() - start, own + _children() - children
    return {"wall": wall, "user": spent, "equal": sum(result.verdict == "equal" for result in found)}


def _children() -> float:
    """Computing seconds of the processes that this one started and that still run."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) if int(fields[1]) == os.getpid() else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the pairs and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="src folder of another version")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--one", choices=("numeric", "symbolic"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    here = str(Path(__file__).resolve().parent.parent / "src")
    sides = {"this": here} | ({"base": arguments.base} if arguments.base else {})
    print("answers   side  wall [s]  user [s]  equal   answers/s")
    for what in ("numeric", "symbolic"):
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for i in range(arguments.repetitions):
            for side in sorted(sides, reverse=bool(i % 2)):
                command = [sys.executable, __file__, f"--one={what}"]
                environment = {**os.environ, "PYTHONPATH": sides[side]}
                reply = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
                runs[side].append(json.loads(reply))
        for side, found in runs.items():
            wall, user = (statistics.median(run[key] for run in found) for key in ("wall", "user"))
            print(f"{what:9s} {side:5s} {wall:8.2f} {user:9.2f} {found[0]['equal']:6.0f} {ANSWERS / wall:11.0f}")
        if arguments.base:
            ratios = [
                statistics.median(b[key] / a[key] for a, b in zip(runs["this"], runs["base"], strict=True))
                for key in ("wall", "user")
            ]
            print(f"{what:9s} speed over base: {ratios[0]:.2f} by the clock, {ratios[1]:.2f} by computing time")


if __name__ == "__main__":
    main()
