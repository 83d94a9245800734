"""The rows of a file with columns of rewards: `guerdon score`.

A row has the columns of preferences, a response (`response`, `completion`, `answer` or `output`) or a list `responses`
to a `prompt` (or `question`), a conversation (`messages`), or the steps of a solution. It gets `reward`; of a pair
`reward_chosen` and `reward_rejected`; of several responses `rewards`, in their order. A value that is missing is null,
and `reward_failure` says why.

    model = load_any_text_model("runs/rm")
    print(score_file(Path("answers.jsonl"), model, Path("scored.jsonl"), name="runs/rm"))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.episodes import rollout_logs as logs
from guerdon.episodes.preferences import PROMPTS, is_preference, prompt_of, read_response, responses_in
from guerdon.episodes.solution_files import solutions_from_rows
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError, boundary
from guerdon.evaluation.scoring.rewritten import write_rows
from guerdon.files.append_log import AppendLog
from guerdon.files.atomic import sha256
from guerdon.models.judges.judge import JudgeModel
from guerdon.models.judges.rubric import REFERENCE, RUBRIC
from guerdon.models.load import JUDGE, TEXT, is_factory, is_rubric, load_reward_model
from guerdon.models.scores import score_solutions, solution_value
from guerdon.plan.estimate import readable
from guerdon.processes.progress import ProgressBar, log_line
from guerdon.reading.containers import endings, parts_of
from guerdon.settings.evaluate import Aggregation
from guerdon.types import Failure, RewardModel

_COLUMNS = ("reward", "reward_chosen", "reward_rejected", "rewards", "reward_failure", logs.RESCORED, logs.FAILURE)


def load_any_text_model(path: str, *, options: Mapping[str, Any] | None = None, **how: Any) -> RewardModel:
    """A reward model of text by a folder, a hub id, the address of a server, `package.module:factory` or a rubric file.

    Args:
        path: where it is.
        options: more keys of `reward.model`; of a factory its `params`. A judge without a rubric file is `judge`.
        how: as of `load_text_model`.

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


class _Item(NamedTuple):
    """Responses of a row, and in which columns their rewards stand: one value each, or a list."""

    responses: list[Solution | Failure]
    columns: tuple[str, ...]
    counts: tuple[int | None, ...]  # values of each column; None: one value, not in a list


def score_file(
    file: Path,
    model: RewardModel,
    out: Path,
    *,
    name: str,
    options: Mapping[str, Any] | None = None,
    only_failed: bool = False,
    aggregation: Aggregation = "min",
    batch_size: int = 64,
    dry_run: bool = False,
) -> str:
    """Write the rows of a file with columns of rewards, in the format that they came in.

    What is scored is kept in a file next to `out` until all is, so that nothing is scored twice after a kill. What a
    judge costs is logged before it is called. A model that compares responses gets all rows of a prompt together.

    Args:
        file: JSONL, JSON, Parquet, CSV or TSV.
        model: any reward model of text.
        out: the new file, with the ending of `file`.
        name: of the model, by which a resumed start is recognised, with its options.
        options: of the model.
        only_failed: score again the rows of `out` with a null reward; the others stay as they are.
        aggregation: of the values of steps.
        batch_size: rows per call of the model.
        dry_run: score and write nothing.

    Returns:
        What was done, for people; with `dry_run` what it would cost.

    Raises:
        DataError: the file cannot be read, a row has nothing to score, `out` exists (or does not, with `only_failed`),
            or an unfinished start used another model or file.
    """
    part = out.with_name(f"{out.name}.part")
    check_files(file, out, only_failed=only_failed)
    given = out if only_failed else file
    rows, counts = _rows(given)
    failed = [k for k, (_, row) in enumerate(rows) if not only_failed or _why_failed(row)]
    if model.info.compares:
        items = {k: _item(row, where, f"{k}") for k, (where, row) in enumerate(rows)}
        wanted = _with_their_prompt(items, failed)
    else:
        items = {k: _item(rows[k][1], rows[k][0], f"{k}") for k in failed}
        wanted = failed
    cost = _cost(model, [items[k] for k in wanted])
    if dry_run:
        return "\n".join([*cost, f"{len(wanted)} of {len(rows)} rows would be scored"])
    for line in cost:
        log_line(line)
    begun = {"source": sha256(given), "model": name, "aggregation": aggregation} | _identity(name, options or {})
    asked = {k: items[k] for k in wanted}
    found = _scored_rows(asked, model, part, begun, aggregation=aggregation, batch_size=batch_size)
    whole = [_rescored(row, found[k]) if k in found else row for k, (_, row) in enumerate(rows)]
    write_rows(out, given, whole, counts, [name for name in _COLUMNS if any(name in row for row in whole)])
    part.unlink()
    return _summary(f"wrote {out}: {len(wanted)} of {len(rows)} rows scored", found.values())


def _summary(done: str, found: Iterable[Mapping[str, Any]]) -> str:
    """What was done, with how many rows have no reward and why."""
    lost = Counter(str(why).partition(":")[0] for values in found if (why := _why_failed(values)))
    done = f"{done}, {lost.total()} with a missing reward"
    if not lost:
        return done
    reasons = ", ".join(f"{n} {reason}" for reason, n in lost.most_common())
    return f"{done} ({reasons}); --only-failed scores them again"


def _rows(given: Path) -> tuple[list[tuple[str, Mapping[str, Any]]], list[int]]:
    """The rows of a file, each with its place for error messages, and how many each of its parts has."""
    rows, counts = list[tuple[str, Mapping[str, Any]]](), list[int]()
    for part in parts_of(given):
        before = len(rows)
        for number, row in part.rows(kept=True):
            if isinstance(row, DataError):
                raise row
            if not isinstance(row, Mapping):
                raise DataError("a row must be a map of columns", where=part.place(number))
            rows.append((part.place(number), row))
        counts.append(len(rows) - before)
    if not rows:
        raise DataError("there is no row in it", where=given)
    return rows, counts


def _scored_rows(
    items: Mapping[int, _Item],
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
    return row.get(logs.FAILURE) or (None if logs.RESCORED in row else row.get("reward_failure"))


_ELSEWHERE = {  # options that change no value: where a model is, and how fast or expensive
    "max_usd", "cache_dir", "device", "micro_batch_size", "base_url", "api_key_env", "concurrency",
    "requests_per_minute", "retries", "timeout", "usd_per_million_in", "usd_per_million_out",
}  # fmt: skip


def _identity(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model's options decides its values; and of a rubric file its content."""

    def kept(given: Any) -> Any:
        return {k: kept(v) for k, v in given.items() if k not in _ELSEWHERE} if isinstance(given, Mapping) else given

    found = {"options": kept(options)} if kept(options) else {}
    return {**found, "rubric": sha256(Path(name))} if is_rubric(name) else found


def _cost(model: RewardModel, items: Sequence[_Item]) -> list[str]:
    """What the calls of a judge cost, in lines."""
    if not isinstance(model, JudgeModel):
        return []
    solutions = [one for item in items for one in item.responses if isinstance(one, Solution) and one.steps]
    return readable(model.cost([one.as_episode() for one in solutions]))


def _prompts(items: Mapping[int, _Item]) -> dict[int, str]:
    """The prompt of each row; a row of its own where it cannot be read."""
    firsts = {k: next((s for s in item.responses if isinstance(s, Solution)), None) for k, item in items.items()}
    return {k: f"row {k}" if one is None else one.asked for k, one in firsts.items()}


def _with_their_prompt(items: Mapping[int, _Item], chosen: Sequence[int]) -> list[int]:
    """The chosen rows, and all others to the same prompts."""
    prompts = _prompts(items)
    asked = {prompts[k] for k in chosen}
    return [k for k in items if prompts[k] in asked]


def _batches(items: Mapping[int, _Item], rows: Sequence[int], size: int, *, whole: bool) -> list[list[int]]:
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


def responses_to_score(row: Mapping[str, Any], where: str, name: str) -> list[Solution | Failure]:
    """The responses of a row that `score_file` scores.

    Raises:
        DataError: there is none.
    """
    return _item(row, where, name).responses


_REFERENCES = (REFERENCE, "reference_answer", "reference")  # columns of the true answer


def _item(row: Mapping[str, Any], where: str, name: str) -> _Item:
    """What is to be scored of a row, with the rubric and the true answer that it has for its prompt."""
    found = _responses(row, where, name)
    truth = next((row[key] for key in _REFERENCES if row.get(key) is not None), None)
    own = {RUBRIC: row.get(RUBRIC), REFERENCE: truth}
    meta = {key: value for key, value in own.items() if value not in (None, "", [])}
    known = [replace(s, meta={**s.meta, **meta}) if isinstance(s, Solution) else s for s in found.responses]
    return found._replace(responses=known)


_ANSWERS = ("response", "completion", "answer", "output")  # columns of a response


def _responses(row: Mapping[str, Any], where: str, name: str) -> _Item:
    layout = logs.layout_of(row)
    if layout.name != logs.PLAIN:
        with boundary(DataError, f"{where}: not like {layout.name}"):
            found = [_logged(one, layout, f"{name}-{k}") for k, one in enumerate(layout.rows(row))]
        return _Item(found, (logs.RESCORED,), (None if layout.rescored is None else len(found),))
    item = _plain_responses(row, where, name)
    kept = item.columns == ("reward",) and row.get("reward") is not None and "reward_failure" not in row
    return item._replace(columns=(logs.RESCORED,)) if kept or logs.RESCORED in row else item


def _logged(row: Mapping[str, Any], layout: logs.LogLayout, name: str) -> Solution | Failure:
    """The response of a row of a log, with the true answer that it has."""
    columns = logs.columns_of(row, layout, {})
    asked, said = logs.turns_of(row, columns)
    if said is None or said == []:
        return Failure("no_value", "the log has no response")
    found, truth = read_response(asked, said, name, {}), row.get(columns.keys.get("reference", ""))
    return found if truth is None or isinstance(found, Failure) else replace(found, meta={REFERENCE: truth})


def _plain_responses(row: Mapping[str, Any], where: str, name: str) -> _Item:
    prompt = prompt_of(row)
    text = next((row[key] for key in _ANSWERS if row.get(key) is not None), None)
    several = row.get("responses")
    if several is None and is_preference(row):
        return _preference(row, where, name)
    if prompt is not None and isinstance(several, list | tuple):
        return _listed(prompt, several, name, row)
    if row.get("messages") is not None:
        return _one_response(read_response(prompt, row["messages"], name, row))
    if prompt is not None and text is not None:
        return _one_response(read_response(prompt, text, name, row))
    for _, solution in solutions_from_rows([(where, row)], name):
        if isinstance(solution, Solution):
            return _one_response(solution)
    missing = _missing(row)
    if missing is not None:
        return missing
    raise DataError(
        f"nothing to score, found {', '.join(map(str, row))[:200]}; a row needs prompt and response (or "
        "responses), messages, chosen and rejected, or another layout of docs/preferences.md",
        where=where,
    )


def _one_response(found: Solution | Failure) -> _Item:
    return _Item([found], ("reward",), (None,))


def _listed(prompt: Any, several: Sequence[Any], name: str, row: Mapping[str, Any]) -> _Item:
    """Several responses to a prompt, each a text or a map with it."""
    texts = [one.get("response", one.get("text")) if isinstance(one, Mapping) else one for one in several]
    found = [read_response(prompt, text, f"{name}-{k}", row) for k, text in enumerate(texts)]
    return _Item(found, ("rewards",), (len(found),))


def _missing(row: Mapping[str, Any]) -> _Item | None:
    """The responses of a row that has the columns of a pair or of one response, and nulls in them."""
    if {"chosen", "rejected"} <= row.keys():
        lost = Failure("no_value", "chosen or rejected is null")
        return _Item([lost, lost], ("reward_chosen", "reward_rejected"), (None, None))
    if "messages" in row or (row.keys() & set(_ANSWERS) and row.keys() & set(PROMPTS)):
        return _one_response(Failure("no_value", "the prompt or the response is null"))
    return None


def _preference(row: Mapping[str, Any], where: str, name: str) -> _Item:
    """The responses of a comparison: a better and a worse one or several of each, or a list with ratings."""
    responses, (better, worse) = responses_in(row, where, name)
    if row.get("chosen") is None:
        if len(responses) == 1:
            return _Item(responses, ("reward",), (None,))
        return _Item(responses, ("rewards",), (len(responses),))
    listed = [isinstance(row[key], list | tuple) and n > 1 for key, n in (("chosen", better), ("rejected", worse))]
    counts = (better if listed[0] else None, worse if listed[1] else None)
    return _Item(responses, ("reward_chosen", "reward_rejected"), counts)


def _scored(model: RewardModel, items: Sequence[_Item], aggregation: Aggregation) -> list[dict[str, Any]]:
    """The new columns of each item."""
    solutions = [one for item in items for one in item.responses if isinstance(one, Solution)]
    scores = iter(score_solutions(model, solutions, batch_size=max(len(solutions), 1)))
    found = []
    for item in items:
        values = [
            one if isinstance(one, Failure) else solution_value(next(scores), aggregation) for one in item.responses
        ]
        why = next((str(v) for v in values if isinstance(v, Failure)), None)
        rewards = iter(None if isinstance(v, Failure) else v for v in values)
        row: dict[str, Any] = {}
        for column, n in zip(item.columns, item.counts, strict=True):
            row[column] = next(rewards) if n is None else [next(rewards) for _ in range(n)]
        found.append({**row, logs.FAILURE if logs.RESCORED in row else "reward_failure": why})
    return found


def _rescored(row: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with its new rewards, where its layout has a place for them."""
    layout = logs.layout_of(row)
    if layout.rescored is None:
        return {**row, **new}
    return {**layout.rescored(row, new[logs.RESCORED]), logs.FAILURE: new[logs.FAILURE]}
