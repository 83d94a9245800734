"""Returns of the rows of `known_environments.yaml`: `guerdon run ID` with each of them, seed by seed.

The last policy, without noise, plays 100 games that begin alike for all seeds. What was measured is in
known_environments.jsonl, and the same command goes on with it. `--table` prints the table of docs/environments.md.

    python benchmarks/known_environments.py CartPole-v1 --algorithm=dqn --seeds=3
    python benchmarks/known_environments.py --table
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from harness import Stopwatch, measure, report_measurement, table

from guerdon.files import provenance
from guerdon.settings.known_environments import OTHERS, KnownRow, known_rows, row_of

EPISODES = 100
MEASURED = Path(__file__).with_suffix(".jsonl")
NAMES = {"control": "PPO", "sac": "SAC", "dqn": "DQN"}


def run_row(env_id: str, algorithm: str, seed: int) -> dict[str, Any]:
    """A run of a row as `guerdon run` has it, with an evaluation at its end alone."""
    from guerdon.rl.loop import Loop
    from guerdon.settings.study import read_study_file

    never = 10**12
    with tempfile.TemporaryDirectory() as folder:
        words = [
            f"algorithm.type={algorithm}", f"runner.seed={seed}", f"work_dir={folder}", f"runner.eval_every={never}",
            f"runner.eval_episodes={EPISODES}", f"runner.checkpoint_every={never}", "runner.logger.tensorboard=false",
        ]  # fmt: skip
        loop, watch = Loop(read_study_file(Path(env_id), words), Path(folder) / "run"), Stopwatch()
        steps = loop.run()["step"]
        spent = watch.read()["core_seconds"]
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    last = next(row for row in reversed(rows) if row["kind"] == "eval")
    known = {"return": last["return/env"], "length": last["length"], "episodes": last["episodes"]}
    return {**known, "steps": steps, "core_seconds": round(spent, 1), "date": provenance.now()[:10]}


def shown(row: KnownRow) -> list[str]:
    """A line of the table."""
    returns = ", ".join(f"{one:g}" for one in row.returns) or "settings only"
    origin = {"rl-zoo": "rl-zoo", "guerdon": "own"}[row.origin]
    zoo = "" if row.zoo is None else f"{row.zoo:g}"
    steps = f"{row.settings.get('runner.total_steps', 0):,}"
    return [row.env_id, NAMES[row.algorithm], origin, steps, returns, zoo]


def markdown() -> str:
    """The table of docs/environments.md."""
    rows = [shown(row) for row in known_rows() if row.env_id != OTHERS]
    return table(["environment", "algorithm", "settings of", "steps", "returns by seed", "return of rl-zoo"], rows)


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("env_id", nargs="?", help="such as CartPole-v1")
    parser.add_argument("--algorithm", choices=list(NAMES), help="that of the first row where none is named")
    parser.add_argument("--seeds", type=int, default=3, help="how many; of one measurement the seed itself")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    parser.add_argument("--side", help="one measurement in this process: an id")
    options = parser.parse_args()
    if options.table:
        print(markdown())
        return
    if options.side:
        report_measurement(run_row(options.side, options.algorithm, options.seeds))
        return
    row = row_of(options.env_id or "", options.algorithm)
    if row is None:
        parser.error(f"there is no row of {options.env_id} and {options.algorithm or 'any algorithm'}")
    kept = [json.loads(line) for line in MEASURED.read_text().splitlines()] if MEASURED.exists() else []
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent / "src")
    for seed in range(options.seeds):
        given = {"id": row.env_id, "algorithm": row.algorithm, "seed": seed}
        found = next((one for one in kept if given.items() <= one.items()), None)
        if found is None:
            found = given | measure(__file__, {"side": row.env_id, "algorithm": row.algorithm, "seeds": seed})
            with MEASURED.open("a") as file:
                file.write(json.dumps(found) + "\n")
        print(f"{row.env_id}, {NAMES[row.algorithm]}, seed {seed}: {found['return']:.2f}", flush=True)


if __name__ == "__main__":
    main()
