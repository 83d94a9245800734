"""Recall and false alarms of `guerdon audit` on sets with and without faults, for docs/results.md.

    python benchmarks/audit_proof.py --half=0 --clean=200 --faulty=20 --jobs=2      # where thresholds are set
    python benchmarks/audit_proof.py --half=1 --clean=200 --faulty=20 --out=proof.json
    python benchmarks/audit_proof.py --sets=50 --first=5000 --clean=0 --faulty=0    # honest runs of twenty shapes

A fault (`audit_sets.py`) is found where a finding has one of its names (`NAMES`); a false alarm is a clean set with any
finding at all. In honest runs (`audit_honest.py`) a finding is false unless it states a fact of the run, as an `info`.
Intervals are Clopper and Pearson's, at 95 %. Seeds below 1,000 are for setting thresholds, those from 5,000 on are read
once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from audit_honest import SHAPES, honest_set
from audit_sets import FAULTS, STRENGTHS, clean_set, faulty_set
from scipy.special import betaincinv

from guerdon.auditing.checks import audit

NAMES = {"drift": {"drift", "truth"}}  # a reward that rises given the truth has the name `truth`


class Case(NamedTuple):
    """One set to audit; `fault` is empty for a clean one, and `shape` but for an honest run."""

    fault: str
    strength: int
    half: int
    number: int
    gsm8k: Path | None
    shape: str = ""


class Result(NamedTuple):
    """What was found in a set: `false` are findings that state no fact of an honest run, with their severity."""

    case: Case
    rows: int
    names: list[str]
    seconds: float
    false: list[tuple[str, str, str]] = []
    undecided: list[str] = []


def findings(case: Case) -> Result:
    """Audit one set."""
    if case.shape:
        return honest_findings(case)
    if case.fault:
        rows = faulty_set(case.fault, strength=case.strength, half=case.half, number=case.number, gsm8k=case.gsm8k)
    else:
        rows = clean_set(half=case.half, number=case.number, gsm8k=case.gsm8k)
    start = time.process_time()
    found = audit(rows)
    return Result(case, len(rows), [one.name for one in found.findings], time.process_time() - start)


def honest_findings(case: Case) -> Result:
    """Audit one honest run."""
    honest = honest_set(case.shape, case.number, case.gsm8k)
    start = time.process_time()
    found = audit(honest.rows)
    seconds = time.process_time() - start
    false = [(one.name, one.severity, one.title) for one in found.findings if not honest.allows(one.name, one.severity)]
    undecided = list(getattr(found, "undecided", ()))
    return Result(case, len(honest.rows), [one.name for one in found.findings], seconds, false, undecided)


def clopper_pearson(successes: int, n: int) -> tuple[float, float]:
    """95 % interval of a share (Clopper & Pearson 1934)."""
    low = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, 0.025))
    high = 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 0.975))
    return low, high


def cases(args: argparse.Namespace) -> list[Case]:
    """All sets that the arguments ask for."""
    numbers = range(args.first, args.first + max(args.clean, args.faulty, args.sets))
    made = [Case("", 0, args.half, k, args.gsm8k) for k in numbers[: args.clean]]
    for fault in args.faults or FAULTS:
        made += [Case(fault, s, args.half, k, args.gsm8k) for s in args.strengths for k in numbers[: args.faulty]]
    for shape in args.shapes or SHAPES:
        made += [Case("", 0, 0, k, args.gsm8k, shape) for k in numbers[: args.sets]]
    return made


def honest_table(results: list[Result], *, show: bool) -> dict[str, object]:
    """Print how many honest runs of each shape have a false finding, and return it."""
    record: dict[str, object] = {}
    print(
        "| shape | runs | with a false finding | with an `error` | false findings |\n| --- | ---: | ---: | ---: | --- |"
    )
    for shape in (*dict.fromkeys(one.case.shape for one in results), "all"):
        of = [one for one in results if shape in (one.case.shape, "all")]
        wrong = [one for one in of if one.false]
        errors = [one for one in of if "error" in [severity for _, severity, _ in one.false]]
        names = Counter(name for one in of for name in {name for name, _, _ in one.false})
        low, high = clopper_pearson(len(wrong), len(of))
        listed = ", ".join(f"{name} {count}" for name, count in names.most_common())
        share = f"{len(wrong)}: {len(wrong) / len(of):.3f} [{low:.3f}, {high:.3f}]"
        print(f"| {shape} | {len(of)} | {share} | {len(errors)} | {listed} |")
        record[shape] = {
            "runs": len(of),
            "false": len(wrong),
            "errors": len(errors),
            "low": low,
            "high": high,
            "names": names,
        }
        for one in wrong if show and shape != "all" else ():
            for name, severity, title in one.false:
                print(f"    {shape} {one.case.number}, {one.rows} rows: {severity} {name}: {title}")
    return record


def main() -> None:
    """Audit all sets and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first set: others are other sets")
    parser.add_argument("--clean", type=int, default=200)
    parser.add_argument("--faulty", type=int, default=20)
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS))
    parser.add_argument("--sets", type=int, default=0, help="honest runs of each shape")
    parser.add_argument("--shapes", nargs="*", choices=list(SHAPES))
    parser.add_argument("--strengths", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--gsm8k", type=Path, help="example_model_solutions.jsonl of openai/grade-school-math")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true", help="name the sets that were missed and the false alarms")
    args = parser.parse_args()
    with ProcessPoolExecutor(args.jobs) as pool:
        results = list(pool.map(findings, cases(args), chunksize=4))
    record: dict[str, object] = {"half": args.half, "seconds": sum(one[3] for one in results)}
    honest = [one for one in results if one.case.shape]
    if honest:
        record["honest"] = honest_table(honest, show=args.show)
    results = [one for one in results if not one.case.shape]
    clean = [one for one in results if not one[0].fault]
    if clean:
        alarms = [one for one in clean if one[2]]
        low, high = clopper_pearson(len(alarms), len(clean))
        print(
            f"clean sets with a finding: {len(alarms)} of {len(clean)}, {len(alarms) / len(clean):.3f} "
            f"[{low:.3f}, {high:.3f}]"
        )
        print("by name:", dict(Counter(name for one in alarms for name in one[2])))
        record["clean"] = {"sets": len(clean), "alarms": len(alarms), "low": low, "high": high}
        if args.show:
            for case, rows, names, *_ in alarms:
                print("  alarm", case.number, rows, names)
    table: dict[str, dict[str, object]] = {}
    for fault in FAULTS:
        line = []
        for strength in args.strengths:
            of = [one for one in results if one[0].fault == fault and one[0].strength == strength]
            if not of:
                continue
            hits = [one for one in of if set(one[2]) & NAMES.get(fault, {fault})]
            low, high = clopper_pearson(len(hits), len(of))
            line.append(f"{len(hits) / len(of):.2f} [{low:.2f}, {high:.2f}]")
            table.setdefault(fault, {})[STRENGTHS[strength]] = {
                "found": len(hits),
                "of": len(of),
                "low": low,
                "high": high,
            }
            if args.show and strength == 1:
                for case, rows, names, *_ in of:
                    if not set(names) & NAMES.get(fault, {fault}):
                        print("  missed", fault, case.number, rows, names)
        if line:
            print(f"{fault:14s}", "  ".join(line))
    record["faults"] = table
    print(f"{record['seconds']:.0f} s of computing")
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
