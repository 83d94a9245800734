"""The rows of a log for the list on the page: numbers as columns, texts in compressed parts.

A part is JSON, compressed and in base64, inside a script element that browsers do not run: no text of a log is HTML. It
is opened when one of its rows is looked at.

    blocks = browser_blocks(rows, audit)                # of the bytes of the page, in order
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from guerdon.audit.finding import Audit
from guerdon.audit.rows import Codes, Flags, Numbers, Rows, Texts
from guerdon.secrets import hide

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
