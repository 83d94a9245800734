"""The first screen of a report: a plain sentence for each setting under comparison, and a picture of the task.

The sentences stand in `templates/sentences.yaml`, whole and by their case: robots or text, success known or not,
several runs or one, compared with the baseline, alone, or side by side in a folder.

    for sentence in study_sentences(study, rows): print(sentence.text)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from guerdon.comparison.report_answers import AnswerPanel, ShownAnswer
from guerdon.comparison.results import (
    MEASURES,
    SUCCESS,
    ArmRow,
    RunRecord,
    StudyRecord,
    final_success,
    measure_curve,
    measure_of_runs,
    number,
)
from guerdon.pages import formats as fmt

SENTENCES: dict[str, str] = yaml.safe_load(
    (Path(__file__).parent / "templates" / "sentences.yaml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Sentence:
    """What one setting of a study reached, in words; `style` is that of its curve."""

    text: str
    arm: str
    style: int


@dataclass(frozen=True)
class Example:
    """A question and what a policy answered; `is_right` is None where that is not known."""

    arm: str
    prompt: str
    response: str
    is_right: bool | None


def study_sentences(study: StudyRecord, rows: Sequence[ArmRow]) -> list[Sentence]:
    """A sentence for each setting, compared with the baseline; for a baseline alone, its own.

    Args:
        study: what was run; of runs that lie side by side each setting has a sentence without a comparison.
        rows: of all its tasks together, the baseline first.
    """
    if not study.planned:
        return [Sentence(_study_sentence(study, row, None), row.arm, row.style) for row in rows]
    baseline, *others = rows
    return [
        Sentence(_study_sentence(study, row, None if row is baseline else baseline), row.arm, row.style)
        for row in others or rows
    ]


def _study_sentence(study: StudyRecord, row: ArmRow, baseline: ArmRow | None) -> str:
    words = {"label": _named(row), "measure": MEASURES[study.measure]}
    if not row.n_runs:
        return SENTENCES["no complete run"].format(**words)
    if study.measure != SUCCESS and len(study.tasks) > 1:
        return SENTENCES["unknown, several tasks"].format(**words)
    if row.final.estimate is None:
        return SENTENCES["no measure"]
    kind = _kind(study.measure, study.unit)
    runs = "one run" if len(study.seeds) * len(study.tasks) == 1 else "several runs"
    counted = all(_all_or_nothing(study, one.arm) for one in (row, baseline or row))
    words["own"] = _amount(study, row, kind, counted=counted)
    words["at"] = fmt.at(_last_evaluation(study, row.arm), study.unit)
    if not study.planned:
        return SENTENCES[f"{kind}, {runs}, side by side"].format(**words)
    if baseline is None or baseline.final.estimate is None:
        return SENTENCES[f"{kind}, {runs}, alone"].format(**words)
    words |= {"baseline": _named(baseline), "other": _amount(study, baseline, kind, counted=counted, short=True)}
    return SENTENCES[f"{kind}, {runs}, compared"].format(**words)


def run_sentence(run: RunRecord) -> str:
    """What one run reached at its last evaluation, in words."""
    measure = measure_of_runs([run])
    steps, values = measure_curve(run, measure)
    if not run.evals:
        return SENTENCES["no evaluation"]
    if not values:
        return SENTENCES["no measure"]
    kind = _kind(measure, run.unit)
    own = fmt.decimal(values[-1]) if kind == "unknown" else _of_one_run(run, kind)
    return SENTENCES[f"{kind}, one run, alone"].format(
        own=own, at=fmt.at(steps[-1], run.unit), measure=MEASURES[measure]
    )


def _kind(measure: str, unit: str) -> str:
    if measure != SUCCESS:
        return "unknown"
    return "text" if unit == fmt.TEXT else "robot"


def _named(row: ArmRow) -> str:
    """A setting by its label, and its short name where that is another one."""
    return row.arm if row.label == row.arm else f"{row.label} ({row.arm})"


def _last_evaluation(study: StudyRecord, arm: str) -> float | None:
    """The last step at which a complete run of a setting was evaluated."""
    steps = [measure_curve(run, study.measure)[0] for run in study.select(arm=arm, status="complete")]
    return max((one[-1] for one in steps if one), default=None)


def _all_or_nothing(study: StudyRecord, arm: str) -> bool:
    """Whether each complete run of a setting succeeds in all of its last test episodes, or in none."""
    return {final_success(run) for run in study.select(arm=arm, status="complete")} <= {0.0, 1.0}


def _amount(study: StudyRecord, row: ArmRow, kind: str, *, counted: bool, short: bool = False) -> str:
    """What the complete runs of a setting reached, in words.

    Args:
        study: what was run.
        row: the numbers of the setting.
        kind: of the sentence: `robot`, `text` or `unknown`.
        counted: of robots say in how many runs, each of which succeeds always or never; else the share of episodes.
        short: without what it is a share of, which the sentence has said before.
    """
    if kind == "unknown":
        return fmt.decimal(row.final.estimate)
    runs = [run for run in study.select(arm=row.arm) if final_success(run) is not None]
    if len(study.seeds) * len(study.tasks) == 1:
        return _of_one_run(runs[0], kind)
    finals = [final_success(run) for run in runs]
    if kind == "robot" and counted:
        return f"{finals.count(1.0)} of {len(finals)}" + ("" if short else " runs")
    share = fmt.percent(row.final.estimate)
    if short:
        return share
    if kind == "robot":
        return f"{share} of the test episodes of {fmt.plural(len(runs), 'run')}"
    return f"{share} of the test questions (mean of {fmt.plural(len(runs), 'run')})"


def _of_one_run(run: RunRecord, kind: str) -> str:
    """How many of the episodes or questions of the last evaluation succeeded, as counts where these are whole."""
    row = next(row for row in reversed(run.evals) if number(row, SUCCESS) is not None)
    success, n = number(row, SUCCESS) or 0.0, int(number(row, "success_known") or number(row, "episodes") or 0)
    cases = "test questions" if kind == "text" else "test episodes"
    if n and abs(success * n - round(success * n)) < 1e-6:
        return f"{round(success * n)} of {n} {cases}"
    return f"{fmt.percent(success)} of the {cases}"


def pictured(videos: Sequence[Any], order: Sequence[str]) -> int | None:
    """The place of the video that shows the task best: a success of the setting that comes first; None without videos.

    Args:
        videos: of the page, as `ShownVideo`.
        order: the settings, the one with the highest result first.
    """
    ranks = {arm: i for i, arm in enumerate(order)}

    def worse(i: int) -> tuple[bool, int, int]:
        file = videos[i].file
        return not file.success, ranks.get(file.run.arm, len(ranks)), i

    return min(range(len(videos)), key=worse, default=None)


def example_of(panels: Mapping[str, Sequence[AnswerPanel]], order: Sequence[str]) -> Example | None:
    """A response of the setting that comes first in `order`, one that is right where there is one; None without any."""
    ranks = {arm: i for i, arm in enumerate(order)}
    found = [panel for of_task in panels.values() for panel in of_task if panel.moments and panel.moments[0].answers]
    if not found:
        return None
    panel = min(found, key=lambda one: ranks.get(one.run.arm, len(ranks)))
    answers = panel.moments[0].answers
    answer = next((one for one in answers if one.outcome), answers[0])
    return Example(panel.run.arm, answer.prompt, _written(answer), answer.outcome)


def _written(answer: ShownAnswer) -> str:
    """The text of a response, without the marks of spaces, line breaks and end tokens that the page shows elsewhere."""
    steps = next(iter(answer.by_source.values()), ())
    tokens = [token for step in steps for token in step.tokens]
    shown = [token.text for token in tokens if not token.quiet or set(token.text) <= set("␣↵⇥\n")]
    text = "".join(shown).replace("␣", " ").replace("↵", "").replace("⇥", "\t")
    return text + (" …" if answer.cut else "")


def best_first(rows: Sequence[ArmRow]) -> list[str]:
    """The settings by their result, the highest first; those without one last."""
    return [row.arm for row in sorted(rows, key=lambda row: (row.final.estimate is None, -(row.final.estimate or 0.0)))]
