"""Recall and false alarms of `guerdon audit` on sets with and without faults, for docs/results/audit.md.

    python benchmarks/audit_proof.py --half=0 --clean=200 --faulty=20 --jobs=2      # where thresholds are set
    python benchmarks/audit_proof.py --half=1 --clean=200 --faulty=20 --out=proof.json
    python benchmarks/audit_proof.py --sets=50 --first=5000 --clean=0 --faulty=0    # honest runs of twenty shapes
    python benchmarks/audit_proof.py --planted=40 --first=5000 --clean=0 --faulty=0 # faults planted into honest runs

A fault (`audit_sets.py`) is found where a finding has one of its names (`NAMES`); a false alarm is a clean set with any
finding at all. Of a planted fault the cause must be named: where that is a phrase or a part of the reward (`QUOTED`), a
finding quotes it; else a finding has one of the names, or quotes the phrase. In honest runs (`audit_honest.py`) a
finding is false unless it states a fact of the run, as an `info`. Intervals are Clopper and Pearson's, at 95 %. Seeds
below 1,000 are for setting thresholds, those from 5,000 on are read once.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from audit_honest import SHAPES, honest_set
from audit_sets import FAULTS, STRENGTHS, clean_set, faulty_set, planted_set, runs_of
from scipy.special import betaincinv

from guerdon.auditing.checks import audit
from guerdon.auditing.finding import Finding

NAMES = {
    "drift": {"drift", "truth"},  # a reward that rises given the truth has the name `truth`
    "part_diverges": {"part_falls", "part_dominates", "part_opposite", "part_scaled"},
}
QUOTED = ("truth", "tail", "part_diverges")


class Case(NamedTuple):
    """One set to audit: `shape` is of an honest run, `run` of a planted fault, `fault` of any fault."""

    fault: str
    strength: int
    half: int
    number: int
    gsm8k: Path | None
    shape: str = ""
    run: str = ""


class Result(NamedTuple):
    """What was found in a set.

    Attributes:
        false: findings that state no fact of an honest run: name, severity, title.
        undecided: names of checks that had too little to look at.
        caused: whether the cause of a planted fault is named.
    """

    case: Case
    rows: int
    names: list[str]
    seconds: float
    false: list[tuple[str, str, str]] = []
    undecided: list[str] = []
    caused: bool = False


def findings(case: Case) -> Result:
    """Audit one set."""
    if case.shape:
        return honest_findings(case)
    if case.run:
        return planted_findings(case)
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


def planted_findings(case: Case) -> Result:
    """Audit an honest run with one fault."""
    rows, phrases = planted_set(case.fault, case.run, strength=case.strength, number=case.number, gsm8k=case.gsm8k)
    start = time.process_time()
    found = audit(rows).findings
    seconds = time.process_time() - start
    named = {one.name for one in found} & NAMES.get(case.fault, {case.fault})
    quoted = any(quotes(one, phrase) for one in found for phrase in phrases)
    caused = quoted if case.fault in QUOTED else quoted or bool(named)
    return Result(case, len(rows), [one.name for one in found], seconds, caused=caused)


def quotes(finding: Finding, phrase: str) -> bool:
    """Whether a finding has two words of the phrase one after the other, or the one word that it is."""
    words = re.findall(r"\w+", phrase.lower())
    pairs = {" ".join(words[i : i + 2]) for i in range(max(len(words) - 1, 1))}
    said = " ".join([finding.title, *getattr(finding, "phrases", ())]).lower()
    plain = " ".join(re.findall(r"\w+", said))
    return any(f" {pair} " in f" {plain} " for pair in pairs)


def clopper_pearson(successes: int, n: int) -> tuple[float, float]:
    """95 % interval of a share (Clopper & Pearson 1934)."""
    low = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, 0.025))
    high = 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 0.975))
    return low, high


def cases(args: argparse.Namespace) -> list[Case]:
    """All sets that the arguments ask for."""
    numbers = range(args.first, args.first + max(args.clean, args.faulty, args.sets, args.planted))
    made = [Case("", 0, args.half, k, args.gsm8k) for k in numbers[: args.clean]]
    for fault in args.faults or FAULTS:
        made += [Case(fault, s, args.half, k, args.gsm8k) for s in args.strengths for k in numbers[: args.faulty]]
        made += [
            Case(fault, s, 0, k, args.gsm8k, run=run)
            for s in args.strengths
            for run in runs_of(fault)
            for k in numbers[: args.planted]
        ]
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


def planted_table(results: list[Result], strengths: list[int], *, show: bool) -> dict[str, dict[str, object]]:
    """Print the share of planted sets whose cause is named, and of which strength, and return the counts."""
    record: dict[str, dict[str, object]] = {}
    print(f"| fault | {' | '.join(STRENGTHS[one] for one in strengths)} | by kind of run |")
    print(f"| --- |{' ---: |' * len(strengths)} --- |")
    for fault in (*dict.fromkeys(one.case.fault for one in results), "all"):
        of = [one for one in results if fault in (one.case.fault, "all")]
        cells = []
        for strength in strengths:
            some = [one for one in of if one.case.strength == strength]
            hits = sum(one.caused for one in some)
            low, high = clopper_pearson(hits, len(some))
            cells.append(f"{hits} of {len(some)}: {hits / len(some):.2f} [{low:.2f}, {high:.2f}]")
            record.setdefault(fault, {})[STRENGTHS[strength]] = {"caused": hits, "of": len(some)}
        runs = Counter(one.case.run for one in of)
        caused = Counter(one.case.run for one in of if one.caused)
        by_run = ", ".join(f"{run} {caused[run]} of {count}" for run, count in runs.items())
        print(f"| {fault} | {' | '.join(cells)} | {by_run} |")
        for one in of if show and fault != "all" else ():
            if not one.caused:
                print(f"    {fault}, {one.case.run} {one.case.number}, {STRENGTHS[one.case.strength]}: {one.names}")
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
    parser.add_argument("--planted", type=int, default=0, help="honest runs with a fault, of each kind and strength")
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
    planted = [one for one in results if one.case.run]
    if planted:
        record["planted"] = planted_table(planted, args.strengths, show=args.show)
    results = [one for one in results if not one.case.shape and not one.case.run]
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
