"""Rewards beside the rows of a file: `guerdon score`.

A row has the columns of preferences, a response (`response`, `completion`, `answer` or `output`) or a list `responses`
to a `prompt` (or `question`), a conversation (`messages`), or the steps of a solution. It gets `reward`; of a pair
`reward_chosen` and `reward_rejected`; of several responses `rewards`, in their order. A value that is missing is null,
and `reward_failure` says why.

    model = load_any_text_model("runs/rm")
    print(score_file(Path("answers.jsonl"), model, Path("scored.jsonl"), name="runs/rm"))
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.atomic import sha256, write_bytes
from guerdon.episodes.chats import ChatError
from guerdon.episodes.preferences import is_preference, responses_in, solution_of
from guerdon.episodes.row_files import good_rows, json_line, write_parquet
from guerdon.episodes.solution_files import solutions_from_rows
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError
from guerdon.evaluate.scores import score_solutions, solution_value
from guerdon.labels.append_log import AppendLog
from guerdon.models.load import is_rubric, load_reward_model
from guerdon.models.text_load import load_text_model
from guerdon.progress import ProgressBar
from guerdon.settings.evaluate import Aggregation
from guerdon.types import Failure, RewardModel

_COLUMNS = ("reward", "reward_chosen", "reward_rejected", "rewards", "reward_failure")
_FACTORY = re.compile(r"(?!package:)\w+(\.\w+)*:\w+(\.\w+)*")


def load_any_text_model(path: str, *, options: Mapping[str, Any] | None = None, **how: Any) -> RewardModel:
    """A reward model of text by a folder, a hub id, the address of a server, `package.module:factory` or a rubric file.

    Args:
        path: where it is.
        options: of a rubric file the settings of the judge, of a factory its `params`.
        how: as of `load_text_model`.

    Raises:
        CheckpointError: as `load_text_model`.
        ConfigError: as `load_text_model` and `load_reward_model`; or options that would do nothing.
    """
    if is_factory(path):
        return load_reward_model(path, modality="text", params=dict(options or {}))
    if is_rubric(path):
        return load_reward_model("judge", path, **(options or {}))
    if options:
        raise ConfigError(f"{path}: options are of a judge's rubric file or of package.module:factory; remove them")
    return load_text_model(path, **how)


def is_factory(path: str) -> bool:
    """Whether it reads `package.module:factory`."""
    return _FACTORY.fullmatch(path) is not None


def check_files(source: Path, out: Path, *, only_failed: bool) -> None:
    """Refuse files that `score_file` would refuse before it reads them.

    Raises:
        DataError: as `score_file`.
    """
    if not source.is_file():
        raise DataError(f"{source}: there is no such file")
    if out.suffix.lower() != source.suffix.lower():
        raise DataError(f"{out}: rows are written in the format they came in; end it in {source.suffix}")
    if only_failed != out.exists():
        raise DataError(
            f"{out} does not exist; leave out --only-failed" if only_failed
            else f"{out} exists; remove it, or score its rows without a reward again with --only-failed"
        )  # fmt: skip


class _Item(NamedTuple):
    """Responses of a row, and in which columns their rewards stand: one value each, or a list."""

    responses: list[Solution | Failure]
    columns: tuple[str, ...]
    counts: tuple[int | None, ...]  # values of each column; None: one value, not in a list


def score_file(
    source: Path,
    model: RewardModel,
    out: Path,
    *,
    name: str,
    only_failed: bool = False,
    aggregation: Aggregation = "min",
    batch_size: int = 64,
) -> str:
    """Write the rows of a file with rewards beside them, in the format that they came in.

    What is scored is kept in a file next to `out` until all is, so that nothing is scored twice after a kill.

    Args:
        source: JSONL, JSON, Parquet, CSV or TSV.
        model: any reward model of text.
        out: the new file, with the ending of `source`.
        name: of the model, by which a resumed start is recognised.
        only_failed: score again the rows of `out` with a null reward; the others stay as they are.
        aggregation: of the values of steps.
        batch_size: rows per call of the model.

    Returns:
        What was done, for people.

    Raises:
        DataError: the file cannot be read, a row has nothing to score, `out` exists (or does not, with `only_failed`),
            or an unfinished start used another model or file.
    """
    part = out.with_name(f"{out.name}.part")
    check_files(source, out, only_failed=only_failed)
    given = out if only_failed else source
    rows = []
    for where, row in good_rows(given):
        if not isinstance(row, Mapping):
            raise DataError(f"{where}: a row must be a map of columns")
        rows.append((where, row))
    if not rows:
        raise DataError(f"{given}: there is no row in it")
    wanted = [k for k, (_, row) in enumerate(rows) if not only_failed or row.get("reward_failure")]
    items = {k: _item(rows[k][1], rows[k][0], f"{k}") for k in wanted}
    begun = {"source": sha256(given), "model": name, "aggregation": aggregation}
    with closing(AppendLog(part)) as log:
        if not log.rows:
            log.append(begun)
        elif log.rows[0] != begun:
            raise DataError(f"{part}: an unfinished start with another file, model or aggregation; finish or remove it")
        found: dict[int, dict[str, Any]] = {row["row"]: row["values"] for row in log.rows[1:]}
        rest = [k for k in wanted if k not in found]
        with closing(ProgressBar(len(wanted), what="rows scored", lines=10)) as bar:
            for start in range(0, len(rest), batch_size):
                batch = rest[start : start + batch_size]
                for k, values in zip(batch, _scored(model, [items[k] for k in batch], aggregation), strict=True):
                    log.append({"row": k, "values": values})
                    found[k] = values
                bar.advance(len(found), "")
        _write(out, given, [row for _, row in rows], found)
    part.unlink()
    failed = Counter(str(v["reward_failure"]).partition(":")[0] for v in found.values() if v["reward_failure"])
    why = f" ({', '.join(f'{n} {reason}' for reason, n in failed.most_common())})" if failed else ""
    return f"wrote {out}: {len(wanted)} of {len(rows)} rows scored, {failed.total()} with a missing reward{why}"


def responses_to_score(row: Mapping[str, Any], where: str, name: str) -> list[Solution | Failure]:
    """The responses of a row that `score_file` scores.

    Raises:
        DataError: there is none.
    """
    return _item(row, where, name).responses


def _item(row: Mapping[str, Any], where: str, name: str) -> _Item:
    """What is to be scored of a row."""
    prompt = next((row[key] for key in ("prompt", "question") if row.get(key) is not None), None)
    text = next((row[key] for key in ("response", "completion", "answer", "output") if row.get(key) is not None), None)
    several = row.get("responses")
    if is_preference(row) and several is None:
        responses, (better, worse) = responses_in(row, where, name)
        if row.get("chosen") is None:
            one = len(responses) == 1
            return _Item(responses, ("reward" if one else "rewards",), (None if one else len(responses),))
        counts = tuple(n if isinstance(row[key], list | tuple) and n > 1 else None
                       for key, n in (("chosen", better), ("rejected", worse)))  # fmt: skip
        return _Item(responses, ("reward_chosen", "reward_rejected"), counts)
    if several is not None and prompt is not None and isinstance(several, list | tuple):
        texts = [one.get("response", one.get("text")) if isinstance(one, Mapping) else one for one in several]
        found = [_readable(prompt, one, f"{name}-{k}", row.get("tools")) for k, one in enumerate(texts)]
        return _Item(found, ("rewards",), (len(found),))
    if row.get("messages") is not None or (prompt is not None and text is not None):
        given = text if row.get("messages") is None else row["messages"]
        return _Item([_readable(prompt, given, name, row.get("tools"))], ("reward",), (None,))
    for _, solution in solutions_from_rows([(where, row)], name):
        if isinstance(solution, Solution):
            return _Item([solution], ("reward",), (None,))
    raise DataError(
        f"{where}: nothing to score, found {', '.join(map(str, row))[:200]}; a row needs prompt and response (or "
        "responses), messages, chosen and rejected, or another layout of docs/preferences.md"
    )


def _readable(prompt: Any, given: Any, name: str, tools: Any) -> Solution | Failure:
    try:
        return solution_of(prompt, given, name, tools)
    except ChatError as error:
        return error.failure


def _scored(model: RewardModel, items: Sequence[_Item], aggregation: Aggregation) -> list[dict[str, Any]]:
    """The new columns of each item."""
    solutions = [one for item in items for one in item.responses if isinstance(one, Solution)]
    scores = iter(score_solutions(model, solutions, batch_size=max(len(solutions), 1)))
    found = []
    for item in items:
        values = [
            one if isinstance(one, Failure) else solution_value(next(scores), aggregation) for one in item.responses
        ]
        why = next((f"{v.reason}: {v.detail}" for v in values if isinstance(v, Failure)), None)
        rewards = iter(None if isinstance(v, Failure) else v for v in values)
        row: dict[str, Any] = {
            column: next(rewards) if n is None else [next(rewards) for _ in range(n)]
            for column, n in zip(item.columns, item.counts, strict=True)
        }
        found.append({**row, "reward_failure": why})
    return found


def _write(out: Path, given: Path, rows: Sequence[Mapping[str, Any]], found: Mapping[int, Mapping[str, Any]]) -> None:
    """The rows with their new columns, in one piece."""
    whole = [{**row, **found.get(k, {})} for k, row in enumerate(rows)]
    names = [name for name in _COLUMNS if any(name in row for row in whole)]
    ending = out.suffix.lower()
    if ending == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(given)
        table = table.drop_columns([name for name in names if name in table.column_names])
        for name in names:
            column = [row.get(name) for row in whole]
            numbers = pa.list_(pa.float64()) if any(isinstance(v, list) for v in column) else pa.float64()
            table = table.append_column(name, pa.array(column, pa.string() if name == "reward_failure" else numbers))
        write_parquet(out, table)
    elif ending in (".csv", ".tsv"):
        text = io.StringIO()
        columns = [*dict.fromkeys(key for row in rows for key in row if key not in names), *names]
        writer = csv.DictWriter(text, columns, delimiter="," if ending == ".csv" else "\t", lineterminator="\n")
        writer.writeheader()
        for row in whole:
            writer.writerow({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()})
        write_bytes(out, text.getvalue().encode())
    elif ending == ".json":
        write_bytes(out, (json.dumps(whole, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode())
    else:
        write_bytes(out, b"".join(map(json_line, whole)))
