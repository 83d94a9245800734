"""Marks of a judge, or of any other reward model of text, for a random sample of a log's rows.

    second = judge_sample(rows, "rubric.toml", {"max_usd": 5}, most=400, seed=0)

The sample is scored as `guerdon score` scores a file: what it costs is logged before the first call, `max_usd` bounds
it, and replies are kept in `judge_cache`, so that an audit that is started again sends nothing again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from guerdon.atomic import write_bytes
from guerdon.audit.association import strata
from guerdon.audit.rows import Codes, Rows, Texts
from guerdon.audit.second import SecondReward, compared
from guerdon.episodes.row_files import json_line, numbered_rows
from guerdon.errors import DataError
from guerdon.evaluate.score_file import load_any_text_model, score_file


def judge_sample(rows: Rows, model: str, options: Mapping[str, Any], *, most: int, seed: int = 0) -> SecondReward:
    """A second reward of some rows of a log: the values of a model that reads their responses.

    Args:
        rows: of the log, with texts.
        model: as of `load_any_text_model`.
        options: more keys of the model, such as `judge.model` and `max_usd`.
        most: rows that are judged, at most.
        seed: of the sample.

    Raises:
        CheckpointError: as `load_any_text_model`.
        ConfigError: as `load_any_text_model`.
        DataError: the log has no responses, or none of them got a value.
    """
    if rows.texts is None:
        raise DataError(f"--judge {model}: this log, {rows.layout}, has no column of responses for it to read")
    judge, chosen_M = load_any_text_model(model, options=options), sampled(rows, rows.texts, most, seed)
    with TemporaryDirectory() as folder:
        asked, marked = Path(folder, "rows.jsonl"), Path(folder, "marked.jsonl")
        write_bytes(asked, b"".join(json_line(_question(rows.texts, m)) for m in chosen_M))
        score_file(asked, judge, marked, name=model, options=options)
        found = [row for _, row in numbered_rows(marked)]
    failed = Counter(str(row["reward_failure"]).partition(":")[0] for row in found if row["reward"] is None)
    why = ", ".join(f"{n} {reason}" for reason, n in failed.items())
    if failed.total() == len(found):
        raise DataError(f"--judge {model}: no row got a value: {why}")
    second_N = np.full(len(rows), np.nan)
    second_N[rows.texts.row_M[chosen_M]] = [np.nan if row["reward"] is None else row["reward"] for row in found]
    how = f"on {len(found):,} of {len(rows):,} rows, drawn at random in whole groups"
    how += f"; without a value: {why}" if why else ""
    return compared(rows, second_N, f"the marks of {Path(model).name}", how, seed=seed)


def sampled(rows: Rows, texts: Texts, most: int, seed: int) -> Codes:
    """Which texts are judged: groups (else prompts) in random order while they fit into `most` rows, the first cut."""
    known = np.flatnonzero(np.isfinite(rows.reward_N[texts.row_M]))
    of = rows.group_N if rows.group_N is not None else rows.prompt_N
    group = np.arange(len(known)) if of is None else strata(of[texts.row_M[known]])
    place = np.random.default_rng(seed).permutation(int(group.max(initial=-1)) + 1)[group]
    last = int(np.searchsorted(np.cumsum(np.bincount(place)), most, side="right"))
    return known[place < last] if last else known[place == 0][:most]


def _question(texts: Texts, m: int) -> dict[str, Any]:
    """A row of the sample as `score_file` reads it."""
    row: dict[str, Any] = {"prompt": texts.prompts[m], "response": texts.responses[m]}
    if texts.messages is not None:
        row = {"messages": texts.messages[m]}
    return row if texts.truths is None else {**row, "ground_truth": texts.truths[m]}
