"""Two states of guerdon's source against each other: reading, scoring, evaluating and training on preferences.

Each pair measures the one checkout and then the other (or the other way round, in turns), each in a process of its own,
so that whatever else the machine does falls on both alike. What counts is the time of computing.

    git worktree add /tmp/before v1.2
    python benchmarks/preference_pairs.py --before=/tmp/before --core=1 --pairs=5
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import Stopwatch, machine_line, measure, pin, ratios, report_measurement, spread, table  # noqa: E402
from preference_sides import SHAPES, SIZES, make_pairs, make_shared, train_once, write_rows  # noqa: E402

COMMANDS = ("read", "score", "evaluate", "train")
SIZE, READ, SCORED, STEPS = "0.4M", 2000, 40, 8


def prepare(folder: Path) -> None:
    """A model, a classifier of it, and files of pairs, which both states read."""
    from guerdon.settings.text_policy import TextPolicySettings
    from guerdon.settings.train import PreferenceTrainSettings
    from guerdon.train.text import start_model

    make_shared(folder, SIZES[SIZE])
    write_rows(folder / "read.jsonl", make_pairs(READ, SHAPES["short"], 1))
    write_rows(folder / "scored.jsonl", make_pairs(SCORED, SHAPES["half"], 2))
    write_rows(folder / "half.jsonl", make_pairs(8 * STEPS, SHAPES["half"], 3))
    settings = PreferenceTrainSettings(
        save_dir=str(folder / "unused"), path=str(folder), data_path=str(folder / "half.jsonl"), bf16=False
    )
    start_model(settings, TextPolicySettings(path=str(folder)), separator="").write(folder / "classifier")


def measured(folder: Path) -> dict[str, float]:
    """Core-seconds of each command; a first call, which imports and compiles, is not timed."""
    import torch

    torch.set_num_threads(1)
    found = {}
    for command in COMMANDS[:-1]:
        call = _call(command, folder)
        call()
        watch = Stopwatch()
        call()
        found[command] = watch.read()["core_seconds"]
    trained = train_once("guerdon", folder, "half", steps=STEPS, warm=2)
    return {**found, COMMANDS[-1]: trained["core_seconds"]}


def _call(command: str, folder: Path) -> Callable[[], Any]:
    import guerdon
    from guerdon.episodes.preferences import read_preferences
    from guerdon.models.text.text_load import load_text_model

    if command == "read":
        return lambda: read_preferences(str(folder / "read.jsonl"))
    path, out = str(folder / "scored.jsonl"), folder / f"out{os.getpid()}"
    if command == "evaluate":
        return lambda: guerdon.evaluate(str(folder / "classifier"), path, "evaluate.reps=100")
    model = load_text_model(str(folder / "classifier"))

    def score() -> None:
        out.mkdir(exist_ok=True)
        guerdon.score(model, path, output=str(out / "out.jsonl"))
        shutil.rmtree(out)

    return score


def main() -> None:
    """Print the table as Markdown, or one measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help="a checkout of the state to compare with")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="measure here, on what was prepared in this folder")
    asked = parser.parse_args()
    pin([asked.core])
    if asked.folder:
        report_measurement(measured(asked.folder))
        return
    if asked.before is None:
        parser.error("--before is required")
    where = machine_line()
    states = {"before": asked.before.resolve(), "now": HERE.parent}
    found: dict[str, dict[str, list[float]]] = {name: {state: [] for state in states} for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for pair in range(asked.pairs):
            for state in sorted(states, reverse=pair % 2 == 1):
                os.environ["PYTHONPATH"] = str(states[state] / "src")
                one = measure(__file__, {"folder": folder, "core": asked.core})
                for command, seconds in one.items():
                    found[command][state].append(seconds)
                print(f"pair {pair}: {state}, {', '.join(f'{k} {v:.2f}' for k, v in one.items())}", flush=True)
    rows = [
        [name, spread(times["before"]), spread(times["now"]), spread(ratios(times["now"], times["before"]))]
        for name, times in found.items()
    ]
    head = ["", "core-seconds before", "core-seconds now", "ratio within a pair"]
    print(f"\n{where}\n\n{asked.pairs} pairs; median (lowest to highest).\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
