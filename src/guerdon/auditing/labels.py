"""Labels that people gave to the rows of a log with `guerdon annotate`, as marks that stand for its truth.

marks = read_marks(rows, Path("rollouts.labels"))
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np

from guerdon.auditing.rows import Rows
from guerdon.auditing.second import SecondReward, compared
from guerdon.errors import DataError
from guerdon.reading.containers import file_rows

LABELS = "labels.jsonl"
"""File with the labels of all kinds but episodes."""
_OF_EPISODES = "labels"  # the data set with those of episodes


def content_id(*texts: str) -> str:
    """The name of an item by its texts: equal texts have equal names."""
    lengths = ",".join([str(len(text)) for text in texts])
    data = "\n".join((lengths, *texts)).encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=8).hexdigest()


def read_marks(rows: Rows, folder: Path, *, seed: int = 0) -> SecondReward:
    """The labels of a folder as a second reward of a log.

    Args:
        rows: of the log that was labelled, with texts.
        folder: that `guerdon annotate` wrote.
        seed: of the bootstrap of the figures of agreement.

    Raises:
        DataError: there are no labels of responses, none is of a row of this log, or the log has no responses.
    """
    file = folder / LABELS
    if not file.is_file():
        has_episodes = (folder / _OF_EPISODES / "meta" / "info.json").is_file()
        then = f"; labels of episodes are columns of a data set: audit {folder / _OF_EPISODES}" if has_episodes else ""
        raise DataError(f"--labels {folder}: it has no {LABELS}{then}; guerdon annotate LOG --export writes it")
    if rows.texts is None:
        raise DataError(f"--labels {folder}: this log, {rows.layout}, has no responses that could be labelled")
    place = {
        int(row): content_id(prompt, response)
        for row, prompt, response in zip(rows.texts.row_M, rows.texts.prompts, rows.texts.responses, strict=True)
    }
    label_N, other = np.full(len(rows), np.nan), 0
    for _, record in file_rows(file):
        label = record.get("oracle_label") if isinstance(record, dict) else None
        if label is None:
            continue
        row = record.get("row")
        if place.get(row) == str(record.get("item")).partition("-")[0]:
            label_N[row] = label
        else:
            other += 1
    known = int(np.isfinite(label_N).sum())
    if not known:
        why = f"; {other:,} are of other rows or of rows that have changed" if other else ""
        raise DataError(f"--labels {folder}: no row of this log has a label{why}")
    how = f"{known:,} of {len(rows):,} rows" + (f"; {other:,} labels are of rows that have changed" if other else "")
    return compared(rows, label_N, "the labels of people", how, seed=seed)
