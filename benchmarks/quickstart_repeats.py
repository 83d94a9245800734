"""`guerdon quickstart` repeated with other seeds: are its results the same each time?

A repetition uses data, models and runs of its own: repetition s makes and trains everything with seed s, and its runs
have the seeds 10 s, 10 s + 1, and so on. Counted are

B - A    the difference in final success, with the interval of the report, and its conclusion
silent   runs of B in which the hacking alarm was never on
caught   runs of C in which it was on after the last update

    python benchmarks/quickstart_repeats.py --first 100 --last 119
    python benchmarks/quickstart_repeats.py --text
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from harness import machine_line, table

from guerdon.comparison.results import StudyRecord, comparison_rows, number, read_study
from guerdon.comparison.study import plan_study, quickstart_file, run_study

PARTS = {  # of each quickstart, what has a seed
    False: ("collect", "train.progress", "train.success"),
    True: ("data.task", "sft", "sft.mistakes", "label", "train.judge", "train.weak"),
}


def repeat(seed: int, folder: Path, *, text: bool) -> tuple[StudyRecord, float]:
    """One repetition, and its seconds of wall-clock time."""
    compare = plan_study(quickstart_file(text), []).study.compare
    assert compare is not None
    changes = [f"{name}.seed={seed}" for name in PARTS[text]]
    changes += [f"work_dir={folder}", f"compare.seeds={[10 * seed + i for i in range(len(compare.seeds))]}"]
    started = time.perf_counter()
    run_study(plan_study(quickstart_file(text), changes))
    return read_study(folder), time.perf_counter() - started


def alarms(study: StudyRecord, arm: str) -> list[list[bool]]:
    """Of each run, whether the alarm was on, update by update."""
    return [
        [bool(number(row, "hacking_alarm")) for row in run.trains if number(row, "hacking_alarm") is not None]
        for run in study.runs
        if run.arm == arm
    ]


def main() -> None:
    """Print a row per repetition and how many hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", action="store_true", help="the quickstart of a language model")
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--last", type=int, help="109 with --text, else 119")
    options = parser.parse_args()
    last = (109 if options.text else 119) if options.last is None else options.last
    rows, better, silent, caught, runs = [], 0, 0, 0, 0
    for seed in range(options.first, last + 1):
        with tempfile.TemporaryDirectory() as folder:
            study, seconds = repeat(seed, Path(folder), text=options.text)
            row = next(row for row in comparison_rows(study) if row.arm == "B")
            quiet = sum(not any(run) for run in alarms(study, "B"))
            raised = sum(bool(run) and run[-1] for run in alarms(study, "C"))
        better, silent, caught = better + (row.conclusion == "better"), silent + quiet, caught + raised
        runs += len(study.seeds)
        gain = row.difference.interval
        shown = f"{gain.estimate:+.2f} [{gain.low:.2f}, {gain.high:.2f}]"
        rows.append([str(seed), shown, row.conclusion, str(quiet), str(raised), f"{seconds:.0f}"])
        print(*rows[-1], sep="\t", flush=True)
    print(machine_line())
    print(table(["seed", "B - A", "conclusion", "silent", "caught", "seconds"], rows))
    print(f"better in {better} of {len(rows)}; silent in {silent} of {runs} runs, caught in {caught} of {runs}")


if __name__ == "__main__":
    main()
