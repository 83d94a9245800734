"""The report: one self-contained HTML file per study or run, offline, under 3 MB.

Jinja2 with autoescape puts the parts together; the page's content policy allows no network and no script but its own.
Videos are chosen last and fill what room is left. The warnings list what is missing, broken or few, and the page shows
how the arms' configurations differ.

    path = write_report(Path("runs/demo"))
    write_report(Path("runs/demo"), every=30.0)    # while the study runs: the page says what is missing, and reloads
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray
from PIL import Image

from guerdon.comparison import report_charts as pictures
from guerdon.comparison import results as read
from guerdon.comparison.first_screen import best_first, example_of, pictured, run_sentence, study_sentences
from guerdon.comparison.report_answers import answer_panels
from guerdon.comparison.report_cards import GATE_FILE, cards_by_task, gate_rows
from guerdon.comparison.report_conversations import conversation_panels
from guerdon.comparison.report_gold import gold_panels
from guerdon.comparison.report_tables import INTERVENTIONS, Column, columns
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
    final_success,
    mapping,
    measure_curve,
    measure_of_runs,
    number,
    success_unknown,
)
from guerdon.comparison.side_by_side import runs_of_a_folder, side_by_side
from guerdon.errors import DataError, boundary
from guerdon.evaluation.gate.advice import advice, facts_of, setting_of
from guerdon.files import atomic
from guerdon.files.json_files import read_json
from guerdon.pages import formats as fmt
from guerdon.pages.charts import Box, clip, legend_mark, short, svg
from guerdon.pages.html_page import render
from guerdon.processes.progress import doing
from guerdon.statistics.intervals import Interval, wilson_interval
from guerdon.types import BoolArray, ByteArray, FloatArray, IntArray

# ---------------------------------------------------------------------------------------------------------------------
# Videos of episodes for the report: pick the last ones, shrink them, keep within a budget of bytes.
#
# A video is an NPZ file without pickles: frames, rows, success, and one reward curve per source. Every arm on every
# task gets one video before any gets a second; frames shrink in size, number and quality until the first round fits.
# Reward curves are never thinned, only pictures are.
#
#     videos, notes = choose_videos(runs, limit=2)
#     shown, left_out = fit_videos(videos, budget=2_000_000)
# ---------------------------------------------------------------------------------------------------------------------


# (longest side in pixels, frames per video, JPEG quality), best first
LEVELS = ((208, 32, 78), (176, 28, 72), (144, 24, 68), (112, 18, 62), (88, 12, 55))


@dataclass(frozen=True)
class VideoFile:
    """A video on disk, not loaded: its run, the step it was taken at, its outcome (None: unknown) and task in words."""

    path: Path
    run: RunRecord
    step: int
    success: bool | None
    task: str = ""


@dataclass(frozen=True, eq=False)
class LoadedVideo:
    """A loaded video: F recorded rows, their rewards by source, and small pictures of P of them.

    Attributes:
        rows: (F,) rows of the episode.
        success: (F,) true success at each row.
        rewards: source to (F,) float32; where `missing` is True the value means nothing.
        picked: (P,) indices into the F rows.
        pictures: (P, h, w, 3) uint8.
    """

    file: VideoFile
    rows: IntArray
    success: BoolArray
    rewards: Mapping[str, FloatArray]
    missing: Mapping[str, BoolArray]
    picked: IntArray
    pictures: ByteArray


@dataclass(frozen=True)
class Frame:
    """One picture of a shown video: data URI, row, the cursor's place on the curve, the values in words."""

    uri: str
    row: int
    x: float
    text: str
    success: bool


@dataclass(frozen=True)
class ShownVideo:
    """A video ready for the page."""

    file: VideoFile
    frames: tuple[Frame, ...]
    curve: Markup
    n_bytes: int


def choose_videos(runs: Iterable[RunRecord], *, limit: int = 2) -> tuple[list[VideoFile], list[str]]:
    """The videos of each run's last step with videos, at most `limit` per arm and task, one round after the other.

    The second video of an arm prefers the other outcome (a failure next to a success).

    Returns:
        The videos, first round first, and a line for every file that could not be read.
    """
    notes: list[str] = []
    by_arm: dict[tuple[str, str], list[VideoFile]] = defaultdict(list)
    for run in runs:
        by_arm[run.task, run.arm] += _last_videos(run, notes)
    chosen = [_of_both_outcomes(videos, limit) for videos in by_arm.values()]
    return [video for videos in zip_longest(*chosen) for video in videos if video is not None], notes


def _last_videos(run: RunRecord, notes: list[str]) -> list[VideoFile]:
    """The videos of a run's last step with videos; `notes` gets a line for every file that could not be read."""
    videos = []
    for path in sorted((run.path / "films").glob("*.npz")):
        try:
            videos.append(_peek(path, run))
        except DataError as error:
            notes.append(str(error))
    last = max((video.step for video in videos), default=0)
    return [video for video in videos if video.step == last]


def _of_both_outcomes(videos: Sequence[VideoFile], limit: int) -> list[VideoFile]:
    """At most so many videos, each with an outcome that none before it has, where there is one."""
    left = list(videos)
    chosen: list[VideoFile] = []
    while left and len(chosen) < limit:
        outcomes = {video.success for video in chosen}
        chosen.append(next((video for video in left if video.success not in outcomes), left[0]))
        left.remove(chosen[-1])
    return chosen


def fit_videos(videos: Sequence[VideoFile], *, budget: int) -> tuple[list[ShownVideo], list[VideoFile], list[str]]:
    """Encode videos so that their total stays within `budget` bytes of text.

    Returns:
        The videos that fit, those left out, and a line for every video that could not be read.
    """
    loaded: list[LoadedVideo] = []
    notes: list[str] = []
    for file in videos:
        try:
            loaded.append(load_video(file))
        except DataError as error:
            notes.append(str(error))
    n_first = len({(video.file.run.task, video.file.run.arm) for video in loaded})
    level, encoded = LEVELS[-1], []
    for level in LEVELS:
        encoded = [encode_video(video, level) for video in loaded[:n_first]]
        if sum(video.n_bytes for video in encoded) <= budget:
            break
    encoded += [encode_video(video, level) for video in loaded[n_first:]]
    shown: list[ShownVideo] = []
    left_out: list[VideoFile] = []
    for video in encoded:
        if video.n_bytes <= budget:
            budget -= video.n_bytes
            shown.append(video)
        else:
            left_out.append(video.file)
    return shown, left_out, notes


def load_video(file: VideoFile) -> LoadedVideo:
    """Read a video and shrink its pictures at once, so that long videos do not pile up in memory.

    Raises:
        DataError: the file is truncated, holds objects, or lacks an array.
    """
    content = _read(file.path)
    with boundary(DataError, f"video {file.path.name} of {file.run.name} lacks an array"):
        frames, rows = content["frames"], content["rows"].astype(np.int64)
        success = content["success"].astype(bool)
        paid = {k.removeprefix("reward/"): v for k, v in content.items() if k.startswith("reward/")}
        missing = {name: content[f"missing/{name}"].astype(bool) for name in paid}
    rewards = {name: values.astype(np.float32) for name, values in paid.items()}
    lengths = {len(frames), len(rows), len(success), *map(len, rewards.values()), *map(len, missing.values())}
    if len(lengths) != 1 or len(rows) == 0 or frames.ndim != 4 or frames.dtype != np.uint8:
        raise DataError("frames, rows, success and rewards of a video must share one length > 0", where=file.path)
    missing = {name: gone | ~np.isfinite(rewards[name]) for name, gone in missing.items()}
    picked = pick_frames(success, LEVELS[0][1])
    pictures = np.stack([_shrink(frames[i], LEVELS[0][0]) for i in picked])
    return LoadedVideo(file, rows, success, rewards, missing, picked, pictures)


def pick_frames(success_F: BoolArray, limit: int) -> IntArray:
    """At most `limit` (>= 3) evenly spread indices with the first row, the last, and the first success."""
    if len(success_F) <= limit:
        return np.arange(len(success_F), dtype=np.int64)
    picked = set(np.linspace(0, len(success_F) - 1, limit - 1).round().astype(int).tolist())
    if success_F.any():
        picked.add(int(success_F.argmax()))
    return np.array(sorted(picked), dtype=np.int64)


def encode_video(video: LoadedVideo, level: tuple[int, int, int]) -> ShownVideo:
    """The video's pictures as JPEG data URIs at one level of size, number and quality, and its curves."""
    side, limit, quality = level
    chosen = pick_frames(video.success[video.picked], limit)
    box = _curve_box(video)
    frames = []
    for j in chosen:
        i = int(video.picked[j])
        frames.append(
            Frame(
                uri=jpeg_uri(_shrink(video.pictures[j], side), quality),
                row=int(video.rows[i]),
                x=round(box.px(float(video.rows[i])), 1),
                text=" · ".join(f"{name} {_value(video, name, i)}" for name in video.rewards) or "no reward recorded",
                success=bool(video.success[i]),
            )
        )
    curve = reward_curves(video)
    n_bytes = sum(len(frame.uri) + len(frame.text) + 400 for frame in frames) + len(curve) + 1500
    return ShownVideo(video.file, tuple(frames), curve, n_bytes)


def jpeg_uri(picture_H_W_C: ByteArray, quality: int) -> str:
    """A picture as a `data:` URI."""
    buffer = io.BytesIO()
    Image.fromarray(picture_H_W_C).save(buffer, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


PANEL = 62.0


def _curve_box(video: LoadedVideo) -> Box:
    height = PANEL * max(len(video.rewards), 1) + 34
    x = (float(video.rows[0]), float(max(video.rows[-1], video.rows[0] + 1)))
    return Box(270, height, x=x, y=(0, 1), margin=(6, 10, 28, 38))


def reward_curves(video: LoadedVideo) -> Markup:
    """One small panel per source over the rows, gaps where a measurement is missing, true success shaded."""
    box = _curve_box(video)
    parts = _success_shade(video, box)
    for k, name in enumerate(video.rewards):
        parts += _reward_panel(video, name, box, box.top + PANEL * k)
    for row in (int(video.rows[0]), int(video.rows[-1])):
        anchor = "start" if row == video.rows[0] else "end"
        y = box.height - 10
        parts.append(f'<text x="{box.px(row):.1f}" y="{y:g}" text-anchor="{anchor}">row {row}</text>')
    parts.append(f'<path class="cursor" d="M{box.left:g} {box.top:g}V{box.bottom:g}"/>')
    title = f"reward of each source over rows {video.rows[0]} to {video.rows[-1]}, true success shaded"
    return svg(box.width, box.height, "".join(parts), title=title, classes="chart video-curve")


def _reward_panel(video: LoadedVideo, name: str, box: Box, top: float) -> list[str]:
    """The reward of one source: an axis, its name, its lowest and highest value, the curve, and crosses at gaps."""
    values, gone = video.rewards[name], video.missing[name]
    known = values[~gone]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    flat = not high > low
    margin = (top + 18, box.margin[1], box.height - top - PANEL + 4, box.margin[3])
    panel = Box(box.width, box.height, x=box.x, y=(low - 0.5, low + 0.5) if flat else (low, high), margin=margin)
    parts = [
        f'<path class="axis" d="M{panel.left:g} {panel.bottom:g}H{panel.right:g}"/>',
        f'<text class="arm" x="{panel.left + 5:g}" y="{top + 13:g}">{escape(name)}</text>',
    ]
    edges = [(panel.py(low), low)] if flat else [(panel.top, high), (panel.bottom, low)]
    for y, value in edges if len(known) else ():
        parts.append(
            f'<text x="{panel.left - 6:g}" y="{y + 3.5:.1f}" text-anchor="end">{short(round(value, 2))}</text>'
        )
    parts.append(_gapped_path(panel, video.rows, values, gone))
    crosses = "".join(
        f"M{panel.px(float(row)) - 2.5:.1f} {panel.bottom - 2.5:.1f}l5 5m0 -5l-5 5" for row in video.rows[gone]
    )
    if crosses:
        parts.append(f'<path class="gone" d="{crosses}"/>')
    return parts


def _success_shade(video: LoadedVideo, box: Box) -> list[str]:
    half = (box.right - box.left) / max(len(video.rows) - 1, 1) / 2
    parts = []
    for first, stop in _stretches(video.success):
        x0 = max(box.px(float(video.rows[first])) - half, box.left)
        x1 = min(box.px(float(video.rows[stop - 1])) + half, box.right)
        parts.append(
            f'<rect class="success" x="{x0:.1f}" y="{box.top:g}" width="{x1 - x0:.1f}" '
            f'height="{box.bottom - box.top:g}"/>'
        )
    return parts


def _stretches(flags_F: BoolArray) -> list[list[int]]:
    """First index and end (exclusive) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags_F, [0]])))
    found: list[list[int]] = edges.reshape(-1, 2).tolist()
    return found


def _gapped_path(box: Box, rows: IntArray, values: FloatArray, gone: BoolArray) -> str:
    """A path that lifts the pen at missing values; a lone value becomes a dot."""
    places = [f"{box.px(float(x)):.1f} {box.py(float(y)):.1f}" for x, y in zip(rows, values, strict=True)]
    strokes = [f"M{'L'.join(places[a:b])}{'h0.01' if b == a + 1 else ''}" for a, b in _stretches(~gone)]
    return f'<path class="reward" d="{"".join(strokes)}"/>' if strokes else ""


def _value(video: LoadedVideo, name: str, i: int) -> str:
    return "missing" if video.missing[name][i] else f"{float(video.rewards[name][i]):.3f}".replace("-", "−")


def _shrink(picture: ByteArray, side: int) -> ByteArray:
    height, width = picture.shape[:2]
    scale = side / max(height, width)
    if scale >= 1:
        return picture
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS))


def _read(path: Path, only: str | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of a video, or one of them."""
    what = f"video {path.name} of {path.parent.parent.name} cannot be read"
    with boundary(DataError, what), np.load(path, allow_pickle=False) as content:
        return {key: np.asarray(content[key]) for key in ([only] if only else content.files)}


def _peek(path: Path, run: RunRecord) -> VideoFile:
    content = _read(path, "meta")
    with boundary(DataError, f"video {path.name} of {run.name}: its meta lacks step or success"):
        meta = json.loads(str(content["meta"].reshape(-1)[0]))
        success = meta["success"]
        task = str(meta.get("task") or "")
        return VideoFile(path, run, int(meta["step"]), None if success is None else bool(success), task)


# ---------------------------------------------------------------------------------------------------------------------


TEMPLATES = Path(__file__).parent / "templates"
MAX_BYTES = 2_900_000
PICTURE_BYTES = 700_000
ANSWER_BYTES = 1_100_000
CONVERSATION_BYTES = 400_000
FIRST_PICTURE_BYTES = 40_000  # one picture of a video stands at the top, too
MAX_TEXT = 20_000
SMALL = (470.0, 270.0)


@dataclass(frozen=True)
class Live:
    """What the page of work that goes on says of it.

    Attributes:
        every: seconds after which a browser reloads the page, at the least.
        written: when this page was written.
        changed: when the work last wrote a result.
        missing: what is there and what is not, a line for each setting.
    """

    every: float
    written: datetime
    changed: datetime
    missing: tuple[str, ...]


@doing("writing the report")
def write_report(study_dir: Path, *, out: Path | None = None, every: float | None = None) -> Path:
    """Write the report of a study, and next to it `gate.jsonl` where its reward models have known effects.

    Args:
        study_dir: what `guerdon compare` wrote, finished or not; or a folder in which runs lie side by side.
        out: the file to write; `study_dir/report.html` without it.
        every: seconds until the next one, where the study still runs: the page says what is missing and reloads
            itself, and there is no `gate.jsonl`. None: this one is the last.

    Returns:
        The path written.

    Raises:
        DataError: the directory holds no study.
    """
    study = side_by_side(study_dir) if runs_of_a_folder(study_dir) else read.read_study(study_dir)
    live = None if every is None else _live(every, study.runs, missing_of_study(study))
    context = _study_context(study, live)
    videos = choose_videos([run for run in study.runs if run.status != "missing"])
    if live is None and (rows := gate_rows(study)):
        atomic.write_text(study_dir / GATE_FILE, "".join(json.dumps(row) + "\n" for row in rows))
    template = "report.html.j2" if study.planned else "runs.html.j2"
    return _write(template, context, videos, out or study_dir / "report.html")


@doing("writing the report")
def write_single_report(run_dir: Path, *, out: Path | None = None, every: float | None = None) -> Path:
    """Write the report of one run: the pieces of a study's report without any comparison.

    Args:
        run_dir: what `guerdon run` wrote.
        out: the file to write; `run_dir/report.html` without it.
        every: see `write_report`.

    Raises:
        DataError: there is no run in that directory.
    """
    run = read_single(run_dir)
    live = None if every is None else _live(every, [run], missing_of_run(run))
    videos = choose_videos([run], limit=4)
    return _write("single.html.j2", _run_context(run, live), videos, out or run_dir / "report.html")


def read_single(run_dir: Path) -> RunRecord:
    """A run by itself.

    Raises:
        DataError: there is no run in that directory.
    """
    info = read_json(run_dir / "run.json") or {}
    task = str(info.get("task") or run_dir.resolve().name)
    run = read.read_run(run_dir, task=task, arm=str(info.get("name") or "run"), seed=None)
    if run.status == "missing" or not (run.config_text or run.evals or run.trains):
        raise DataError("no run here (neither config.yaml nor metrics.jsonl); give a run's directory", where=run_dir)
    return run


def _live(every: float, runs: Sequence[RunRecord], missing: Sequence[str]) -> Live:
    files = [run.path / "metrics.jsonl" for run in runs]
    changed = max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)
    return Live(every, datetime.now(UTC), datetime.fromtimestamp(changed, UTC), tuple(missing))


def missing_of_study(study: StudyRecord) -> list[str]:
    """How far the runs of each setting are, and what else is not done, in words."""
    lines = [_missing_of_arm(arm, study.select(arm=arm)) for arm in study.arms]
    runs_of_study = {f"{run.task}.{run.arm}.seed{run.seed}" for run in study.runs}
    begun_jobs = [file for file in (study.path / "jobs").glob("*.yaml") if not file.with_suffix(".done").exists()]
    prepared = sorted({file.stem for file in begun_jobs} - runs_of_study)
    return lines + ([f"Preparation that is not done: {', '.join(prepared)}"] if prepared else [])


def _missing_of_arm(arm: str, runs: Sequence[RunRecord]) -> str:
    """How far the runs of one setting are, in words."""
    complete = [run for run in runs if run.status == "complete"]
    begun = [_so_far(run) for run in runs if run.status == "unfinished"]
    failed = sum(run.status == "failed" for run in runs)
    line = f"{arm}: {len(complete)} of {fmt.plural(len(runs), 'run')} complete"
    if failed:
        line += f", {failed} failed"
    if begun:
        more = ", …" if len(begun) > 4 else ""
        line += f", {len(begun)} at work ({', '.join(begun[:4])}{more})"
    return line


def missing_of_run(run: RunRecord) -> list[str]:
    """How far a run is, in words."""
    line = f"It is at {_so_far(run)} {run.unit}"
    seconds, step, planned = run.wall_seconds, run.last_step, run.planned_steps
    if seconds and step and planned and planned > step:
        line += f", and needs about {fmt.duration(seconds * (planned - step) / step)} more at its speed up to now"
    return [f"{line}."]


def _so_far(run: RunRecord) -> str:
    """The steps of a run, and how many it is to have."""
    planned = run.planned_steps
    return fmt.steps(run.last_step) + ("" if planned is None else f" of {fmt.steps(planned)}")


def advice_of(runs: Sequence[RunRecord]) -> list[str]:
    """What to train a robot's policy with, by what its runs had and reached; nothing for language models."""
    robots = [run for run in runs if run.unit != fmt.TEXT and run.config]
    if not robots:
        return []
    evaluated = [run for run in robots if run.evals]
    reported = not all(success_unknown(run) for run in evaluated)
    configs = {(run.task, run.arm): run.config for run in robots}
    settings: dict[str, list[float]] = {}
    for run in robots:
        if (final := final_success(run)) is not None:
            settings.setdefault(setting_of(run.config), []).append(final)
    facts = facts_of(list(configs.values()), success=reported if evaluated else None)
    return advice(replace(facts, settings=settings))


def _study_context(study: StudyRecord, live: Live | None) -> dict[str, Any]:
    """What the template of a study's page shows."""
    styles = arm_styles(study)
    runs_of = {arm: study.select(arm=arm) for arm in study.arms}
    rows = comparison_rows(study)
    pooled = rows[: len(study.arms)]  # over all tasks, one of each arm; those of single tasks follow
    ranked = best_first(pooled)
    sentences = study_sentences(study, pooled)
    cards, card_notes = cards_by_task(study, budget=PICTURE_BYTES)
    shared = _shared_context(study.runs, {arm: (styles[arm], runs_of[arm]) for arm in styles}, study.tasks, study.unit)
    notes = study_notes(study, pooled, is_live=live is not None)
    return {
        **shared,
        **_curves(study),
        **_shown_columns(study, learned=shared["learned"]),
        "live": live,
        "description": " ".join(one.text for one in sentences),
        "sentences": sentences,
        "order": ranked,
        "example": example_of(shared["answers"], ranked),
        "title": study.name,
        "study": study,
        "styles": styles,
        "legend": {arm: legend_mark(style) for arm, style in styles.items()},
        "pooled": pooled,
        "by_task": rows[len(pooled) :],
        "corrected": study.correction == "holm",
        "gamed": {arm: gamed(runs) for arm, runs in runs_of.items()},
        "golds": gold_panels(study),
        "advice": advice_of(study.runs),
        "forest": pictures.conclusion_picture(pooled, study.baseline, study.measure),
        "cards": cards,
        "differences": config_differences(study),
        "configured": _first_configured(runs_of.values()),
        "max_text": MAX_TEXT,
        "took": None if live else number(study.info, "wall_seconds"),
        "failure_gap": FAILURE_GAP,
        "notes": [*notes, *(Note(text) for text in card_notes), *shared["notes"]],
    }


def _curves(study: StudyRecord) -> dict[str, Any]:
    """The curves over all tasks, in two sizes, and of each task where there are several."""
    if not study.tasks:
        return {"panels": [], "small_panels": [], "task_panels": []}
    of_tasks = []
    if len(study.tasks) > 1:
        of_tasks = [(task, pictures.curve_panels(study, [task], SMALL)) for task in study.tasks]
    return {
        "panels": pictures.curve_panels(study, study.tasks),
        "small_panels": pictures.curve_panels(study, study.tasks, SMALL),
        "task_panels": of_tasks,
    }


def _shown_columns(study: StudyRecord, *, learned: bool) -> dict[str, list[Column]]:
    """The columns of the table that say something: all but those of several seeds, or of learning, without such."""
    shown = columns(study, study.baseline)
    if len(study.seeds) <= 1:
        shown = [column for column in shown if not column.repeated]
    if not learned:
        shown = [column for column in shown if not column.learned]
    return {
        "columns": [column for column in shown if not column.folded],
        "more_columns": [column for column in shown if column.folded],
    }


def _first_configured(runs_of_arms: Iterable[Sequence[RunRecord]]) -> list[RunRecord]:
    """The first run of each arm that has its configuration."""
    with_config = [[run for run in runs if run.config_text] for runs in runs_of_arms]
    return [runs[0] for runs in with_config if runs]


def _shared_context(
    runs: Sequence[RunRecord], arms: Mapping[str, pictures.Arm], tasks: Sequence[str], unit: str
) -> dict[str, Any]:
    """What the pages of a study and of a run both show; its notes are about answers that could not be shown."""
    panels, notes = answer_panels(runs, budget=ANSWER_BYTES)
    answered = dict.fromkeys(panel.run.task for panel in panels)
    learned = any(_has_learned_reward(run) for run in runs)
    conversations, more_notes = conversation_panels(runs, budget=CONVERSATION_BYTES)
    return {
        "unit": unit,
        "measure": MEASURES[measure_of_runs(runs)],
        "steps_name": fmt.short_unit(unit),
        "text": unit == fmt.TEXT,
        "quality": pictures.quality_panels(arms),
        "interventions": pictures.quality_panels(arms, INTERVENTIONS, prefix=""),
        "scatters": pictures.scatter_panels(arms, tasks),
        "answers": {task: [panel for panel in panels if panel.run.task == task] for task in answered},
        "conversations": conversations,
        "alarms": pictures.alarms(runs),
        "learned": learned,
        "can_alarm": learned and any(map(_is_judged, runs)),
        "unjudged": sum(bool(run.evals) and not _is_judged(run) for run in runs),
        "too_short": sum(_too_short(run) for run in runs),
        "inversions": pictures.inversions(runs),
        "notes": [Note(text) for text in (*notes, *more_notes)],
    }


def _is_judged(run: RunRecord) -> bool:
    """Whether evaluations of a run say what a learned reward can be held against: true success, or `reward.truth`."""
    return bool(run.evals) and (not success_unknown(run) or measure_of_runs([run]) == TRUTH)


def _has_learned_reward(run: RunRecord) -> bool:
    """Whether the policy of a run learns from a reward model: such runs, and no others, log the alarm."""
    return any("hacking_alarm" in row for row in run.trains)


def _run_context(run: RunRecord, live: Live | None) -> dict[str, Any]:
    context = _shared_context([run], {run.arm: (1, [run])}, [], run.unit)
    facts = {key: value for key, value in run.info.items() if key != "warnings"}  # those stand among the warnings
    return {
        **context,
        "live": live,
        "description": run_sentence(run),
        "order": [run.arm],
        "example": example_of(context["answers"], [run.arm]),
        "title": run.task,
        "run": run,
        "final": _last_success(run),
        "gamed": gamed([run]),
        "advice": advice_of([run]),
        "final_return": next(reversed(measure_curve(run, measure_of_runs([run]))[1]), None),
        "panels": pictures.single_run_panels(run),
        "small_panels": pictures.single_run_panels(run, SMALL),
        "legend": {"evaluation": legend_mark(1), "training": legend_mark(0)},
        "facts": {key: value for key, value in fmt.flatten(facts).items() if key},
        "notes": [*run_notes(run, is_live=live is not None), *context["notes"]],
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
    draw = partial(render, template, own=TEMPLATES, scripts=("report.js",))
    context = {**context, "pictured": None}
    context = {**context, "terms": terms_of(draw({**context, "terms": [], "videos": []}))}
    page = draw({**context, "videos": []})
    if len(page.encode()) > MAX_BYTES and context.get("task_panels"):
        note = Note("The curves of single tasks are left out to keep this file small; their numbers are in the table.")
        context = {**context, "task_panels": [], "notes": [*context["notes"], note]}
        page = draw({**context, "videos": []})
    room = MAX_BYTES - len(page.encode())
    shown, left_out, more_notes = fit_videos(chosen, budget=room - FIRST_PICTURE_BYTES)
    notes = [Note(text) for text in (*video_notes, *more_notes)]
    if left_out:
        n = fmt.plural(len(left_out), "video")
        notes.append(Note(f"{n} left out to keep this file small; they are in films/ of the runs"))
    picture = pictured(shown, context["order"])
    page = draw({**context, "notes": [*context["notes"], *notes], "videos": shown, "pictured": picture})
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


FAILURE_ALARM = "agent/failure_alarm"  # of rl/episode_stats.py
ESCAPE = "the policy may escape from bad rewards by making conversations fail (docs/agents.md)"
ALARM_EPISODES = 80  # two windows of `hacking_alarm` in rl/episode_stats.py
FEW_SEEDS = 5
RETURNS_ONLY = "True success is unknown: the environment does not report it, so results are about its return."
MAX_CELL = 80


@dataclass(frozen=True)
class Note:
    """One warning; severe ones concern results that are missing or not comparable."""

    text: str
    severe: bool = False


def run_notes(
    run: RunRecord, *, warned: bool = True, measure: str | None = None, is_live: bool = False
) -> Iterator[Note]:
    """Warnings about one run.

    Args:
        run: as it lies on disk.
        warned: whether those that it wrote about its rewards are among them.
        measure: what results are about; None: that of the run alone.
        is_live: whether the work goes on, so that a run which is not finished is nothing to warn of.
    """
    measure = measure_of_runs([run]) if measure is None else measure
    trouble = _trouble(run, measure)
    is_under_way = is_live and run.status in ("unfinished", "missing")
    if trouble and not is_under_way:
        yield Note(f"{run.name}{trouble}", severe=True)
    if run.stopped_early:
        of = f"{fmt.steps(run.last_step)} of {fmt.steps(run.planned_steps)} {run.unit}"
        so = "and enters the means as it is: its last evaluation is early"
        yield Note(f"{run.name} is marked complete after {of}, {so}", severe=True)
    yield from _partly_known(run)
    if warned and measure == RETURN:
        yield Note(RETURNS_ONLY)
    if warned:
        yield from (Note(f"{run.name}: {line}", severe=True) for line in warnings_of(run))
    yield from _failures(run)


def _partly_known(run: RunRecord) -> Iterator[Note]:
    """That true success is known for some episodes of the last evaluation only."""
    row = run.evals[-1] if run.evals else {}
    known, episodes = number(row, "success_known"), number(row, "episodes")
    if known and episodes is not None and known != episodes:
        said = f"true success is known for {known:.0f} of {episodes:.0f} episodes of its last evaluation"
        yield Note(f"{run.name}: {said}")


def _failures(run: RunRecord) -> Iterator[Note]:
    """What failed in a run: conversations, lines of its files, measurements."""
    raised = [row for row in run.trains if number(row, FAILURE_ALARM)]
    if raised:
        when = f"after {len(raised)} of {fmt.plural(len(run.trains), 'update')}"
        yield Note(f"{run.name}: more conversations failed than at its start {when}: {ESCAPE}", severe=True)
    if run.skipped_lines:
        yield Note(f"{run.name}: {fmt.plural(run.skipped_lines, 'unreadable line')} skipped")
    if run.n_failures:
        rate = failure_rate(run)
        share = "" if rate is None else f", {fmt.percent(rate)} of the source that fails most, on average"
        yield Note(f"{run.name}: {fmt.plural(run.n_failures, 'failed measurement')}{share}")


def _trouble(run: RunRecord, measure: str) -> str:
    """Why a run is in no result, or not with true success; "" where it is."""
    steps = measure_curve(run, measure)[0]
    if run.status == "complete" and success_unknown(run) and measure != RETURN and not (measure == TRUTH and steps):
        why = "its prompts have no answers" if run.unit == fmt.TEXT else "its environment does not report it"
        return f": true success is unknown: {why}, so the run is in no result"
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


def study_notes(study: StudyRecord, rows: Sequence[ArmRow], *, is_live: bool = False) -> list[Note]:
    """All warnings of a study, the severe ones first; while it runs not those about what is still to come."""
    notes = [Note(text, severe=True) for text in _severe_lines(study, rows, is_live=is_live)]
    counts = [len(study.select(arm=arm, task=task, status="complete")) for arm in study.arms for task in study.tasks]
    seeds = min(counts, default=0)
    if seeds < FEW_SEEDS and not is_live:
        few = f"Few seeds: {fmt.plural(seeds, 'complete seed')} per setting and task at the least. With fewer than"
        wide = "the intervals are wide, and the bands of curves are narrower than they should be."
        notes.append(Note(f"{few} {FEW_SEEDS} {wide}"))
    if study.cards and len(study.seeds) > 1:
        once = (
            "Each task's reward models were trained once and serve all its seeds: the intervals cover the variation of "
        )
        notes.append(Note(once + "policy training, not that of reward model training."))
    for run in study.runs:
        notes += run_notes(run, warned=False, measure=study.measure, is_live=is_live)
    if study.measure == RETURN:
        notes.append(Note(RETURNS_ONLY))
    notes += [Note(text) for text in study.notes]
    return sorted(notes, key=lambda note: not note.severe)


def _severe_lines(study: StudyRecord, rows: Sequence[ArmRow], *, is_live: bool) -> list[str]:
    """What makes conclusions doubtful: arms without a comparison, exploited models, stopped runs, broken rewards."""
    lines = [f"{row.sentence}." for row in rows if row.conclusion == "not comparable"]
    lines += [*_exploiting(study), *_inverted(study)]
    for row in rows:
        if row.n_runs < row.n_planned and not is_live:
            lines.append(
                f"{row.arm}: only {row.n_runs} of {row.n_planned} runs are complete. If runs with low success stop "
                "more often, the numbers of this setting are too high."
            )
    arms: dict[str, dict[str, None]] = {}  # of what runs wrote about their rewards, each line once
    for run in study.runs:
        for line in warnings_of(run):
            arms.setdefault(line, {})[run.arm] = None
    return lines + [f"{', '.join(names)}: {line}" for line, names in arms.items()]


def _alarms_at_end(study: StudyRecord, alarm: str) -> dict[str, list[bool]]:
    """Of each arm, whether an alarm is on at the end of each run that has trained."""
    last = {arm: [run.trains[-1] for run in study.select(arm=arm) if run.trains] for arm in study.arms}
    return {arm: [bool(number(row, alarm)) for row in rows] for arm, rows in last.items()}


def _exploiting(study: StudyRecord) -> Iterator[str]:
    """The arms whose hacking alarm is on, those with the most such runs first."""
    reached = "the truth" if study.measure == TRUTH else "true success"
    alarms = _alarms_at_end(study, "hacking_alarm")
    for arm, ends in sorted(alarms.items(), key=lambda one: -sum(one[1])):
        if any(ends):
            yield (
                f"{arm} may be exploiting its reward model: the hacking alarm is on at the end of {sum(ends)} of "
                f"{fmt.plural(len(ends), 'run')}, as the learned return rises and {reached} does not."
            )


def _inverted(study: StudyRecord) -> Iterator[str]:
    """The arms whose inversion alarm is on."""
    for arm, ends in _alarms_at_end(study, "inversion_alarm").items():
        if any(ends):
            yield (
                f"{arm}: its learned reward is lower from the first success of an episode on than before it: the "
                f"inversion alarm is on at the end of {sum(ends)} of {fmt.plural(len(ends), 'run')}."
            )


def _too_short(run: RunRecord) -> bool:
    """Whether a run whose success is known logged only alarms that are unknown."""
    flags = [row["hacking_alarm"] for row in run.trains if "hacking_alarm" in row]
    return bool(flags) and set(flags) == {None} and not success_unknown(run)


def gamed(runs: Sequence[RunRecord]) -> tuple[str, str, str]:
    """Whether the policies of these runs exploit a reward model, by their alarms: a style, the answer, the evidence."""
    logged = []
    for run in runs:
        logged.append([row["hacking_alarm"] for row in run.trains if "hacking_alarm" in row])
    judged = [flags for flags in logged if flags.count(None) < len(flags)]
    raised = [flags for flags in judged if any(flags)]
    if raised:
        at_end = sum(bool(flags[-1]) for flags in raised)
        when = f"in {len(raised)} of {fmt.plural(len(judged), 'run')}, at the end of {at_end}"
        reached = "the truth" if measure_of_runs(list(runs)) == TRUTH else "true success"
        return "loss", "Likely.", f"Alarm {when}: the learned return rises, {reached} does not."
    if judged:
        short = f"; {len(logged) - len(judged)} could not be judged" if len(judged) < len(logged) else ""
        return "", "No sign.", f"No alarm in {fmt.plural(len(judged), 'run')}{short}."
    if any(logged):
        return "", "Unknown.", f"An alarm needs {ALARM_EPISODES} training episodes whose return and success are known."
    return "", "No.", "It learns from no reward model."


def config_differences(study: StudyRecord) -> list[tuple[str, list[str]]]:
    """The keys that arms change, with one cell per arm in the order of `study.arms`; the rest is that of the file."""
    arms = mapping(mapping(study.config.get("compare")).get("arms"))
    flats = [fmt.flatten(mapping(mapping(arms.get(arm)).get("config"))) for arm in study.arms]
    base = fmt.flatten(study.config)
    keys = dict.fromkeys(key for flat in flats for key in flat if key)
    rows = [(key, [clip(flat.get(key, base.get(key, fmt.DASH)), MAX_CELL) for flat in flats]) for key in keys]
    return [(key, cells) for key, cells in rows if len(set(cells)) > 1]
