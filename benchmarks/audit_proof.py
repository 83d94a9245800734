"""Recall and false alarms of `guerdon audit` on the sets of `audit_sets.py`, for docs/results.md.

    python benchmarks/audit_proof.py --half=0 --clean=200 --faulty=20 --jobs=2      # where thresholds are set
    python benchmarks/audit_proof.py --half=1 --clean=200 --faulty=20 --out=proof.json

A fault is found where a finding has one of its names (`NAMES`); a false alarm is a clean set with any finding at all.
Intervals are Clopper and Pearson's, at 95 %.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from audit_sets import FAULTS, STRENGTHS, clean_set, faulty_set
from scipy.special import betaincinv

from guerdon.auditing.checks import audit

NAMES = {"drift": {"drift", "truth"}}  # a reward that rises given the truth has the name `truth`


class Case(NamedTuple):
    """One set to audit; `fault` is empty for a clean one."""

    fault: str
    strength: int
    half: int
    number: int
    gsm8k: Path | None


def findings(case: Case) -> tuple[Case, int, list[str], float]:
    """The case, its rows, the names of the findings, and the seconds of computing."""
    if case.fault:
        rows = faulty_set(case.fault, strength=case.strength, half=case.half, number=case.number, gsm8k=case.gsm8k)
    else:
        rows = clean_set(half=case.half, number=case.number, gsm8k=case.gsm8k)
    start = time.process_time()
    found = audit(rows)
    return case, len(rows), [one.name for one in found.findings], time.process_time() - start


def clopper_pearson(successes: int, n: int) -> tuple[float, float]:
    """95 % interval of a share (Clopper & Pearson 1934)."""
    low = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, 0.025))
    high = 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 0.975))
    return low, high


def cases(args: argparse.Namespace) -> list[Case]:
    """All sets that the arguments ask for."""
    made = [Case("", 0, args.half, args.first + k, args.gsm8k) for k in range(args.clean)]
    for fault in args.faults or FAULTS:
        made += [
            Case(fault, s, args.half, args.first + k, args.gsm8k) for s in args.strengths for k in range(args.faulty)
        ]
    return made


def main() -> None:
    """Audit all sets and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first set: others are other sets")
    parser.add_argument("--clean", type=int, default=200)
    parser.add_argument("--faulty", type=int, default=20)
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS))
    parser.add_argument("--strengths", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--gsm8k", type=Path, help="example_model_solutions.jsonl of openai/grade-school-math")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true", help="name the sets that were missed and the false alarms")
    args = parser.parse_args()
    with ProcessPoolExecutor(args.jobs) as pool:
        results = list(pool.map(findings, cases(args), chunksize=4))
    record: dict[str, object] = {"half": args.half, "seconds": sum(one[3] for one in results)}
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
            for case, rows, names, _ in alarms:
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
                for case, rows, names, _ in of:
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
