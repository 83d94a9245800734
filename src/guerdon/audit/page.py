"""The page of an audit: one HTML file that loads nothing, with findings, charts and a list of the rows.

write_page(Path("rollouts.audit.html"), rows, audit(rows), source="runs/rollouts")
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from guerdon import atomic
from guerdon.audit.browser import MAX_ROWS, MAX_TEXT, MAX_TEXTS, browser_blocks, text_limit
from guerdon.audit.finding import Audit, Finding
from guerdon.audit.rows import Codes, Numbers, Rows
from guerdon.audit.second import SecondReward
from guerdon.compare.html_page import render
from guerdon.compare.report_format import DASH, p_value
from guerdon.errors import DataError
from guerdon.evaluate.charts import Box, Line, axes, bar, line_chart, spread, svg
from guerdon.secrets import hide

TEMPLATES = Path(__file__).parent / "templates"
SEVERITIES = ("error", "warning", "info")  # the worst first
MAX_POINTS = 160  # of a curve
MAX_CURVES = 24  # of a log of scalars
BINS = 40
_BLOCKS = "<!-- rows -->"


class Chart(NamedTuple):
    """A picture with its title and what it says."""

    title: str
    svg: Markup
    hint: str = ""


def write_page(
    out: Path,
    rows: Rows,
    audit: Audit,
    second: SecondReward | None = None,
    *,
    log: Path | None = None,
    live: bool = False,
) -> Path:
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
        "title": rows.layout if log is None else log.resolve().name, "rows": rows, "n": len(rows), "audit": audit,
        "live": live, "second": None if second is None else _second_view(second), "charts": charts(rows),
        "views": [_view(f) for f in audit.findings], "how": _how(rows), "filters": _filters(rows, second),
        "severe": [(s, sum(f.severity == s for f in audit.findings)) for s in SEVERITIES],
    }  # fmt: skip
    head, tail = render("audit.html.j2", context, TEMPLATES, "audit.js").split(_BLOCKS)
    videos = {} if log is None else episode_videos(log, out)
    blocks = browser_blocks(rows, audit, None if second is None else second.reward_N, videos)
    atomic.write_bytes(out, b"".join([_encoded(head), *blocks, _encoded(tail)]))
    return out


def episode_videos(log: Path, out: Path) -> dict[int, list[tuple[str, str]]]:
    """Links from a page to the videos of a LeRobot data set, by episode: the camera and the address; else empty."""
    if not (log / "meta" / "info.json").is_file():
        return {}
    from guerdon.episodes.index import load_index
    from guerdon.episodes.layout import VIDEO_PATH, load_info, shard_path

    try:
        info = load_info(log)
        entries = load_index(log, info)[0]
    except DataError:  # of another version: its rows were read, its index is another
        return {}
    found: dict[int, list[tuple[str, str]]] = {}
    for entry in entries:
        for camera, span in entry.videos.items():
            file = shard_path(log, info.video_path or VIDEO_PATH, span.where, video_key=camera)
            address = quote(os.path.relpath(file, out.parent))
            found.setdefault(entry.index, []).append((camera, f"./{address}#t={span.start:.3f},{span.stop:.3f}"))
    return found


def _encoded(text: str) -> bytes:
    return hide(text).encode("utf-8", "replace")


def number(value: float | None) -> str:
    """A number with three digits and a true minus sign; a dash where it is missing."""
    return DASH if value is None or not np.isfinite(value) else f"{value:.3g}".replace("-", "−")


def _view(finding: Finding) -> dict[str, Any]:
    """What the page shows of a finding."""
    return {
        "finding": finding,
        "effect": _bounded(finding.effect, *finding.interval),
        "p": "" if finding.p is None else p_value(finding.p),
        "share": f"{finding.count:,} of {finding.total:,}",
        "remedy": re.split(r"`([^`]*)`", finding.remedy),  # every other part is code
    }


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


def _filters(rows: Rows, second: SecondReward | None) -> dict[str, Any]:
    """Which controls of the list have something to choose from."""
    sorts = {"row": "row", "reward": "reward"}
    sorts |= {"reward-truth": "reward minus truth"} if rows.truth_N is not None else {}
    sorts |= (
        {"reward-second": "reward minus second reward"} if second is not None and second.reward_N is not None else {}
    )
    sorts |= {"length": "length"} if rows.length_N is not None else {}
    sorts |= {"advantage": "advantage"} if rows.advantage_N is not None else {}
    return {"sorts": sorts, "step": rows.step_N is not None, "truncated": rows.truncated_N is not None}


def _second_view(second: SecondReward) -> dict[str, Any]:
    """The sentence and the tables of another reward: caption, names of columns, rows."""
    tables: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = []
    if second.figures:
        figures = [(name, _bounded(*f[:3]), f"{f.n:,} {f.unit}") for name, f in second.figures.items()]
        tables.append(("Agreement; 95 % intervals from drawing whole groups again", ("", "value", "of"), [*figures]))
    if second.advantages:
        caption = "Advantages with the second reward in place of the first, one number per response"
        changes = [(name, *map(number, change[:2]), f"{change.n:,}") for name, change in second.advantages.items()]
        tables.append((caption, ("estimator", "correlation", "other sign", "rows"), [*changes]))
    if second.drift:
        caption = (
            "Distributions. PSI: population stability index, above 0.1 a change, above 0.25 a large one; p by "
            "permutation "
            "of whole prompts, corrected by Holm"
        )
        head = ("", "mean here", "mean there", "PSI", "KS distance", "p", "rows here", "rows there")
        drifts = [
            (d.what, *map(number, (d.here, d.there, d.psi, d.ks)), p_value(d.p), f"{d.n_here:,}", f"{d.n_there:,}")
            for d in second.drift
        ]
        tables.append((caption, head, drifts))
    lead = f"{second.name}, matched {second.matched}." if second.figures else f"{second.name}: {second.matched}."
    return {"lead": lead, "tables": tables}


def _bounded(value: float | None, low: float | None, high: float | None) -> str:
    bounds = number(low), number(high)
    return number(value) + ("" if DASH in bounds else f" [{', '.join(bounds)}]")


def charts(rows: Rows) -> list[Chart]:
    """Small pictures: rewards and truth over steps, logged scalars, and how rewards are distributed."""
    series = {"reward": rows.reward_N, "truth": rows.truth_N}
    series |= dict(list(rows.rewards.items())[:4])
    series |= {"length": rows.length_N, "advantage": rows.advantage_N}
    series |= {"truncated": None if rows.truncated_N is None else rows.truncated_N.astype(np.float64)}
    found = []
    if rows.step_N is not None:
        given = {name: values for name, values in series.items() if values is not None}
        curves = {name: means_by_step(rows.step_N, values) for name, values in given.items()}
        found = [Chart(name, curve_chart(name, *curve)) for name, curve in curves.items() if len(curve[0]) > 1]
    for name, (steps, values) in list(rows.curves.items())[:MAX_CURVES]:
        if name not in series and len(steps) > 1:
            keep = spread(len(steps), MAX_POINTS)
            found.append(Chart(name, curve_chart(name, steps[keep].astype(np.float64), values[keep], None)))
    if np.isfinite(rows.reward_N).any():
        found.append(Chart("distribution of rewards", histogram(rows.reward_N)))
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


def curve_chart(name: str, steps: Numbers, means: Numbers, half: Numbers | None) -> Markup:
    """A curve over training steps with its band."""
    known = np.isfinite(means)
    x, y = steps[known], means[known]
    if not len(x):
        return line_chart(Box(360, 220, (0, 1), (0, 1)), [], title=name, x_label="step", y_label="")
    spare = np.zeros(len(x)) if half is None else half[known]
    box = Box(360, 220, x=_widened(x.min(), x.max()), y=_widened((y - spare).min(), (y + spare).max()))
    edges = () if half is None else tuple(zip(x.tolist(), (y - spare).tolist(), (y + spare).tolist(), strict=True))
    line = Line("", 1, tuple(zip(x.tolist(), y.tolist(), strict=True)), edges)
    return line_chart(box, [line], title=f"{name} over steps", x_label="step", y_label="")


def histogram(values_N: Numbers) -> Markup:
    """How many rows have which reward."""
    values = values_N[np.isfinite(values_N)]
    counts, edges = np.histogram(values, bins=BINS, range=_widened(values.min(), values.max()))
    box = Box(360, 220, x=(edges[0], edges[-1]), y=(0, float(counts.max())), margin=(14, 20, 40, 52))
    body = [
        bar(box, (edges[i], edges[i + 1]), (0, n), 1, f"{n:,} rows from {edges[i]:.3g} to {edges[i + 1]:.3g}")
        for i, n in enumerate(counts.tolist()) if n
    ]  # fmt: skip
    frame = axes(box, x_label="reward", y_label="rows")
    return svg(box.width, box.height, frame + "".join(body), title="distribution of rewards", classes="chart")


def _widened(low: float, high: float) -> tuple[float, float]:
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(high) + 0.5)
