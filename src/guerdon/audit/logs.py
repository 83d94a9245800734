"""Logs of rewards as `Rows`.

    rows = read_log(Path("rollouts/"), columns={"reward": "final_score"})
    print(rows.layout, len(rows), rows.bad)
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json

from guerdon.audit.rows import Codes, Flags, Numbers, Rows, Texts
from guerdon.errors import DataError

NAMES: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt", "input", "question", "query", "instruction", "problem"),
    "response": ("response", "completion", "output", "generation", "answer"),
    "reward": ("reward", "score", "total_reward"),
    "truth": ("truth", "is_correct", "correct", "acc", "accuracy", "success", "is_success"),
    "step": ("step", "global_step", "training_step"),
    "group": ("group", "group_id", "prompt_id", "uid"),
    "length": ("response_length", "completion_tokens", "num_tokens"),
    "truncated": ("truncated", "is_truncated"),
    "failed": ("failed",),
    "advantage": ("advantage", "advantages"),
    "reference": ("ground_truth", "gts", "reference", "target"),
}
_ENDINGS = (".jsonl", ".parquet", ".csv")


def read_log(path: Path, *, columns: Mapping[str, str] = {}, sample: int = 50_000, seed: int = 0) -> Rows:
    """The rows of a log.

    Args:
        path: a file or a folder of files.
        columns: names of columns by what they hold, where they are not recognised.
        sample: rows whose texts are kept, at most.
        seed: of the sample.

    Raises:
        DataError: there is no log, or it has no reward.
    """
    files = sorted(p for p in path.rglob("*") if p.suffix in _ENDINGS) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise DataError(f"{path}: no log found; looked for {', '.join(_ENDINGS)}")
    columns_of: dict[str, array[float]] = {name: array("d") for name in NAMES if name not in ("prompt", "response")}
    prompts: list[str] = []
    responses: list[str] = []
    references: list[str] = []
    others: dict[str, array[float]] = {}
    file_N, line_N = array("q"), array("q")
    bad: Counter[str] = Counter()
    seen: set[str] = set()
    for number, file in enumerate(files):
        for line, row in _rows(file):
            if not isinstance(row, Mapping):
                bad["not a row of columns"] += 1
                continue
            key = {what: _key(what, row, columns) for what in NAMES}
            if key["reward"] is None:
                raise DataError(f"{file}: no reward column among {', '.join(row)}; pass --columns reward=NAME")
            seen.update(what for what, name in key.items() if name)
            file_N.append(number)
            line_N.append(line)
            for what, values in columns_of.items():
                if what != "reference":
                    values.append(_number(row.get(key[what])) if key[what] else np.nan)
            prompts.append(str(row.get(key["prompt"]) or "") if key["prompt"] else "")
            responses.append(str(row.get(key["response"]) or "") if key["response"] else "")
            references.append(str(row.get(key["reference"]) or "") if key["reference"] else "")
            used = set(key.values())
            for name, value in row.items():
                if name not in used and re.search("reward|score", name) and isinstance(value, int | float):
                    known = others.setdefault(name, array("d"))
                    known.extend([np.nan] * (len(file_N) - 1 - len(known)))
                    known.append(float(value))
    n = len(file_N)
    arrays: dict[str, Numbers] = {what: np.asarray(v, float) for what, v in columns_of.items() if what in seen}
    codes = np.array([int.from_bytes(hashlib.blake2b(p.encode(), digest_size=7).digest()) for p in prompts], np.int64)
    prompt_N: Codes | None = np.unique(codes, return_inverse=True)[1] if "prompt" in seen else None
    step_N = arrays["step"].astype(np.int64) if "step" in arrays else None
    group_N, grouped_by = None, ""
    if "group" in arrays:
        group_N, grouped_by = np.unique(arrays["group"], return_inverse=True)[1], "the column of groups"
    elif prompt_N is not None and n:
        new = np.diff(prompt_N, prepend=-1) != 0
        if step_N is not None:
            new |= np.diff(step_N, prepend=step_N[0]) != 0
        group_N, grouped_by = np.cumsum(new) - 1, "adjacent rows of one prompt"
    row_M = np.arange(n)
    if n > sample:
        chosen = np.random.default_rng(seed).choice(n, sample, replace=False)
        row_M = np.sort(chosen)
    texts = Texts(
        row_M, [prompts[k] for k in row_M], [responses[k] for k in row_M],
        truths=[references[k] for k in row_M] if "reference" in seen else None,
    )  # fmt: skip
    length_N = arrays.get("length", np.array([len(r) for r in responses], float))

    def flags(name: str) -> Flags | None:
        return arrays[name] > 0 if name in arrays else None

    return Rows(
        layout="plain columns", files=tuple(str(f.relative_to(path) if path.is_dir() else f.name) for f in files),
        file_N=np.asarray(file_N, np.int64), line_N=np.asarray(line_N, np.int64), reward_N=arrays["reward"],
        rewards={k: np.r_[np.asarray(v), np.full(n - len(v), np.nan)] for k, v in others.items()},
        truth_N=arrays.get("truth"), step_N=step_N, prompt_N=prompt_N, group_N=group_N, grouped_by=grouped_by,
        length_N=length_N, truncated_N=flags("truncated"), failed_N=flags("failed"),
        advantage_N=arrays.get("advantage"), texts=texts if "response" in seen else None, bad=dict(bad),
    )  # fmt: skip


def _key(what: str, row: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
    return columns.get(what) or next((name for name in NAMES[what] if name in row), None)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _rows(file: Path) -> Iterator[tuple[int, Any]]:
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq

        number = 0
        for batch in pq.ParquetFile(file).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
    elif file.suffix == ".csv":
        with file.open(newline="") as lines:
            yield from enumerate(csv.DictReader(lines), start=2)
    else:
        with file.open("rb") as raw:
            for number, line in enumerate(raw, start=1):
                try:
                    yield number, from_json(line)
                except ValueError:
                    try:
                        yield number, json.loads(line)
                    except ValueError:
                        yield number, None
