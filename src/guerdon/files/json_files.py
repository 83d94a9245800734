"""JSON files of runs and jobs, which a kill may have cut off or a user may have edited.

rows, broken = read_lines(Path("runs/study/runs/task/arm/seed0/metrics.jsonl"))
card = read_json(Path("runs/study/study.json"))             # None where it is absent or broken
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects of a JSONL file and the count of lines that were not one. No file: no lines."""
    if not path.is_file():
        return [], 0
    found = [_json_object(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    rows = [row for row in found if row is not None]
    return rows, len(found) - len(rows)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file is absent, broken or not an object."""
    try:
        return _json_object(path.read_bytes())
    except OSError:
        return None


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        content = _DECODER.decode(data.decode(json.detect_encoding(data), "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as a line of JSON; half of a surrogate pair, which UTF-8 cannot encode, is written as an escape."""
    try:
        return _ENCODER.encode(row).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row, allow_nan=False).encode() + b"\n"
