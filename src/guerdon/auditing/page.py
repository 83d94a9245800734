"""The page of an audit: one HTML file that loads nothing, with findings, charts and a list of the rows.

write_page(Path("rollouts.audit.html"), rows, audit(rows), source="runs/rollouts")
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from markupsafe import Markup, escape

from guerdon.auditing.against import Against
from guerdon.auditing.course import MAX_POINTS, means_by_step
from guerdon.auditing.evidence import OF_RUNS
from guerdon.auditing.finding import SEVERITIES, Audit, Course
from guerdon.auditing.rows import Codes, Flags, Numbers, Rows, Texts
from guerdon.auditing.second import SecondReward
from guerdon.errors import DataError
from guerdon.files import atomic
from guerdon.pages.charts import Box, Line, axes, bar, limits, line_chart, spread, svg
from guerdon.pages.formats import DASH
from guerdon.pages.html_page import TEXTS, render
from guerdon.secrets import hide

# ---------------------------------------------------------------------------------------------------------------------
# The rows of a log for the list on the page: numbers as columns, texts in compressed parts.
#
# A part is JSON, compressed and in base64, inside a script element that browsers do not run: no text of a log is
# HTML. It is opened when one of its rows is looked at.
#
#     blocks = browser_blocks(rows, audit)                # of the bytes of the page, in order
# ---------------------------------------------------------------------------------------------------------------------


MAX_ROWS = 100_000  # on the page
MAX_TEXT = 100_000  # characters of one text
MAX_TEXTS = 160_000_000  # characters of all texts
MAX_TOKENS = 4_000  # of one response with a reward for each
MAX_REWARDS = 8  # further columns of rewards
PART = 250_000  # characters of a part before it is compressed


def shown_rows(rows: Rows, audit: Audit) -> Codes:
    """Numbers of the rows that the page lists, ascending: all, or those with texts and those of findings."""
    n = len(rows)
    if n <= MAX_ROWS:
        return np.arange(n)
    named = [np.array([*f.rows, *(row for row, _ in f.examples)], dtype=np.int64) for f in audit.findings]
    with_texts = np.zeros(0, np.int64) if rows.texts is None else rows.texts.row_M
    chosen = np.unique(np.concatenate([*named, with_texts]))
    rest = np.setdiff1d(np.random.default_rng(0).permutation(n)[: 2 * MAX_ROWS], chosen)
    return np.sort(np.concatenate([chosen, rest[: max(MAX_ROWS - len(chosen), 0)]]))


def columns(rows: Rows, shown_n: Codes, second_N: Numbers | None = None) -> dict[str, Numbers]:
    """What the list knows of these rows, by the names that the page's script uses."""
    given: dict[str, Numbers | Codes | Flags | None] = {
        "reward": rows.reward_N, "truth": rows.truth_N, "second": second_N, "step": rows.step_N, "group": rows.group_N,
        "length": rows.length_N, "truncated": rows.truncated_N, "failed": rows.failed_N, "advantage": rows.advantage_N,
        "file": rows.file_N, "line": rows.line_N,
    }  # fmt: skip
    if rows.steps is not None:
        given |= {"episode": rows.steps.episode_N, "frame": rows.steps.frame_N, "done": rows.steps.done_N}
    given |= {f"rewards/{name}": rows.rewards[name] for name in list(rows.rewards)[:MAX_REWARDS]}
    return {name: values[shown_n].astype(np.float64) for name, values in given.items() if values is not None}


def orders(found: Mapping[str, Numbers]) -> dict[str, tuple[Codes, int]]:
    """Places in ascending order by each key that the list can be sorted by, and how many of them have a value."""
    keys = {name: found[name] for name in ("reward", "length", "advantage") if name in found}
    for name in ("truth", "second"):
        if name in found:
            keys[f"reward-{name}"] = found["reward"] - found[name]
    return {name: (np.argsort(key, kind="stable"), int(np.sum(~np.isnan(key)))) for name, key in keys.items()}


def browser_blocks(
    rows: Rows, audit: Audit, second_N: Numbers | None = None, videos: Mapping[int, Any] = {}
) -> Iterator[bytes]:
    """The script elements that hold the rows: `about`, `columns`, and `part-0`, `part-1`, ... with texts.

    Args:
        rows: of the log.
        audit: whose rows are marked.
        second_N: another reward.
        videos: of each episode, as `page.Clip`.
    """
    shown_n = shown_rows(rows, audit)
    found = columns(rows, shown_n, second_N)
    sorted_by = orders(found)
    place_of_text = np.full(len(shown_n), np.nan)
    if rows.texts is not None:
        places = np.searchsorted(shown_n, rows.texts.row_M)
        place_of_text[places] = np.arange(len(places))
    found |= {"row": shown_n.astype(np.float64), "text": place_of_text}
    found |= {f"order/{name}": order.astype(np.float64) for name, (order, _) in sorted_by.items()}
    starts: list[int] = []
    parts: list[bytes] = []
    for start, part in [] if rows.texts is None else _parts(rows.texts):
        starts.append(start)
        parts.append(_block(f"part-{len(parts)}", part))
    about = {
        "rows": len(shown_n), "columns": list(found), "valued": {name: n for name, (_, n) in sorted_by.items()},
        "findings": [{"name": f.name, "rows": [*f.rows, *(row for row, _ in f.examples)]} for f in audit.findings],
        "notes": [[row, f.name, line] for f in audit.findings for row, line in f.examples],
        "files": list(rows.files), "videos": videos,
        "starts": starts, "texts": 0 if rows.texts is None else len(rows.texts.row_M),
    }  # fmt: skip
    yield _block("about", hide(json.dumps(about)).encode())
    yield _block("columns", b"".join(np.asarray(values, "<f8").tobytes() for values in found.values()))
    yield from parts


def _parts(texts: Texts) -> Iterator[tuple[int, bytes]]:
    """Which text a part begins with, and the part: a list of rows, as JSON without secrets."""
    limit = text_limit([len(text) for texts_M in (texts.prompts, texts.responses) for text in texts_M])
    start, size, part = 0, 0, list[str]()
    for m in range(len(texts.row_M)):
        line = json.dumps(_row_of(texts, m, limit), separators=(",", ":"))
        if part and size + len(line) > PART:
            yield start, hide(f"[{','.join(part)}]").encode()
            start, size, part = m, 0, []
        part.append(line)
        size += len(line)
    if part:
        yield start, hide(f"[{','.join(part)}]").encode()


def _row_of(texts: Texts, m: int, limit: int) -> dict[str, Any]:
    row: dict[str, Any] = {"prompt": cut(texts.prompts[m], limit), "response": cut(texts.responses[m], limit)}
    if texts.truths is not None and texts.truths[m]:
        row["truth"] = cut(texts.truths[m], limit)
    if texts.messages is not None and texts.messages[m]:
        row["messages"] = [[str(x.get("role", "")), cut(str(x.get("content", "")), limit)] for x in texts.messages[m]]
    if texts.tokens is not None and texts.token_rewards is not None and texts.token_rewards[m]:
        values = np.asarray(texts.token_rewards[m][:MAX_TOKENS], np.float64)
        row["tokens"] = [cut(token, 1000) for token in texts.tokens[m][:MAX_TOKENS]]
        row["values"] = [float(f"{value:.4g}") if np.isfinite(value) else None for value in values.tolist()]
        row["more"] = max(len(texts.tokens[m]) - MAX_TOKENS, 0)
    return row


def text_limit(lengths: Sequence[int]) -> int:
    """Characters to which each text is cut, so that all together stay below `MAX_TEXTS`."""
    sizes, limit = np.asarray(lengths), MAX_TEXT
    while limit > 100 and np.minimum(sizes, limit).sum() > MAX_TEXTS:
        limit = limit * 4 // 5
    return limit


def cut(text: str, limit: int) -> str:
    """A text of at most about `limit` characters: its beginning and its end, and between them a line that says so."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[{len(text) - head - tail:,} characters are left out on this page]\n{text[-tail:]}"


def _block(name: str, data: bytes) -> bytes:
    packed = base64.b64encode(gzip.compress(data, compresslevel=4, mtime=0))
    return b'<script type="application/octet-stream" id="%s">%s</script>\n' % (name.encode(), packed)


# ---------------------------------------------------------------------------------------------------------------------


TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = (TEXTS, "audit.js")
MAX_CURVES = 24  # of a log of scalars
BINS = 40
DOCUMENTATION = "https://guerdon.readthedocs.io/en/latest/"
_DOCUMENT = re.compile(r"\bdocs/([\w/-]+)\.md\b")
FAR_OUTSIDE = 0.1  # of 0 to 1, from which on curves are drawn apart
FAR = 1e100  # values of charts are cut here, so that their squares are finite
_BLOCKS = "<!-- rows -->"


def write_page(
    out: Path, rows: Rows, audit: Audit, second: SecondReward | None = None, against: Against | None = None, *,
    log: Path | None = None, every: float | None = None, run: str = "",
) -> Path:  # fmt: skip
    """Write the page of an audit, in one piece.

    Args:
        out: the file to write.
        rows: what was read.
        audit: what was found.
        second: another reward of the same rows.
        against: another run.
        log: where the rows are from.
        every: seconds after which a browser looks at the page again, as the log is still being written; None: never.
        run: its name, where the log holds several.

    Returns:
        The path written.

    Raises:
        OSError: it cannot be written.
    """
    title, videos = rows.layout, dict[int, list[Clip]]()
    if log is not None:
        title, videos = log.resolve().name, episode_videos(log, out)
    severities = Counter(finding.severity for finding in audit.findings)
    context = {
        "title": run or title, "generator": "guerdon audit", "rows": rows, "audit": audit,
        "second": second, "against": against, "media": bool(videos),
        "judged_as": "" if run else _judged_as(rows, log),
        "of_runs": OF_RUNS, "linked": linked, "every": every, "written": datetime.now(UTC),
        "charts": charts(rows), "how": _how(rows), "number": number, "bounded": bounded,
        "severe": [(severity, severities[severity]) for severity in SEVERITIES],
        **_course_context(rows, audit),
    }  # fmt: skip
    head, tail = render("audit.html.j2", context, TEMPLATES, SCRIPTS).split(_BLOCKS)
    blocks = browser_blocks(rows, audit, None if second is None else second.reward_N, videos)
    atomic.write_bytes(out, b"".join([_encoded(head), *blocks, _encoded(tail)]))
    return out


def _course_context(rows: Rows, audit: Audit) -> dict[str, Any]:
    """The charts of the course of a run, and one line on the whole audit that ends with the sentence about it."""
    description = f"{len(rows):,} rows: {audit.counted}"
    if audit.course is None:
        return {"course": [], "description": description}
    return {"course": course_charts(audit.course), "description": f"{description}. {audit.course.sentence}"}


def _judged_as(rows: Rows, log: Path | None) -> str:
    """What a command line of `guerdon annotate` calls a log; empty where it has nothing that people judge."""
    if log is None or (rows.texts is None and not (log / "meta" / "info.json").is_file()):
        return ""
    return shlex.quote(str(log))


def linked(text: str) -> Markup:
    """A text in which the names of documents, such as docs/gate.md, are links to their pages."""
    parts = _DOCUMENT.split(text)
    links = [
        f'<a href="{DOCUMENTATION}{part}.html">docs/{part}.md</a>' if k % 2 else escape(part)
        for k, part in enumerate(parts)
    ]
    return Markup("".join(links))  # noqa: S704 - names of documents are words, all else is escaped


def write_runs(out: Path, runs: Sequence[tuple[str, Rows, Audit, Path]], log: Path) -> None:
    """Write the page that lists the runs of a log: name, rows, audit and page of each.

    Raises:
        OSError: it cannot be written.
    """
    listed = [
        {
            "name": name, "rows": len(rows), "address": quote(os.path.relpath(page, out.parent)),
            "findings": [sum(one.severity == severity for one in audit.findings) for severity in SEVERITIES],
            "names": ", ".join(one.name for one in audit.findings),
            "course": "" if audit.course is None else audit.course.sentence,
        }
        for name, rows, audit, page in runs
    ]  # fmt: skip
    said = f"{len(runs)} runs, each with a page of its own"
    context = {
        "title": log.resolve().name, "generator": "guerdon audit", "description": said, "runs": listed,
        "severities": SEVERITIES,
    }  # fmt: skip
    atomic.write_bytes(out, _encoded(render("runs.html.j2", context, TEMPLATES, SCRIPTS)))


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
    files = ", ".join(rows.files[:8])
    if len(rows.files) > 8:
        files += f" and {len(rows.files) - 8:,} more"
    if files:
        how["files"] = files
    how["groups"] = rows.grouped_by or "none: checks within groups were not made"
    if rows.texts is not None:
        how |= _how_texts(rows.texts, len(rows))
    if len(rows) > MAX_ROWS:
        how["list of rows"] = f"{MAX_ROWS:,} of {len(rows):,}: those with texts and of findings, others at random"
    how["rows that could not be read"] = "none"
    bad = sum(rows.bad.values())
    if bad:
        reasons = "; ".join(f"{count:,} {why}" for why, count in rows.bad.items())
        how["rows that could not be read"] = f"{bad:,}: {reasons}"
    missing = int(np.isnan(rows.reward_N).sum())
    if missing:
        how["rows without a reward"] = f"{missing:,}"
    for i, note in enumerate(rows.notes):
        how[f"note {i + 1}"] = note
    return how


def _how_texts(texts: Texts, rows: int) -> dict[str, str]:
    """Of how many of the rows the texts were read, and how long they are on this page, in words."""
    m = len(texts.row_M)
    all_of = "all rows" if m == rows else f"a random sample of {m:,} rows; groups are whole"
    how = {"texts": f"of {all_of}; numbers are of all rows"}
    limit = text_limit([len(text) for text in (*texts.prompts, *texts.responses)])
    if limit < MAX_TEXT or max(map(len, texts.responses), default=0) > MAX_TEXT:
        how["length of texts"] = f"on this page texts are cut to {limit:,} characters; the checks read them in full"
        if limit != MAX_TEXT:
            how["length of texts"] += f" (all together are over {MAX_TEXTS:,})"
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


def course_charts(course: Course) -> list[tuple[str, Markup]]:
    """Reward and truth over the run: in one picture where both lie between 0 and 1, else below each other."""
    series = course.series
    ends = [end for _, means, half in series.values() for end in (*(means - half), *(means + half))]
    if len(series) == 2 and min(ends) >= -FAR_OUTSIDE and max(ends) <= 1 + FAR_OUTSIDE:
        lines = [_line(name, style, *one) for style, (name, one) in enumerate(series.items(), start=1)]
        steps = np.concatenate([one[0] for one in series.values()])
        box = Box(720, 260, x=limits(steps), y=limits(np.array(ends)))
        return [("", line_chart(box, lines, title="reward and truth over steps", x_label="step", y_label=""))]
    return [(name, curve_chart(name, *one)) for name, one in series.items()]


def _line(name: str, style: int, steps: Numbers, means: Numbers, half: Numbers) -> Line:
    """A curve with its band."""
    points = tuple(zip(steps.tolist(), means.tolist(), strict=True))
    band = tuple(zip(steps.tolist(), (means - half).tolist(), (means + half).tolist(), strict=True))
    return Line(name, style, points, band)


def curve_chart(name: str, steps: Numbers, means: Numbers, half: Numbers) -> Markup:
    """A curve over training steps with its band."""
    known = np.isfinite(means)
    x, y, spare = steps[known], means[known], half[known]
    box = Box(360, 220, x=limits(x), y=limits(np.concatenate([y - spare, y + spare])))
    return line_chart(box, [_line("", 1, x, y, spare)], title=f"{name} over steps", x_label="step", y_label="")


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
