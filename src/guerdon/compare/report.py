"""The report: one self-contained HTML file per study or run, offline, under 3 MB.

Jinja2 with autoescape puts the parts together; the page's content policy allows no network and no script but its own.
Films are chosen last and fill what room is left. The warnings list what is missing, broken or few, and the page shows
how the arms' configurations differ.

    path = write_report(Path("runs/demo"))
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from guerdon import atomic
from guerdon.compare import report_format as fmt
from guerdon.compare.comparison import FAILURE_GAP, ArmRow, arm_styles, comparison_rows, failure_rate
from guerdon.compare.read_runs import (
    TEXT,
    RunRecord,
    StudyRecord,
    number,
    read_json,
    read_run,
    read_study,
    success_curve,
    success_unknown,
)
from guerdon.compare.report_answers import AnswerPanel, answer_panels
from guerdon.compare.report_cards import card_views
from guerdon.compare.report_charts import (
    alarms,
    curve_panels,
    quality_panels,
    return_scatter,
    scatter_panels,
    single_run_panels,
    sources,
    verdict_picture,
)
from guerdon.compare.report_films import FilmFile, ShownFilm, choose_films, fit_films
from guerdon.compare.report_tables import columns
from guerdon.errors import DataError
from guerdon.evaluate.charts import clip, legend_mark
from guerdon.evaluate.intervals import Interval, wilson_interval

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
    rows, info, styles = comparison_rows(study), study.info, arm_styles(study)
    pooled = rows[: len(study.arms)]
    order = {task: i for i, task in enumerate(study.tasks)}
    by_task = sorted(study.cards, key=lambda card: order.get(card.task, len(order)))
    cards, card_notes = card_views(by_task, budget=PICTURE_BYTES)
    answers, answer_notes = answer_panels(study.runs, budget=ANSWER_BYTES)
    shown = [c for c in columns(study, study.baseline) if len(study.seeds) > 1 or not c.repeated]
    configured = [next((run for run in study.select(arm=arm) if run.config_text), None) for arm in study.arms]
    width, height = SMALL
    small = {task: curve_panels(study, [task], width=width, height=height) for task in study.tasks}
    return {
        **_unit(study.unit),
        "quality": quality_panels({arm: (style, study.select(arm=arm)) for arm, style in styles.items()}),
        "answers": _by_task(answers),
        "title": study.name,
        "study": study,
        "corrected": study.correction == "holm",
        "styles": styles,
        "legend": {arm: legend_mark(style) for arm, style in styles.items()},
        "pooled": pooled,
        "by_task": rows[len(pooled) :],
        "columns": [column for column in shown if not column.folded],
        "more_columns": [column for column in shown if column.folded],
        "forest": verdict_picture(pooled, study.baseline),
        "panels": curve_panels(study, study.tasks) if study.tasks else [],
        "small_panels": curve_panels(study, study.tasks, width=width, height=height) if study.tasks else [],
        "task_panels": list(small.items()) if len(small) > 1 else [],
        "scatters": scatter_panels(study),
        "alarms": alarms(study.runs),
        "unjudged": sum(map(success_unknown, study.runs)),
        "cards": cards,
        "differences": config_differences(study),
        "configs": [(run.arm, run.name, run.config_text[:MAX_TEXT]) for run in configured if run is not None],
        "study_config": study.config_text[:MAX_TEXT],
        "started": info.get("started"),
        "took": number(info, "wall_seconds"),
        "commands": [str(command) for command in info.get("commands") or ()],
        "versions": fmt.flatten(info["versions"]) if info.get("versions") else {},
        "machine": fmt.flatten(info["machine"]) if info.get("machine") else {},
        "n_complete": sum(run.status == "complete" for run in study.runs),
        "failure_gap": FAILURE_GAP,
        "notes": [*study_notes(study, pooled), *(Note(text) for text in (*card_notes, *answer_notes))],
    }


def _unit(unit: str) -> dict[str, Any]:
    """What the words of the page depend on: the unit of steps, and whether a verifier or an environment measures."""
    return {"unit": unit, "steps_name": fmt.short_unit(unit), "text": unit == TEXT}


def _by_task(panels: Sequence[AnswerPanel]) -> dict[str, list[AnswerPanel]]:
    tasks = dict.fromkeys(panel.run.task for panel in panels)
    return {task: [panel for panel in panels if panel.run.task == task] for task in tasks}


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
        "facts": {key: value for key, value in fmt.flatten(facts).items() if key},
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
        n = fmt.plural(len(left_out), "film")
        notes.append(Note(f"{n} left out to keep this file small; they are in the films folders of the runs"))
    page = _render(template, {**context, "notes": [*context["notes"], *notes]}, shown)
    atomic.write_text(out, page)
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
    for filter_ in (
        fmt.decimal,
        fmt.bounds,
        fmt.signed,
        fmt.percent,
        fmt.steps,
        fmt.at,
        fmt.digits_for,
        fmt.duration,
        fmt.plural,
    ):
        environment.filters[filter_.__name__] = filter_
    return environment.get_template(template).render(
        **context,
        films=films,
        style=Markup(style),  # noqa: S704 - our own files
        script=Markup(script),  # noqa: S704
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
    )


FEW_SEEDS = 5
PER_RUN_KEYS = ("seed", "out", "run_dir", "name")
MAX_CELL = 80


@dataclass(frozen=True)
class Note:
    """One warning; severe ones concern results that are missing or not comparable."""

    text: str
    severe: bool = False


def run_notes(run: RunRecord, *, warned: bool = True) -> list[Note]:
    """Warnings about one run; with `warned` also those that it wrote about its rewards."""
    notes: list[Note] = []
    last = success_curve(run)[0][-1:] or [0.0]
    when = fmt.at(last[0], run.unit)
    if run.status == "failed":
        notes.append(Note(f"{run.name} failed {when}: {run.error}", severe=True))
    elif run.status == "missing":
        notes.append(Note(f"{run.name} is missing: it has not been started, or its directory is gone", severe=True))
    elif run.status == "unfinished":
        notes.append(Note(f"{run.name} is unfinished: its last evaluation is {when}", True))
    elif success_unknown(run):
        said = "true success is unknown: its environment does not report it, so the run is in no result"
        notes.append(Note(f"{run.name}: {said}", severe=True))
    elif not success_curve(run)[0]:
        notes.append(Note(f"{run.name} is complete but has no evaluation, so it is in no result", severe=True))
    notes += _partly_known(run)
    if warned:
        notes += [Note(f"{run.name}: {line}", severe=True) for line in warnings_of(run)]
    if run.skipped_lines:
        notes.append(Note(f"{run.name}: {fmt.plural(run.skipped_lines, 'unreadable line')} skipped"))
    if run.n_failures:
        rate = failure_rate(run)
        share = "" if rate is None else f", {fmt.percent(rate)} of the source that fails most, on average"
        notes.append(Note(f"{run.name}: {fmt.plural(run.n_failures, 'failed measurement')}{share}"))
    return notes


def _partly_known(run: RunRecord) -> list[Note]:
    """Over how many episodes success was known where that was not over all of them, by the last evaluation."""
    row = run.evals[-1] if run.evals else {}
    known, episodes = number(row, "success_known"), number(row, "episodes")
    if not known or episodes is None or known == episodes:
        return []
    said = f"true success is known for {known:.0f} of {episodes:.0f} episodes of its last evaluation"
    return [Note(f"{run.name}: {said}")]


def warnings_of(run: RunRecord) -> list[str]:
    """What the run itself wrote about its rewards at its start."""
    said = run.info.get("warnings")
    return [str(line) for line in said] if isinstance(said, list) else []


def _warned(runs: Sequence[RunRecord]) -> list[Note]:
    """The warnings of all runs, each once, with the arms that it is about."""
    arms: dict[str, dict[str, None]] = {}
    for run in runs:
        for line in warnings_of(run):
            arms.setdefault(line, {})[run.arm] = None
    return [Note(f"{', '.join(names)}: {line}", severe=True) for line, names in arms.items()]


def study_notes(study: StudyRecord, rows: Sequence[ArmRow]) -> list[Note]:
    """All warnings of a study, the severe ones first."""
    notes = [Note(f"{row.sentence}.", severe=True) for row in rows if row.outcome == "not comparable"]
    partial = [row for row in rows if row.n_runs < row.n_planned]
    for row in partial:
        notes.append(
            Note(
                f"{row.arm}: only {row.n_runs} of {row.n_planned} runs are complete. If runs with low success "
                "stop more often, the numbers of this arm are too high.",
                severe=True,
            )
        )
    counts = [len(study.select(arm=arm, task=task, status="complete")) for arm in study.arms for task in study.tasks]
    seeds = min(counts, default=0)
    if seeds < FEW_SEEDS:
        notes.append(
            Note(
                f"Few seeds: {fmt.plural(seeds, 'complete seed')} per arm and task at the least. With "
                f"fewer than {FEW_SEEDS} the intervals are wide, and the bands of curves are narrower than "
                "they should be."
            )
        )
    if study.cards and len(study.seeds) > 1:
        notes.append(
            Note(
                "Each task's reward models were trained once and serve all its seeds: the intervals cover the "
                "variation of policy training, not that of reward model training."
            )
        )
    notes += _warned(study.runs)
    for run in study.runs:
        notes += run_notes(run, warned=False)
    notes += [Note(text) for text in study.notes]
    return sorted(notes, key=lambda note: not note.severe)


def config_differences(study: StudyRecord) -> list[tuple[str, list[str]]]:
    """The keys whose values differ between arms, with one cell per arm in the order of `study.arms`.

    Each arm is represented by its first run that wrote a configuration; keys that differ between all runs
    (seed, output directory) are left out.
    """
    flats = []
    for arm in study.arms:
        text = next((run.config_text for run in study.select(arm=arm) if run.config_text), "")
        flats.append(_flat_config(text))
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    rows = []
    for key in keys:
        cells = [clip(flat.get(key, fmt.DASH), MAX_CELL) for flat in flats]
        if len(set(cells)) > 1 and not any(part in PER_RUN_KEYS for part in key.split(".")):
            rows.append((key, cells))
    return rows


def _flat_config(text: str) -> Mapping[str, str]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return fmt.flatten(content) if isinstance(content, dict) else {}
