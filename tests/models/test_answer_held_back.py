"""Outputs of judges that were labelled and committed before the parser was run on them (rules: answer_outputs.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from answer_forms import parse_choice, parse_completed, parse_number

from guerdon.types import Failure

TABLE = Path(__file__).with_name("answer_outputs_held_back.jsonl")
CLEAR_SHARE = 0.95


def read_value(row: dict[str, Any]) -> float | str | None:
    """What the parser reads, whether `ok` or `fallback`; None where it refuses."""
    if row["asked"] == "trend":
        trend = parse_choice(row["output"], "trend", {word: word for word in ("positive", "negative", "unclear")})
        return None if isinstance(trend, Failure) else trend.value
    if row["asked"] == "completed":
        answer = parse_completed(row["output"])
    else:
        answer = parse_number(row["output"], scale=row["scale"], prompt_scale=row["scale"])
    return None if isinstance(answer, Failure) else answer.value


def same(value: float | str, expected: float | str | None) -> bool:
    if isinstance(value, str) or isinstance(expected, str) or expected is None:
        return value == expected
    return abs(value - expected) < 1e-9


def test_held_back_outputs() -> None:
    rows = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 160
    values = [read_value(row) for row in rows]
    pairs = list(zip(rows, values, strict=True))
    invented = [(row, value) for row, value in pairs if value is not None and not same(value, row["expected"])]
    clear = [(row, value) for row, value in pairs if row["clear"]]
    missed = [row for row, value in clear if value is None or not same(value, row["expected"])]
    report = "\n".join(
        [f"{len(invented)} invented, {len(clear) - len(missed)} of {len(clear)} clear outputs read"]
        + [f"invented {value!r}: {row}" for row, value in invented]
        + [f"missed: {row}" for row in missed]
    )
    assert not invented, report
    assert len(missed) <= (1 - CLEAR_SHARE) * len(clear), report
