"""Two states of guerdon's source against each other: PPO on one core, in pairs of measurements.

Each pair measures the one checkout and then the other (or the other way round, in turns), each in a process of its own,
so that whatever else the machine does falls on both alike. What counts is the time of computing. Both states run the
study of `ppo_vs_sb3.py` as this checkout has it.

    git worktree add /tmp/before v1.2
    python benchmarks/source_pairs.py --before=/tmp/before --core=1 --task=CartPole-v1 --pairs=7
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from harness import machine_line, measure, rates, ratios, spread, table

HERE = Path(__file__).resolve().parent
SCRIPT = str(HERE / "ppo_vs_sb3.py")


def measured(checkout: Path, options: dict[str, Any]) -> dict[str, Any]:
    """One run of guerdon from the source of a checkout."""
    os.environ["PYTHONPATH"] = str(checkout / "src")
    return measure(SCRIPT, {"side": "guerdon", **options})


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the state to compare with")
    parser.add_argument("--task", default="window-close", help="of Meta-World, or a Gymnasium id such as CartPole-v1")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps of each measurement")
    parser.add_argument("--pairs", type=int, default=7)
    asked = parser.parse_args()
    options = {"task": asked.task, "core": asked.core, "steps": asked.steps}
    where = machine_line()
    sides: dict[str, tuple[Path, list[dict[str, Any]]]] = {
        "before": (asked.before.resolve(), []),
        "now": (HERE.parent, []),
    }
    for pair in range(asked.pairs):
        for side in sorted(sides, reverse=pair % 2 == 1):
            checkout, found = sides[side]
            found.append(measured(checkout, options))
            print(f"pair {pair}: {side}, {rates(found, 'core_seconds')[-1]:.0f} steps per core-second", flush=True)
    speeds = {side: rates(found, "core_seconds") for side, (_, found) in sides.items()}
    rows = [[side, spread(speed, 0), spread(ratios(speed, speeds["before"]))] for side, speed in speeds.items()]
    print(
        f"\n{where}\n\nTask {asked.task}, {asked.steps} steps, {asked.pairs} pairs; median (lowest to highest).\n\n"
        + table(["", "steps per core-second", "ratio within a pair"], rows)
    )


if __name__ == "__main__":
    main()
