"""Over-optimisation in a study (2210.10760): `reward.truth` of each arm over its measured sqrt(KL), next to best-of-n.

A run logs both where it has a KL penalty (`algorithm.kl_coef`): the mean truth of the responses of an update, and their
mean KL per token, here times their mean length. With `kl_in: reward` that is an unbiased estimate of the KL of whole
responses. Each run's updates are averaged in windows; a negative mean KL counts as 0.

    for panel in gold_panels(study):
        print(panel.title, *panel.lines)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from guerdon.comparison.report_cards import interval_of
from guerdon.comparison.report_charts import WINDOWS, windowed
from guerdon.comparison.results import TRUTH, Row, RunRecord, StudyRecord, arm_styles, mapping, number
from guerdon.evaluation.benchmarks.over_optimisation import GoldCurve, Turn, gold_curve, gold_picture
from guerdon.pages.formats import bounds, decimal, signed_interval
from guerdon.statistics.intervals import Float64


@dataclass(frozen=True)
class GoldPanel:
    """The picture of a task, what it shows, and the conclusion: whether the baseline shows over-optimisation."""

    title: str
    svg: Markup
    lines: tuple[str, ...]
    conclusion: str


def gold_panels(study: StudyRecord) -> list[GoldPanel]:
    """One panel per task whose runs measured `reward.truth` and a KL."""
    return [panel for task in study.tasks if (panel := _panel(study, task)) is not None]


def arm_curve(runs: list[RunRecord]) -> GoldCurve | None:
    """The truth of the complete runs of an arm over sqrt(KL); None where there is none."""
    found = [(run, rows) for run in runs if run.status == "complete" and (rows := _measured(run))]
    if not found:
        return None
    count = min(WINDOWS, *(len(rows) for _, rows in found))
    curves: list[tuple[Float64, Float64]] = []
    for run, rows in found:
        own, end = replace(run, trains=tuple(rows)), rows[-1]["step"]
        curves.append((windowed(own, TRUTH, end, count), windowed(own, "kl_response", end, count)))
    truth, kl = (np.stack(column) for column in zip(*curves, strict=True))
    return gold_curve(truth, np.sqrt(np.maximum(kl, 0.0)))


def _measured(run: RunRecord) -> list[Row]:
    """The updates with a truth and a KL, which becomes that of a response."""
    rows: list[Row] = []
    for row in run.trains:
        step, truth, kl, length = (number(row, key) for key in ("step", TRUTH, "kl", "length"))
        if None not in (step, truth, kl, length):
            rows.append({"step": step, TRUTH: truth, "kl_response": (kl or 0.0) * (length or 0.0)})
    return rows


def _panel(study: StudyRecord, task: str) -> GoldPanel | None:
    styles = arm_styles(study)
    curves = {arm: found for arm in styles if (found := arm_curve(study.select(arm=arm, task=task))) is not None}
    if not curves:
        return None
    lines = [(arm, styles[arm], one) for arm, one in curves.items()]
    for card in study.cards:
        best = mapping(mapping(card.evaluation.get("over_optimisation")).get("gold"))
        if card.task == task and best:
            lines.append((f"best of n: {card.name}", len(lines), _stored(best)))
    base = curves.get(study.baseline)
    shown = base is not None and base.turn.shown
    conclusion = (
        f"Under {study.baseline} the truth first rises and then falls: over-optimisation."
        if shown
        else f"This study shows nothing about over-optimisation on {task}: it is not shown that the truth first rises "
        f"and then falls under {study.baseline}."
    )
    picture = gold_picture(lines, title=f"Truth over sqrt(KL), {task}", width=860.0)
    return GoldPanel(task, picture, tuple(_line(name, one.turn) for name, _, one in lines), conclusion)


def _line(name: str, turn: Turn) -> str:
    """Where a curve is highest, in words."""
    place = f"{decimal(turn.place.estimate)} {bounds(turn.place)}".strip()
    rise, fall = (signed_interval(one) for one in (turn.rise, turn.fall))
    return f"{name}: highest at sqrt(KL) {place}; {rise} up to there, {fall} from there to the end"


def _stored(record: Row) -> GoldCurve:
    """A curve of an evaluation's record."""
    turn = mapping(record.get("turn"))
    start, place, rise, fall = map(interval_of, (record.get("start"), *map(turn.get, ("place", "rise", "fall"))))
    gain = [interval_of(one) for one in record.get("gain") or ()]
    return GoldCurve(record.get("sqrt_kl") or [], start, gain, Turn(place, rise, fall, bool(turn.get("shown"))))
