"""Rows of the gate's table from a study: what its reward models measured before RL, and what they did in it.

A study whose baseline uses no reward model writes them as `gate.jsonl` beside its report. Files of several studies are
one table when they are put together: `cat runs/*/gate.jsonl > mine.jsonl`.

    rows = gate_rows(read_study(Path("runs/demo")))
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guerdon.comparison.results import RunRecord, StudyRecord, final_success, finite, mapping, number
from guerdon.evaluation.gate.gate_card import card_folders
from guerdon.evaluation.gate.gate_table import PREFIX
from guerdon.files.json_files import read_json
from guerdon.models.scores import RECORD
from guerdon.pages.formats import TEXT

FILE = "gate.jsonl"


def gate_rows(study: StudyRecord) -> list[dict[str, Any]]:
    """A row for each task and arm that uses one reward model which was evaluated, against the baseline's same seeds.

    The family of a reward model, which validation withholds, is the name of its arm. A seed that lacks a complete run
    on either side is null in both; a row without any other is left out.
    """
    rows = []
    for task in study.tasks:
        baseline = {run.seed: run for run in study.select(arm=study.baseline, task=task)}
        if any(_models(run) for run in baseline.values()):
            continue
        for arm in study.arms:
            row = _gate_row(study, task, arm, baseline)
            if row is not None:
                rows.append(row)
    return rows


def _gate_row(
    study: StudyRecord, task: str, arm: str, baseline: Mapping[int | None, RunRecord]
) -> dict[str, Any] | None:
    """The row of a task and an arm; None without features of one reward model, or without a complete pair of runs."""
    runs = study.select(arm=arm, task=task)
    paths = next((found for run in runs if (found := _models(run))), [])
    features = _features(study, task, paths[0]) if len(paths) == 1 else None
    if not features or arm == study.baseline:
        return None
    paired = [run for run in runs if run.seed in baseline]
    before: list[float | None] = []
    after: list[float | None] = []
    for run in paired:
        pair: tuple[float | None, float | None] = (final_success(baseline[run.seed]), final_success(run))
        if None in pair:
            pair = (None, None)
        before.append(pair[0])
        after.append(pair[1])
    if set(after) <= {None}:
        return None
    return {
        "model": f"{study.name}/{task}/{arm}",
        "kind": "text" if study.unit == TEXT else "robot",
        "task": task,
        "family": arm,
        "seeds": [run.seed for run in paired],
        "baseline": before,
        "success": after,
        "exploited": [_exploited(run) for run in paired],
        **{PREFIX + name: value for name, value in features.items()},
    }


def _exploited(run: RunRecord) -> bool | None:
    """Whether the hacking alarm was raised in a complete run; None where it could not be."""
    alarms = [alarm for row in run.trains if (alarm := number(row, "hacking_alarm")) is not None]
    return any(alarms) if alarms and run.status == "complete" else None


def _models(run: RunRecord) -> list[str]:
    """The paths of the reward models of a run, by its configuration; an empty path for one without any."""
    reward = mapping(run.config.get("reward"))
    if not reward.get("use_reward_model"):
        return []
    models = [mapping(mapping(source).get("model")) for source in mapping(reward.get("sources")).values()]
    return [str(model.get("checkpoint_path") or "") for model in models]


def _features(study: StudyRecord, task: str, path: str) -> dict[str, float | None]:
    """The features on the card of the reward model at a path: one of the study's own, or the one that lies there."""
    given = Path(path)
    places = {f"models/{card.task}/{card.name}": card.evaluation for card in study.cards if card.task == task}
    own = [c for end, c in places.items() if any(p.as_posix().endswith(end) for p in (given, given.parent))]
    there = [content for folder in card_folders(path) if (content := read_json(folder / RECORD)) is not None]
    card = next(iter([*own, *there]), {})
    features = mapping(mapping(card.get("forecast")).get("features"))
    return {str(name): finite(value) for name, value in features.items()}
