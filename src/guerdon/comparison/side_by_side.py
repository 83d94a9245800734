"""Runs that lie side by side in a folder, as those of `guerdon run CartPole-v1` do, as a study that nobody planned.

An arm is what the folders of its runs are called without their seed: `ppo-seed0` and `ppo-seed1` are two runs of `ppo`.

    write_report(Path("runs/CartPole-v1"))      # of side_by_side(Path("runs/CartPole-v1"))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from guerdon.comparison.results import RunRecord, StudyRecord, mapping, number, read_config, read_run
from guerdon.errors import DataError
from guerdon.files.json_files import read_json
from guerdon.pages import formats as fmt

_OWN = ("runner.seed", "runner.logger.", "runner.total_steps")  # of each run
_BASELINE = "ppo"


def runs_of_a_folder(folder: Path) -> list[Path]:
    """The runs in a folder that is neither a study nor a run, in the order of their names."""
    if (folder / "study.json").is_file() or (folder / "metrics.jsonl").is_file():
        return []
    return sorted(path.parent for path in folder.glob("*/metrics.jsonl") if (path.parent / "config.yaml").is_file())


def side_by_side(folder: Path) -> StudyRecord:
    """The runs in a folder, with an arm for each algorithm.

    Raises:
        DataError: there are none, or two are of one arm, task and seed.
    """
    runs = tuple(map(_run, runs_of_a_folder(folder)))
    if not runs:
        raise DataError("no runs here", where=folder)
    arms = dict.fromkeys(run.arm for run in runs)
    places: dict[tuple[str, str, int | None], Path] = {}
    for run in runs:
        place = run.task, run.arm, run.seed
        if place in places:
            pair = f"{places[place].name} and {run.path.name}"
            raise DataError(f"{pair} have the same name and the same seed; rename one of them", where=folder)
        places[place] = run.path
    tasks = tuple(dict.fromkeys(run.task for run in runs))
    return StudyRecord(
        name=tasks[0] if len(tasks) == 1 else folder.resolve().name,
        path=folder,
        arms={arm: arm for arm in arms},
        baseline=_BASELINE if _BASELINE in arms else runs[0].arm,
        tasks=tasks,
        seeds=tuple(sorted({run.seed for run in runs if run.seed is not None})),
        runs=runs,
        cards=(),
        config_text="",
        info={},
        notes=tuple(_notes(runs)),
        planned=False,
    )


def _run(path: Path) -> RunRecord:
    """A run, by the names of its folder and its task."""
    info = read_json(path / "run.json") or {}
    runner = mapping(read_config((path / "config.yaml").read_text(encoding="utf-8")).get("runner"))
    seed = int(number(runner, "seed") or 0)
    arm = re.sub(rf"-seed{seed}$", "", path.name)
    return read_run(path, task=str(info.get("task") or path.parent.resolve().name), arm=arm, seed=seed)


def _notes(runs: Sequence[RunRecord]) -> Iterator[str]:
    """What makes runs less comparable: other lengths, and other settings in one arm."""
    lengths = sorted({run.last_step for run in runs})
    if len(lengths) > 1:
        said = " and ".join(fmt.steps(length) for length in (lengths[0], lengths[-1]))
        yield f"The runs have different lengths, from {said} steps: their last results are not of the same length."
    for arm in dict.fromkeys(run.arm for run in runs):
        flat = [fmt.flatten(run.config) for run in runs if run.arm == arm]
        keys = dict.fromkeys(key for one in flat for key in one if not key.startswith(_OWN))
        differing = [key for key in keys if len({str(one.get(key)) for one in flat}) > 1]
        if differing:
            yield f"The runs of {arm} differ in {', '.join(differing)}, not in their seed alone."
