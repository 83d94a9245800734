"""The report: one self-contained HTML file per study or run, offline, under 3 MB.

Jinja2 with autoescape puts the parts together; the page's content policy allows no network and no script but its own.
Videos are chosen last and fill what room is left. The warnings list what is missing, broken or few, and the page shows
how the arms' configurations differ.

    path = write_report(Path("runs/demo"))
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from guerdon.comparison import report_charts as pictures
from guerdon.comparison import results as read
from guerdon.comparison.report_answers import answer_panels
from guerdon.comparison.report_cards import card_views
from guerdon.comparison.report_gold import gold_panels
from guerdon.comparison.report_tables import INTERVENTIONS, columns
from guerdon.comparison.report_videos import VideoFile, choose_videos, fit_videos
from guerdon.comparison.results import (
    FAILURE_GAP,
    MEASURES,
    RETURN,
    TRUTH,
    ArmRow,
    RunRecord,
    StudyRecord,
    arm_styles,
    comparison_rows,
    failure_rate,
    mapping,
    measure_curve,
    measure_of_runs,
    number,
    success_unknown,
)
from guerdon.errors import DataError
from guerdon.files import atomic
from guerdon.files.json_files import read_json
from guerdon.pages import formats as fmt
from guerdon.pages.charts import clip, legend_mark
from guerdon.pages.html_page import render
from guerdon.processes.progress import doing
from guerdon.statistics.intervals import Interval, wilson_interval

TEMPLATES = Path(__file__).parent / "templates"
MAX_BYTES = 2_900_000
PICTURE_BYTES = 700_000
ANSWER_BYTES = 1_100_000
MAX_TEXT = 20_000
SMALL = (470.0, 270.0)


@doing("writing the report")
def write_report(study_dir: Path, *, out: Path | None = None) -> Path:
    """Write the report of a study, and next to it `gate.jsonl` where its reward models have known effects.

    Args:
        study_dir: what `guerdon compare` wrote, finished or not.
        out: the file to write; `study_dir/report.html` without it.

    Returns:
        The path written.

    Raises:
        DataError: the directory holds no study.
    """
    from guerdon.comparison.gate_rows import (  # imports scipy.optimize, which reports of runs do not need
        FILE,
        gate_rows,
    )

    study = read.read_study(study_dir)
    context = _study_context(study)
    videos = choose_videos([run for run in study.runs if run.status != "missing"])
    if rows := gate_rows(study):
        atomic.write_text(study_dir / FILE, "".join(json.dumps(row) + "\n" for row in rows))
    return _write("report.html.j2", context, videos, out or study_dir / "report.html")


@doing("writing the report")
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
    run = read.read_run(run_dir, task=task, arm=str(info.get("name") or "run"), seed=None)
    if run.status == "missing" or not (run.config_text or run.evals or run.trains):
        raise DataError(f"{run_dir}: no run here (neither config.yaml nor metrics.jsonl); give a run's directory")
    return _write("single.html.j2", _run_context(run), choose_videos([run], limit=4), out or run_dir / "report.html")


def _study_context(study: StudyRecord) -> dict[str, Any]:
    rows, styles = comparison_rows(study), arm_styles(study)
    pooled = rows[: len(study.arms)]
    order = {task: i for i, task in enumerate(study.tasks)}
    by_task = sorted(study.cards, key=lambda card: order.get(card.task, len(order)))
    cards, card_notes = card_views(by_task, budget=PICTURE_BYTES)
    configured = [next((run for run in study.select(arm=arm) if run.config_text), None) for arm in study.arms]
    small = {task: pictures.curve_panels(study, [task], SMALL) for task in study.tasks}
    arms = {arm: (style, study.select(arm=arm)) for arm, style in styles.items()}
    context = _shared_context(study.runs, arms, study.tasks, study.unit)
    return {
        **context,
        "title": study.name,
        "study": study,
        "styles": styles,
        "legend": {arm: legend_mark(style) for arm, style in styles.items()},
        "pooled": pooled,
        "by_task": rows[len(pooled) :],
        "all_columns": [c for c in columns(study, study.baseline) if len(study.seeds) > 1 or not c.repeated],
        "gamed": {arm: gamed(study.select(arm=arm)) for arm in study.arms},
        "golds": gold_panels(study),
        "forest": pictures.conclusion_picture(pooled, study.baseline, study.measure),
        "panels": pictures.curve_panels(study, study.tasks) if study.tasks else [],
        "small_panels": pictures.curve_panels(study, study.tasks, SMALL) if study.tasks else [],
        "task_panels": list(small.items()) if len(small) > 1 else [],
        "cards": cards,
        "differences": config_differences(study),
        "configured": [run for run in configured if run is not None],
        "max_text": MAX_TEXT,
        "took": number(study.info, "wall_seconds"),
        "failure_gap": FAILURE_GAP,
        "notes": [*study_notes(study, pooled), *(Note(text) for text in card_notes), *context["notes"]],
    }


def _shared_context(
    runs: Sequence[RunRecord], arms: Mapping[str, pictures.Arm], tasks: Sequence[str], unit: str
) -> dict[str, Any]:
    """What the pages of a study and of a run both show; its notes are about answers that could not be shown."""
    panels, notes = answer_panels(runs, budget=ANSWER_BYTES)
    answered = dict.fromkeys(panel.run.task for panel in panels)
    return {
        "unit": unit,
        "measure": MEASURES[measure_of_runs(runs)],
        "steps_name": fmt.short_unit(unit),
        "text": unit == fmt.TEXT,
        "quality": pictures.quality_panels(arms),
        "interventions": pictures.quality_panels(arms, INTERVENTIONS, prefix=""),
        "scatters": pictures.scatter_panels(arms, tasks),
        "answers": {task: [panel for panel in panels if panel.run.task == task] for task in answered},
        "alarms": pictures.alarms(runs),
        "unjudged": sum(success_unknown(run) and measure_of_runs([run]) != TRUTH for run in runs),
        "notes": [Note(text) for text in notes],
    }


def _run_context(run: RunRecord) -> dict[str, Any]:
    context = _shared_context([run], {run.arm: (1, [run])}, [], run.unit)
    facts = {key: value for key, value in run.info.items() if key != "warnings"}  # those stand among the warnings
    return {
        **context,
        "title": run.task,
        "run": run,
        "final": _last_success(run),
        "gamed": gamed([run]),
        "final_return": next(reversed(measure_curve(run, measure_of_runs([run]))[1]), None),
        "panels": pictures.single_run_panels(run),
        "small_panels": pictures.single_run_panels(run, SMALL),
        "legend": {"evaluation": legend_mark(1), "training": legend_mark(0)},
        "facts": {key: value for key, value in fmt.flatten(facts).items() if key},
        "notes": [*run_notes(run), *context["notes"]],
    }


def _last_success(run: RunRecord) -> Interval:
    """True success at the last evaluation where it is known, with Wilson's interval over its episodes."""
    row = next((row for row in reversed(run.evals) if number(row, "success") is not None), {})
    success, n = number(row, "success"), int(number(row, "success_known") or number(row, "episodes") or 0)
    if success is None or not n or abs(success * n - round(success * n)) > 1e-6:
        return Interval(success, None, None, n)
    return wilson_interval(round(success * n), n)


def _write(template: str, context: dict[str, Any], videos: tuple[list[VideoFile], list[str]], out: Path) -> Path:
    """Render without videos, fit the videos into the room that is left, render again, write atomically."""
    chosen, video_notes = videos
    draw = partial(render, template, own=TEMPLATES, script="report.js")
    context = {**context, "terms": terms_of(draw({**context, "terms": [], "videos": []}))}
    page = draw({**context, "videos": []})
    if len(page.encode()) > MAX_BYTES and context.get("task_panels"):
        note = Note("The curves of single tasks are left out to keep this file small; their numbers are in the table.")
        context = {**context, "task_panels": [], "notes": [*context["notes"], note]}
        page = draw({**context, "videos": []})
    shown, left_out, more_notes = fit_videos(chosen, budget=MAX_BYTES - len(page.encode()))
    notes = [Note(text) for text in (*video_notes, *more_notes)]
    if left_out:
        n = fmt.plural(len(left_out), "video")
        notes.append(Note(f"{n} left out to keep this file small; they are in films/ of the runs"))
    page = draw({**context, "notes": [*context["notes"], *notes], "videos": shown})
    atomic.write_text(out, page)
    return out


def terms_of(page: str) -> list[tuple[str, str]]:
    """The terms that a page contains, with their explanations, in the order of words.yaml.

    Args:
        page: HTML; scripts, styles, code and attributes do not count.
    """
    text = re.sub(r"<(script|style|pre|code|svg)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    text = re.sub(r"95% ((?:\w+ )+)(?=interval)", r"\1 95% ", re.sub(r"\s+", " ", text))
    text = re.sub(r"[Bb]est[- ]of[- ](?:n\b|\d+)", "best-of-n", text)

    def contained(name: str) -> bool:
        flags = re.NOFLAG if name.isupper() else re.IGNORECASE
        return re.search(rf"\b{re.escape(name)}s?\b", text, flags) is not None

    return [(term, sentence) for term, sentence in fmt.WORDS["terms"].items() if any(map(contained, term.split(", ")))]


FEW_SEEDS = 5
MAX_CELL = 80


@dataclass(frozen=True)
class Note:
    """One warning; severe ones concern results that are missing or not comparable."""

    text: str
    severe: bool = False


def run_notes(run: RunRecord, *, warned: bool = True, measure: str | None = None) -> Iterator[Note]:
    """Warnings about one run; with `warned` also those that it wrote about its rewards.

    Results are about `measure`; None: about that of the run alone.
    """
    measure = measure_of_runs([run]) if measure is None else measure
    trouble = _trouble(run, measure)
    if trouble:
        yield Note(f"{run.name}{trouble}", severe=True)
    if run.stopped_early:
        of = f"{fmt.steps(run.last_step)} of {fmt.steps(run.planned_steps)} {run.unit}"
        so = "and enters the means as it is: its last evaluation is early"
        yield Note(f"{run.name} is marked complete after {of}, {so}", severe=True)
    row = run.evals[-1] if run.evals else {}
    known, episodes = number(row, "success_known"), number(row, "episodes")
    if known and episodes is not None and known != episodes:
        said = f"true success is known for {known:.0f} of {episodes:.0f} episodes of its last evaluation"
        yield Note(f"{run.name}: {said}")
    if warned:
        yield from (Note(f"{run.name}: {line}", severe=True) for line in warnings_of(run))
    if run.skipped_lines:
        yield Note(f"{run.name}: {fmt.plural(run.skipped_lines, 'unreadable line')} skipped")
    if run.n_failures:
        rate = failure_rate(run)
        share = "" if rate is None else f", {fmt.percent(rate)} of the source that fails most, on average"
        yield Note(f"{run.name}: {fmt.plural(run.n_failures, 'failed measurement')}{share}")


def _trouble(run: RunRecord, measure: str) -> str:
    """Why a run is in no result, or not with true success; "" where it is."""
    steps = measure_curve(run, measure)[0]
    if run.status == "complete" and success_unknown(run) and not (measure == TRUTH and steps):
        so = "results are about its return" if measure == RETURN else "so the run is in no result"
        why = "its prompts have no answers" if run.unit == fmt.TEXT else "its environment does not report it"
        return f": true success is unknown: {why}, {so}"
    when = fmt.at((steps or [0.0])[-1], run.unit)
    return {
        "failed": f" failed {when}: {run.error}",
        "missing": " is missing: it has not been started, or its directory is gone",
        "unfinished": f" is unfinished: its last evaluation is {when}",
        "complete": "" if steps else " is complete but has no evaluation, so it is in no result",
    }[run.status]


def warnings_of(run: RunRecord) -> list[str]:
    """What the run itself wrote about its rewards at its start."""
    said = run.info.get("warnings")
    return [str(line) for line in said] if isinstance(said, list) else []


def study_notes(study: StudyRecord, rows: Sequence[ArmRow]) -> list[Note]:
    """All warnings of a study, the severe ones first."""
    severe = [f"{row.sentence}." for row in rows if row.conclusion == "not comparable"]
    reached = "the truth" if study.measure == TRUTH else "true success"
    alarms = {
        arm: [bool(number(run.trains[-1], "hacking_alarm")) for run in study.select(arm=arm) if run.trains]
        for arm in study.arms
    }
    for arm, ends in sorted(alarms.items(), key=lambda one: -sum(one[1])):
        if any(ends):
            severe.append(
                f"{arm} may be exploiting its reward model: the hacking alarm is on at the end of {sum(ends)} of "
                f"{fmt.plural(len(ends), 'run')}, as the learned return rises and {reached} does not."
            )
    severe += [
        f"{row.arm}: only {row.n_runs} of {row.n_planned} runs are complete. If runs with low success stop more often, "
        "the numbers of this arm are too high."
        for row in rows
        if row.n_runs < row.n_planned
    ]
    arms: dict[str, dict[str, None]] = {}  # of what runs wrote about their rewards, each line once
    for run in study.runs:
        for line in warnings_of(run):
            arms.setdefault(line, {})[run.arm] = None
    severe += [f"{', '.join(names)}: {line}" for line, names in arms.items()]
    notes = [Note(text, severe=True) for text in severe]
    counts = [len(study.select(arm=arm, task=task, status="complete")) for arm in study.arms for task in study.tasks]
    seeds = min(counts, default=0)
    if seeds < FEW_SEEDS:
        few = f"Few seeds: {fmt.plural(seeds, 'complete seed')} per arm and task at the least. With fewer than"
        wide = "the intervals are wide, and the bands of curves are narrower than they should be."
        notes.append(Note(f"{few} {FEW_SEEDS} {wide}"))
    if study.cards and len(study.seeds) > 1:
        once = (
            "Each task's reward models were trained once and serve all its seeds: the intervals cover the variation of "
        )
        notes.append(Note(once + "policy training, not that of reward model training."))
    notes += [note for run in study.runs for note in run_notes(run, warned=False, measure=study.measure)]
    notes += [Note(text) for text in study.notes]
    return sorted(notes, key=lambda note: not note.severe)


def gamed(runs: Sequence[RunRecord]) -> tuple[str, str, str]:
    """Whether the policies of these runs exploit a reward model, by their alarms: a style, the answer, the evidence."""
    logged = [[row["hacking_alarm"] for row in run.trains if "hacking_alarm" in row] for run in runs]
    judged = [flags for flags in logged if any(flag is not None for flag in flags)]
    raised = [flags for flags in judged if any(flags)]
    if raised:
        when = f"in {len(raised)} of {fmt.plural(len(judged), 'run')}, at the end of {sum(bool(f[-1]) for f in raised)}"
        reached = "the truth" if measure_of_runs(list(runs)) == TRUTH else "true success"
        return "loss", "Likely.", f"Alarm {when}: the learned return rises, {reached} does not."
    if judged:
        return "", "No sign.", f"No alarm in {fmt.plural(len(judged), 'run')}."
    if any(logged):
        return "", "Not known.", "An alarm needs true success."
    return "", "No.", "It learns from no reward model."


def config_differences(study: StudyRecord) -> list[tuple[str, list[str]]]:
    """The keys that arms change, with one cell per arm in the order of `study.arms`; the rest is that of the file."""
    arms = mapping(mapping(study.config.get("compare")).get("arms"))
    flats = [fmt.flatten(mapping(mapping(arms.get(arm)).get("config"))) for arm in study.arms]
    base = fmt.flatten(study.config)
    keys = dict.fromkeys(key for flat in flats for key in flat if key)
    rows = [(key, [clip(flat.get(key, base.get(key, fmt.DASH)), MAX_CELL) for flat in flats]) for key in keys]
    return [(key, cells) for key, cells in rows if len(set(cells)) > 1]
