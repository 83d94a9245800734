"""What is scored of each row of a file, and in which columns the rewards stand; decided once for the whole file.

responses_of = scored_responses(reading)
responses_of(row, "rows.jsonl:3", "2").found       # solutions, or why one cannot be read
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from guerdon.episodes.preferences import Given, LeftOut, given, read_response, text_in
from guerdon.episodes.solution_files import is_solution, solution_of
from guerdon.episodes.solutions import Solution
from guerdon.errors import DataError
from guerdon.models.judges.rubric import REFERENCE, RUBRIC
from guerdon.reading import nested
from guerdon.reading.chats import EMPTY_TURN, ChatError, asked_of, chat_messages, is_answered, turn_text, turns_of
from guerdon.reading.layouts import RowLayout
from guerdon.reading.nested import RESCORED
from guerdon.reading.plan import Plan
from guerdon.reading.reader import DataReading, NoValueError, Record
from guerdon.reading.roles import ASKED, Role, named
from guerdon.types import Failure, Message

_Row = Mapping[str, Any]
_NEEDED: tuple[Role, ...] = (
    *ASKED, "tools", "response", "responses", "chosen", "rejected", "first", "reference", "rubric"
)  # fmt: skip


class NothingToScoreError(DataError):
    """No column of a file is a response."""


class RowResponses(NamedTuple):
    """Responses of a row, and in which columns their rewards stand.

    Attributes:
        found: in the order of the row.
        columns: names.
        counts: values of each column; None: one value, not in a list.
    """

    found: list[Solution | Failure]
    columns: tuple[str, ...]
    counts: tuple[int | None, ...]


ResponsesOf = Callable[[_Row, str, str], RowResponses]
"""From a row, its place and its name to its responses."""


def scored_responses(reading: DataReading, *, turns: bool = False) -> ResponsesOf:
    """How the responses of the rows of a file are found.

    Args:
        reading: the file.
        turns: each turn of the assistant is a response, with what was said before it.

    Raises:
        DataError: a column could be two things.
        NothingToScoreError: no column is a response.
    """
    plan = reading.plan
    reading.need(*_NEEDED)
    if turns:
        if not plan.has("messages") and not (plan.has("prompt") and _has_response(plan)):
            raise NothingToScoreError(_refusal(reading), where=reading.data)
        return partial(_of_turns, reading)
    if plan.layout.whole is nested.oasst:
        rows = (row for part in reading.parts for _, row in part.rows())
        return partial(_of_message, nested.oasst_talks(rows))
    if plan.layout.whole is not None:
        raise NothingToScoreError(f"{plan.layout.name} hold a response over several rows", where=reading.data)
    if plan.layout.unwrap is nested.listed:
        return partial(_of_list, reading)
    if _is_log(plan.layout) and (_has_response(plan) or not reading.rows):
        return partial(_of_log, reading, several=plan.layout.rescored is not None or reading.several)
    if plan.has("chosen", "rejected") or plan.has("first", "second") or plan.has("responses"):
        return partial(_of_comparison, reading)
    if plan.layout.kind == "steps" or (_lists_steps(reading) and not plan.has("response")):
        return partial(_of_steps, reading)
    if _has_response(plan):
        logged = "reward" in reading.sketches and reading.sketches["reward"].filled > 0
        return partial(_of_one, reading, logged=logged)
    if _are_solutions(reading):
        return partial(_of_steps, reading)
    raise NothingToScoreError(_refusal(reading), where=reading.data)


def _is_log(layout: RowLayout) -> bool:
    """Whether rewards stand beside those of a log: its rows are nested, or all of its numbers are rewards."""
    return layout.kind == "log" and (layout.unwrap is not None or layout.parts != "named")


def _has_response(plan: Plan) -> bool:
    """Whether there is a response with what was asked, or a conversation that may end with one."""
    return plan.has("messages") or (plan.has("response") and any(plan.has(role) for role in ASKED if role != "system"))


def _lists_steps(reading: DataReading) -> bool:
    """Whether a column has the steps of a solution."""
    use = reading.plan.uses.get("steps")
    return use is not None and reading.sketches[use.column].is_list and _are_solutions(reading)


def _are_solutions(reading: DataReading) -> bool:
    """Whether rows are solutions in steps, by the columns of the first."""
    return is_solution(next(reading.records(), None))


def _refusal(reading: DataReading) -> str:
    """Why nothing can be scored, with the column that may hold the responses."""
    columns = [name for name in reading.sketches if "." not in name]
    near = next((name for name in named("response", columns) if reading.sketches[name].kinds["str"]), "")
    if near:
        meant = f"; {near} is taken for the true answer, if it holds the responses: --columns response={near}"
    else:
        meant = "; name the columns: --columns prompt=NAME,response=NAME"
    return (
        f"nothing to score, found {', '.join(columns)[:200]}; a row needs prompt and response (or responses), "
        f"messages, chosen and rejected, or another layout of docs/reading.md{meant}"
    )


# One row, by what the columns are.


def _of_one(reading: DataReading, row: _Row, where: str, name: str, *, logged: bool) -> RowResponses:
    """One response; where the file has rewards already, the new one stands beside it."""
    kept = RESCORED in row or (logged and "reward_failure" not in row)
    column = RESCORED if kept else "reward"
    record = next(iter(reading.records_in(row, where, name)), None)
    if record is None:
        return RowResponses([_NO_ROW], (column,), (None,))
    return RowResponses([_with_truth(_single(record, reading.plan), record)], (column,), (None,))


_NO_ROW = Failure("left_out", "the function of columns gives None")
_NO_VALUE = Failure("no_value", "the prompt or the response is null")


def _single(record: Record, plan: Plan) -> Solution | Failure:
    """The response of a row, which may be the end of a conversation."""
    try:
        found = given(record, plan)
    except (LeftOut, ChatError) as error:
        return _NO_VALUE if str(error) == _NO_VALUE.reason else _why(error)
    (said,) = found.responses
    if found.prompt is None and isinstance(said, str):
        return _NO_VALUE
    return read_response(turns_of(found.prompt), said, record.name, record.roles)


def _of_turns(reading: DataReading, row: _Row, where: str, name: str) -> RowResponses:
    """The turns of the assistant, calls of tools included; where a row has a response, those that are in it."""
    record = next(iter(reading.records_in(row, where, name)), None)
    found = _NO_ROW if record is None else turns_in(record)
    if isinstance(found, Failure):
        return RowResponses([found], ("rewards",), (None,))
    return RowResponses(found, ("rewards",), (len(found),))


def turns_in(record: Record) -> list[Solution | Failure] | Failure:
    """The turns of the assistant in order, each with what was said before it; why there is none."""
    said = record.roles.get("response")
    try:
        asked = _chat(asked_of(record.roles), "user")
        messages = asked + _chat(said, "assistant")
    except ChatError as error:
        return error.failure
    first = 0 if said is None else len(asked)
    found = list[Solution | Failure]()
    for k, message in enumerate(messages[first:], first):
        if message["role"] != "assistant":
            continue
        text = turn_text(message)
        if not text:
            found.append(EMPTY_TURN)
            continue
        found.append(_with_truth(read_response(messages[:k], text, f"{record.name}-{k}", record.roles), record))
    return found or Failure("no_turn", "there is no turn of the assistant")


def _chat(given: Any, role: str) -> list[Message]:
    """Messages as they are, a text as the one of a role, none of nothing.

    Raises:
        ChatError: they are none.
    """
    if given is None:
        return []
    return list(chat_messages([{"role": role, "content": given}] if isinstance(given, str) else given))


def _of_comparison(reading: DataReading, row: _Row, where: str, name: str) -> RowResponses:
    """A better and a worse response, two of them or a list; several records of a row one behind the other."""
    try:
        each = [_compared(record, reading.plan) for record in reading.records_in(row, where, name)]
    except NoValueError as error:
        return RowResponses([Failure("no_value", str(error))], ("rewards",), (None,))
    if not each:
        return RowResponses([_NO_ROW], ("rewards",), (None,))
    if len(each) == 1:
        return each[0]
    found = [response for one in each for response in one.found]
    return RowResponses(found, ("rewards",), (len(found),))


def _compared(record: Record, plan: Plan) -> RowResponses:
    try:
        found: Given | Failure = given(record, plan)
    except (LeftOut, ChatError) as error:
        found = _why(error)
    if plan.has("chosen", "rejected"):
        return _better_and_worse(record, found)
    if isinstance(found, Given):
        responses = _read(found, record)
        return RowResponses(responses, ("rewards",), (len(responses),))
    if plan.has("first", "second"):
        return RowResponses([found] * 2, ("rewards",), (2,))
    items = record.roles.get("responses")
    count = len(items) if isinstance(items, Sequence) and items and not isinstance(items, str) else None
    return RowResponses([found] * (count or 1), ("rewards",), (count,))


def _better_and_worse(record: Record, found: Given | Failure) -> RowResponses:
    columns = ("reward_chosen", "reward_rejected")
    if isinstance(found, Failure):
        lost = Failure("no_value", "chosen or rejected is null") if found == Failure("no_value") else found
        return RowResponses([lost, lost], columns, (None, None))
    responses = _read(found, record)
    better, worse = found.better, len(responses) - found.better
    counts = (_count(record.roles["chosen"], better), _count(record.roles["rejected"], worse))
    return RowResponses(responses, columns, counts)


def _count(cell: Any, n: int) -> int | None:
    return n if isinstance(cell, list | tuple) and n > 1 else None


def _read(found: Given, record: Record) -> list[Solution | Failure]:
    """The responses of a comparison."""
    asked = turns_of(found.prompt)
    return [
        _with_truth(read_response(asked, one, f"{record.name}-{k}", record.roles), record)
        for k, one in enumerate(found.responses)
    ]


def _of_log(reading: DataReading, row: _Row, where: str, name: str, *, several: bool) -> RowResponses:
    """The responses of a record of a log; of one without the columns of the others none.

    Raises:
        DataError: it has their columns, and is not like them otherwise.
    """
    missing = [key for key in reading.plan.layout.keys if "." not in key and key not in row]
    if missing:
        why = f"the row has no {', '.join(missing)}, and {reading.plan.layout.name} has them"
        return RowResponses([Failure("unlike_the_others", why)], ("reward",), (None,))
    try:
        records = reading.records_in(row, where, name)
    except NoValueError as error:
        return RowResponses([Failure("no_value", str(error))], (RESCORED,), (None,))
    found = [_logged(one._replace(name=f"{name}-{k}"), reading.plan) for k, one in enumerate(records)]
    if several:
        return RowResponses(found, (RESCORED,), (len(found),))
    return RowResponses(found or [Failure("no_value", "the log has no response")], (RESCORED,), (None,))


def _of_list(reading: DataReading, row: _Row, where: str, name: str) -> RowResponses:
    """A prompt with a list of responses and of rewards; rewards of `responses` are replaced, as in a copy of ours."""
    column = "rewards" if row.get("completions") is None else RESCORED
    try:
        records = reading.records_in(row, where, name)
    except DataError:
        return RowResponses([Failure("no_value", "there is no list of responses")], (column,), (None,))
    found = [_logged(one._replace(name=f"{name}-{k}"), reading.plan) for k, one in enumerate(records)]
    return RowResponses(found, (column,), (len(found),))


def _logged(record: Record, plan: Plan) -> Solution | Failure:
    """The response of a row of a log, which may be the end of a conversation."""
    try:
        asked = turns_of(asked_of(record.roles))
    except ChatError as error:
        return error.failure
    said = text_in(record.roles.get("response"))
    if not plan.has("response") and is_answered(asked):
        asked, said = asked[:-1], asked[-1:]
    if said is None or said == []:
        return Failure("no_value", "the log has no response")
    return _with_truth(read_response(asked, said, record.name, record.roles), record)


def _of_message(chats: Mapping[Any, Sequence[_Row]], row: _Row, where: str, name: str) -> RowResponses:
    """An answer in a tree of messages, to the conversation before it."""
    chat = chats.get(row.get("message_id"), ())
    found: Solution | Failure = Failure("no_response", "the message is none of the assistant, or was deleted")
    if is_answered(chat):
        found = read_response(None, chat, name, {})
    return RowResponses([found], ("reward",), (None,))


def _of_steps(reading: DataReading, row: _Row, where: str, name: str) -> RowResponses:
    """The steps of a solution, scored together."""
    why: DataError | None = None
    for record in reading.records_in(row, where, name):
        try:
            return RowResponses(
                [_with_truth(solution_of(record, reading.plan, labelled=False), record)], ("reward",), (None,)
            )
        except DataError as error:
            why = why or error
    return RowResponses([Failure("no_value", str(why or "the row has no steps"))], ("reward",), (None,))


def _why(error: LeftOut | ChatError) -> Failure:
    """Why a row is not scored."""
    if isinstance(error, ChatError):
        return error.failure
    reason = str(error)
    seen = reason.removeprefix("has_") if reason.startswith("has_") else ""
    return Failure(reason, f"the row has {seen}, and a model of text reads text alone" if seen else "")


def _with_truth(found: Solution | Failure, record: Record) -> Solution | Failure:
    """A response with the rubric and the true answer that its row has for its prompt."""
    if isinstance(found, Failure):
        return found
    own = {RUBRIC: record.roles.get("rubric"), REFERENCE: record.roles.get("reference")}
    meta = {key: value for key, value in own.items() if value not in (None, "", [])}
    return replace(found, meta={**found.meta, **meta}) if meta else found
