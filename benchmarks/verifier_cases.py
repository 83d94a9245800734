"""Verdicts on the test cases of Math-Verify, for guerdon's math verifier and for math-verify itself.

The cases are the parametrised ones of a checkout's `tests` folder with a true answer and a response; they are imported,
not copied. guerdon sees the row's true answer and the whole response. math-verify runs with its defaults,
`verify(parse(gold), parse(response))`; it has no verdict where a side has nothing to parse.

    python benchmarks/verifier_cases.py /path/to/Math-Verify --show
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import harness

from guerdon.tasks.prompts import Prompt
from guerdon.tasks.verifier import Verifier

COLUMNS = ("right", "called different", "no verdict", "falsely equal")


class Case(NamedTuple):
    """A true answer, a response, and whether Math-Verify's authors call them equal."""

    where: str
    gold: str
    response: str
    equal: bool


def cases_of(checkout: Path) -> list[Case]:
    """Every parametrised case of a checkout's tests with the arguments `gold`, `pred` and `expected`.

    Where a pair is expected both ways, depending on an option, the case with the option off is left out.
    """
    sys.path.insert(0, str(checkout))
    found = []
    for file in sorted((checkout / "tests").glob("test_*.py")):
        module = importlib.import_module(f"tests.{file.stem}")
        for name, function in vars(module).items():
            if not name.startswith("test_"):
                continue
            for mark in getattr(function, "pytestmark", []):
                names = mark.args[0] if mark.name == "parametrize" else ()
                names = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
                if not {"gold", "pred", "expected"} <= set(names):
                    continue
                rows = [dict(zip(names, values, strict=True)) for values in mark.args[1]]
                ways = Counter(
                    pair for pair, _ in {((row["gold"], row["pred"]), bool(row["expected"])) for row in rows}
                )
                for i, row in enumerate(rows):
                    if ways[row["gold"], row["pred"]] > 1 and any(value is False for value in row.values()):
                        continue
                    where = f"{file.stem}::{name}[{i}]"
                    found.append(Case(where, row["gold"], row["pred"], bool(row["expected"])))
    return found


def column(case: Case, verdict: str) -> str:
    """Which column of the table a verdict counts in."""
    if verdict == "equal":
        return "right" if case.equal else "falsely equal"
    if verdict == "different":
        return "called different" if case.equal else "right"
    return "no verdict"


def by_guerdon(cases: list[Case]) -> list[tuple[str, str]]:
    """Guerdon's verdicts with their details."""
    prompts = [
        Prompt(id=c.where, messages=({"role": "user", "content": ""},), ground_truth=c.gold, data_source="math")
        for c in cases
    ]
    with Verifier("math", timeout=60, workers=1) as verifier:
        return [
            (r.verdict, f"{r.answer!r} {r.detail}") for r in verifier.check_batch([c.response for c in cases], prompts)
        ]


def by_math_verify(cases: list[Case]) -> list[tuple[str, str]]:
    """math-verify's verdicts with what it parsed."""
    from math_verify import parse, verify

    found = []
    for case in cases:
        gold, answer = parse(case.gold), parse(case.response)
        verdict = "no verdict" if not gold or not answer else "equal" if verify(gold, answer) else "different"
        found.append((verdict, repr(answer)))
    return found


def main() -> None:
    """Print the table, and with `--show` each case that is not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder of a checkout of github.com/huggingface/Math-Verify")
    parser.add_argument("--show", action="store_true", help="list guerdon's cases that are not right")
    options = parser.parse_args()
    cases = cases_of(options.checkout)
    print(harness.machine_line(["math-verify", "latex2sympy2_extended", "sympy"]))
    print(f"\n| of {len(cases)} cases | {' | '.join(COLUMNS)} |")
    print(f"| --- |{' ---: |' * len(COLUMNS)}")
    for side, results in (("guerdon", by_guerdon(cases)), ("math-verify", by_math_verify(cases))):
        counts = Counter(column(case, verdict) for case, (verdict, _) in zip(cases, results, strict=True))
        print(f"| {side} | {' | '.join(str(counts[name]) for name in COLUMNS)} |")
        if options.show and side == "guerdon":
            wrong = [(c, r) for c, r in zip(cases, results, strict=True) if column(c, r[0]) != "right"]
    if options.show:
        for case, (verdict, detail) in wrong:
            print(
                f"\n{case.where} {column(case, verdict)}\n  {case.gold!r}\n  {case.response[-300:]!r}\n  {detail[:300]}"
            )


if __name__ == "__main__":
    main()
