"""Read a study directory as it lies on disk: what finished, what failed, what is missing.

Everything that reads results goes through here. A run is never dropped silently: a planned run without a
directory is `missing`, one with `FAILED.json` is `failed`, one without `COMPLETE` is `unfinished`. A
truncated JSON line (a killed process leaves one) is skipped and counted, and a number that is not finite
becomes None. What a step is differs: environment steps of a robot, responses written by a language model.

    study = read_study(Path("runs/demo"))
    for run in study.runs: print(run.name, run.status, len(run.evals))
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from guerdon.errors import DataError
from guerdon.evaluate.statistics import Correction

Status = Literal["complete", "unfinished", "failed", "missing"]
Row = Mapping[str, Any]

CONTROL, TEXT = "environment steps", "responses"
SUCCESS, RETURN = "success", "return/env"  # what results can be about: true success, the environment's own reward
OUTCOMES = {SUCCESS: "true success", RETURN: "return of the environment"}


@dataclass(frozen=True)
class RunRecord:
    """One run: an arm, a task, a seed, and what its directory holds.

    Attributes:
        status: `complete`, `unfinished` (no `COMPLETE`), `failed` (`FAILED.json`), `missing` (no directory).
        error: the message of `FAILED.json`, else empty.
        evals: evaluation lines in the order of their steps, the last one kept where a step occurs twice.
        trains: training lines, likewise.
        skipped_lines: lines that were not valid JSON objects (a kill leaves a truncated last line).
        n_failures: rows of `failures.jsonl`.
        config_text: the resolved configuration as written, empty when there is none.
        unit: what its steps count, "environment steps" or "responses" (every one written, filtered ones too).
    """

    task: str
    arm: str
    seed: int | None
    path: Path
    status: Status
    error: str = ""
    evals: tuple[Row, ...] = ()
    trains: tuple[Row, ...] = ()
    skipped_lines: int = 0
    n_failures: int = 0
    config_text: str = ""
    unit: str = CONTROL
    info: Row = field(default_factory=dict)

    @cached_property
    def config(self) -> Row:
        """The resolved configuration; empty where it cannot be read."""
        return read_config(self.config_text)

    @property
    def planned_steps(self) -> float | None:
        """`runner.total_steps` of its configuration."""
        return number(mapping(self.config.get("runner")), "total_steps")

    @property
    def last_step(self) -> float:
        """The last step with a line of metrics."""
        return max((number(row, "step") or 0.0 for row in (*self.evals[-1:], *self.trains[-1:])), default=0.0)

    @property
    def stopped_early(self) -> bool:
        """Whether the run is marked complete and has fewer steps than its configuration plans."""
        return self.status == "complete" and self.last_step < (self.planned_steps or 0)

    @property
    def name(self) -> str:
        """How the report calls the run: `task/arm/seed3`."""
        return f"{self.task}/{self.arm}" + ("" if self.seed is None else f"/seed{self.seed}")

    @property
    def wall_seconds(self) -> float | None:
        """Seconds from the start of the run to its last line of metrics."""
        times = [t for row in (*self.evals, *self.trains) if (t := number(row, "wall_time")) is not None]
        return max(times, default=None)


@dataclass(frozen=True)
class RewardModelCard:
    """The evaluation of one reward model.

    Attributes:
        evaluation: the content of `evaluation.json`, with non-finite numbers as None.
        pictures: title to SVG file.
    """

    task: str
    name: str
    evaluation: Row
    pictures: Mapping[str, Path]


@dataclass(frozen=True)
class StudyRecord:
    """A study: its plan and all that is on disk of it.

    Attributes:
        arms: arm name to label, in the order of the study.
        correction: how its comparisons are corrected for their number.
        notes: problems of the directory itself (unknown runs, unreadable files), one line each.
    """

    name: str
    path: Path
    arms: Mapping[str, str]
    baseline: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[RunRecord, ...]
    cards: tuple[RewardModelCard, ...]
    config_text: str
    info: Row
    notes: tuple[str, ...] = ()
    correction: Correction = "none"

    @cached_property
    def config(self) -> Row:
        """The study file, resolved for its first task; empty where it cannot be read."""
        return read_config(self.config_text)

    @property
    def unit(self) -> str:
        """What the steps of its runs count; a study compares arms of one kind."""
        return next((run.unit for run in self.runs if run.status != "missing"), CONTROL)

    @property
    def outcome(self) -> str:
        """What its results are about: `SUCCESS`, or `RETURN`."""
        return outcome_of_runs(self.runs)

    def select(self, *, arm: str, task: str | None = None, status: Status | None = None) -> list[RunRecord]:
        """The runs of an arm, of one task or of all, with one status or with any."""
        return [
            run for run in self.runs if run.arm == arm and task in (None, run.task) and status in (None, run.status)
        ]


def number(row: Row, key: str) -> float | None:
    """A finite float from a row, or None where it is absent, null, not a number or not finite."""
    return finite(row.get(key))


def finite(value: Any) -> float | None:
    """A number of JSON as a float; None for everything else, NaN and infinity included."""
    return float(value) if isinstance(value, bool | int | float) and math.isfinite(value) else None


def mapping(value: Any) -> Row:
    """A value of JSON if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def read_config(text: str) -> Row:
    """A configuration as plain values; empty where the text is none."""
    try:
        return mapping(yaml.safe_load(text))
    except yaml.YAMLError:
        return {}


def points(rows: Iterable[Row], x: str, y: str) -> list[tuple[float, float]]:
    """The two numbers of each row that has both."""
    pairs = ((number(row, x), number(row, y)) for row in rows)
    return [(one, other) for one, other in pairs if one is not None and other is not None]


def outcome_of_runs(runs: Iterable[RunRecord]) -> str:
    """`SUCCESS`; `RETURN` where true success is unknown in every run that was evaluated, and its return is not."""
    evaluated = [run for run in runs if run.evals]
    silent = bool(evaluated) and all(success_unknown(run) for run in evaluated)
    return RETURN if silent and any(points(run.evals, "step", RETURN) for run in evaluated) else SUCCESS


def outcome_curve(run: RunRecord, outcome: str = SUCCESS) -> tuple[list[float], list[float]]:
    """Steps and `SUCCESS` or `RETURN` of a run's evaluations; success that is no number from 0 to 1 is left out."""
    pairs = points(run.evals, "step", outcome)
    pairs = [(step, value) for step, value in pairs if outcome != SUCCESS or 0 <= value <= 1]
    return [step for step, _ in pairs], [value for _, value in pairs]


def success_unknown(run: RunRecord) -> bool:
    """Whether a run was evaluated, and not once with a known true success."""
    return bool(run.evals) and not outcome_curve(run)[0]


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects of a JSONL file and the count of lines that were not one. No file: no lines."""
    if not path.is_file():
        return [], 0
    found = [_json_object(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    rows = [row for row in found if row is not None]
    return rows, len(found) - len(rows)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file is absent, broken or not an object."""
    try:
        return _json_object(path.read_bytes())
    except OSError:
        return None


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(data, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def read_run(path: Path, *, task: str, arm: str, seed: int | None) -> RunRecord:
    """One run directory as it lies on disk; never raises for what a killed run leaves behind."""
    if not path.is_dir():
        return RunRecord(task=task, arm=arm, seed=seed, path=path, status="missing")
    files = {name: read_lines(path / f"{name}.jsonl") for name in ("metrics", "timings", "failures")}
    # a run keeps its times apart, since metrics repeat exactly for a seed and times never do
    times = {(t.get("kind", "train"), t.get("step")): t for t in files["timings"][0]}
    rows = [{**times.get((row.get("kind"), row.get("step")), {}), **row} for row in files["metrics"][0]]
    status, error = _status(path)
    config_text = _read_text(path / "config.yaml")
    unit = (read_json(path / "COMPLETE") or {}).get("unit")
    if not isinstance(unit, str) or not unit:
        policy = mapping(read_config(config_text).get("policy"))
        unit = TEXT if policy.get("type") == "text" else CONTROL
    return RunRecord(
        task=task,
        arm=arm,
        seed=seed,
        path=path,
        status=status,
        error=error,
        evals=_by_step(rows, "eval"),
        trains=_by_step(rows, "train"),
        skipped_lines=sum(skipped for _, skipped in files.values()),
        n_failures=len(files["failures"][0]),
        config_text=config_text,
        unit=unit,
        info=read_json(path / "run.json") or {},
    )


def read_study(study_dir: Path) -> StudyRecord:
    """A study directory: its runs, and the plan of `study.json`.

    Raises:
        DataError: the directory holds no plan.
    """
    plan = read_json(study_dir / "study.json")
    if plan is None:
        raise DataError(f"{study_dir}: no study.json: run `guerdon compare` first, or give the directory that it wrote")
    arms = {str(name): str(mapping(arm).get("label") or name) for name, arm in mapping(plan.get("arms")).items()}
    if not arms:
        raise DataError(f"{study_dir}: the study plan names no arm; run `guerdon compare` on a study file first")
    tasks = tuple(str(task) for task in plan.get("tasks") or ())
    seeds = tuple(int(seed) for seed in plan.get("seeds") or ())
    baseline = str(plan.get("baseline") or next(iter(arms)))
    if baseline not in arms:
        raise DataError(f"{study_dir}: the baseline {baseline!r} is none of the arms {sorted(arms)}")
    root = study_dir / "runs"
    runs = [
        read_run(root / task / arm / f"seed{seed}", task=task, arm=arm, seed=seed)
        for task in tasks
        for arm in arms
        for seed in seeds
    ]
    planned = {run.path for run in runs}
    extra = [path for path in sorted(root.glob("*/*/seed*")) if path.is_dir() and path not in planned]
    notes = [f"{path.relative_to(study_dir)} is not part of the study's plan and is left out" for path in extra]
    cards, card_notes = _read_cards(study_dir / "models")
    return StudyRecord(
        name=str(plan.get("name") or study_dir.resolve().name),
        path=study_dir,
        arms=arms,
        baseline=baseline,
        tasks=tasks,
        seeds=seeds,
        runs=tuple(runs),
        cards=cards,
        config_text=_read_text(study_dir / "study.yaml"),
        info=plan,
        notes=(*notes, *card_notes),
        correction="holm" if plan.get("correction") == "holm" else "none",
    )


def _status(path: Path) -> tuple[Status, str]:
    if (path / "COMPLETE").exists():
        return "complete", ""
    if (path / "FAILED.json").exists():
        content = read_json(path / "FAILED.json") or {}
        return "failed", str(content.get("error") or "no reason was written")
    return "unfinished", ""


def _by_step(rows: Sequence[Row], kind: str) -> tuple[Row, ...]:
    kept = {step: row for row in rows if row.get("kind") == kind and (step := number(row, "step")) is not None}
    return tuple(kept[step] for step in sorted(kept))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_cards(root: Path) -> tuple[tuple[RewardModelCard, ...], list[str]]:
    cards: list[RewardModelCard] = []
    notes: list[str] = []
    for path in sorted([*root.glob("*/*/evaluation.json"), *root.glob("*/*/method*/evaluation.json")]):
        folder = path.parent
        content = read_json(path)
        task, *name = folder.relative_to(root).parts
        if content is None:
            notes.append(f"models/{task}/{'/'.join(name)}/evaluation.json cannot be read")
            continue
        pictures = {
            str(title): folder / Path(str(file)).name for title, file in mapping(content.get("pictures")).items()
        }
        cards.append(RewardModelCard(task, "/".join(name), content, pictures))
    return tuple(cards), notes
