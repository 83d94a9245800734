"""The rows of a file with columns of rewards: `guerdon score`.

What a column is for is decided by `guerdon.reading` over the whole file. A row with one response gets `reward`; one
with a better and a worse response `reward_chosen` and `reward_rejected`; one with several `rewards`, in their order;
that of a log `guerdon_reward`. A value that is missing is null, and `reward_failure` says why. A judge with a rubric
also gives each criterion, as `reward.NAME`.

    model = load_any_text_model("runs/rm")
    print(score_file(Path("answers.jsonl"), model, Path("scored.jsonl"), name="runs/rm"))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError
from guerdon.evaluation.scoring.responses import RowResponses, scored_responses
from guerdon.evaluation.scoring.rewritten import write_rows
from guerdon.files.append_log import AppendLog
from guerdon.files.atomic import sha256
from guerdon.models.judges.judge import JudgeModel
from guerdon.models.load import JUDGE, TEXT, is_factory, is_rubric, load_reward_model
from guerdon.models.scores import score_solutions, solution_value
from guerdon.plan.estimate import readable
from guerdon.processes.progress import ProgressBar, log_line
from guerdon.reading.containers import endings, parts_of
from guerdon.reading.data_sets import held_part
from guerdon.reading.layouts import RowLayout
from guerdon.reading.nested import FAILURE, RESCORED, is_rescored
from guerdon.reading.reader import DataReading, read
from guerdon.reading.shown import shown_lines
from guerdon.settings.evaluate import Aggregation
from guerdon.types import Failure, RewardModel, Score

_COLUMNS = ("reward", "reward_chosen", "reward_rejected", "rewards", "reward_failure", RESCORED, FAILURE)
_Row = Mapping[str, Any]


def load_any_text_model(path: str, *, options: Mapping[str, Any] | None = None, **how: Any) -> RewardModel:
    """A reward model of text by a folder, a hub id, the address of a server, `package.module:factory` or a rubric file.

    Args:
        path: where it is.
        options: more keys of `reward.model`; of a factory its `params`. A judge without a rubric file is `judge`.
        how: see `load_text_model`.

    Raises:
        CheckpointError: as `load_text_model`.
        ConfigError: as `load_text_model` and `load_reward_model`; or options that would do nothing.
    """
    if is_factory(path):
        return load_reward_model(path, modality="text", params=dict(options or {}))
    if is_rubric(path):
        return load_reward_model(JUDGE, path, **(options or {}))
    if path == JUDGE and not Path(path).exists():
        return load_reward_model(JUDGE, **(options or {}))
    return load_reward_model(TEXT, path, **{**how, **(options or {})})


def check_files(file: Path, out: Path, *, only_failed: bool) -> None:
    """Refuse files that `score_file` would refuse before it reads them.

    Raises:
        DataError: as `score_file`.
    """
    if not file.is_file():
        raise DataError("there is no such file", where=file)
    wanted = endings(file.name)
    if endings(out.name) != wanted:
        raise DataError(f"rows are written in the format they came in; end it in {wanted}", where=out)
    if only_failed and not out.exists():
        raise DataError(f"{out} does not exist; leave out --only-failed")
    if not only_failed and out.exists():
        raise DataError(f"{out} exists; remove it, or score its rows without a reward again with --only-failed")


def score_file(
    file: Path,
    model: RewardModel,
    out: Path,
    *,
    name: str,
    options: Mapping[str, Any] | None = None,
    columns: str | Mapping[str, str] | None = None,
    only_failed: bool = False,
    aggregation: Aggregation = "min",
    batch_size: int = 64,
    dry_run: bool = False,
    turns: bool = False,
) -> str:
    """Write the rows of a file with columns of rewards, in the format that they came in.

    What is scored is kept in a file next to `out` until all is, so that nothing is scored twice after a kill. What a
    judge costs is logged before it is called. A model that compares responses gets all rows of a prompt together.

    Args:
        file: any that is read, also packed.
        model: any reward model of text.
        out: the new file, with the ending of `file`.
        name: of the model, by which a resumed start is recognised, with its options.
        options: of the model.
        columns: what columns are for, see `read`; those that a model of guerdon was trained on are known.
        only_failed: score again the rows of `out` with a null reward; the others stay as they are.
        aggregation: of the values of steps.
        batch_size: rows per call of the model.
        dry_run: score and write nothing.
        turns: score each turn of the assistant with what was said before it, as `rewards` in their order.

    Returns:
        What was done, for people; with `dry_run` what it would cost.

    Raises:
        ConfigError: as `read`.
        DataError: the file cannot be read, a column could be two things, `out` exists (or does not, with
            `only_failed`), or an unfinished start used another model or file.
        NothingToScoreError: no column is a response.
    """
    check_files(file, out, only_failed=only_failed)
    given = out if only_failed else file
    parts = _held(given)
    rows = [pair for part in parts for pair in part]
    reading = _read(given, parts, columns, trained_columns(model))
    chosen = list(range(len(rows)))
    if only_failed:
        chosen = [k for k in chosen if _why_failed(rows[k][1])]
    items, asked = _asked(reading, rows, chosen, compares=model.info.compares, turns=turns)
    for line in shown_lines(reading, **_used(items.values())):
        log_line(line)
    cost = _cost(model, asked.values())
    if dry_run:
        return "\n".join([*cost, f"{len(asked)} of {len(rows)} rows would be scored"])
    for line in cost:
        log_line(line)
    begun: dict[str, Any] = {"source": sha256(given), "model": name, "aggregation": aggregation}
    begun |= _identity(name, options or {}, columns)
    if turns:
        begun["turns"] = True
    unfinished = out.with_name(f"{out.name}.part")
    found = _scored_rows(asked, model, unfinished, begun, aggregation=aggregation, batch_size=batch_size)
    whole = [_rescored(row, found.get(k, {}), reading.plan.layout) for k, (_, row) in enumerate(rows)]
    write_rows(out, given, whole, [len(part) for part in parts], _written_columns(whole, found.values()))
    unfinished.unlink()
    return _summary(f"wrote {out}: {len(asked)} of {len(rows)} rows scored", found.values())


def _written_columns(rows: Sequence[_Row], found: Iterable[Mapping[str, Any]]) -> list[str]:
    """The columns of rewards that stand in the rows to write, those of criteria last."""
    written = set[str]().union(*rows)
    criteria = dict.fromkeys(name for values in found for name in values if "." in name)
    return [column for column in (*_COLUMNS, *criteria) if column in written]


def _asked(
    reading: DataReading,
    rows: Sequence[tuple[str, _Row]],
    chosen: Sequence[int],
    *,
    compares: bool,
    turns: bool,
) -> tuple[dict[int, RowResponses], dict[int, RowResponses]]:
    """The rows that are read, and those of them that are scored: all of a prompt where a model compares responses."""
    if turns and compares:
        raise ConfigError(
            "--turns: the model compares responses to one prompt, and turns have prompts of their own", key="--turns"
        )
    responses_of = scored_responses(reading, turns=turns)
    if not compares:
        items = {k: responses_of(rows[k][1], rows[k][0], f"{k}") for k in chosen}
        return items, items
    items = {k: responses_of(row, place, f"{k}") for k, (place, row) in enumerate(rows)}
    return items, {k: items[k] for k in _with_their_prompt(items, chosen)}


def _summary(done: str, found: Iterable[Mapping[str, Any]]) -> str:
    """What was done, with how many rows have no reward and why."""
    lost = Counter(str(why).partition(":")[0] for values in found if (why := _why_failed(values)))
    done = f"{done}, {lost.total()} with a missing reward"
    if not lost:
        return done
    reasons = ", ".join(f"{n} {reason}" for reason, n in lost.most_common())
    return f"{done} ({reasons}); --only-failed scores them again"


def _held(given: Path) -> list[list[tuple[str, _Row]]]:
    """The rows of each part of a file, with their places.

    Raises:
        DataError: one cannot be read or is no map of columns, or there is none.
    """
    parts = list[list[tuple[str, _Row]]]()
    for part in parts_of(given):
        parts.append([])
        for number, row in part.rows(kept=True):
            if isinstance(row, DataError):
                raise row
            if not isinstance(row, Mapping):
                raise DataError("a row must be a map of columns", where=part.place(number))
            parts[-1].append((part.place(number), row))
    if not any(parts):
        raise DataError("there is no row in it", where=given)
    return parts


def _read(
    given: Path,
    parts: Sequence[Sequence[tuple[str, _Row]]],
    columns: str | Mapping[str, str] | None,
    stored: Mapping[str, str] | None,
) -> DataReading:
    """What the columns of rows in memory are for."""
    held = [held_part(rows, str(given), f"{k}") for k, rows in enumerate(parts)]
    return read(str(given), columns=columns, stored=stored, parts=held)


def trained_columns(model: object) -> Mapping[str, str]:
    """What the columns of the data were for that a model of guerdon was trained on, as its card says."""
    training = getattr(getattr(model, "card", None), "training", None)
    found = training.get("columns") if isinstance(training, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _used(items: Iterable[RowResponses]) -> dict[str, Any]:
    """How many rows there are, how many have a response that can be scored, and by reason how many have none."""
    lost: Counter[str] = Counter()
    rows = used = 0
    for item in items:
        rows += 1
        failures = [one.reason for one in item.found if isinstance(one, Failure)]
        if len(failures) < len(item.found):
            used += 1
        elif failures:
            lost[failures[0]] += 1
    return {"rows": rows, "used": used, "left_out": lost}


def _scored_rows(
    items: Mapping[int, RowResponses],
    model: RewardModel,
    part: Path,
    begun: Mapping[str, Any],
    *,
    aggregation: Aggregation,
    batch_size: int,
) -> dict[int, dict[str, Any]]:
    """The new columns of each item; those that an unfinished start with the same `begun` kept are not scored again."""
    compares = model.info.compares
    with closing(AppendLog(part)) as log:
        if not log.rows:
            log.append(begun)
        elif log.rows[0] != begun:
            raise DataError(
                "an unfinished start with another file, model or aggregation; finish or remove it", where=part
            )
        found: dict[int, dict[str, Any]] = {row["row"]: row["values"] for row in log.rows[1:]}
        rest = [k for k in items if k not in found]
        if compares:
            rest = _with_their_prompt(items, rest)
        with closing(ProgressBar(len(items), what="rows scored", lines=10)) as bar:
            for batch in _batches(items, rest, batch_size, whole=compares):
                for k, values in zip(batch, _scored(model, [items[k] for k in batch], aggregation), strict=True):
                    log.append({"row": k, "values": values})
                    found[k] = values
                bar.advance(len(found), "")
    return found


def _why_failed(row: Mapping[str, Any]) -> Any:
    """Why a row has no reward; nothing where it has one."""
    return row.get(FAILURE) or (None if RESCORED in row else row.get("reward_failure"))


_ELSEWHERE = {  # options that change no value: where a model is, and how fast or expensive
    "max_usd", "cache_dir", "device", "micro_batch_size", "base_url", "api_key_env", "concurrency",
    "requests_per_minute", "retries", "timeout", "usd_per_million_in", "usd_per_million_out",
}  # fmt: skip


def _identity(name: str, options: Mapping[str, Any], columns: str | Mapping[str, str] | None) -> dict[str, Any]:
    """What decides the values of a model by name: some of its options, a rubric's content, what columns are for."""

    def kept(given: Any) -> Any:
        return {k: kept(v) for k, v in given.items() if k not in _ELSEWHERE} if isinstance(given, Mapping) else given

    rubric = sha256(Path(name)) if is_rubric(name) else None
    found = {"options": kept(options), "rubric": rubric, "columns": columns}
    return {key: value for key, value in found.items() if value}


def _cost(model: RewardModel, items: Iterable[RowResponses]) -> list[str]:
    """What the calls of a judge cost, in lines."""
    if not isinstance(model, JudgeModel):
        return []
    solutions = [one for item in items for one in item.found if isinstance(one, Solution) and one.steps]
    return readable(model.cost([one.as_episode() for one in solutions]))


def _prompts(items: Mapping[int, RowResponses]) -> dict[int, str]:
    """The prompt of each row; a row of its own where it cannot be read."""
    firsts = {k: next((s for s in item.found if isinstance(s, Solution)), None) for k, item in items.items()}
    return {k: f"row {k}" if one is None else one.asked for k, one in firsts.items()}


def _with_their_prompt(items: Mapping[int, RowResponses], chosen: Sequence[int]) -> list[int]:
    """The chosen rows, and all others to the same prompts."""
    prompts = _prompts(items)
    asked = {prompts[k] for k in chosen}
    return [k for k in items if prompts[k] in asked]


def _batches(items: Mapping[int, RowResponses], rows: Sequence[int], size: int, *, whole: bool) -> list[list[int]]:
    """Rows in batches of at least `size`, rows of one prompt together where they must be."""
    prompts = _prompts({k: items[k] for k in rows}) if whole else {}
    groups: dict[Any, list[int]] = {}
    for k in rows:
        groups.setdefault(prompts.get(k, k), []).append(k)
    found: list[list[int]] = []
    for group in groups.values():
        if not found or len(found[-1]) >= size:
            found.append([])
        found[-1] += group
    return found


def _scored(model: RewardModel, items: Sequence[RowResponses], aggregation: Aggregation) -> list[dict[str, Any]]:
    """The new columns of each item."""
    solutions = [one for item in items for one in item.found if isinstance(one, Solution)]
    scores = iter(score_solutions(model, solutions, batch_size=max(len(solutions), 1)))
    found = []
    for item in items:
        each = [Score(failure=one) if isinstance(one, Failure) else next(scores) for one in item.found]
        found.append(_new_columns(item, each, aggregation))
    return found


def _new_columns(item: RowResponses, scores: Sequence[Score], aggregation: Aggregation) -> dict[str, Any]:
    """The new columns of one item with a score for each of its responses."""
    values = [solution_value(score, aggregation) for score in scores]
    failures = [value for value in values if isinstance(value, Failure)]
    row = _in_columns(item, "", [None if isinstance(value, Failure) else value for value in values])
    criteria = [score.criteria or {} for score in scores]
    for name in dict.fromkeys(name for of_score in criteria for name in of_score):
        row |= _in_columns(item, f".{name}", [of_score.get(name) for of_score in criteria])
    column = FAILURE if RESCORED in row else "reward_failure"
    return {**row, column: str(failures[0]) if failures else None}


def _in_columns(item: RowResponses, end: str, values: Sequence[float | None]) -> dict[str, Any]:
    """A value of each response of an item by column, whose name has this end."""
    rest, columns = iter(values), [f"{column}{end}" for column in item.columns]
    counts = zip(columns, item.counts, strict=True)
    return {column: next(rest) if n is None else [next(rest) for _ in range(n)] for column, n in counts}


def _rescored(row: _Row, new: _Row, layout: RowLayout) -> _Row:
    """A row with its new rewards, where its layout has a place for them."""
    if layout.rescored is None or RESCORED not in new:
        return {**row, **new}
    for name in filter(is_rescored, new):
        row = layout.rescored(row, name, new[name])
    return {**row, FAILURE: new[FAILURE]}
