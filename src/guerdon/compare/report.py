"""The report: one self-contained HTML file per study or run, offline, under 3 MB.

Jinja2 with autoescape puts the parts together; the page's content policy allows no network and no script but
its own. Films are chosen last and fill what room is left. This module knows neither statistics nor how
pictures are drawn.

    path = write_report(Path("runs/demo"))
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from guerdon.compare import report_words as words
from guerdon.compare.read_runs import (
    TEXT,
    RunRecord,
    StudyRecord,
    number,
    read_json,
    read_run,
    read_study,
    success_unknown,
)
from guerdon.compare.report_answers import AnswerPanel, answer_panels
from guerdon.compare.report_cards import card_views
from guerdon.compare.report_curves import (
    alarms,
    curve_panels,
    return_scatter,
    scatter_panels,
    single_run_panels,
    sources,
    verdict_picture,
)
from guerdon.compare.report_films import FilmFile, ShownFilm, choose_films, fit_films
from guerdon.compare.report_notes import Note, config_differences, run_notes, study_notes
from guerdon.compare.report_numbers import (
    FAILURE_GAP,
    arm_styles,
    comparison_table,
    markdown_table,
    pooled_rows,
    task_rows,
)
from guerdon.compare.report_online import quality_panels
from guerdon.compare.report_speed import speed_text
from guerdon.errors import DataError
from guerdon.evaluate.charts import legend_mark
from guerdon.evaluate.intervals import Interval, wilson_interval

__all__ = ["comparison_table", "markdown_table", "write_report", "write_single_report"]

MAX_BYTES = 2_900_000
PICTURE_BYTES = 700_000
ANSWER_BYTES = 1_100_000
MAX_TEXT = 20_000
SMALL = (470.0, 270.0)
TEMPLATES = Path(__file__).parent / "templates"


def write_report(study_dir: Path, *, out: Path | None = None) -> Path:
    """Write the report of a study.

    Args:
        study_dir: what `guerdon compare` wrote, finished or not.
        out: the file to write; `study_dir/report.html` without it.

    Returns:
        The path written.

    Raises:
        DataError: the directory holds no study.
    """
    study = read_study(study_dir)
    context = _study_context(study)
    films = choose_films([run for run in study.runs if run.status != "missing"])
    return _write("report.html.j2", context, films, out or study_dir / "report.html")


def write_single_report(run_dir: Path, *, out: Path | None = None) -> Path:
    """Write the report of one run: the pieces of a study's report without any comparison.

    Args:
        run_dir: what `guerdon run` wrote.
        out: the file to write; `run_dir/report.html` without it.

    Raises:
        DataError: there is no run in that directory.
    """
    info = read_json(run_dir / "run.json") or {}
    task = str(info.get("task") or run_dir.resolve().name)
    run = read_run(run_dir, task=task, arm=str(info.get("name") or "run"), seed=None)
    if run.status == "missing" or not (run.config_text or run.evals or run.trains):
        raise DataError(f"{run_dir}: no run here (neither config.yaml nor metrics.jsonl); give a run's directory")
    return _write("single.html.j2", _run_context(run), choose_films([run], limit=4), out or run_dir / "report.html")


def _study_context(study: StudyRecord) -> dict[str, Any]:
    pooled = pooled_rows(study)
    order = {task: i for i, task in enumerate(study.tasks)}
    by_task = sorted(study.cards, key=lambda card: order.get(card.task, len(order)))
    cards, card_notes = card_views(by_task, budget=PICTURE_BYTES)
    configs = [
        (arm, run.name, run.config_text[:MAX_TEXT])
        for arm in study.arms
        for run in [next((run for run in study.select(arm=arm) if run.config_text), None)]
        if run is not None
    ]
    info = study.info
    answers, answer_notes = answer_panels(study.runs, budget=ANSWER_BYTES)
    arms = {arm: (style, study.select(arm=arm)) for arm, style in arm_styles(study).items()}
    return {
        **_unit(study.unit),
        "quality": quality_panels(arms),
        "answers": _by_task(answers),
        "title": study.name,
        "study": study,
        "corrected": study.correction == "holm",
        "styles": arm_styles(study),
        "legend": {arm: legend_mark(style) for arm, style in arm_styles(study).items()},
        "pooled": pooled,
        "by_task": task_rows(study),
        "forest": verdict_picture(pooled, study.baseline),
        "panels": curve_panels(study, study.tasks) if study.tasks else [],
        "small_panels": curve_panels(study, study.tasks, width=SMALL[0], height=SMALL[1]) if study.tasks else [],
        "task_panels": _task_panels(study),
        "scatters": scatter_panels(study),
        "alarms": alarms(study.runs),
        "unjudged": sum(map(success_unknown, study.runs)),
        "cards": cards,
        "differences": config_differences(study),
        "configs": configs,
        "study_config": study.config_text[:MAX_TEXT],
        "started": info.get("started"),
        "took": number(info, "wall_seconds"),
        "commands": [str(command) for command in info.get("commands") or ()],
        "versions": words.flatten(info["versions"]) if info.get("versions") else {},
        "machine": words.flatten(info["machine"]) if info.get("machine") else {},
        "n_complete": sum(run.status == "complete" for run in study.runs),
        "failure_gap": FAILURE_GAP,
        "notes": [*study_notes(study, pooled), *(Note(text) for text in (*card_notes, *answer_notes))],
    }


def _unit(unit: str) -> dict[str, Any]:
    """What the words of the page depend on: what a step is, and who judges."""
    return {"unit": unit, "steps_name": words.short_unit(unit), "text": unit == TEXT}


def _by_task(panels: Sequence[AnswerPanel]) -> dict[str, list[AnswerPanel]]:
    tasks = dict.fromkeys(panel.run.task for panel in panels)
    return {task: [panel for panel in panels if panel.run.task == task] for task in tasks}


def _task_panels(study: StudyRecord) -> list[tuple[str, Any]]:
    if len(study.tasks) < 2:
        return []
    return [(task, curve_panels(study, [task], width=SMALL[0], height=SMALL[1])) for task in study.tasks]


def _run_context(run: RunRecord) -> dict[str, Any]:
    scatters = [
        (source, svg)
        for source in sources([run])
        if (svg := return_scatter([run], source, style=1, shapes={}, arm=run.arm)) is not None
    ]
    answers, answer_notes = answer_panels([run], budget=ANSWER_BYTES)
    facts = {key: value for key, value in run.info.items() if key != "warnings"}  # those stand among the warnings
    return {
        **_unit(run.unit),
        "quality": quality_panels({run.arm: (1, [run])}),
        "answers": _by_task(answers),
        "title": run.task,
        "run": run,
        "final": _last_success(run),
        "panels": single_run_panels(run),
        "small_panels": single_run_panels(run, width=SMALL[0], height=SMALL[1]),
        "legend": {"evaluation": legend_mark(1), "training": legend_mark(0)},
        "scatters": scatters,
        "alarms": alarms([run]),
        "unjudged": int(success_unknown(run)),
        "facts": {key: value for key, value in words.flatten(facts).items() if key},
        "notes": [*run_notes(run), *(Note(text) for text in answer_notes)],
    }


def _last_success(run: RunRecord) -> Interval:
    """True success at the last evaluation where it is known, with Wilson's interval over its episodes."""
    row = next((row for row in reversed(run.evals) if number(row, "success") is not None), {})
    success, n = number(row, "success"), int(number(row, "success_known") or number(row, "episodes") or 0)
    if success is None or not n or abs(success * n - round(success * n)) > 1e-6:
        return Interval(success, None, None, n)
    return wilson_interval(round(success * n), n)


def _write(template: str, context: dict[str, Any], films: tuple[list[FilmFile], list[str]], out: Path) -> Path:
    """Render without films, fit the films into the room that is left, render again, write atomically."""
    chosen, film_notes = films
    page = _render(template, context, [])
    if len(page.encode()) > MAX_BYTES and context.get("task_panels"):
        note = Note("The curves of single tasks are left out to keep this file small; their numbers are in the table.")
        context = {**context, "task_panels": [], "notes": [*context["notes"], note]}
        page = _render(template, context, [])
    shown, left_out, more_notes = fit_films(chosen, budget=MAX_BYTES - len(page.encode()))
    notes = [Note(text) for text in (*film_notes, *more_notes)]
    if left_out:
        n = words.plural(len(left_out), "film")
        notes.append(Note(f"{n} left out to keep this file small; they are in the films folders of the runs"))
    page = _render(template, {**context, "notes": [*context["notes"], *notes]}, shown)
    temporary = out.with_name(f".{out.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(page)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, out)
    return out


def _render(template: str, context: dict[str, Any], films: Sequence[ShownFilm]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    formats: dict[str, Callable[..., Any]] = {
        "decimal": words.decimal,
        "bounds": words.bounds,
        "signed": words.signed,
        "percent": words.percent,
        "steps": words.steps,
        "at": words.at,
        "digits_for": words.digits_for,
        "speed": speed_text,
        "duration": words.duration,
        "plural": words.plural,
        "p_value": words.p_value,
    }
    environment.filters.update(formats)
    return environment.get_template(template).render(
        **context,
        films=films,
        style=Markup(style),  # noqa: S704 - our own files
        script=Markup(script),  # noqa: S704
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
    )
