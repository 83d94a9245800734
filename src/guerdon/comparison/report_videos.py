"""Videos of episodes for the report: pick the last ones, shrink them, keep within a budget of bytes.

A video is an NPZ file without pickles: frames, rows, success, and one reward curve per source. Every arm on
every task gets one video before any gets a second; frames shrink in size, number and quality until the first
round fits. Reward curves are never thinned, only pictures are.

    videos, notes = choose_videos(runs, limit=2)
    shown, left_out = fit_videos(videos, budget=2_000_000)
"""

from __future__ import annotations

import base64
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray
from PIL import Image

from guerdon.comparison.results import RunRecord
from guerdon.errors import DataError, boundary
from guerdon.pages.charts import Box, short, svg
from guerdon.types import BoolArray, ByteArray, FloatArray, IntArray

# (longest side in pixels, frames per video, JPEG quality), best first
LEVELS = ((208, 32, 78), (176, 28, 72), (144, 24, 68), (112, 18, 62), (88, 12, 55))


@dataclass(frozen=True)
class VideoFile:
    """A video on disk, not loaded: its run, the training step it was taken at, its outcome (None: unknown)."""

    path: Path
    run: RunRecord
    step: int
    success: bool | None


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
        videos = []
        for path in sorted((run.path / "films").glob("*.npz")):
            try:
                videos.append(_peek(path, run))
            except DataError as error:
                notes.append(str(error))
        last = max((video.step for video in videos), default=0)
        by_arm[run.task, run.arm] += [video for video in videos if video.step == last]
    chosen: list[list[VideoFile]] = []
    for left in by_arm.values():
        own: list[VideoFile] = []
        while left and len(own) < limit:
            outcomes = {video.success for video in own}
            own.append(next((video for video in left if video.success not in outcomes), left[0]))
            left.remove(own[-1])
        chosen.append(own)
    return [video for videos in zip_longest(*chosen) for video in videos if video is not None], notes


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
        raise DataError(f"{file.path}: frames, rows, success and rewards of a video must share one length > 0")
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
    for k, (name, values) in enumerate(video.rewards.items()):
        top = box.top + PANEL * k
        gone = video.missing[name]
        known = values[~gone]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
        panel_y = (low, high) if high > low else (low - 0.5, low + 0.5)
        margin = (top + 18, box.margin[1], box.height - top - PANEL + 4, box.margin[3])
        panel = Box(box.width, box.height, x=box.x, y=panel_y, margin=margin)
        parts.append(f'<path class="axis" d="M{panel.left:g} {panel.bottom:g}H{panel.right:g}"/>')
        parts.append(f'<text class="arm" x="{panel.left + 5:g}" y="{top + 13:g}">{escape(name)}</text>')
        edges = ((panel.top, high), (panel.bottom, low)) if high > low else ((panel.py(low), low),)
        for y, value in edges if len(known) else ():
            parts.append(
                f'<text x="{panel.left - 6:g}" y="{y + 3.5:.1f}" text-anchor="end">{short(round(value, 2))}</text>'
            )
        parts.append(_gapped_path(panel, video.rows, values, gone))
        crosses = "".join(
            f"M{panel.px(float(row)) - 2.5:.1f} {panel.bottom - 2.5:.1f}l5 5m0 -5l-5 5" for row in video.rows[gone]
        )
        parts.append(f'<path class="gone" d="{crosses}"/>' if crosses else "")
    for row in (int(video.rows[0]), int(video.rows[-1])):
        anchor = "start" if row == video.rows[0] else "end"
        y = box.height - 10
        parts.append(f'<text x="{box.px(row):.1f}" y="{y:g}" text-anchor="{anchor}">row {row}</text>')
    parts.append(f'<path class="cursor" d="M{box.left:g} {box.top:g}V{box.bottom:g}"/>')
    title = f"reward of each source over rows {video.rows[0]} to {video.rows[-1]}, true success shaded"
    return svg(box.width, box.height, "".join(parts), title=title, classes="chart video-curve")


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
        return VideoFile(path, run, int(meta["step"]), None if success is None else bool(success))
