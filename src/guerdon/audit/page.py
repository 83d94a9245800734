"""The page of an audit: one HTML file that loads nothing, with findings, charts and a list of the rows.

write_page(Path("rollouts.audit.html"), rows, audit(rows), source="runs/rollouts")
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from guerdon import atomic
from guerdon.audit.browser import MAX_ROWS, MAX_TEXT, MAX_TEXTS, browser_blocks, text_limit
from guerdon.audit.finding import SEVERITIES, Audit
from guerdon.audit.rows import Codes, Flags, Numbers, Rows
from guerdon.audit.second import SecondReward
from guerdon.compare.html_page import render
from guerdon.compare.report_format import DASH
from guerdon.errors import DataError
from guerdon.evaluate.charts import Box, Line, axes, bar, limits, line_chart, spread, svg
from guerdon.secrets import hide

TEMPLATES = Path(__file__).parent / "templates"
MAX_POINTS = 160  # of a curve
MAX_CURVES = 24  # of a log of scalars
BINS = 40
FAR = 1e100  # values of charts are cut here, so that their squares are finite
_BLOCKS = "<!-- rows -->"


def write_page(
    out: Path, rows: Rows, audit: Audit, second: SecondReward | None = None, *, log: Path | None = None,
    live: bool = False,
) -> Path:  # fmt: skip
    """Write the page of an audit, in one piece.

    Args:
        out: the file to write.
        rows: what was read.
        audit: what was found.
        second: another reward of the same rows.
        log: where the rows are from.
        live: the log is still being written.

    Returns:
        The path written.

    Raises:
        OSError: it cannot be written.
    """
    context = {
        "title": rows.layout if log is None else log.resolve().name, "rows": rows, "audit": audit, "second": second,
        "live": live, "charts": charts(rows), "how": _how(rows), "number": number, "bounded": bounded,
        "severe": [(s, sum(f.severity == s for f in audit.findings)) for s in SEVERITIES],
    }  # fmt: skip
    videos = {} if log is None else episode_videos(log, out)
    context["media"] = bool(videos)
    head, tail = render("audit.html.j2", context, TEMPLATES, "audit.js").split(_BLOCKS)
    blocks = browser_blocks(rows, audit, None if second is None else second.reward_N, videos)
    atomic.write_bytes(out, b"".join([_encoded(head), *blocks, _encoded(tail)]))
    return out


class Clip(NamedTuple):
    """A video of an episode: camera, address from the page, its part of the file in seconds, frames per second."""

    camera: str
    address: str
    start: float
    stop: float
    fps: float


def episode_videos(log: Path, out: Path) -> dict[int, list[Clip]]:
    """The videos of a LeRobot data set by episode; else empty."""
    if not (log / "meta" / "info.json").is_file():
        return {}
    from guerdon.episodes.index import load_index
    from guerdon.episodes.layout import VIDEO_PATH, load_info, shard_path

    try:
        info = load_info(log)
        entries = load_index(log, info)[0]
    except DataError:  # of another version: its rows were read, its index is another
        return {}
    found: dict[int, list[Clip]] = {}
    for entry in entries:
        for camera, span in entry.videos.items():
            file = shard_path(log, info.video_path or VIDEO_PATH, span.where, video_key=camera)
            address = f"./{quote(os.path.relpath(file, out.parent))}"
            found.setdefault(entry.index, []).append(Clip(camera, address, span.start, span.stop, info.fps))
    return found


def _encoded(text: str) -> bytes:
    return hide(text).encode("utf-8", "replace")


def number(value: float | None) -> str:
    """A number with three digits and a true minus sign; a dash where it is missing."""
    return DASH if value is None or not np.isfinite(value) else f"{value:.3g}".replace("-", "−")


def _how(rows: Rows) -> dict[str, str]:
    """How the log was read, in words."""
    how = {"layout": rows.layout, "rows": f"{len(rows):,}"}
    files = ", ".join(rows.files[:8]) + (f" and {len(rows.files) - 8:,} more" if len(rows.files) > 8 else "")
    how |= {"files": files} if files else {}
    how["groups"] = rows.grouped_by or "none: checks within groups were not made"
    if rows.texts is not None:
        m = len(rows.texts.row_M)
        all_of = "all rows" if m == len(rows) else f"a random sample of {m:,} rows; groups are whole"
        how["texts"] = f"of {all_of}; numbers are of all rows"
        limit = text_limit([len(x) for texts_M in (rows.texts.prompts, rows.texts.responses) for x in texts_M])
        if limit < MAX_TEXT or max(map(len, rows.texts.responses), default=0) > MAX_TEXT:
            so = f"on this page texts are cut to {limit:,} characters; the checks read them in full"
            how["length of texts"] = so if limit == MAX_TEXT else f"{so} (all together are over {MAX_TEXTS:,})"
    if len(rows) > MAX_ROWS:
        how["list of rows"] = f"{MAX_ROWS:,} of {len(rows):,}: those with texts and of findings, others at random"
    bad = sum(rows.bad.values())
    how["rows that could not be read"] = (
        f"{bad:,}: " + "; ".join(f"{count:,} {why}" for why, count in rows.bad.items()) if bad else "none"
    )
    missing = int(np.isnan(rows.reward_N).sum())
    how |= {"rows without a reward": f"{missing:,}"} if missing else {}
    how |= {f"note {i + 1}": note for i, note in enumerate(rows.notes)}
    return how


def bounded(value: float | None, low: float | None, high: float | None) -> str:
    """A number with its interval where it has one: `0.12 [0.05, 0.2]`."""
    ends = number(low), number(high)
    return number(value) + ("" if DASH in ends else f" [{', '.join(ends)}]")


def charts(rows: Rows) -> list[tuple[str, Markup]]:
    """Small pictures with their titles: rewards and truth over steps, logged scalars, and the rewards' distribution."""
    series: dict[str, Numbers | Flags | None] = {"reward": rows.reward_N, "truth": rows.truth_N}
    series |= dict(list(rows.rewards.items())[:4])
    series |= {"length": rows.length_N, "advantage": rows.advantage_N, "truncated": rows.truncated_N}
    given = {name: np.clip(v.astype(np.float64), -FAR, FAR) for name, v in series.items() if v is not None}
    curves = {} if rows.step_N is None else {name: means_by_step(rows.step_N, values) for name, values in given.items()}
    for name, (steps, values) in list(rows.curves.items())[:MAX_CURVES]:
        keep = spread(len(steps), MAX_POINTS)
        mean = np.clip(values[keep], -FAR, FAR)
        curves.setdefault(name, (steps[keep].astype(np.float64), mean, np.zeros(len(keep))))
    found = [(name, curve_chart(name, *curve)) for name, curve in curves.items() if np.isfinite(curve[1]).sum() > 1]
    if np.isfinite(rows.reward_N).any():
        found.append(("distribution of rewards", histogram(given["reward"])))
    return found


def means_by_step(step_N: Codes, values_N: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Mean of each step, of neighbouring ones together where there are many.

    Returns:
        Steps, means and half widths of 95 % intervals, all (S,).
    """
    known = np.isfinite(values_N)
    known_steps, place_N = np.unique(step_N[known], return_inverse=True)
    steps = known_steps.astype(np.float64)
    if len(steps) > MAX_POINTS:
        bin_S = np.arange(len(steps)) * MAX_POINTS // len(steps)
        place_N, steps = bin_S[place_N], np.bincount(bin_S, steps) / np.bincount(bin_S)
    count = np.bincount(place_N, minlength=len(steps))
    mean = np.bincount(place_N, values_N[known], len(steps)) / np.maximum(count, 1)
    squares = np.bincount(place_N, (values_N[known] - mean[place_N]) ** 2, len(steps))
    half = 1.96 * np.sqrt(squares / np.maximum(count - 1, 1) / np.maximum(count, 1))
    return steps, mean, half


def curve_chart(name: str, steps: Numbers, means: Numbers, half: Numbers) -> Markup:
    """A curve over training steps with its band."""
    known = np.isfinite(means)
    x, y, spare = steps[known], means[known], half[known]
    box = Box(360, 220, x=limits(x), y=limits(np.concatenate([y - spare, y + spare])))
    edges = tuple(zip(x.tolist(), (y - spare).tolist(), (y + spare).tolist(), strict=True))
    line = Line("", 1, tuple(zip(x.tolist(), y.tolist(), strict=True)), edges)
    return line_chart(box, [line], title=f"{name} over steps", x_label="step", y_label="")


def histogram(values_N: Numbers) -> Markup:
    """How many rows have which reward."""
    values = values_N[np.isfinite(values_N)]
    counts, edges = np.histogram(values, bins=BINS, range=limits(values))
    box = Box(360, 220, x=(edges[0], edges[-1]), y=(0, float(counts.max())), margin=(14, 20, 40, 52))
    body = [
        bar(box, (edges[i], edges[i + 1]), (0, n), 1, f"{n:,} rows from {edges[i]:.3g} to {edges[i + 1]:.3g}")
        for i, n in enumerate(counts.tolist()) if n
    ]  # fmt: skip
    frame = axes(box, x_label="reward", y_label="rows")
    return svg(box.width, box.height, frame + "".join(body), title="distribution of rewards", classes="chart")
