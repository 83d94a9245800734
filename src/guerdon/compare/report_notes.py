"""What a reader must know before believing a report: warnings, and how the arms' configurations differ.

Nothing here judges quality; it counts what is missing, broken or few. It knows neither HTML nor pictures.

    for note in study_notes(study, rows): print(note.severe, note.text)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from guerdon.compare import report_words as words
from guerdon.compare.read_runs import RunRecord, StudyRecord, number, success_curve, success_unknown
from guerdon.compare.report_numbers import ArmRow, failure_rate

FEW_SEEDS = 5
PER_RUN_KEYS = ("seed", "out", "run_dir", "name")
MAX_CELL = 80


@dataclass(frozen=True)
class Note:
    """One warning; severe ones concern results that are missing or not comparable."""

    text: str
    severe: bool = False


def run_notes(run: RunRecord, *, warned: bool = True) -> list[Note]:
    """What is odd about one run; with `warned` also what it said of its rewards itself."""
    notes: list[Note] = []
    last = success_curve(run)[0][-1:] or [0.0]
    when = words.at(last[0], run.unit)
    if run.status == "failed":
        notes.append(Note(f"{run.name} failed {when}: {run.error}", severe=True))
    elif run.status == "missing":
        notes.append(Note(f"{run.name} is missing: it has not been started, or its directory is gone", severe=True))
    elif run.status == "unfinished":
        notes.append(Note(f"{run.name} is unfinished: its last evaluation is {when}", True))
    elif success_unknown(run):
        said = "true success is unknown: its environment does not report it, so the run counts nowhere"
        notes.append(Note(f"{run.name}: {said}", severe=True))
    elif not success_curve(run)[0]:
        notes.append(Note(f"{run.name} is complete but has no evaluation, so it counts nowhere", severe=True))
    notes += _partly_known(run)
    if warned:
        notes += [Note(f"{run.name}: {line}", severe=True) for line in warnings_of(run)]
    if run.skipped_lines:
        notes.append(Note(f"{run.name}: {words.plural(run.skipped_lines, 'unreadable line')} skipped"))
    if run.n_failures:
        rate = failure_rate(run)
        share = "" if rate is None else f", {words.percent(rate)} of the source that fails most, on average"
        notes.append(Note(f"{run.name}: {words.plural(run.n_failures, 'failed measurement')}{share}"))
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
    """What the run itself said of its rewards when it began."""
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
                f"{row.arm}: only {row.n_runs} of {row.n_planned} runs are complete. If runs stop because "
                "they go badly, the numbers of this arm are too high.",
                severe=True,
            )
        )
    seeds = _fewest_seeds(study)
    if seeds < FEW_SEEDS:
        notes.append(
            Note(
                f"Few seeds: {words.plural(seeds, 'complete seed')} per arm and task at the least. With "
                f"fewer than {FEW_SEEDS} the intervals are wide, and the bands of curves are narrower than "
                "they should be."
            )
        )
    if study.cards and len(study.seeds) > 1:
        notes.append(
            Note(
                "Each task's reward models were trained once and serve all its seeds: the intervals cover the luck of "
                "the policy's training, not that of the reward model's."
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
        cells = [_short(flat.get(key, words.DASH)) for flat in flats]
        if len(set(cells)) > 1 and not any(part in PER_RUN_KEYS for part in key.split(".")):
            rows.append((key, cells))
    return rows


def _flat_config(text: str) -> Mapping[str, str]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return words.flatten(content) if isinstance(content, dict) else {}


def _short(text: str) -> str:
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def _fewest_seeds(study: StudyRecord) -> int:
    counts = [len(study.select(arm=arm, task=task, status="complete")) for arm in study.arms for task in study.tasks]
    return min(counts, default=0)
